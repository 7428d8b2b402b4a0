//! States that look like a fault and are none, and faults beside such states.

use serde_json::{Value, json};

use super::snapshots::{by_manifests, controller, object, pod, without_host_network};
use super::{found, get, rules};
use crate::doctor::facts::{Certificates, Fact, Facts};
use crate::installation::Installation;

#[track_caller]
fn assert_passes(code: &str, facts: &Facts) {
    let findings = found(code, facts);
    assert!(findings.is_empty(), "{findings:?}");
}

/// Returns the command of the first finding.
fn command(code: &str, facts: &Facts) -> String {
    found(code, facts)[0].fix.command.clone().unwrap()
}

/// Returns facts with a Pod in a phase, and an Event about a Pod with the uid `uid-1`.
fn with_event(phase: &str, uid: &str, message: &str) -> Facts {
    let mut facts = by_manifests();
    let metadata = json!({"name": "training-worker-0-0", "namespace": "team", "uid": uid});
    let waiting = pod(&json!({"metadata": metadata, "status": {"phase": phase}}));
    facts.pods = Fact::Read(vec![object(waiting)]);
    facts.events = Fact::Read(vec![object(json!({
        "metadata": {}, "reason": "FailedCreatePodSandBox", "source": {"host": "node-a"}, "message": message,
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": "training-worker-0-0", "uid": "uid-1"},
    }))]);
    facts
}

#[test]
fn an_event_counts_for_a_pod_that_still_waits_for_a_plugin() {
    let missing = "failed to find plugin \"macvlan\" in path [/opt/cni/bin]";
    let exec = "fork/exec /opt/cni/bin/macvlan: no such file or directory";
    for message in [missing, exec] {
        assert_eq!(
            found("CniPluginMissing", &with_event("Pending", "uid-1", message)).len(),
            1,
            "{message}"
        );
    }
    let flannel = "loadFlannelSubnetEnv failed: open /run/flannel/subnet.env: no such file or directory";
    for (phase, uid, message) in [
        ("Running", "uid-1", missing),
        ("Pending", "uid-2", missing),
        ("Pending", "uid-1", flannel),
    ] {
        assert_passes("CniPluginMissing", &with_event(phase, uid, message));
    }
}

#[test]
fn a_log_counts_if_it_says_that_memory_could_not_be_locked() {
    let logged = |log: &str| {
        let mut facts = by_manifests();
        let failure = json!({"node": "node-a", "name": "w", "log": log, "time": "2026-11-25T11:55:00Z"});
        get(&mut facts.jobs)[0].first_failure = Ok(Some(object(failure)));
        facts
    };
    for log in ["RLIMIT_MEMLOCK: unlimited", "ibv_reg_mr ok\ncannot open file"] {
        assert_passes("MemlockLimitTooLow", &logged(log));
    }
    let failed = logged("start\nibv_reg_mr failed: ENOMEM\n");
    let actual = &found("MemlockLimitTooLow", &failed)[0].actual;
    assert!(actual.contains("5m ago: ibv_reg_mr failed: ENOMEM"), "{actual}");
    let mut of_other = failed;
    get(&mut of_other.installation).watch_namespaces = ["other".to_owned()].into();
    assert_passes("MemlockLimitTooLow", &of_other);
}

#[test]
fn a_node_without_a_controller_may_keep_an_empty_resource() {
    let mut facts = by_manifests();
    let node = &mut get(&mut facts.nodes)[0];
    node.metadata.labels = None;
    node.status = Some(object(json!({"allocatable": {"rdma/hca": "0"}})));
    assert_passes("RdmaUnavailable", &facts);
}

#[test]
fn a_finished_pod_needs_no_network_and_no_device() {
    let mut facts = without_host_network();
    get(&mut facts.pods)[0].status = Some(object(json!({"phase": "Failed"})));
    facts.attachments = Fact::Read(None);
    get(&mut facts.nodes)[0].status = None;
    assert_passes("NetworkAttachmentAbsent", &facts);
    assert_passes("RdmaUnavailable", &facts);
}

#[test]
fn a_host_name_is_no_error_of_tls() {
    let mut facts = by_manifests();
    let status = json!({
        "name": "vipu-tls.example.com:8090", "host": "vipu-tls.example.com",
        "error": "controller vipu-tls.example.com:8090 cannot be reached: connection refused",
    });
    facts.controllers = Fact::Read(vec![controller(status)]);
    assert_passes("ControllerTlsFailed", &facts);
    assert_eq!(found("ControllerUnreachable", &facts).len(), 1);
}

