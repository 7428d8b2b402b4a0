//! One planted fault for each rule.

use serde_json::{Value, json};

use super::snapshots::{
    by_manifests, certificate, certificate_of, controller, large_phase, ledger, object, owner, pod,
    without_host_network,
};
use super::{found, get};
use crate::doctor::facts::{Fact, Facts, MissingPermission};
use crate::doctor::rules;
use crate::installation::Installation;

/// Plants a fault into a healthy snapshot, and returns the code of its rule, and parts of its finding.
type Fault = fn(&mut Facts) -> (&'static str, &'static str, &'static str);

fn set_list(facts: &mut Facts, text: &str) {
    facts.controller_list = Fact::Read(Some(object(json!({"data": {"controllers.yaml": text}}))));
}

fn set_entry(facts: &mut Facts, fields: &Value) {
    facts.tracker = ledger("p-old-0", fields);
}

fn set_status(facts: &mut Facts, fields: Value) {
    facts.controllers = Fact::Read(vec![controller(fields)]);
}

/// Changes the Deployment of the operator.
fn change_operator(facts: &mut Facts, change: impl Fn(&mut Value)) {
    let operators = get(&mut facts.operators);
    let mut operator = serde_json::to_value(&operators[0]).unwrap();
    change(&mut operator);
    operators[0] = object(operator);
    let proxy = get(&mut facts.proxy).clone();
    facts.installation = Fact::Read(Installation::new(&operators[0], proxy.as_ref()).unwrap());
}

/// Gives the webhooks a certificate that another program makes, in a Secret without its CA.
pub(super) fn by_another_program(facts: &mut Facts) {
    let installation = get(&mut facts.installation);
    installation.mounted_secret = installation.webhook_secret.take();
    let certificates = get(&mut facts.webhook_certificates);
    certificates.server = std::mem::take(&mut certificates.ca);
}

const FAULTS: &[Fault] = &[
    |facts| {
        facts.crd = Fact::Read(None);
        ("CrdAbsent", "ipujobs.graphcore.ai", "absent")
    },
    |facts| {
        let crd = get(&mut facts.crd).as_mut().unwrap();
        let old = [("graphcore.ai/crd-version".to_owned(), "0.0.9".to_owned())];
        crd.metadata.annotations = Some(old.into());
        ("CrdOlder", "ipujobs.graphcore.ai", "version 0.0.9")
    },
    |facts| {
        get(&mut facts.crd).as_mut().unwrap().metadata.annotations = None;
        ("CrdOlder", "ipujobs.graphcore.ai", "without a version")
    },
    |facts| {
        get(&mut facts.operators).clear();
        ("OperatorAbsent", "Deployment", "absent")
    },
    |facts| {
        change_operator(facts, |operator| operator["status"] = json!({"readyReplicas": 0}));
        (
            "OperatorNotReady",
            "ipu-operator-controller-manager",
            "0 of 1 replicas",
        )
    },
    |facts| {
        facts.lease = Fact::Read(None);
        ("NoLeader", "ee82fc7a.graphcore.ai", "absent")
    },
    |facts| {
        let spec = json!({"holderIdentity": "operator-1", "renewTime": "2026-11-25T11:50:00.000000Z"});
        facts.lease = Fact::Read(Some(object(json!({ "spec": spec }))));
        (
            "NoLeader",
            "ee82fc7a.graphcore.ai",
            "last renewed at 2026-11-25T11:50:00Z",
        )
    },
    |facts| {
        get(&mut facts.proxy).as_mut().unwrap().status = None;
        ("ProxyNotReady", "ipu-operator-vipu-proxy", "0 of 1 replicas")
    },
    |facts| {
        change_operator(facts, |operator| {
            operator["spec"]["template"]["spec"]["containers"][0]["env"] =
                json!([{"name": "IPU_OPERATOR_WATCH_NAMESPACES", "value": "other"}]);
        });
        ("NamespaceNotWatched", "Namespace team", "no operator watches it")
    },
    |facts| {
        facts.proxy = Fact::Read(None);
        ("ProxyNotReady", "ipu-operator-vipu-proxy", "absent")
    },
    |facts| {
        // One finding for all rights of a role.
        let missing = ["create", "delete"].map(|verb| MissingPermission {
            account: "system:serviceaccount:ipu:operator".into(),
            namespace: Some("team".into()),
            verb,
            resource: "pods".into(),
        });
        get(&mut facts.missing_permissions).extend(missing);
        (
            "PermissionMissing",
            "system:serviceaccount:ipu:operator",
            "may not create pods, delete pods in team",
        )
    },
    |facts| {
        let mut second = get(&mut facts.operators)[0].clone();
        second.metadata.namespace = Some("second".into());
        get(&mut facts.operators).push(second);
        ("InstallationsOverlap", "second/", "all namespaces")
    },
    |facts| {
        facts.validating = Fact::Read(Vec::new());
        (
            "WebhookAbsent",
            "ValidatingWebhookConfiguration ipu-operator-admission",
            "absent",
        )
    },
    |facts| {
        get(&mut facts.mutating)[0].webhooks[0].service =
            Some(("ipu".into(), "old".into(), "/mutate".into()));
        (
            "WebhookMisdirected",
            "MutatingWebhookConfiguration",
            "Service ipu/old/mutate",
        )
    },
    |facts| {
        facts.webhook_service = Fact::Read(None);
        (
            "WebhookMisdirected",
            "MutatingWebhookConfiguration",
            "webhook-svc is absent",
        )
    },
    |facts| {
        get(&mut facts.mutating)[0].webhooks[0].ca_bundle.clear();
        (
            "WebhookWrongBundle",
            "MutatingWebhookConfiguration",
            "no certificate",
        )
    },
    |facts| {
        get(&mut facts.validating)[0].webhooks[0].ca_bundle = certificate(80);
        (
            "WebhookWrongBundle",
            "ValidatingWebhookConfiguration",
            "lacks the CA of",
        )
    },
    |facts| {
        let ca = certificate(10);
        get(&mut facts.mutating)[0].webhooks[0].ca_bundle = ca;
        (
            "WebhookCertificateExpires",
            "MutatingWebhookConfiguration",
            "ends at 2026-12-05",
        )
    },
    |facts| {
        by_another_program(facts);
        get(&mut facts.webhook_certificates).server = certificate(10);
        (
            "WebhookCertificateExpires",
            "Secret ipu-operator-system/ipu-operator-admission",
            "webhooks ends at 2026-12-05",
        )
    },
    |facts| {
        by_another_program(facts);
        get(&mut facts.mutating)[0].webhooks[0].ca_bundle = certificate_of("another CA", 80);
        (
            "WebhookWrongBundle",
            "MutatingWebhookConfiguration",
            "lacks the CA of",
        )
    },
    |facts| {
        let mut orphan = get(&mut facts.validating)[0].clone();
        orphan.name = "old-admission".into();
        orphan.webhooks[0].service = Some(("gone".into(), "webhook-svc".into(), "/validate".into()));
        get(&mut facts.validating).push(orphan);
        (
            "WebhookOrphaned",
            "ValidatingWebhookConfiguration old-admission",
            "namespace gone, which does not exist",
        )
    },
    |facts| {
        facts.controller_list = Fact::Read(None);
        ("ControllerListEmpty", "ipu-operator-vipu-controllers", "absent")
    },
    |facts| {
        set_list(facts, " ");
        ("ControllerListEmpty", "ipu-operator-vipu-controllers", "is empty")
    },
    |facts| {
        set_list(facts, "pod1:port:a=b");
        (
            "ControllerListMalformed",
            "ipu-operator-vipu-controllers",
            "pod1:port:a=b",
        )
    },
    |facts| {
        set_status(
            facts,
            json!({"error": "controller pod1:8090 cannot be reached: connection refused"}),
        );
        (
            "ControllerUnreachable",
            "controller pod1:8090",
            "connection refused",
        )
    },
    |facts| {
        set_status(
            facts,
            json!({"error": "cannot be reached: frame with invalid size"}),
        );
        (
            "ControllerTlsFailed",
            "controller pod1:8090",
            "frame with invalid size",
        )
    },
    |facts| {
        let error = "connection error: stream closed because of a broken pipe";
        set_status(facts, json!({ "error": error }));
        ("ControllerTlsFailed", "controller pod1:8090", "broken pipe")
    },
    |facts| {
        set_status(facts, json!({"available": true, "version": "nginx"}));
        ("ControllerVersionUnknown", "controller pod1:8090", "nginx")
    },
    |facts| {
        set_status(facts, json!({"available": true, "version": "2.0.0"}));
        ("ControllerVersionUnknown", "controller pod1:8090", "2.0.0")
    },
    |facts| {
        get(&mut facts.nodes)[0].metadata.labels = None;
        (
            "ControllerWithoutNode",
            "label ipunode=pod1",
            "no schedulable node",
        )
    },
    |facts| {
        facts.tracker = Fact::Read(None);
        (
            "LedgerAbsent",
            "ipu-operator-system/ipu-partitions-tracker",
            "absent",
        )
    },
    |facts| {
        set_entry(
            facts,
            &json!({"owner": owner("training", "uid-1"), "phase": large_phase()}),
        );
        ("LedgerNearlyFull", "ipu-partitions-tracker", "namespace team")
    },
    |facts| {
        set_entry(facts, &json!({"phase": {"is": "quarantined"}}));
        (
            "PartitionsQuarantined",
            "partition p-old-0",
            "quarantined at controller pod1:8090",
        )
    },
    |facts| {
        set_entry(
            facts,
            &json!({"owner": owner("old", "uid-0"), "since": 1_700_000_000_000_u64}),
        );
        (
            "PartitionsLeaked",
            "partition p-old-0",
            "active for IPUJob team/old",
        )
    },
    |facts| {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let namespace = json!({"metadata": {"name": "team", "labels": labels}});
        facts.namespaces = Fact::Read(vec![object(namespace)]);
        ("NamespaceRestricted", "Namespace team", "restricted")
    },
    |facts| {
        let quota = json!({"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"requests.memory": "1Gi"}}});
        facts.quotas = Fact::Read(vec![object(quota)]);
        ("QuotaWithoutLimitRange", "ResourceQuota team/q", "no LimitRange")
    },
    |facts| {
        let image = "registry.example.com/ipu-launcher:0.1.0";
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}});
        let status = json!({"name": "launcher", "image": image, "imageID": "", "ready": false, "restartCount": 0,
            "state": waiting});
        let pod = pod(&json!({
            "spec": {"initContainers": [{"name": "launcher", "image": image}], "containers": []},
            "status": {"phase": "Pending", "initContainerStatuses": [status]},
        }));
        facts.pods = Fact::Read(vec![object(pod)]);
        (
            "LauncherImagePullFailed",
            "image registry.example.com/ipu-launcher:0.1.0",
            "ImagePullBackOff: not found",
        )
    },
    |facts| {
        let failure = json!({"node": "node-a", "name": "training-worker-0-0", "log": "ibv_reg_mr: Cannot allocate memory"});
        get(&mut facts.jobs)[0].first_failure = Ok(Some(object(failure)));
        ("MemlockLimitTooLow", "node node-a", "ibv_reg_mr")
    },
    |facts| {
        *facts = without_host_network();
        facts.attachments = Fact::Read(Some(Vec::new()));
        ("NetworkAttachmentAbsent", "ipu/macvlan", "absent")
    },
    |facts| {
        *facts = without_host_network();
        facts.attachments = Fact::Read(None);
        (
            "NetworkAttachmentAbsent",
            "ipu/macvlan",
            "has no NetworkAttachmentDefinitions",
        )
    },
    |facts| {
        let event = json!({
            "metadata": {}, "reason": "FailedCreatePodSandBox", "source": {"host": "node-a"},
            "involvedObject": {"kind": "Pod", "namespace": "team", "name": "training-worker-0-0"},
            "message": "failed to find plugin \"macvlan\" in path [/opt/cni/bin]",
        });
        facts.events = Fact::Read(vec![object(event)]);
        facts.pods = Fact::Read(vec![object(pod(&json!({"status": {"phase": "Pending"}})))]);
        ("CniPluginMissing", "node node-a", "macvlan")
    },
    |facts| {
        *facts = without_host_network();
        let status = json!([{"interface": "eth0"}]).to_string();
        let annotations = get(&mut facts.pods)[0].metadata.annotations.as_mut().unwrap();
        annotations.insert("k8s.v1.cni.cncf.io/network-status".into(), status);
        ("SecondInterfaceMissing", "Pod team/training-worker-0-0", "eth0")
    },
    |facts| {
        let status = json!({"capacity": {"rdma/hca": "1k"}, "allocatable": {"rdma/hca": "0"}});
        get(&mut facts.nodes)[0].status = Some(object(status));
        ("RdmaUnavailable", "Node node-a", "nothing allocatable")
    },
    |facts| {
        *facts = without_host_network();
        get(&mut facts.nodes)[0].status = None;
        ("RdmaUnavailable", "resource rdma/hca", "no node has it")
    },
    |facts| {
        facts.now = "2026-11-25T12:01:00Z".parse().unwrap();
        ("ClockSkew", "this host", "60 s ahead of")
    },
    |facts| {
        let lease =
            json!({"metadata": {"name": "node-b"}, "spec": {"renewTime": "2026-11-25T12:00:30.000000Z"}});
        get(&mut facts.node_leases).push(object(lease));
        ("ClockSkew", "Node node-b", "30 s ahead of")
    },
];

