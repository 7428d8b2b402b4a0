//! A fact that the caller may not read makes rules "not checked".

use serde_json::json;

use super::check;
use super::faults::by_another_program;
use super::snapshots::by_manifests;
use super::snapshots::object;
use crate::doctor::facts::{Fact, Facts};
use crate::installation::Installation;

const REASON: &str = "cannot read: forbidden";

/// Name of a fact, and a function that hides it.
type Hider = (&'static str, fn(&mut Facts));

/// Returns a function for each fact that hides it, but for `proxies` and `others`: they matter without an
/// operator, and with several ones.
fn hiders() -> Vec<Hider> {
    macro_rules! hide {
        ($($field:ident),* $(,)?) => {
            vec![$((stringify!($field), |facts: &mut Facts| facts.$field = Fact::Hidden(REASON.into()))),*]
        };
    }
    hide![
        api_time,
        operators,
        installation,
        proxy,
        crd,
        mutating,
        validating,
        webhook_service,
        webhook_certificates,
        lease,
        controller_list,
        controllers,
        tracker,
        jobs,
        pods,
        events,
        nodes,
        node_leases,
        namespaces,
        quotas,
        limit_ranges,
        attachments,
        missing_permissions,
    ]
}

#[test]
fn each_hidden_fact_makes_a_rule_unchecked_and_no_rule_finds_a_fault() {
    for (name, hide) in hiders() {
        let mut facts = by_manifests();
        hide(&mut facts);
        let report = check(&facts);
        assert!(!report.not_checked.is_empty(), "{name}");
        for unchecked in &report.not_checked {
            assert_eq!(unchecked.reason, REASON, "{name}: {}", unchecked.code);
        }
        assert!(report.findings.is_empty(), "{name}: {:?}", report.findings);
    }
}

#[test]
fn without_any_right_no_rule_passes() {
    let mut facts = by_manifests();
    for (_, hide) in hiders() {
        hide(&mut facts);
    }
    let report = check(&facts);
    assert_eq!((report.passed, report.findings.len()), (0, 0));
}

/// Returns the reasons of the rules that are not checked, and expects no finding.
fn unchecked(facts: &Facts) -> Vec<(&'static str, String)> {
    let report = check(facts);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let reasons = report.not_checked.into_iter();
    reasons
        .map(|unchecked| (unchecked.code, unchecked.reason))
        .collect()
}

#[test]
fn a_late_heartbeat_makes_the_clock_of_its_node_unchecked() {
    let mut facts = by_manifests();
    let lease = |time: &str| object(json!({"metadata": {"name": "node-1"}, "spec": {"renewTime": time}}));
    facts.node_leases = Fact::Read(vec![lease("2026-11-25T11:59:25.000000Z")]);
    assert_eq!(unchecked(&facts), []);
    facts.node_leases = Fact::Read(vec![lease("2026-11-25T11:59:19.000000Z")]);
    let reason = "the last heartbeat of Node node-1 is 41 s old: it is down, or its clock is behind";
    assert_eq!(unchecked(&facts), [("ClockSkew", reason.to_owned())]);
}

#[test]
fn an_unreadable_entry_of_the_ledger_makes_its_rules_unchecked() {
    let mut facts = by_manifests();
    facts.tracker = Fact::Read(Some(object(json!({"data": {"partition.p-old-0": "{"}}))));
    let reason = "entry p-old-0 of the ledger is unreadable";
    let expected = ["PartitionsQuarantined", "PartitionsLeaked"];
    assert_eq!(unchecked(&facts), expected.map(|code| (code, reason.to_owned())));
}

#[test]
fn an_unreadable_status_of_a_job_makes_its_rules_unchecked() {
    let mut facts = by_manifests();
    let Fact::Read(jobs) = &mut facts.jobs else {
        panic!("hidden");
    };
    jobs[0].first_failure = Err("invalid type".into());
    let [(code, reason)] = &unchecked(&facts)[..] else {
        panic!("one rule");
    };
    assert_eq!(*code, "MemlockLimitTooLow");
    assert!(
        reason.contains("team/training is unreadable: invalid type"),
        "{reason}"
    );
}

#[test]
fn a_certificate_of_another_program_is_compared_by_its_issuer() {
    let mut facts = by_manifests();
    by_another_program(&mut facts);
    assert_eq!(unchecked(&facts), []);
    facts.webhook_certificates = Fact::Read(crate::doctor::facts::Certificates::default());
    let reason = "Secret ipu-operator-system/ipu-operator-admission is absent, or has no certificate";
    let expected = ["WebhookWrongBundle", "WebhookCertificateExpires"];
    assert_eq!(unchecked(&facts), expected.map(|code| (code, reason.to_owned())));
}

#[test]
fn without_the_proxy_the_names_of_the_list_and_the_ledger_are_not_known() {
    let mut facts = by_manifests();
    let Fact::Read(installation) = &mut facts.installation else {
        panic!("hidden");
    };
    installation.proxy_account = None;
    for ledger in [facts.tracker.clone(), Fact::Read(None)] {
        facts.tracker = ledger;
        let unknown = |object: &str| {
            format!(
                "the Deployment ipu-operator-system/ipu-operator-vipu-proxy of the proxy was not found, so the \
                 name of the {object} is not known"
            )
        };
        let expected = [
            ("ControllerListEmpty", "list"),
            ("ControllerListMalformed", "list"),
            ("ControllerWithoutNode", "list"),
            ("LedgerAbsent", "ledger"),
            ("LedgerNearlyFull", "ledger"),
            ("PartitionsQuarantined", "ledger"),
            ("PartitionsLeaked", "ledger"),
            ("RdmaUnavailable", "list"),
        ];
        assert_eq!(
            unchecked(&facts),
            expected.map(|(code, object)| (code, unknown(object)))
        );
    }
}

#[test]
fn the_certificate_of_the_webhooks_is_in_the_secret_at_the_directory_of_the_flag() {
    let secret_at = |directory: &str| {
        let operator = object(json!({
            "metadata": {"name": "operator", "namespace": "ipu"},
            "spec": {"selector": {}, "template": {"spec": {
                "containers": [{
                    "name": "manager", "args": [format!("--webhook-cert-dir={directory}")],
                    "volumeMounts": [
                        {"name": "proxy", "mountPath": "/proxy"}, {"name": "webhooks", "mountPath": "/webhooks"},
                    ],
                }],
                "volumes": [
                    {"name": "proxy", "secret": {"secretName": "proxy-certificate"}},
                    {"name": "webhooks", "secret": {"secretName": "webhook-certificate"}},
                ],
            }}},
        }));
        Installation::new(&operator, None).unwrap().mounted_secret
    };
    assert_eq!(secret_at("/webhooks/").as_deref(), Some("webhook-certificate"));
    assert_eq!(secret_at("/elsewhere"), None);
}
