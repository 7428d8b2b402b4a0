//! The check of a manifest against the schema of the CRD, with the path of each violation. serde alone would
//! stop at the first error and could not report its path.

use std::sync::LazyLock;

use ipu_core::Violation;
use serde_json::{Value, json};

use super::ipujob::SCHEMA;
use super::spec::IpuJob;

/// Maximum number of unknown fields and values of a wrong kind that are reported: more than a user reads.
const MAX_FAULTS: usize = 100;

/// Maximum length in bytes of an unknown name for which a similar field is suggested.
const MAX_SUGGESTION_LEN: usize = 64;

/// The schema of a manifest: the one of the CRD, and the metadata, which the API server knows.
static MANIFEST: LazyLock<Value> = LazyLock::new(|| {
    let string = json!({"type": "string"});
    let strings = json!({"type": "array", "items": string});
    let text_map = json!({"type": "object", "additionalProperties": string});
    let integer = json!({"type": "integer"});
    let objects = json!({"type": "array", "items": {"type": "object"}});
    json!({"type": "object", "properties": {
        "apiVersion": string,
        "kind": string,
        "metadata": {"type": "object", "properties": {
            "name": string,
            "generateName": string,
            "namespace": string,
            "uid": string,
            "labels": text_map,
            "annotations": text_map,
            "creationTimestamp": string,
            "deletionGracePeriodSeconds": integer,
            "deletionTimestamp": string,
            "finalizers": strings,
            "generation": integer,
            "managedFields": objects,
            "ownerReferences": objects,
            "resourceVersion": string,
            "selfLink": string,
        }},
        "spec": SCHEMA["properties"]["spec"],
        "status": {"type": "object"},
    }})
});

impl IpuJob {
    /// Reads a job from `value`. Returns the readable part without its status, and the violations: unknown
    /// fields, and values of a wrong kind.
    #[must_use]
    pub fn from_value(mut value: Value) -> (Self, Vec<Violation>) {
        let mut faults = Vec::new();
        if !prune(&mut value, &MANIFEST, "", &mut faults) {
            return (Self::default(), faults);
        }
        for (field, expected) in [("apiVersion", Self::API_VERSION), ("kind", Self::KIND)] {
            let found = value[field].as_str();
            if found != Some(expected) && !faults.iter().any(|fault| fault.field == field) {
                let (rule, fix) = (format!("must be {expected}"), format!("write {expected}"));
                faults.push(Violation::new(field, found, rule, fix));
            }
        }
        let mut read = |field: &str| value[field].take();
        let (metadata, spec) = (read("metadata"), read("spec"));
        let mut job = Self::default();
        match serde_json::from_value::<Option<_>>(metadata) {
            Ok(metadata) => job.metadata = metadata.unwrap_or_default(),
            Err(error) => faults.push(unreadable("metadata", &error)),
        }
        match serde_json::from_value::<Option<_>>(spec) {
            Ok(spec) => job.spec = spec.unwrap_or_default(),
            Err(error) => faults.push(unreadable("spec", &error)),
        }
        (job, faults)
    }
}

fn unreadable(field: &str, error: &serde_json::Error) -> Violation {
    Violation::new(field, Some("{…}"), error.to_string(), "correct the value")
}

