//! Values of the chart: each one has an effect, by `tests/system/testdata/values.txt`.

use std::collections::BTreeSet;
use std::fs;

use ipu_test_cluster::Tool;
use serde_json::Value;

use super::planted::containers;
use super::rendering::{Objects, Renderer};
use crate::installation::repository;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/values.txt");

/// The parts of the chart that share keys: key, and the names of Deployment, ServiceAccount and roles.
const COMPONENTS: [[&str; 4]; 2] = [
    [
        "controller",
        "ipu-operator-controller-manager",
        "ipu-operator-controller",
        "ipu-operator-manager",
    ],
    [
        "vipuProxy",
        "ipu-operator-vipu-proxy",
        "ipu-operator-vipu-proxy",
        "ipu-operator-vipu-proxy",
    ],
];

/// A value and a part of the rendering.
pub(super) struct Effect {
    pub(super) option: String,
    object: String,
    /// JSON pointer, or `$` and the name of an environment variable.
    place: String,
    pub(super) expected: Value,
}

#[test]
fn each_value_has_its_effect() {
    let Some(renderer) = Renderer::find("each_value_has_its_effect") else {
        return;
    };
    let defaults = renderer.objects(Tool::Helm4, "ipu-operator", &[]);
    // Both versions of Helm render the value sets of the matrix alike.
    for (effect, helm) in effects().into_iter().zip(Tool::HELM.into_iter().cycle()) {
        let Effect { option, object, .. } = &effect;
        let objects = renderer.objects(helm, "ipu-operator", &["--set-json", option]);
        assert_eq!(
            effect.find(&objects),
            effect.expected,
            "{helm:?}: {option}: {object}"
        );
        let is_default = option.ends_with("replicas=1") || option.ends_with("\"mine\"}");
        assert!(
            is_default || effect.find(&defaults) != effect.expected,
            "{option} is the default"
        );
    }
}

#[test]
fn each_value_of_the_schema_is_tested() {
    let mut keys = schema_keys();
    for effect in effects() {
        let (key, _) = effect.option.split_once('=').unwrap();
        keys.retain(|tested| tested != key && !tested.starts_with(&format!("{key}.")));
    }
    assert!(keys.is_empty(), "no line of values.txt sets {keys:?}");
}

#[test]
fn a_values_file_of_the_original_chart_installs_unchanged() {
    let Some(renderer) = Renderer::find("a_values_file_of_the_original_chart_installs_unchanged") else {
        return;
    };
    for version in ["1.0.3", "1.1.0", "1.2.0"] {
        let file = original_values(version);
        for helm in Tool::HELM {
            let objects = renderer.objects(helm, "ipu-operator", &["--values", &file]);
            let deployment = &objects["Deployment/ipu-operator-vipu-proxy"];
            assert_eq!(deployment["spec"]["replicas"], 1, "{version}");
            let images: Vec<&Value> = containers(&objects).iter().map(|one| &one["image"]).collect();
            let own = ["ipu-operator", "vipu-proxy"].map(of_this_version);
            assert_eq!(images, own.each_ref(), "{version}: {helm:?}");
            // Their `Always` is for images of a registry.
            for container in containers(&objects) {
                assert_eq!(
                    container["imagePullPolicy"], "IfNotPresent",
                    "{version}: {helm:?}"
                );
            }
            for (variable, value) in [
                ("IPU_OPERATOR_LAUNCHER_IMAGE", of_this_version("ipu-launcher")),
                ("IPU_OPERATOR_LAUNCHER_IMAGE_PULL_POLICY", "IfNotPresent".into()),
            ] {
                let env = containers(&objects)[0]["env"].as_array().unwrap();
                let found = env.iter().find(|one| one["name"] == variable).unwrap();
                assert_eq!(found["value"], value, "{version}: {helm:?}");
            }
        }
    }
}

/// Returns the reference of an image of this project.
fn of_this_version(name: &str) -> String {
    format!("{name}:{}", env!("CARGO_PKG_VERSION"))
}

