//! Validation of a manifest against the table of fields, with the path of each violation.
//!
//! serde alone would stop at the first error and could not report its path.

use ipu_core::Violation;
use serde_json::{Map, Value};

use super::Field;
use super::FieldKind::{self, Any, Flag, Object, Objects, Scalar, Text, TextMap, Texts};
use super::spec::SPEC;

/// Maximum number of violations reported for one manifest: more than a user reads, and few enough to be
/// compared with one another.
const MAX_VIOLATIONS: usize = 1000;

/// Maximum length in bytes of an unknown name for which a similar field is suggested.
const MAX_SUGGESTION_LEN: usize = 64;

/// Removes everything from `object` at `path` that does not match `fields`, and adds a violation for each
/// removal. Null counts as absent. The rest can be deserialized.
pub(in crate::crd) fn prune(
    object: &mut Map<String, Value>,
    path: &str,
    fields: &[Field],
    violations: &mut Vec<Violation>,
) {
    object.retain(|name, value| {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match fields.iter().find(|field| field.name == name) {
            Some(_) if value.is_null() => false,
            Some(field) => matches_kind(value, &path, &field.kind, violations),
            None => {
                if violations.len() < MAX_VIOLATIONS {
                    violations.push(unknown_field(&path, name, value, fields));
                }
                false
            }
        }
    });
}

/// Returns whether `value` matches `kind`; adds a violation otherwise.
fn matches_kind(value: &mut Value, path: &str, kind: &FieldKind, violations: &mut Vec<Violation>) -> bool {
    let (expected, fix) = match (kind, &mut *value) {
        (Scalar, Value::Number(_) | Value::String(_))
        | (Text, Value::String(_))
        | (Flag, Value::Bool(_))
        | (Any, Value::Object(_)) => return true,
        (Object(fields), Value::Object(object)) => {
            prune(object, path, fields, violations);
            return true;
        }
        (Objects(fields), Value::Array(items)) => {
            let mut index = 0;
            items.retain_mut(|item| {
                let path = format!("{path}[{index}]");
                index += 1;
                // A list without known fields has items that Kubernetes defines.
                let kind = if fields.is_empty() { Any } else { Object(fields) };
                matches_kind(item, &path, &kind, violations)
            });
            return true;
        }
        (Texts, Value::Array(items)) => {
            let mut all = true;
            for (index, item) in items.iter_mut().enumerate() {
                all &= matches_kind(item, &format!("{path}[{index}]"), &Text, violations);
            }
            return all;
        }
        (TextMap, Value::Object(items)) => {
            items.retain(|name, item| matches_kind(item, &format!("{path}.{name}"), &Text, violations));
            return true;
        }
        (Text, Value::Number(_) | Value::Bool(_)) => ("a string", "put it in quotes"),
        (Scalar, _) => ("a number, or a number in quotes", "write the number alone"),
        (Text, _) => ("a string", "write it in quotes"),
        (Flag, _) => ("true or false", "write true or false without quotes"),
        (Texts, _) => (
            "a list of strings",
            "write one list item for each, in quotes if it is a number",
        ),
        (TextMap, _) => ("strings by name", "write name: text"),
        (Object(_) | Any, _) => ("an object", "write its fields below it, indented"),
        (Objects(_), _) => ("a list of objects", "write one list item for each"),
    };
    if violations.len() >= MAX_VIOLATIONS {
        return false;
    }
    // The value of a variable may be a secret.
    let shown = if path.ends_with("].value") {
        "…".into()
    } else {
        value.to_string()
    };
    violations.push(Violation::new(
        path,
        Some(&shown),
        format!("must be {expected}"),
        fix,
    ));
    false
}

fn unknown_field(path: &str, name: &str, value: &Value, fields: &[Field]) -> Violation {
    let fix = match find_similar(name, fields).or_else(|| find_elsewhere(name)) {
        Some(known) => format!("did you mean {known}?"),
        None => {
            let known: Vec<_> = fields.iter().map(|field| field.name).collect();
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
fn find_similar(name: &str, fields: &[Field]) -> Option<String> {
    let same_name = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    let similar = || {
        if name.len() > MAX_SUGGESTION_LEN {
            return None;
        }
        let edits = fields
            .iter()
            .map(|field| (strsim::damerau_levenshtein(field.name, name), field));
        let (edits, field) = edits.min_by_key(|(edits, _)| *edits)?;
        (edits <= 1.max(name.chars().count() / 4)).then_some(field)
    };
    same_name.or_else(similar).map(|field| field.name.to_owned())
}

/// Returns the path of a field of the same name elsewhere in `spec`.
fn find_elsewhere(name: &str) -> Option<String> {
    fn find(name: &str, path: &str, fields: &[Field]) -> Option<String> {
        fields.iter().find_map(|field| {
            let path = format!("{path}.{}", field.name);
            match &field.kind {
                _ if field.name == name => Some(path),
                Object(fields) => find(name, &path, fields),
                Scalar | Text | Flag | Texts | TextMap | Objects(_) | Any => None,
            }
        })
    }
    find(name, "spec", SPEC)
}
