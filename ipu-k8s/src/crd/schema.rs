//! The schema of a custom resource in the form that the API server stores, and its CRD.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// Returns the schema of the only version of a CRD in the form that the API server stores.
pub(super) fn stored_schema(derived: &CustomResourceDefinition) -> Value {
    let mut schema = json!(derived)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
    tidy(&mut schema);
    // Rules name it as the field that breaks them.
    schema["properties"]["metadata"] = json!({"type": "object"});
    // One program writes the whole status. Field ownership would take as much space as the fields.
    schema["properties"]["status"]["x-kubernetes-map-type"] = "atomic".into();
    schema
}

/// Returns the CRD with this schema, and with the version of this build: an operator replaces the CRD of an
/// older version only.
pub(super) fn definition(derived: &CustomResourceDefinition, schema: Value) -> Value {
    let mut definition = json!(derived);
    definition["metadata"]["labels"] = json!({"app.kubernetes.io/name": "ipu-operator"});
    definition["metadata"]["annotations"] = json!({"graphcore.ai/crd-version": env!("CARGO_PKG_VERSION")});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
    definition
}

/// Adapts what the derivation writes to Kubernetes: the API server drops a null of a field that is not
/// nullable, an absent number is absent and not 0, bounds are whole, and descriptions have no line breaks of
/// the source.
fn tidy(schema: &mut Value) {
    let Value::Object(keywords) = schema else {
        return;
    };
    keywords.remove("nullable");
    keywords.retain(|keyword, value| keyword != "default" || !is_zero(value));
    if let Some(Value::String(format)) = keywords.get_mut("format")
        && format.starts_with("uint")
    {
        *format = "int32".to_owned();
    }
    for bound in ["minimum", "maximum"] {
        if let Some(number) = keywords.get(bound).and_then(Value::as_f64) {
            keywords.insert(bound.to_owned(), (number as i64).into());
        }
    }
    if let Some(Value::String(text)) = keywords.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    for inner in ["items", "additionalProperties"] {
        keywords.get_mut(inner).into_iter().for_each(tidy);
    }
    let properties = keywords.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .into_iter()
        .flatten()
        .for_each(|(_, property)| tidy(property));
}

/// Returns whether a default of a Rust type says nothing.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}