/// Removes everything from `value` at `path` that does not match `schema`, and adds a violation for each
/// removal. Null counts as absent. Returns whether the rest can be deserialized.
pub(super) fn prune(value: &mut Value, schema: &Value, path: &str, faults: &mut Vec<Violation>) -> bool {
    let kind = match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => "integer",
        kind => kind.unwrap_or_default(),
    };
    let fields = schema["properties"].as_object();
    let (expected, fix) = match (kind, &mut *value) {
        // Counts may be quoted everywhere.
        ("integer", Value::String(_)) | ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => {
            return true;
        }
        ("integer", Value::Number(number)) if number.is_i64() => return true,
        ("object", Value::Object(object)) => {
            object.retain(|name, value| {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match (fields, &schema["additionalProperties"]) {
                    (None, Value::Null) => true,
                    _ if value.is_null() => false,
                    (Some(fields), _) => match fields.get(name) {
                        Some(field) => prune(value, field, &path, faults),
                        None => report(faults, unknown_field(&path, name, value, fields)),
                    },
                    (None, values) => prune(value, values, &path, faults),
                }
            });
            return true;
        }
        ("array", Value::Array(items)) => {
            let (mut index, mut is_complete) = (0, true);
            items.retain_mut(|item| {
                let is_kept = prune(item, &schema["items"], &format!("{path}[{index}]"), faults);
                index += 1;
                is_complete &= is_kept;
                is_kept
            });
            // A command without one of its words is another command.
            return is_complete || schema["items"]["type"] == "object";
        }
        ("integer", Value::Number(_)) => ("a whole number", "write digits only"),
        ("integer", _) => ("a number, or a number in quotes", "write the number alone"),
        ("string", Value::Number(_) | Value::Bool(_)) => ("a string", "put it in quotes"),
        ("string", _) => ("a string", "write it in quotes"),
        ("boolean", _) => ("true or false", "write true or false without quotes"),
        ("array", _) if schema["items"]["type"] == "string" => (
            "a list of strings",
            "write one list item for each, in quotes if it is a number",
        ),
        ("array", _) => ("a list of objects", "write one list item for each"),
        (_, _) if fields.is_none() && schema["additionalProperties"].is_object() => {
            ("strings by name", "write name: text")
        }
        (_, _) => ("an object", "write its fields below it, indented"),
    };
    // The value of a variable may be a secret.
    let shown = if path.ends_with("].value") {
        "…".into()
    } else {
        value.to_string()
    };
    report(
        faults,
        Violation::new(path, Some(&shown), format!("must be {expected}"), fix),
    )
}

/// Adds a fault, up to the maximum; returns false.
fn report(faults: &mut Vec<Violation>, fault: Violation) -> bool {
    if faults.len() < MAX_FAULTS {
        faults.push(fault);
    }
    false
}

fn unknown_field(
    path: &str,
    name: &str,
    value: &Value,
    fields: &serde_json::Map<String, Value>,
) -> Violation {
    let fix = match find_similar(name, fields)
        .or_else(|| find_below(name, "spec", &MANIFEST["properties"]["spec"]))
    {
        Some(known) => format!("did you mean {known}?"),
        None => {
            let known: Vec<_> = fields.keys().map(String::as_str).collect();
            format!("remove it; the known fields are {}", known.join(", "))
        }
    };
    let shown = match value {
        Value::Array(_) => "[…]".into(),
        Value::Object(_) => "{…}".into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    };
    Violation::new(path, Some(&shown), "is not a field of an IPUJob", fix)
}

/// Returns the field that `name` probably stands for: it differs only in case, or by a few typos.
fn find_similar(name: &str, fields: &serde_json::Map<String, Value>) -> Option<String> {
    if name.len() > MAX_SUGGESTION_LEN {
        return None;
    }
    let distance = |field: &String| match field.eq_ignore_ascii_case(name) {
        true => 0,
        false => strsim::damerau_levenshtein(field, name),
    };
    let (edits, field) = fields
        .keys()
        .map(|field| (distance(field), field))
        .min_by_key(|(edits, _)| *edits)?;
    (edits <= 1.max(name.chars().count() / 4)).then(|| field.clone())
}

/// Returns the path of a field called `name` at or below `path`.
fn find_below(name: &str, path: &str, schema: &Value) -> Option<String> {
    schema["properties"]
        .as_object()?
        .iter()
        .find_map(|(field, schema)| {
            let path = format!("{path}.{field}");
            if field == name {
                Some(path)
            } else {
                find_below(name, &path, schema)
            }
        })
}