#[test]
fn each_planted_fault_is_found_with_its_code_object_and_state() {
    for plant in FAULTS {
        let mut facts = by_manifests();
        let (code, object, actual) = plant(&mut facts);
        let findings = found(code, &facts);
        let [finding, ..] = findings.as_slice() else {
            panic!("{code} finds nothing");
        };
        assert!(finding.object.contains(object), "{code}: {finding:?}");
        assert!(finding.actual.contains(actual), "{code}: {finding:?}");
        assert!(
            !finding.expected.is_empty() && finding.fix.command.is_some(),
            "{code}: {finding:?}"
        );
    }
}

#[test]
fn each_rule_has_a_planted_fault() {
    let planted: Vec<&str> = FAULTS.iter().map(|plant| plant(&mut by_manifests()).0).collect();
    for rule in rules::all() {
        assert!(planted.contains(&rule.code), "{}", rule.code);
    }
}

#[test]
fn a_pod_without_network_status_is_not_checked() {
    let mut facts = without_host_network();
    let annotations = get(&mut facts.pods)[0].metadata.annotations.as_mut().unwrap();
    annotations.remove("k8s.v1.cni.cncf.io/network-status");
    let rule = rules::all()
        .find(|rule| rule.code == "SecondInterfaceMissing")
        .unwrap();
    let reason = (rule.check)(&facts).unwrap_err();
    assert!(
        reason.contains("no annotation k8s.v1.cni.cncf.io/network-status"),
        "{reason}"
    );
}
