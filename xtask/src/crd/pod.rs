//! The schema of a Kubernetes Pod template in the form that a definition of a resource takes: structural, without
//! references and descriptions.

use std::error::Error;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Lists whose items are told apart by these fields, as the API server has them for Kubernetes Pods. Only those where it
/// refuses two of the same key anyway, and those that the custom resource 1.2.0 had.
const KEYED: [(&str, &[&str]); 7] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// What refers to something by a name that the API server takes as empty if it is absent, where `k8s-openapi` wants it.
const NAME_MAY_BE_ABSENT: [&str; 8] = [
    "ConfigMapEnvSource",
    "ConfigMapKeySelector",
    "ConfigMapProjection",
    "ConfigMapVolumeSource",
    "LocalObjectReference",
    "SecretEnvSource",
    "SecretKeySelector",
    "SecretProjection",
];

/// What a quantity may look like, as the API server says.
const QUANTITY: &str = "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$";

/// Far more than a Pod template is deep; a schema that contains itself has no end.
const DEEPEST: usize = 64;

/// The schema, of the version of Kubernetes that our tests run.
pub(super) fn template() -> Result<Value, Box<dyn Error>> {
    let settings = SchemaSettings::draft2020_12();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<PodTemplateSpec>();
    let whole = schema.to_value();
    let definitions = whole
        .pointer("/$defs")
        .and_then(Value::as_object)
        .ok_or("the schema has no definitions")?;
    inline(&whole, definitions, DEEPEST)
}

/// `schema` with what it refers to in it.
fn inline(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Result<Value, Box<dyn Error>> {
    let deeper = depth.checked_sub(1).ok_or("the schema has no end")?;
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let kind = name.rsplit('.').next().unwrap_or_default();
        return Ok(match kind {
            "ObjectMeta" => metadata(),
            "Quantity" => {
                let mut quantity = int_or_string();
                quantity["pattern"] = QUANTITY.into();
                quantity
            }
            "IntOrString" => int_or_string(),
            _ => {
                let definition = definitions.get(name);
                let definition = definition.ok_or_else(|| format!("no definition of {name}"))?;
                let mut inlined = inline(definition, definitions, deeper)?;
                if NAME_MAY_BE_ABSENT.contains(&kind) {
                    relax(&mut inlined);
                }
                inlined
            }
        });
    }
    let mut out = Map::new();
    for word in ["type", "format", "required"] {
        if let Some(value) = schema.get(word) {
            out.insert(word.into(), value.clone());
        }
    }
    if !out.contains_key("type") {
        return Err(format!("a part of the schema has no type: {schema}").into());
    }
    for word in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(word).filter(|inner| inner.is_object()) {
            out.insert(word.into(), inline(inner, definitions, deeper)?);
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        let mut inlined = Map::new();
        for (name, property) in properties {
            let mut property = inline(property, definitions, deeper)?;
            keyed(name, &mut property);
            inlined.insert(name.clone(), property);
        }
        out.insert("properties".into(), inlined.into());
    }
    Ok(out.into())
}

/// Lets the name of `object` be absent.
fn relax(object: &mut Value) {
    if let Some(required) = object["required"].as_array_mut() {
        required.retain(|field| field != "name");
        if required.is_empty() {
            object.as_object_mut().map(|object| object.remove("required"));
        }
    }
}

/// Gives the list `name` its keys, if it is one that has some.
fn keyed(name: &str, list: &mut Value) {
    let Some((_, keys)) = KEYED.iter().find(|(known, _)| *known == name) else {
        return;
    };
    let has_all = keys
        .iter()
        .all(|key| list.pointer(&format!("/items/properties/{key}")).is_some());
    if !has_all {
        return;
    }
    list["x-kubernetes-list-type"] = "map".into();
    list["x-kubernetes-list-map-keys"] = json!(keys);
    if let Some(protocol) = list.pointer_mut("/items/properties/protocol") {
        // A key is there in every item.
        protocol["default"] = "TCP".into();
    }
}

/// What of the metadata of something embedded is kept: what the custom resource 1.2.0 kept.
fn metadata() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    json!({"type": "object", "properties": {
        "annotations": texts,
        "finalizers": {"type": "array", "items": text},
        "labels": texts,
        "name": text,
        "namespace": text,
    }})
}

fn int_or_string() -> Value {
    json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_no_references_and_no_descriptions_and_all_ports_have_a_protocol() {
        let schema = template().unwrap();
        let text = schema.to_string();
        assert!(!text.contains("$ref") && !text.contains("\"description\""));
        let ports = "/properties/spec/properties/initContainers/items/properties/ports";
        let ports = schema.pointer(ports).unwrap();
        assert_eq!(ports["items"]["properties"]["protocol"]["default"], "TCP");
        assert_eq!(
            ports["x-kubernetes-list-map-keys"],
            json!(["containerPort", "protocol"])
        );
    }
}
