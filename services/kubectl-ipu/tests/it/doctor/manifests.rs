//! Several faults at once, several operators, and a caller without rights.

use ipu_test_cluster::{Cluster, private};
use serde_json::{Value, json};

use super::site::{Site, certificate};
use super::{assert_clean, codes, examine, fix, report};
use crate::harness::{DEPLOY, Run, apply, install_crd, program, run, set_status};

const JOB: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/kubernetes/training.yaml"
);

fn install(cluster: &Cluster) -> Site {
    install_crd(cluster);
    cluster
        .kubectl(&["apply", "-k", &format!("{DEPLOY}/kubernetes")])
        .unwrap();
    let site = Site::new("ipu-operator-system", "ipu-operator");
    site.settle(cluster);
    site
}

/// Submits a job in the namespace `team`. The webhooks lead nowhere here, so that they are absent meanwhile.
fn submit_job(cluster: &Cluster) {
    let webhooks = "mutatingwebhookconfiguration,validatingwebhookconfiguration";
    let read = ["get", webhooks, "ipu-operator-admission", "-o", "json"];
    let mut kept: Value = serde_json::from_str(&cluster.kubectl(&read).unwrap()).unwrap();
    cluster
        .kubectl(&["delete", webhooks, "ipu-operator-admission"])
        .unwrap();
    let submitted = run(cluster, &["-n", "team", "submit", JOB]);
    assert_eq!(submitted.code, 0, "{}", submitted.err);
    for item in kept["items"].as_array_mut().unwrap() {
        let metadata = item["metadata"].as_object_mut().unwrap();
        metadata.retain(|key, _| matches!(key.as_str(), "name" | "labels"));
    }
    apply(cluster, &kept);
}

#[test]
fn doctor_finds_several_faults_at_once() {
    let Some(cluster) = private("doctor_finds_several_faults_at_once") else {
        return;
    };
    let site = install(&cluster);
    let wrong = json!({"data": {"controllers.yaml": "vipu-server:port"}}).to_string();
    let list = site.name("vipu-controllers");
    site.kubectl(&cluster, &["patch", "configmap", &list, "-p", &wrong]);
    cluster
        .kubectl(&["delete", "clusterrolebinding", "ipu-operator-vipu-proxy"])
        .unwrap();
    let not_ready = json!({"status": {"readyReplicas": 0}});
    set_status(
        &cluster,
        site.namespace,
        "deployment/ipu-operator-vipu-proxy",
        &not_ready,
    );
    cluster.kubectl(&["create", "namespace", "team"]).unwrap();
    let level = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", "team", level]).unwrap();
    submit_job(&cluster);
    site.set_bundle(&cluster, &certificate());
    let entry = json!({
        "id": "p-lost-0", "spec": {"size": 4}, "phase": {"is": "quarantined"}, "controller": "pod1:8090",
        "ticket": 1, "since": 0,
    });
    site.set_tracker(&cluster, &json!({"partition.p-lost-0": entry.to_string()}));
    let quota = ["-n", "team", "create", "quota", "compute", "--hard=limits.cpu=8"];
    cluster.kubectl(&quota).unwrap();
    site.renew(&cluster);

    let planted = examine(&cluster);
    let expected = [
        "ProxyNotReady",
        "PermissionMissing",
        "WebhookWrongBundle",
        "ControllerListMalformed",
        "PartitionsQuarantined",
        "NamespaceRestricted",
        "QuotaWithoutLimitRange",
    ];
    assert_eq!(codes(&planted, "findings"), expected, "{planted:#}");
    let text = run(&cluster, &["doctor"]).out;
    assert!(
        text.contains("PartitionsQuarantined: partition p-lost-0\n  actual:   quarantined at"),
        "{text}"
    );
    assert!(
        text.contains("docs/reference/doctor.md#partitionsquarantined"),
        "{text}"
    );
    for code in [
        "PermissionMissing",
        "NamespaceRestricted",
        "QuotaWithoutLimitRange",
    ] {
        fix(&cluster, &planted, code, None);
    }
    let right = json!({"data": {"controllers.yaml": "vipu-server:8090:vipu-ctrl=vctl1"}}).to_string();
    site.kubectl(&cluster, &["patch", "configmap", &list, "-p", &right]);
    site.settle(&cluster);
    let tracker = [
        "patch",
        "configmap",
        site.tracker,
        "-p",
        r#"{"data": {"partition.p-lost-0": null}}"#,
    ];
    site.kubectl(&cluster, &tracker);
    assert_clean(&examine(&cluster), "mended");
}

