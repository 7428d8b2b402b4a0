//! Doctor finds nothing on healthy installations of several kinds.

use ipu_test_cluster::{Cluster, Tool, Tools, find_tools, private};
use serde_json::json;

use super::site::{Site, install_attachments};
use super::{assert_clean, examine};
use crate::harness::{DEPLOY, apply, install_crd, set_status};

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

/// Installs the chart as the release `gc`, with these values.
fn install_chart(cluster: &Cluster, tools: &Tools, values: &[&str]) -> Site {
    let home = tempfile::tempdir().unwrap();
    let chart = format!("{DEPLOY}/helm/ipu-operator");
    let mut helm = tools.helm(Tool::Helm3, home.path());
    helm.env("KUBECONFIG", cluster.kubeconfig())
        .args([
            "install",
            "gc",
            &chart,
            "--namespace",
            "ipu",
            "--create-namespace",
        ])
        .args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Site::new("ipu", "gc-ipu-operator")
}

/// Adds a running worker with a second network and RDMA, in a restricted namespace.
fn add_second_network(cluster: &Cluster) {
    install_attachments(cluster);
    apply(
        cluster,
        &json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "rdma-net", "namespace": "second"},
        }),
    );
    let status = json!({"status": {"capacity": {"rdma/hca": "8"}, "allocatable": {"rdma/hca": "8"}}});
    set_status(cluster, "first", "node/node-a", &status);
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "first"},
    });
    apply(cluster, &account);
    let interfaces = json!([{"interface": "eth0", "default": true}, {"interface": "ib0"}]);
    apply(
        cluster,
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "training-worker-0-0", "namespace": "first",
                "labels": {"graphcore.ai/ipujob-name": "training"},
                "annotations": {
                    "k8s.v1.cni.cncf.io/networks": "second/rdma-net@ib0",
                    "k8s.v1.cni.cncf.io/network-status": interfaces.to_string(),
                },
            },
            "spec": {"nodeName": "node-a", "containers": [
                {"name": "main", "image": "training:1", "resources": {"limits": {"rdma/hca": "1"}}},
            ]},
        }),
    );
    let running = json!({"status": {"phase": "Running"}});
    set_status(cluster, "first", "pod/training-worker-0-0", &running);
    let level = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(&["label", "namespace", "first", level]).unwrap();
}

/// Installs the chart, and asserts that doctor finds nothing. `prepare` adds further objects.
fn check_chart(name: &str, values: &[&str], tracker: &'static str, prepare: impl FnOnce(&Cluster)) {
    let Some(tools) = find_tools(name, &Tool::HELM) else {
        return;
    };
    let Some(cluster) = private(name) else {
        return;
    };
    install_crd(&cluster);
    for namespace in ["first", "second"] {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let mut site = install_chart(&cluster, &tools, values);
    site.tracker = tracker;
    site.settle(&cluster);
    prepare(&cluster);
    assert_clean(&examine(&cluster), name);
}

#[test]
fn the_chart_with_all_options_is_healthy() {
    check_chart(
        "the_chart_with_all_options_is_healthy",
        ALL_OPTIONS,
        "ledger",
        |_| (),
    );
}

#[test]
fn the_chart_for_some_namespaces_without_host_network_is_healthy() {
    let name = "the_chart_for_some_namespaces_without_host_network_is_healthy";
    let values = ["watchNamespaces={first,second}", "worker.hostNetwork=false"];
    check_chart(name, &values, "ipu-partitions-tracker", add_second_network);
}