#[test]
fn a_custom_image_and_tag_in_an_original_values_file_are_kept() {
    let Some(renderer) = Renderer::find("a_custom_image_and_tag_in_an_original_values_file_are_kept") else {
        return;
    };
    let file = original_values("1.1.0");
    let options = [
        "--values",
        &file,
        "--set-json",
        r#"controller.image={"repository":"mine/operator","tag":"1.1.0"}"#,
        "--set-json",
        r#"vipuProxy.image={"tag":"main"}"#,
        "--set-json",
        r#"global={"launcherImage":"mine/launcher","launcherImageTag":"1.2.0","launcherImagePullPolicy":"Never"}"#,
    ];
    let objects = renderer.objects(Tool::Helm4, "ipu-operator", &options);
    let images: Vec<&Value> = containers(&objects).iter().map(|one| &one["image"]).collect();
    assert_eq!(images, ["mine/operator:1.1.0", "vipu-proxy:main"]);
    let env = containers(&objects)[0]["env"].to_string();
    assert!(
        env.contains(r#""mine/launcher:1.2.0""#) && env.contains(r#""Never""#),
        "{env}"
    );
}

#[test]
fn each_binding_names_a_role_of_the_release() {
    let Some(renderer) = Renderer::find("each_binding_names_a_role_of_the_release") else {
        return;
    };
    let monitored = "serviceMonitor={\"enabled\":true,\"account\":\"a:b\"}";
    for (options, count) in [
        (&[][..], 4),
        (&[monitored][..], 5),
        (&[monitored, "watchNamespaces=[\"a\",\"b\"]"], 7),
        (&[monitored, "controller.rbac.create=false"], 2),
        (
            &["controller.rbac.create=false", "vipuProxy.rbac.create=false"],
            0,
        ),
    ] {
        let flags: Vec<&str> = options
            .iter()
            .flat_map(|option| ["--set-json", *option])
            .collect();
        let objects = renderer.objects(Tool::Helm4, "ipu-operator", &flags);
        let references = objects.values().map(|object| &object["roleRef"]);
        let references: Vec<&Value> = references.filter(|reference| !reference.is_null()).collect();
        assert_eq!(references.len(), count, "{options:?}");
        for role in references {
            let name = format!(
                "{}/{}",
                role["kind"].as_str().unwrap(),
                role["name"].as_str().unwrap()
            );
            assert!(objects.contains_key(&name), "{options:?}: no {name}");
        }
    }
}

#[test]
fn the_values_file_of_the_alpha_installs_with_another_webhook_port_and_service_type() {
    let name = "the_values_file_of_the_alpha_installs_with_another_webhook_port_and_service_type";
    let Some(renderer) = Renderer::find(name) else {
        return;
    };
    let file = original_values("1.0.0-alpha-5");
    let mut options = vec!["--values", &file];
    for (refused, replacement) in [
        ("admissionWebhooks.port=8443", "admissionWebhooks.port=9443"),
        (
            "admissionWebhooks.service.type=clusterIP",
            "admissionWebhooks.service.type=ClusterIP",
        ),
    ] {
        let error = renderer
            .render(Tool::Helm4, "ipu-operator", &options)
            .unwrap_err();
        assert!(error.contains(refused), "{error}");
        options.extend(["--set", replacement]);
    }
    for helm in Tool::HELM {
        let objects = renderer.objects(helm, "ipu-operator", &options);
        let containers = &objects["Deployment/ipu-operator-controller-manager"]["spec"]["template"]["spec"];
        let image = concat!("ipu-operator:", env!("CARGO_PKG_VERSION"));
        assert_eq!(containers["containers"][0]["image"], image);
    }
}

#[test]
fn each_key_of_the_original_charts_is_a_value_or_refused_by_name() {
    let schema = fs::read_to_string(repository("deploy/helm/ipu-operator/values.schema.json")).unwrap();
    let refused = fs::read_to_string(repository("deploy/helm/ipu-operator/templates/_refused.tpl")).unwrap();
    let mut known = BTreeSet::from(["fullNameOverride".to_owned(), "vipuServerAddr".to_owned()]);
    collect_keys("", &serde_json::from_str(&schema).unwrap(), &mut known);
    known.extend(
        refused
            .lines()
            .filter_map(|line| Some(line.strip_prefix("- key: ")?.to_owned())),
    );
    for version in ["1.0.0-alpha-5", "1.0.3", "1.1.0", "1.2.0"] {
        let text = fs::read_to_string(original_values(version)).unwrap();
        let mut keys = Vec::new();
        collect_leaves("", &serde_saphyr::from_str(&text).unwrap(), &mut keys);
        assert!(keys.len() > 40, "{version}: {keys:?}");
        for key in keys {
            let is_known = |name: &String| key == *name || key.starts_with(&format!("{name}."));
            assert!(
                known.iter().any(is_known),
                "{version}: {key} is neither a value nor refused"
            );
        }
    }
}

fn original_values(version: &str) -> String {
    format!(
        "{}/testdata/original-values/{version}.yaml",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// Collects the paths of the values below `value`; an empty map is one.
fn collect_leaves(path: &str, value: &Value, keys: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                let separator = if path.is_empty() { "" } else { "." };
                collect_leaves(&format!("{path}{separator}{key}"), value, keys);
            }
        }
        None => keys.push(path.to_owned()),
    }
}

