//! Operators, proxies and ledgers that a user imitates in a namespace: no printed command acts for them.

use serde_json::json;

use super::snapshots::{by_manifests, large_phase, ledger, object};
use super::{found, get, only};
use crate::doctor::facts::{Fact, Facts};
use crate::installation::Installation;

const OWN: &str = "ipu-operator-system";

/// Returns a healthy installation beside an older imitation, a release of Helm without partitions.
fn with_imitation() -> Facts {
    let mut facts = by_manifests();
    let mut imitation = get(&mut facts.operators)[0].clone();
    imitation.metadata.namespace = Some("evil".into());
    imitation.metadata.creation_timestamp = Some(object(json!("2020-01-01T00:00:00Z")));
    imitation.metadata.annotations = Some(object(json!({"meta.helm.sh/release-name": "x"})));
    get(&mut facts.operators)[0].metadata.creation_timestamp = Some(object(json!("2026-01-01T00:00:00Z")));
    let proxy = get(&mut facts.proxy).clone();
    let other = Installation::new(&imitation, proxy.as_ref()).unwrap();
    get(&mut facts.operators).insert(0, imitation);
    get(&mut facts.others).push((other, Fact::Read(None)));
    get(&mut facts.namespaces).push(object(json!({"metadata": {"name": "evil"}})));
    facts
}

#[test]
fn an_imitation_is_removed_without_the_release_that_its_author_wrote() {
    let finding = only("InstallationsOverlap", &with_imitation());
    let command = finding.fix.command.unwrap();
    assert_eq!(
        command,
        "kubectl -n evil delete deployment ipu-operator-controller-manager"
    );
    assert!(
        finding
            .fix
            .note
            .unwrap()
            .contains("Run no `helm uninstall` there")
    );
}

#[test]
fn a_release_that_webhooks_lead_to_is_uninstalled_by_helm() {
    let mut facts = with_imitation();
    for configurations in [&mut facts.mutating, &mut facts.validating] {
        let configurations = get(configurations);
        let mut second = configurations[0].clone();
        second.name = "second-admission".into();
        let service = ("evil".into(), "svc".into(), "/".into());
        second
            .webhooks
            .iter_mut()
            .for_each(|webhook| webhook.service = Some(service.clone()));
        configurations.push(second);
    }
    // Now the newer one is the mistake.
    get(&mut facts.operators)[0].metadata.creation_timestamp = Some(object(json!("2026-02-01T00:00:00Z")));
    let finding = only("InstallationsOverlap", &facts);
    assert_eq!(finding.fix.command.unwrap(), "helm uninstall x --namespace evil");
}

#[test]
fn an_imitation_hides_neither_the_absent_operator_nor_a_namespace_without_one() {
    let mut facts = with_imitation();
    get(&mut facts.operators).retain(|operator| operator.metadata.namespace.as_deref() != Some(OWN));
    facts.installation = Fact::Hidden("no operator was found".into());
    let finding = only("OperatorAbsent", &facts);
    assert!(
        finding.actual.contains(&format!("absent in {OWN}")),
        "{finding:?}"
    );
    // The operator may also be in the other namespace, with misdirected webhooks.
    assert_eq!(finding.fix.command, None);
    assert!(finding.fix.note.unwrap().contains("--operator-namespace"));

    let mut facts = with_imitation();
    for operator in get(&mut facts.operators) {
        if operator.metadata.namespace.as_deref() == Some(OWN) {
            let spec = operator.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            spec.containers[0].env = Some(object(json!([
                {"name": "IPU_OPERATOR_WATCH_NAMESPACES", "value": "other"},
            ])));
        }
    }
    let finding = only("NamespaceNotWatched", &facts);
    assert!(finding.actual.contains("only evil/"), "{finding:?}");
    assert!(finding.fix.note.unwrap().contains("do not add"));
}

#[test]
fn a_webhook_of_a_namespace_that_is_gone_makes_no_operator_untrusted() {
    let mut facts = by_manifests();
    for configurations in [&mut facts.mutating, &mut facts.validating] {
        for webhook in get(configurations).iter_mut().flat_map(|one| &mut one.webhooks) {
            webhook.service = Some(("gone".into(), "svc".into(), "/".into()));
        }
    }
    assert!(facts.webhook_namespaces().is_empty());
    assert_eq!(found("OperatorAbsent", &facts), []);
}

#[test]
fn a_namespace_in_a_ledger_adds_no_command() {
    let mut facts = by_manifests();
    let job = json!({"namespace": "x;touch${IFS}/tmp/a;#", "name": "training", "uid": "u"});
    let owner = json!({"kind": "IPUJob", "job": job});
    facts.tracker = ledger("p-old-0", &json!({"owner": owner, "phase": large_phase()}));
    let command = only("LedgerNearlyFull", &facts).fix.command.unwrap();
    assert!(!command.contains("touch"), "{command}");
}
