//! The name of the ledger: Helm refuses another one while a ledger exists in the namespace.

use ipu_test_cluster::{Cluster, Tool, find_tools, shared};

use super::refusals::{assert_golden, message_of};
use crate::installation::repository;

const NAMESPACE: &str = "ledgers";
const RELEASE: &str = "kept";

/// The ConfigMap as the proxy creates it.
const LEDGER: &str = "apiVersion: v1
kind: ConfigMap
metadata:
  name: first
  annotations: {ledger.graphcore.ai/layout: \"1\"}
";

#[test]
fn another_ledger_is_refused_by_upgrade_and_reinstallation() {
    let name = "another_ledger_is_refused_by_upgrade_and_reinstallation";
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), shared(name)) else {
        return;
    };
    let kubectl = |arguments: &[&str]| {
        let arguments = [&["-n", NAMESPACE], arguments].concat();
        cluster.kubectl(&arguments).unwrap()
    };
    cluster.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger.yaml").display().to_string();
    std::fs::write(&file, LEDGER).unwrap();
    for helm in Tool::HELM {
        let upgrade = |ledger: &str| upgrade(cluster, helm, ledger);
        let assert_refused = |ledger: &str| {
            let error = upgrade(ledger).unwrap_err();
            assert_golden("refusals-in-cluster", "another-ledger", message_of(&error));
        };
        // No proxy has started, so that there is no ledger yet.
        upgrade("mistyped").unwrap();
        upgrade("first").unwrap();
        kubectl(&["apply", "-f", &file]);
        upgrade("first").unwrap();
        assert_refused("second");
        // The ledger of another program does not matter.
        let other = LEDGER.replace("name: first", "name: second");
        let others = folder.path().join("other.yaml").display().to_string();
        std::fs::write(&others, other).unwrap();
        kubectl(&["apply", "-f", &others]);
        upgrade("first").unwrap();
        assert_refused("second");
        kubectl(&["delete", "-f", &others]);

        uninstall(cluster, helm);
        assert_refused("second");
        upgrade("first").unwrap();
        uninstall(cluster, helm);
        kubectl(&["delete", "-f", &file]);
    }
}

fn upgrade(cluster: &Cluster, helm: Tool, ledger: &str) -> Result<String, String> {
    let chart = repository("deploy/helm/ipu-operator");
    let ledger = format!("vipuProxy.proxyPartitionTrackerConfigMap={ledger}");
    let arguments = ["-n", NAMESPACE, "upgrade", "--install", RELEASE, &chart];
    // Other tests on this API server install releases, too.
    let values = ["--set", &ledger, "--set", "watchNamespaces=ledgers"];
    let output = cluster.helm(helm, &[&arguments[..], &values].concat());
    output.map_err(|error| error.to_string())
}

fn uninstall(cluster: &Cluster, helm: Tool) {
    let arguments = ["-n", NAMESPACE, "uninstall", RELEASE, "--wait"];
    cluster.helm(helm, &arguments).unwrap();
}
