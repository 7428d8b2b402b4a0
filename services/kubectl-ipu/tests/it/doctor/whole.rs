//! Whole installations: healthy ones, several faults at once, several operators, an absent operator, and
//! callers without rights.

use ipu_test_cluster::{Tool, find_tools, private};
use serde_json::{Value, json};

use super::site::Site;
use super::{assert_clean, codes, examine, fix, report};
use crate::harness::{DEPLOY, Run, apply, install_crd, program, run, set_status};
use crate::jobs::JOB;

/// Values with every option that changes an object that doctor reads.
const ALL_OPTIONS: &[&str] = &[
    "controller.replicas=3",
    "controller.serviceAccount.name=ipu-account",
    "controller.maxIpusPerInstance=128",
    "controller.image.tag=0.1.0",
    "vipuProxy.replicas=2",
    "vipuProxy.serviceAccount.name=proxy-account",
    "vipuProxy.proxyPartitionTrackerConfigMap=ledger",
    "vipuProxy.service.port=8080",
    "admissionWebhooks.service.servicePort=8443",
    "admissionWebhooks.failurePolicy=Ignore",
    "global.imageRegistry=registry.example.com:5000",
    "global.launcherImageTag=1.2.3",
    "networkPolicy.enabled=true",
    "administrator.create=true",
    "simulator.enabled=true",
    "crds.maintain=false",
    "commonLabels.team=ipu",
];

/// Installs the chart with these values, and asserts that doctor finds nothing.
fn check_chart(name: &str, values: &[&str], tracker: &'static str) {
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), private(name)) else {
        return;
    };
    install_crd(&cluster);
    for namespace in ["first", "second"] {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let level = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", "first", level]).unwrap();
    let chart = format!("{DEPLOY}/helm/ipu-operator");
    let install = [
        "install",
        "gc",
        &chart,
        "--namespace",
        "ipu",
        "--create-namespace",
    ];
    let values = values.iter().flat_map(|value| ["--set", value]);
    let arguments: Vec<&str> = install.into_iter().chain(values).collect();
    cluster.helm(Tool::Helm3, &arguments).unwrap();
    let mut site = Site::new("ipu", "gc-ipu-operator");
    site.tracker = tracker;
    site.settle(&cluster);
    assert_clean(&examine(&cluster), name);
}

#[test]
fn the_chart_with_all_options_is_healthy() {
    check_chart("the_chart_with_all_options_is_healthy", ALL_OPTIONS, "ledger");
}

#[test]
fn the_chart_for_some_namespaces_without_host_network_is_healthy() {
    let name = "the_chart_for_some_namespaces_without_host_network_is_healthy";
    let values = ["watchNamespaces={first,second}", "worker.hostNetwork=false"];
    check_chart(name, &values, "ipu-partitions-tracker");
}

#[test]
fn doctor_finds_several_faults_at_once() {
    let Some(cluster) = private("doctor_finds_several_faults_at_once") else {
        return;
    };
    let site = Site::by_manifests(&cluster);
    cluster.kubectl(&["create", "namespace", "team"]).unwrap();
    let level = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", "team", level]).unwrap();
    let submitted = run(&cluster, &["-n", "team", "submit", JOB]);
    assert_eq!(submitted.code, 0, "{}", submitted.err);
    let log = "ibv_reg_mr: Cannot allocate memory";
    let failure = json!({"instance": 0, "attempt": 0, "name": "w", "kind": "Worker", "node": "node-a",
        "reason": "exit code 1", "log": log});
    let status = json!({"status": {"launcherStatus": "Failed", "phase": "Failed", "currentReplicas": 0,
        "desiredReplicas": 1, "lastMessage": "failed", "firstFailure": failure}});
    set_status(&cluster, "team", "ipujob/training", &status);
    let quota = ["-n", "team", "create", "quota", "compute", "--hard=limits.cpu=8"];
    cluster.kubectl(&quota).unwrap();
    let not_ready = json!({"status": {"readyReplicas": 0}});
    let proxy = "deployment/ipu-operator-vipu-proxy";
    set_status(&cluster, site.namespace, proxy, &not_ready);
    site.set_endpoints(&cluster, "vipu-proxy", false);

    let planted = examine(&cluster);
    let expected = [
        "ProxyNotReady",
        "NamespaceRestricted",
        "QuotaWithoutLimitRange",
        "MemlockLimitTooLow",
    ];
    assert_eq!(codes(&planted, "findings"), expected, "{planted:#}");
    let text = run(&cluster, &["doctor"]).out;
    assert!(
        text.contains("MemlockLimitTooLow: node node-a\n  finding:  w of IPUJob team/training: ibv_reg_mr"),
        "{text}"
    );
    assert!(
        text.contains("docs/reference/doctor.md#memlocklimittoolow"),
        "{text}"
    );
    for code in ["NamespaceRestricted", "QuotaWithoutLimitRange"] {
        fix(&cluster, &planted, code, None);
    }
    cluster
        .kubectl(&["-n", "team", "delete", "ipujob", "training"])
        .unwrap();
    site.settle(&cluster);
    assert_clean(&examine(&cluster), "fixed");
}

