//! Upgrade of a release of Graphcore's chart 1.2.0 in place, with a chart of its names and selectors in
//! `tests/system/testdata/original-chart`.

use ipu_test_cluster::{Cluster, Tool, find_tools, shared};
use serde_json::Value;

use super::refusals::{assert_golden, message_of};
use crate::installation::repository;

const NAMESPACE: &str = "original";
/// The list of controllers after `kubectl edit`, which V-IPU guide §6.3.2 recommends.
const EDITED: &str = "pod007:8090:vipu-ctrl=pod007";
const LIST: [&str; 2] = ["configmap", "ipu-operator-vipu-controllers"];
const TRACKER: [&str; 2] = ["configmap", "ipu-partitions-tracker"];

#[test]
fn a_release_of_the_original_chart_is_upgraded_in_place() {
    let name = "a_release_of_the_original_chart_is_upgraded_in_place";
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), shared(name)) else {
        return;
    };
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/original-chart");
    let chart = repository("deploy/helm/ipu-operator");
    cluster.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    for (before, after) in [
        (Tool::Helm3, Tool::Helm3),
        (Tool::Helm3, Tool::Helm4),
        (Tool::Helm4, Tool::Helm4),
    ] {
        // Another test on this API server installs a release, too.
        let watched = ["--set", "watchNamespaces=original"];
        let install = ["install", "ipu-operator", original];
        helm(cluster, before, &[&install[..], &watched].concat());
        let uid = deployment(cluster, "ipu-operator-vipu-proxy")["metadata"]["uid"].take();
        let upgrade = [
            "upgrade",
            "ipu-operator",
            &chart,
            "--set",
            "watchNamespaces=original",
        ];
        let patch = format!(r#"{{"data": {{"controllers.yaml": "{EDITED}"}}}}"#);
        let options = ["--type=merge", "--field-manager=kubectl-edit", "-p", &patch];
        kubectl(cluster, &[&["patch"], &LIST[..], &options].concat());
        let partition = "--from-literal=p-training-default-0={}";
        kubectl(cluster, &[&["create"], &TRACKER[..], &[partition]].concat());
        let refused = |golden: &str, options: &[&str]| {
            let error = run_helm(cluster, after, &[&upgrade[..], options].concat()).unwrap_err();
            assert_golden("refusals-in-cluster", golden, message_of(&error));
        };
        refused("original-tracker", &[]);
        kubectl(cluster, &[&["delete"], &TRACKER[..]].concat());
        let other = "global.vipuControllers=pod009:8090:vipu-ctrl=pod009";
        refused("original-controllers", &["--set", other]);
        helm(cluster, after, &upgrade);
        let list = [
            &["get"],
            &LIST[..],
            &["-o", r"jsonpath={.data.controllers\.yaml}"],
        ]
        .concat();
        assert_eq!(kubectl(cluster, &list), EDITED, "{after:?}");
        let proxy = deployment(cluster, "ipu-operator-vipu-proxy");
        assert_eq!(proxy["metadata"]["uid"], uid, "{after:?} keeps the Deployment");
        let operator = deployment(cluster, "ipu-operator-controller-manager");
        let containers = operator["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        let names: Vec<&Value> = containers.iter().map(|container| &container["name"]).collect();
        assert_eq!(names, ["manager"], "{after:?}");
        assert!(containers[0]["command"].is_null(), "{after:?}: {}", containers[0]);
        let roles = cluster.kubectl(&["get", "clusterroles", "-o", "name"]).unwrap();
        assert!(
            !roles.contains("/ipu-operator-manager-role"),
            "{after:?}: {roles}"
        );
        helm(cluster, after, &["uninstall", "ipu-operator"]);
    }
}

fn helm(cluster: &Cluster, helm: Tool, arguments: &[&str]) {
    if let Err(error) = run_helm(cluster, helm, arguments) {
        panic!("{helm:?} {}: {error}", arguments.join(" "));
    }
}

fn run_helm(cluster: &Cluster, helm: Tool, arguments: &[&str]) -> Result<String, String> {
    let arguments = [&["--namespace", NAMESPACE], arguments].concat();
    cluster.helm(helm, &arguments).map_err(|error| error.to_string())
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    let arguments = [&["--namespace", NAMESPACE], arguments].concat();
    cluster.kubectl(&arguments).unwrap()
}

fn deployment(cluster: &Cluster, name: &str) -> Value {
    let arguments = ["-n", NAMESPACE, "get", "deployment", name, "-o", "json"];
    serde_json::from_str(&cluster.kubectl(&arguments).unwrap()).unwrap()
}