/// Returns facts with a quota and a LimitRange of the namespace `team`.
fn with_quota(quota: &Value, limit: &Value) -> Facts {
    let mut facts = by_manifests();
    let metadata = json!({"name": "compute", "namespace": "team"});
    facts.quotas = Fact::Read(vec![object(json!({"metadata": metadata, "spec": quota}))]);
    let range = json!({"metadata": metadata, "spec": {"limits": [limit]}});
    facts.limit_ranges = Fact::Read(vec![object(range)]);
    facts
}

#[test]
fn a_limit_range_covers_the_quotas_of_its_defaults() {
    let cpu = json!({"type": "Container", "default": {"cpu": "1"}});
    let memory = json!({"hard": {"limits.memory": "1Gi", "limits.cpu": "4"}});
    let findings = found("QuotaWithoutLimitRange", &with_quota(&memory, &cpu));
    assert!(
        findings[0]
            .actual
            .starts_with("limits limits.memory, and its LimitRanges"),
        "{findings:?}"
    );
    let request = json!({"type": "Container", "defaultRequest": {"cpu": "1"}});
    assert_eq!(
        found(
            "QuotaWithoutLimitRange",
            &with_quota(&json!({"hard": {"limits.cpu": "4"}}), &request)
        )
        .len(),
        1
    );
    for limit in [&cpu, &request] {
        assert_passes(
            "QuotaWithoutLimitRange",
            &with_quota(&json!({"hard": {"cpu": "4"}}), limit),
        );
    }
    let scope =
        json!({"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
    let scoped = json!({"hard": {"limits.memory": "1Gi"}, "scopeSelector": scope});
    assert_passes("QuotaWithoutLimitRange", &with_quota(&scoped, &cpu));
}

#[test]
fn a_bundle_is_not_checked_without_the_certificate_of_the_operator() {
    let rule = rules::all()
        .find(|rule| rule.code == "WebhookWrongBundle")
        .unwrap();
    for text in ["", "no certificate"] {
        let mut facts = by_manifests();
        facts.webhook_certificates = Fact::Read(Certificates {
            ca: text.into(),
            server: text.into(),
        });
        let reason = (rule.check)(&facts).unwrap_err();
        assert!(
            reason.contains("Secret ipu-operator-system/ipu-operator-admission"),
            "{reason}"
        );
        get(&mut facts.mutating)[0].webhooks[0].ca_bundle.clear();
        assert_eq!(found("WebhookWrongBundle", &facts).len(), 1);
    }
}

#[test]
fn the_launcher_image_has_the_tag_of_the_operator() {
    let image = |name: &str, tag: &str| {
        let mut facts = by_manifests();
        let mut operator = serde_json::to_value(&get(&mut facts.operators)[0]).unwrap();
        operator["spec"]["template"]["spec"]["containers"][0]["env"] = json!([
            {"name": "IPU_OPERATOR_LAUNCHER_IMAGE", "value": name},
            {"name": "IPU_OPERATOR_LAUNCHER_IMAGE_TAG", "value": tag},
        ]);
        Installation::new(&object(operator), None)
            .unwrap()
            .launcher_image
            .unwrap()
    };
    assert_eq!(
        image("registry:5000/ipu-launcher", "1.2"),
        "registry:5000/ipu-launcher:1.2"
    );
    assert_eq!(image("ipu-launcher:1.0", "1.2"), "ipu-launcher:1.0");
    assert_eq!(image("ipu-launcher", ""), "ipu-launcher");
}

#[test]
fn commands_for_manifests_keep_the_namespace_and_the_registry() {
    let mut facts = by_manifests();
    get(&mut facts.operators)[0].metadata.namespace = Some("ipu".into());
    let installation = get(&mut facts.installation);
    installation.namespace = "ipu".into();
    installation.registry = "registry.example.com/".into();
    facts.proxy = Fact::Read(None);
    facts.validating = Fact::Read(Vec::new());
    assert_eq!(
        command("ProxyNotReady", &facts),
        "sed 's/ipu-operator-system/ipu/;s|image: |image: registry.example.com/|;' deploy/kubernetes/proxy.yaml | \
         kubectl apply -n ipu -f -"
    );
    let webhooks = command("WebhookAbsent", &facts);
    assert!(
        webhooks.contains("deploy/kubernetes/webhooks.yaml | kubectl apply -n ipu -f - --selector"),
        "{webhooks}"
    );
    assert!(!webhooks.contains("apply -k"), "{webhooks}");
}
