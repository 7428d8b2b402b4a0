//! Validation by kubeconform, with the schemas of Kubernetes in `tests/system/testdata/schemas`: the
//! definitions of `api/openapi-spec/swagger.json`, without descriptions, that the chart needs.
//! `UPDATE_SCHEMAS=DIRECTORY` writes them from `DIRECTORY/VERSION.json`, which are those files of the Go
//! module `k8s.io/kubernetes`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use ipu_test_cluster::{Tool, find_tools, shared};
use serde_json::{Map, Value, json};

/// The oldest supported version of Kubernetes, and that of the test cluster.
pub(super) const VERSIONS: [&str; 2] = ["1.30.14", "1.36.3"];

/// Kinds of the chart, by their definitions.
const KINDS: [&str; 14] = [
    "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
    "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
    "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.rbac.v1.ClusterRole",
    "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
];

/// Kinds of other projects, which kubeconform skips.
pub(super) const SKIPPED: &str = "ServiceMonitor,PrometheusRule,Certificate,Issuer";

/// Definitions of types by name.
type Definitions = BTreeMap<String, Value>;

/// Validates the manifests of a folder, and returns the output of kubeconform: empty without an error.
pub(super) fn validate(kubeconform: &Path, version: &str, manifests: &Path) -> String {
    let schemas = tempfile::tempdir().unwrap();
    let definitions = committed(version);
    for name in KINDS {
        let kind = name.rsplit('.').next().unwrap().to_lowercase();
        let schema = json!({
            "$ref": format!("#/definitions/{name}"),
            "definitions": strict(needed(&definitions, &[name])),
        });
        fs::write(schemas.path().join(format!("{kind}.json")), schema.to_string()).unwrap();
    }
    let location = format!("{}/{{{{ .ResourceKind }}}}.json", schemas.path().display());
    let output = Command::new(kubeconform)
        .args(["-strict", "-kubernetes-version", version, "-skip", SKIPPED])
        .args(["-schema-location", &location])
        .arg(manifests)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

fn file(version: &str) -> String {
    let minor = version.rsplit_once('.').unwrap().0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/schemas");
    format!("{folder}/kubernetes-{minor}.json")
}

fn committed(version: &str) -> Definitions {
    serde_json::from_str(&fs::read_to_string(file(version)).unwrap()).unwrap()
}

/// Returns the definitions with these names, and those that they refer to, without descriptions.
fn needed(all: &Definitions, names: &[&str]) -> Definitions {
    let mut found = Definitions::new();
    let mut open: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    while let Some(name) = open.pop() {
        found.entry(name.clone()).or_insert_with(|| {
            let definition = without_descriptions(&all[&name]);
            references(&definition, &mut open);
            definition
        });
    }
    found
}

fn references(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let reference = map.get("$ref").and_then(Value::as_str);
            let name = reference.and_then(|path| path.strip_prefix("#/definitions/"));
            names.extend(name.map(str::to_owned));
            map.values().for_each(|value| references(value, names));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, names)),
        _ => {}
    }
}

/// Removes descriptions, extensions of Kubernetes except group, version and kind, and lists of values, which
/// only the API server has. Keeps properties of these names.
fn without_descriptions(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let is_kept = |key: &str, value: &Value| {
                !(key == "description" && value.is_string() || key == "enum" && value.is_array())
                    && (!key.starts_with("x-kubernetes") || key.ends_with("group-version-kind"))
            };
            let kept = map.iter().filter(|(key, value)| is_kept(key, value));
            kept.map(|(key, value)| (key.clone(), without_descriptions(value)))
                .collect::<Map<_, _>>()
                .into()
        }
        Value::Array(values) => values.iter().map(without_descriptions).collect(),
        other => other.clone(),
    }
}

/// Forbids unknown fields and other API versions, and allows what the API server converts.
fn strict(definitions: Definitions) -> Definitions {
    let strict_one = |(name, mut definition): (String, Value)| {
        let is_number = name.ends_with(".Quantity") || name.ends_with(".IntOrString");
        if is_number {
            definition["type"] = json!(["string", "number"]);
        }
        if definition["properties"].is_object() {
            definition["additionalProperties"] = json!(false);
        }
        let kinds = &definition["x-kubernetes-group-version-kind"];
        if let Some([kind]) = kinds.as_array().map(Vec::as_slice) {
            let [group, version] = ["group", "version"].map(|key| kind[key].as_str().unwrap());
            let separator = if group.is_empty() { "" } else { "/" };
            let version = format!("{group}{separator}{version}");
            definition["properties"]["apiVersion"]["enum"] = json!([version]);
        }
        (name, definition)
    };
    definitions.into_iter().map(strict_one).collect()
}

/// Writes the definitions, one a line.
fn update(folder: &Path, version: &str) {
    let source = fs::read_to_string(folder.join(format!("{version}.json"))).unwrap();
    let mut source: Value = serde_json::from_str(&source).unwrap();
    let all = serde_json::from_value(source["definitions"].take()).unwrap();
    let lines: Vec<String> = needed(&all, &KINDS)
        .iter()
        .map(|(name, definition)| format!("{}: {definition}", json!(name)))
        .collect();
    fs::write(file(version), format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
}

#[test]
fn the_schemas_are_those_of_the_api_server() {
    if let Some(folder) = std::env::var_os("UPDATE_SCHEMAS") {
        for version in VERSIONS {
            update(Path::new(&folder), version);
        }
    }
    let Some(cluster) = shared("the_schemas_are_those_of_the_api_server") else {
        return;
    };
    let document = cluster.kubectl(&["get", "--raw", "/openapi/v2"]).unwrap();
    let mut document: Value = serde_json::from_str(&document).unwrap();
    let served = serde_json::from_value(document["definitions"].take()).unwrap();
    assert_eq!(needed(&served, &KINDS), committed(VERSIONS[1]));
}

#[test]
fn kubeconform_reports_planted_errors() {
    let Some(tools) = find_tools("kubeconform_reports_planted_errors", &[Tool::Kubeconform]) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let service = |port: &str, version: &str| {
        format!(
            "{{apiVersion: {version}, kind: Service, metadata: {{name: a}}, spec: {{ports: [{{{port}}}]}}}}"
        )
    };
    for (text, reported) in [
        (service("port: 1, targetPort: http", "v1"), ""),
        (service("port: 1, targetPort: 2", "v1"), ""),
        (service("prot: 1", "v1"), "prot"),
        (service("port: one", "v1"), "integer"),
        (service("port: 1", "v2"), "apiVersion"),
        (service("name: a", "v1"), "port"),
    ] {
        fs::write(folder.path().join("service.yaml"), &text).unwrap();
        for version in VERSIONS {
            let output = validate(&tools.path(Tool::Kubeconform), version, folder.path());
            assert_eq!(output.is_empty(), reported.is_empty(), "{text}: {output}");
            assert!(output.contains(reported), "{text}: {output}");
        }
    }
}
