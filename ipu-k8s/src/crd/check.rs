//! The check of a manifest against the schema of the CRD, with the path of each violation. serde alone would
//! stop at the first error and could not report its path.

use std::collections::{BTreeSet, VecDeque};
use std::sync::LazyLock;

use ipu_core::job::{Violation, Warning};
use serde_json::{Map, Value, json};

use super::ipujob::SCHEMA;
use super::pod_rules::{is_dns_label, similar};
use super::spec::IpuJob;

/// Maximum number of unknown fields and values of a wrong kind that are reported: more than a user reads.
const MAX_FAULTS: usize = 100;

/// Maximum length in bytes of an unknown name for which a similar field is suggested.
const MAX_SUGGESTION_LEN: usize = 64;

/// Path of the Pod template. Newer versions of Kubernetes add fields to it.
const TEMPLATE_PATH: &str = "spec.workers.template";

/// Maximum number of places that are named for a field at a wrong level.
const MAX_PLACES: usize = 2;

/// The schema of a manifest: the one of the CRD, and the metadata, which the API server knows.
static MANIFEST: LazyLock<Value> = LazyLock::new(|| {
    let string = json!({"type": "string"});
    let strings = json!({"type": "array", "items": string});
    let text_map = json!({"type": "object", "additionalProperties": string});
    let integer = json!({"type": "integer"});
    let objects = json!({"type": "array", "items": {"type": "object"}});
    let mut spec = SCHEMA["properties"]["spec"].clone();
    // The compiler does not check a generated file; the tests of `xtask` do.
    let template = serde_json::from_str(include_str!("pod_template.json")).unwrap_or(Value::Null);
    spec["properties"]["launcher"]["properties"]["resources"] = template["properties"]["spec"]["properties"]
        ["containers"]["items"]["properties"]["resources"]
        .clone();
    spec["properties"]["workers"]["properties"]["template"] = template;
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
        "spec": spec,
        "status": {"type": "object"},
    }})
});

/// Faults of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Faults {
    /// Unknown fields, and values of a wrong kind.
    pub(super) violations: Vec<Violation>,
    /// Values that only a host accepts, and fields that only another version of Kubernetes has.
    pub(super) warnings: Vec<Warning>,
}

impl Faults {
    /// Adds a violation, up to the maximum; returns false.
    fn refuse(&mut self, violation: Violation) -> bool {
        if self.violations.len() < MAX_FAULTS {
            self.violations.push(violation);
        }
        false
    }

    /// Adds a warning, up to the maximum; returns true.
    fn warn(&mut self, warning: Warning) -> bool {
        if self.warnings.len() < MAX_FAULTS {
            self.warnings.push(warning);
        }
        true
    }
}

impl IpuJob {
    /// Reads a job from `value`. Returns the readable part without its status, and the violations: unknown
    /// fields, and values of a wrong kind.
    #[must_use]
    pub fn from_value(value: Value) -> (Self, Vec<Violation>) {
        let (job, faults) = read(value);
        (job, faults.violations)
    }
}

/// Reads a job from `value`. Returns the readable part without its status, and the faults.
pub(super) fn read(mut value: Value) -> (IpuJob, Faults) {
    let mut faults = Faults::default();
    if !prune(&mut value, &MANIFEST, "", &mut faults) {
        return (IpuJob::default(), faults);
    }
    for (field, expected) in [("apiVersion", IpuJob::API_VERSION), ("kind", IpuJob::KIND)] {
        let found = value[field].as_str();
        if found != Some(expected) && !faults.violations.iter().any(|fault| fault.field == field) {
            let (rule, fix) = (format!("must be {expected}"), format!("write {expected}"));
            faults.refuse(Violation::new(field, found, rule, fix));
        }
    }
    if let Some(namespace) = value["metadata"]["namespace"]
        .as_str()
        .filter(|name| !is_dns_label(name))
    {
        let similar = similar(&namespace.to_ascii_lowercase(), |c| c.is_ascii_alphanumeric());
        faults.refuse(Violation::new(
            "metadata.namespace",
            Some(&format!("{namespace:?}")),
            "must be lower-case letters, digits and '-', beginning and ending with a letter or digit (DNS-1123)",
            format!("use {}, for example", similar.as_deref().unwrap_or("default")),
        ));
    }
    let mut take = |field: &str| value[field].take();
    let (metadata, spec) = (take("metadata"), take("spec"));
    let mut job = IpuJob::default();
    match serde_json::from_value::<Option<_>>(metadata) {
        Ok(metadata) => job.metadata = metadata.unwrap_or_default(),
        Err(error) => {
            faults.refuse(unreadable("metadata", &error));
        }
    }
    match serde_json::from_value::<Option<_>>(spec) {
        Ok(spec) => job.spec = spec.unwrap_or_default(),
        Err(error) => {
            faults.refuse(unreadable("spec", &error));
        }
    }
    (job, faults)
}

