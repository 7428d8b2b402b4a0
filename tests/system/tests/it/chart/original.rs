//! Upgrade of a release of Graphcore's chart 1.2.0 in place, with a chart of its names and selectors in
//! `tests/system/testdata/original-chart`.

use ipu_test_cluster::{Cluster, Tool, find_tools, shared};
use serde_json::Value;

use crate::installation::repository;

const NAMESPACE: &str = "original";

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
        let upgrade = ["upgrade", "ipu-operator", &chart];
        helm(cluster, after, &[&upgrade[..], &watched].concat());
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
    let arguments = [&["--namespace", NAMESPACE], arguments].concat();
    if let Err(error) = cluster.helm(helm, &arguments) {
        panic!("{helm:?} {}: {error}", arguments.join(" "));
    }
}

fn deployment(cluster: &Cluster, name: &str) -> Value {
    let arguments = ["-n", NAMESPACE, "get", "deployment", name, "-o", "json"];
    serde_json::from_str(&cluster.kubectl(&arguments).unwrap()).unwrap()
}