#[test]
fn several_operators_are_an_overlap_and_commands_ask_for_one_of_them() {
    let name = "several_operators_are_an_overlap_and_commands_ask_for_one_of_them";
    let Some(cluster) = private(name) else {
        return;
    };
    let site = Site::by_manifests(&cluster);
    cluster.kubectl(&["create", "namespace", "second"]).unwrap();
    let operator = site.name("controller-manager");
    let copy = site.kubectl(&cluster, &["get", "deployment", &operator, "-o", "json"]);
    let mut copy: Value = serde_json::from_str(&copy).unwrap();
    let labels = copy["metadata"]["labels"].take();
    copy["metadata"] = json!({"name": operator, "namespace": "second", "labels": labels});
    apply(&cluster, &[copy], &[]);

    let cordon = run(&cluster, &["cordon", "a1", "--reason", "fan"]);
    assert_eq!(cordon.code, 64, "{}", cordon.err);
    let several = "in the namespaces ipu-operator-system, second: choose one";
    assert!(cordon.err.contains(several), "{}", cordon.err);
    let all = examine(&cluster);
    assert_eq!(codes(&all, "findings"), ["InstallationsOverlap"], "{all:#}");
    assert!(all["notChecked"].to_string().contains(several), "{all:#}");
    let one = ["--operator-namespace", site.namespace, "doctor", "-o", "json"];
    let one = report(&run(&cluster, &one));
    assert_eq!(codes(&one, "findings"), ["InstallationsOverlap"], "{one:#}");

    // With different namespaces, one of the jobs is in neither.
    for (namespace, watched) in [(site.namespace, "team"), ("second", "second")] {
        let variable = format!("IPU_OPERATOR_WATCH_NAMESPACES={watched}");
        let deployment = format!("deployment/{operator}");
        cluster
            .kubectl(&["-n", namespace, "set", "env", &deployment, &variable])
            .unwrap();
    }
    let submitted = run(&cluster, &["submit", JOB]);
    assert_eq!(submitted.code, 0, "{}", submitted.err);
    let apart = examine(&cluster);
    assert_eq!(codes(&apart, "findings"), ["NamespaceNotWatched"], "{apart:#}");
}

#[test]
fn pods_that_an_absent_operator_leaves_are_freed_by_the_printed_command() {
    let name = "pods_that_an_absent_operator_leaves_are_freed_by_the_printed_command";
    let Some(cluster) = private(name) else {
        return;
    };
    install_crd(&cluster);
    let account = json!({"name": "default", "namespace": "default"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account});
    let finalizers = ["example.com/other", ipu_k8s::crd::IpuJob::POD_FINALIZER];
    let metadata = json!({"name": "training", "namespace": "default", "finalizers": finalizers,
        "labels": {"graphcore.ai/ipujob-name": "training"}});
    let spec = json!({"containers": [{"name": "main", "image": "a"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    apply(&cluster, &[account, pod], &[]);
    cluster
        .kubectl(&["delete", "pod", "training", "--wait=false"])
        .unwrap();
    let left = examine(&cluster);
    assert_eq!(
        codes(&left, "findings"),
        ["OperatorAbsent", "PodsLeft"],
        "{left:#}"
    );
    assert!(fix(&cluster, &left, "PodsLeft", None));
    let kept = cluster.kubectl(&["get", "pod", "training", "-o", "jsonpath={.metadata.finalizers}"]);
    assert_eq!(kept.unwrap(), r#"["example.com/other"]"#);
}

#[test]
fn no_rule_passes_for_a_caller_without_rights() {
    let Some(cluster) = private("no_rule_passes_for_a_caller_without_rights") else {
        return;
    };
    Site::by_manifests(&cluster);
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