fn unreadable(field: &str, error: &serde_json::Error) -> Violation {
    Violation::new(field, Some("{…}"), error.to_string(), "correct the value")
}

/// Removes everything from `value` at `path` that does not match `schema`, and adds a violation for each
/// removal. Null counts as absent. Returns whether the rest can be deserialized.
fn prune(value: &mut Value, schema: &Value, path: &str, faults: &mut Faults) -> bool {
    let is_int_or_string = schema["x-kubernetes-int-or-string"] == true;
    let is_in_template = path.starts_with(TEMPLATE_PATH);
    let kind = match schema["type"].as_str() {
        _ if is_int_or_string => "integer",
        kind => kind.unwrap_or_default(),
    };
    let fields = schema["properties"].as_object();
    let (expected, fix) = match (kind, &mut *value) {
        // A host reads quoted numbers everywhere.
        ("integer", Value::String(text)) if !is_int_or_string && text.parse::<i64>().is_ok() => {
            let shown = format!("{text:?}");
            let fix = format!("write {text} without quotes");
            return faults.warn(Warning::new(
                path,
                Some(&shown),
                "is an integer, and the API server of Kubernetes refuses its quotes",
                fix,
            ));
        }
        ("integer", Value::String(_)) if is_int_or_string || !is_in_template => return true,
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => return true,
        ("integer", Value::Number(number)) if number.is_i64() => return true,
        ("object", Value::Object(object)) => {
            prune_fields(object, schema, path, faults);
            return true;
        }
        ("array", Value::Array(items)) => {
            let (mut index, mut is_complete) = (0, true);
            let mut keys = BTreeSet::new();
            items.retain_mut(|item| {
                let path = format!("{path}[{index}]");
                let is_kept = prune(item, &schema["items"], &path, faults);
                if is_kept {
                    check_key(item, schema, &path, &mut keys, faults);
                }
                index += 1;
                is_complete &= is_kept;
                is_kept
            });
            // A command without one of its words is another command.
            return is_complete || schema["items"]["type"] == "object";
        }
        ("integer", Value::Number(_)) if is_in_template && is_int_or_string => {
            ("a whole number or a string", "put it in quotes")
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
    let complete = written_out(value, schema, path);
    let fix = complete.as_deref().unwrap_or(fix);
    // The value of a variable may be a secret.
    let shown = if path.ends_with("].value") {
        "…".into()
    } else {
        value.to_string()
    };
    faults.refuse(Violation::new(
        path,
        Some(&shown),
        format!("must be {expected}"),
        fix,
    ))
}

/// Returns the fix for a list in place of a text with commas, and for the value of the only required field in
/// place of its object.
fn written_out(value: &Value, schema: &Value, path: &str) -> Option<String> {
    let is_list_text = schema["x-kubernetes-int-or-string"] == true && schema["pattern"].is_string();
    if let (Value::Array(items), true) = (value, is_list_text) {
        let texts = items.iter().map(|item| match item {
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => Some(text.clone()),
            _ => None,
        });
        let texts = texts
            .collect::<Option<Vec<_>>>()
            .filter(|texts| !texts.is_empty())?;
        return Some(format!("write \"{}\"", texts.join(",")));
    }
    let text = value.as_str()?;
    let [required] = schema["required"].as_array()?.as_slice() else {
        return None;
    };
    let required = required.as_str()?;
    let values = schema["properties"][required]["enum"].as_array()?;
    let mut values = values.iter().filter_map(Value::as_str);
    let known = values.find(|known| known.eq_ignore_ascii_case(text))?;
    let name = path.rsplit('.').next().unwrap_or(path);
    Some(format!("write {name}: {{{required}: {known}}}"))
}

/// Prunes the fields of `object`, and adds a violation for each required field of a Pod template that is
/// absent. Fields of a template that the schema lacks are kept.
fn prune_fields(object: &mut Map<String, Value>, schema: &Value, path: &str, faults: &mut Faults) {
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        // The rules of a job report absent containers, and absent fields outside of the template.
        if path.starts_with(TEMPLATE_PATH)
            && name != "containers"
            && object.get(name).is_none_or(Value::is_null)
        {
            faults.refuse(Violation::new(
                &format!("{path}.{name}"),
                None,
                "Kubernetes requires it",
                "add it",
            ));
        }
    }
    let fields = schema["properties"].as_object();
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
                None if path.starts_with(TEMPLATE_PATH) => {
                    faults.warn(unknown_field(&path, name, value, fields))
                }
                None => faults.refuse(unknown_field(&path, name, value, fields)),
            },
            (None, values) => prune(value, values, &path, faults),
        }
    });
}