impl Effect {
    /// Returns the part of the rendering, or null.
    pub(super) fn find(&self, objects: &Objects) -> Value {
        let Some(object) = objects.get(&self.object) else {
            return Value::Null;
        };
        if let Some(variable) = self.place.strip_prefix('$') {
            let env = &object["spec"]["template"]["spec"]["containers"][0]["env"];
            let env = env.as_array().unwrap();
            let found = env.iter().find(|one| one["name"] == variable);
            return found.map_or(Value::Null, |one| one["value"].clone());
        }
        let found = match self.place.strip_suffix("/LAST") {
            Some(list) => object.pointer(list).and_then(|list| list.as_array()?.last()),
            None => object.pointer(&self.place),
        };
        found.cloned().unwrap_or_default()
    }
}

pub(super) fn effects() -> Vec<Effect> {
    let text = fs::read_to_string(FILE).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(parse).collect()
}

/// Parses a line, which stands for two effects if it has `@`.
fn parse(line: &str) -> Vec<Effect> {
    let [option, object, place, expected] = line.split(" | ").collect::<Vec<_>>()[..] else {
        panic!("{line:?} has not four columns");
    };
    let effect = |[key, deployment, account, role]: [&str; 4]| {
        let name = match object.split('/').next().unwrap() {
            "ServiceAccount" => account,
            "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => role,
            _ => deployment,
        };
        let repository = if key == "vipuProxy" {
            "vipu-proxy"
        } else {
            "ipu-operator"
        };
        let expected = expected.replace("REPOSITORY", repository);
        Effect {
            option: option.replace('@', key),
            object: object.replace('@', name),
            place: place.to_owned(),
            expected: serde_json::from_str(&expected).unwrap(),
        }
    };
    if option.starts_with('@') {
        COMPONENTS.map(effect).into()
    } else {
        vec![Effect {
            option: option.to_owned(),
            object: object.to_owned(),
            place: place.to_owned(),
            expected: serde_json::from_str(expected).unwrap(),
        }]
    }
}

/// Collects the keys of the leaves of a schema. A key without a rule is judged by the templates.
/// Returns the keys of the schema.
pub(super) fn schema_keys() -> BTreeSet<String> {
    let schema = fs::read_to_string(repository("deploy/helm/ipu-operator/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let mut keys = BTreeSet::new();
    collect_keys("", &schema, &mut keys);
    assert!(keys.len() > 70, "{keys:?}");
    keys
}

fn collect_keys(prefix: &str, schema: &Value, keys: &mut BTreeSet<String>) {
    for (key, schema) in schema["properties"].as_object().unwrap() {
        let path = format!("{prefix}{key}");
        if schema["properties"].is_object() {
            collect_keys(&format!("{path}."), schema, keys);
        } else if schema != &serde_json::json!({}) {
            keys.insert(path);
        }
    }
}