#[test]
fn several_operators_are_an_overlap_and_commands_ask_for_one_of_them() {
    let name = "several_operators_are_an_overlap_and_commands_ask_for_one_of_them";
    let Some(cluster) = private(name) else {
        return;
    };
    let site = install(&cluster);
    cluster.kubectl(&["create", "namespace", "second"]).unwrap();
    for name in ["controller-manager", "vipu-proxy"].map(|suffix| site.name(suffix)) {
        let copy = site.kubectl(&cluster, &["get", "deployment", &name, "-o", "json"]);
        let mut copy: Value = serde_json::from_str(&copy).unwrap();
        let labels = copy["metadata"]["labels"].take();
        copy["metadata"] = json!({"name": name, "namespace": "second", "labels": labels});
        apply(&cluster, &copy);
    }

    let cordon = run(&cluster, &["cordon", "a1", "--reason", "fan"]);
    assert_eq!(cordon.code, 64, "{}", cordon.err);
    assert!(
        cordon
            .err
            .contains("in the namespaces ipu-operator-system, second: choose one"),
        "{}",
        cordon.err
    );
    let one = ["--operator-namespace", site.namespace, "doctor", "-o", "json"];
    let one = report(&run(&cluster, &one));
    assert_eq!(codes(&one, "findings"), ["InstallationsOverlap"], "{one:#}");
    // An operator without the right to see the other one does not pass the rule.
    let rule = json!({"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "get"]});
    apply(
        &cluster,
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [rule],
            "metadata": {"name": "deployments", "namespace": site.namespace},
        }),
    );
    let user = cluster.user("of-one-namespace", &[]).unwrap();
    let bind = [
        "create",
        "rolebinding",
        "deployments",
        "--role=deployments",
        "--user=of-one-namespace",
    ];
    site.kubectl(&cluster, &bind);
    let arguments = ["--operator-namespace", site.namespace, "doctor", "-o", "json"];
    let limited = report(&program(&user, &arguments).output().unwrap().into());
    assert!(
        codes(&limited, "notChecked").contains(&"InstallationsOverlap"),
        "{limited:#}"
    );

    fix(&cluster, &one, "InstallationsOverlap", None);
    assert_clean(&examine(&cluster), "one operator");
}

#[test]
fn no_rule_passes_for_a_caller_without_rights() {
    let Some(cluster) = private("no_rule_passes_for_a_caller_without_rights") else {
        return;
    };
    install(&cluster);
    let without_rights = cluster.user("without-rights", &[]).unwrap();
    let blind: Run = program(&without_rights, &["doctor", "-o", "json"])
        .output()
        .unwrap()
        .into();
    assert_eq!(blind.code, 77, "{}", blind.err);
    let blind = report(&blind);
    assert_eq!(
        (blind["passed"].as_u64(), codes(&blind, "findings").len()),
        (Some(0), 0),
        "{blind:#}"
    );
    let reason = blind["notChecked"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("forbidden"), "{blind:#}");
}

#[test]
fn an_unreachable_api_server_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "down",
        "clusters": [{"name": "down", "cluster": {"server": format!("http://{port}")}}],
        "users": [{"name": "down", "user": {}}],
        "contexts": [{"name": "down", "context": {"cluster": "down", "user": "down"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let down: Run = program(&kubeconfig, &["doctor"]).output().unwrap().into();
    assert_eq!((down.code, down.out.as_str()), (69, ""), "{}", down.err);
    assert!(down.err.contains("cannot reach the API server"), "{}", down.err);
}