/// Adds a violation if an earlier item of a list has the same key, of which `keys` has all so far.
fn check_key(
    item: &Value,
    schema: &Value,
    path: &str,
    keys: &mut BTreeSet<Vec<String>>,
    faults: &mut Faults,
) {
    let names = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten();
    let names: Vec<&str> = names.filter_map(Value::as_str).collect();
    let value_of = |name: &&str| match &item[*name] {
        Value::Null => schema["items"]["properties"][*name]["default"].to_string(),
        value => value.to_string(),
    };
    let key: Vec<String> = names.iter().map(value_of).collect();
    let Some(first) = names.first().filter(|_| !keys.insert(key.clone())) else {
        return;
    };
    faults.refuse(Violation::new(
        &format!("{path}.{first}"),
        Some(&key.join(" ")),
        format!(
            "must be unique, but an earlier item of the list has the same {}",
            names.join(" and ")
        ),
        "use another one",
    ));
}

fn unknown_field(path: &str, name: &str, value: &Value, fields: &Map<String, Value>) -> Violation {
    let fix = match find_similar(name, fields) {
        Some(known) => format!("did you mean {known}?"),
        None => match (places(name).join(" or "), moved_fields(value)) {
            (places, _) if !places.is_empty() => format!("did you mean {places}?"),
            (_, moved) if !moved.is_empty() => format!("write {}", moved.join(", ")),
            _ => {
                let known: Vec<_> = fields.keys().map(String::as_str).collect();
                format!("remove it; the known fields are {}", known.join(", "))
            }
        },
    };
    let shown = match value {
        Value::Array(_) => "[…]".into(),
        Value::Object(_) => "{…}".into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    };
    let rule = match path.starts_with(TEMPLATE_PATH) {
        true => "is not a field of a Pod template, unless your version of Kubernetes has added it",
        false => "is not a field of an IPUJob",
    };
    Violation::new(path, Some(&shown), rule, fix)
}

/// Returns the field that `name` probably stands for: it differs only in case, or by a few typos.
fn find_similar(name: &str, fields: &Map<String, Value>) -> Option<String> {
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

/// Returns the paths of fields called `name` in any case, those of the fewest levels first.
fn places(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut levels = VecDeque::from([("spec".to_owned(), &MANIFEST["properties"]["spec"])]);
    while let Some((path, schema)) = levels.pop_front() {
        let (path, schema) = match schema.get("items") {
            Some(items) => (format!("{path}[0]"), items),
            None => (path, schema),
        };
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{field}");
            if field.eq_ignore_ascii_case(name) {
                found.push(path.clone());
                if found.len() == MAX_PLACES {
                    return found;
                }
            }
            // A field belongs to the containers of the job; Kubernetes refuses ephemeral ones.
            if !matches!(&**field, "initContainers" | "ephemeralContainers") {
                levels.push_back((path, schema));
            }
        }
    }
    found
}

/// Returns where the fields of an unknown object belong, each as `name as path`.
fn moved_fields(value: &Value) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, _)| Some(format!("{name} as {}", places(name).first()?)))
        .collect()
}
