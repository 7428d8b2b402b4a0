//! The schema of a Pod template in the form that a CRD requires: structural, without references and
//! descriptions.

use std::error::Error;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Map-type lists with their keys, as in the API server's Pod schema. Only lists in which it refuses
/// duplicate keys anyway, and those of the custom resource 1.2.0.
const MAP_LIST_KEYS: [(&str, &[&str]); 7] = [
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", &["devicePath"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

/// References whose name the API server defaults to empty if absent, but `k8s-openapi` requires.
const OPTIONAL_NAME_KINDS: [&str; 8] = [
    "ConfigMapEnvSource",
    "ConfigMapKeySelector",
    "ConfigMapProjection",
    "ConfigMapVolumeSource",
    "LocalObjectReference",
    "SecretEnvSource",
    "SecretKeySelector",
    "SecretProjection",
];

/// Pattern of a quantity, as in the API server.
const QUANTITY_PATTERN: &str = "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$";

/// Maximum nesting depth, well above that of a Pod template; it detects recursive schemas.
const MAX_DEPTH: usize = 64;

/// Returns the schema of the Kubernetes version that the tests use.
pub(super) fn template() -> Result<Value, Box<dyn Error>> {
    let settings = SchemaSettings::draft2020_12();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<PodTemplateSpec>();
    let root = schema.to_value();
    let definitions = root
        .pointer("/$defs")
        .and_then(Value::as_object)
        .ok_or("the schema has no definitions")?;
    inline(&root, definitions, MAX_DEPTH)
}

/// Returns `schema` with its references inlined.
fn inline(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Result<Value, Box<dyn Error>> {
    let remaining_depth = depth.checked_sub(1).ok_or("the schema is recursive")?;
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let kind = name.rsplit('.').next().unwrap_or_default();
        return Ok(match kind {
            "ObjectMeta" => metadata(),
            "Quantity" => {
                let mut quantity = int_or_string();
                quantity["pattern"] = QUANTITY_PATTERN.into();
                quantity
            }
            "IntOrString" => int_or_string(),
            _ => {
                let definition = definitions.get(name);
                let definition = definition.ok_or_else(|| format!("no definition of {name}"))?;
                let mut inlined = inline(definition, definitions, remaining_depth)?;
                if OPTIONAL_NAME_KINDS.contains(&kind) {
                    make_name_optional(&mut inlined);
                }
                inlined
            }
        });
    }
    let mut out = Map::new();
    for keyword in ["type", "format", "required"] {
        if let Some(value) = schema.get(keyword) {
            out.insert(keyword.into(), value.clone());
        }
    }
    if !out.contains_key("type") {
        return Err(format!("a subschema has no type: {schema}").into());
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword).filter(|inner| inner.is_object()) {
            out.insert(keyword.into(), inline(inner, definitions, remaining_depth)?);
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        let mut inlined = Map::new();
        for (name, property) in properties {
            let mut property = inline(property, definitions, remaining_depth)?;
            set_list_keys(name, &mut property);
            inlined.insert(name.clone(), property);
        }
        out.insert("properties".into(), inlined.into());
    }
    Ok(out.into())
}

/// Makes the name of `object` optional.
fn make_name_optional(object: &mut Value) {
    if let Some(required) = object["required"].as_array_mut() {
        required.retain(|field| field != "name");
        if required.is_empty() {
            object.as_object_mut().map(|object| object.remove("required"));
        }
    }
}

/// Sets the keys of the list `name`, if it has any.
fn set_list_keys(name: &str, list: &mut Value) {
    let Some((_, keys)) = MAP_LIST_KEYS.iter().find(|(list_name, _)| *list_name == name) else {
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
        // Every item needs a value for a key.
        protocol["default"] = "TCP".into();
    }
}

/// Returns the schema of embedded metadata, with the fields of the custom resource 1.2.0.
fn metadata() -> Value {
    let string = json!({"type": "string"});
    let string_map = json!({"type": "object", "additionalProperties": string});
    json!({"type": "object", "properties": {
        "annotations": string_map,
        "finalizers": {"type": "array", "items": string},
        "labels": string_map,
        "name": string,
        "namespace": string,
    }})
}

fn int_or_string() -> Value {
    json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_no_references_or_descriptions_and_every_port_has_a_protocol() {
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
