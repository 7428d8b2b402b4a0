//! The chart renders the same objects as the manifests of `deploy/kubernetes`.

use ipu_test_cluster::Tool;
use serde_json::Value;

use super::rendering::{Objects, Renderer};

/// Objects of the manifests that the chart does not have, with the reason.
const ONLY_IN_MANIFESTS: [(&str, &str); 3] = [
    (
        "CustomResourceDefinition/ipujobs.graphcore.ai",
        "the operator creates and updates it, and it must survive an uninstallation",
    ),
    (
        "CustomResourceDefinition/ipupartitions.graphcore.ai",
        "as that of the IPUJob",
    ),
    (
        "Namespace/ipu-operator-system",
        "a release is installed into a namespace that exists",
    ),
];

/// Labels of every object of the chart that the manifests do not have, with the reason.
const ONLY_IN_CHART: [(&str, &str); 3] = [
    ("helm.sh/chart", "names the chart and its version"),
    ("app.kubernetes.io/version", "names the version of the programs"),
    ("app.kubernetes.io/managed-by", "names Helm"),
];

/// Annotation of an object of the chart that the manifests do not have, with the reason.
const ANNOTATED_IN_CHART: (&str, &str) = (
    "ConfigMap/ipu-operator-vipu-controllers",
    "the list of the values, so that an upgrade recognizes an edit",
);

/// Environment variables that the chart passes for its values: the defaults of the programs.
const ONLY_IN_CHART_ENV: [(&str, &str); 14] = [
    ("IPU_OPERATOR_MAX_INSTANCES", "1024"),
    ("IPU_OPERATOR_WEBHOOKS_PORT", "9443"),
    ("IPU_OPERATOR_METRICS_BIND_ADDRESS", ":8443"),
    ("IPU_OPERATOR_LOG_FORMAT", "text"),
    ("IPU_OPERATOR_VERBOSITY", "2"),
    ("PROXY_READ_TIMEOUT", "30"),
    ("PROXY_WRITE_TIMEOUT", "300"),
    ("PROXY_IDLE_TIMEOUT", "60"),
    ("PROXY_LOG_FORMAT", "text"),
    ("PROXY_VERBOSITY", "2"),
    ("VIPU_PROXY_SELECTION", "serial"),
    ("VIPU_PROXY_REPAIR_INTERVAL", "30"),
    ("VIPU_PROXY_PLACEMENT", "first-fit"),
    ("VIPU_PROXY_PREEMPTION", "false"),
];

#[test]
fn the_chart_renders_the_objects_of_the_manifests() {
    let Some(renderer) = Renderer::find("the_chart_renders_the_objects_of_the_manifests") else {
        return;
    };
    let mut expected = renderer.manifests();
    for (name, reason) in ONLY_IN_MANIFESTS {
        assert!(expected.remove(name).is_some(), "no {name}: {reason}");
    }
    for helm in Tool::HELM {
        let mut actual = renderer.objects(helm, "ipu-operator", &[]);
        for (name, object) in &mut actual {
            let labels = object["metadata"]["labels"].as_object_mut().unwrap();
            for (label, reason) in ONLY_IN_CHART {
                assert!(labels.remove(label).is_some(), "{name} has no {label}: {reason}");
            }
        }
        let (name, reason) = ANNOTATED_IN_CHART;
        let metadata = actual.get_mut(name).unwrap()["metadata"].as_object_mut();
        assert!(metadata.unwrap().remove("annotations").is_some(), "{reason}");
        let removed: usize = actual.values_mut().map(remove_chart_variables).sum();
        assert_eq!(removed, ONLY_IN_CHART_ENV.len(), "{helm:?}");
        assert_eq!(names(&actual), names(&expected), "{helm:?}");
        for (name, object) in &expected {
            assert_eq!(&actual[name], object, "{helm:?}: {name}");
        }
    }
}

#[test]
fn every_name_follows_from_the_release() {
    let Some(renderer) = Renderer::find("every_name_follows_from_the_release") else {
        return;
    };
    let rendered = |release: &str| renderer.render(Tool::Helm4, release, &[]).unwrap();
    let of_gc = rendered("gc");
    let renamed = of_gc
        .replace("gc-ipu-operator", "ipu-operator")
        .replace("instance: gc\n", "instance: ipu-operator\n")
        .replace("instance: \"gc\"\n", "instance: \"ipu-operator\"\n");
    assert_eq!(renamed, rendered("ipu-operator"));
    for name in names(&renderer.objects(Tool::Helm4, "gc", &[])) {
        assert!(name.contains("/gc-ipu-operator-"), "{name}");
    }
    // V-IPU guide §6.3.2 and §6.9.
    for name in ["vipu-controllers", "controller-manager", "vipu-proxy"] {
        let line = format!("name: gc-ipu-operator-{name}\n");
        assert!(of_gc.contains(&line), "{name}");
    }
}

#[test]
fn selectors_are_those_of_the_original_chart() {
    let Some(renderer) = Renderer::find("selectors_are_those_of_the_original_chart") else {
        return;
    };
    let objects = renderer.objects(Tool::Helm4, "ipu-operator", &[]);
    let selector = |deployment: &str| &objects[&format!("Deployment/{deployment}")]["spec"]["selector"];
    let expected = |component: &str| {
        serde_json::json!({
            "app.kubernetes.io/name": "ipu-operator",
            "app.kubernetes.io/instance": "ipu-operator",
            "app.kubernetes.io/component": component,
        })
    };
    let mut operator = expected("controller-manager");
    operator["control-plane"] = Value::from("controller-manager");
    assert_eq!(
        selector("ipu-operator-controller-manager")["matchLabels"],
        operator
    );
    assert_eq!(
        selector("ipu-operator-vipu-proxy")["matchLabels"],
        expected("vipu-proxy")
    );
}

#[test]
fn the_chart_has_the_version_of_the_programs() {
    let path = crate::installation::repository("deploy/helm/ipu-operator/Chart.yaml");
    let chart: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
}

/// Removes the variables of [`ONLY_IN_CHART_ENV`] from a Deployment, and returns their number.
fn remove_chart_variables(object: &mut Value) -> usize {
    let Some(env) = object.pointer_mut("/spec/template/spec/containers/0/env") else {
        return 0;
    };
    let env = env.as_array_mut().unwrap();
    let count = env.len();
    env.retain(|variable| {
        !ONLY_IN_CHART_ENV
            .iter()
            .any(|(name, value)| variable["name"] == *name && variable["value"] == *value)
    });
    count - env.len()
}

fn names(objects: &Objects) -> Vec<&String> {
    objects.keys().collect()
}
