//! A fact that the caller may not read makes rules "not checked".

use super::check;
use super::snapshots::by_manifests;
use crate::doctor::facts::{Fact, Facts};

const REASON: &str = "cannot read: forbidden";

/// Name of a fact, and a function that hides it.
type Hider = (&'static str, fn(&mut Facts));

/// Returns a function for each fact that hides it, but for `proxies`: they matter without an operator only.
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
        webhook_ca,
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
