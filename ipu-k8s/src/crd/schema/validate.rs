//! What of a manifest does not fit the table of fields, with its path.
//!
//! serde alone would stop at the first mistake and could not say where it is.

use ipu_core::Violation;
use serde_json::{Map, Value};

use super::Field;
use super::FieldKind::{self, Any, Flag, Object, Objects, Scalar, Text, TextMap, Texts};
use super::spec::SPEC;

/// The most faults that are told of one manifest: more than anybody reads, and few enough to be compared with one another.
const MAX_FAULTS: usize = 1000;

/// The longest name, in bytes, that may be one of ours with slips of the fingers.
const MAX_SUGGESTION_LEN: usize = 64;

/// Takes out of `object`, which stands at `path`, everything that does not fit `fields`, and says what that was. What
/// is null counts as absent. What is left can be read.
pub(in crate::crd) fn prune(
    object: &mut Map<String, Value>,
    path: &str,
    fields: &[Field],
    found: &mut Vec<Violation>,
) {
    object.retain(|name, value| {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match fields.iter().find(|field| field.name == name) {
            Some(_) if value.is_null() => false,
            Some(field) => fits(value, &path, &field.kind, found),
            None => {
                if found.len() < MAX_FAULTS {
                    found.push(unknown(&path, name, value, fields));
                }
                false
            }
        }
    });
}

/// Whether `value` may stay: not if it is of another kind, which is a violation.
fn fits(value: &mut Value, path: &str, kind: &FieldKind, found: &mut Vec<Violation>) -> bool {
    let (expected, fix) = match (kind, &mut *value) {
        (Scalar, Value::Number(_) | Value::String(_))
        | (Text, Value::String(_))
        | (Flag, Value::Bool(_))
        | (Any, Value::Object(_)) => return true,
        (Object(fields), Value::Object(object)) => {
            prune(object, path, fields, found);
            return true;
        }
        (Objects(fields), Value::Array(items)) => {
            let mut index = 0;
            items.retain_mut(|item| {
                let path = format!("{path}[{index}]");
                index += 1;
                // A list without known fields is Kubernetes' own.
                let kind = if fields.is_empty() { Any } else { Object(fields) };
                fits(item, &path, &kind, found)
            });
            return true;
        }
        (Texts, Value::Array(items)) => {
            let mut all = true;
            for (index, item) in items.iter_mut().enumerate() {
                all &= fits(item, &format!("{path}[{index}]"), &Text, found);
            }
            return all;
        }
        (TextMap, Value::Object(items)) => {
            items.retain(|name, item| fits(item, &format!("{path}.{name}"), &Text, found));
            return true;
        }
        (Text, Value::Number(_) | Value::Bool(_)) => ("a text", "put it in quotes"),
        (Scalar, _) => ("a number, or a number in quotes", "write the number alone"),
        (Text, _) => ("a text", "write it in quotes"),
        (Flag, _) => ("true or false", "write true or false without quotes"),
        (Texts, _) => (
            "a list of texts",
            "write one list item for each, in quotes if it is a number",
        ),
        (TextMap, _) => ("texts by name", "write name: text"),
        (Object(_) | Any, _) => ("an object", "write its fields below it, indented"),
        (Objects(_), _) => ("a list of objects", "write one list item for each"),
    };
    if found.len() >= MAX_FAULTS {
        return false;
    }
    // The value of a variable may be a secret.
    let shown = if path.ends_with("].value") {
        "…".into()
    } else {
        value.to_string()
    };
    found.push(Violation::new(
        path,
        Some(&shown),
        format!("must be {expected}"),
        fix,
    ));
    false
}

fn unknown(path: &str, name: &str, value: &Value, fields: &[Field]) -> Violation {
    let fix = match nearest(name, fields).or_else(|| elsewhere(name)) {
        Some(known) => format!("did you mean {known}?"),
        None => {
            let known: Vec<_> = fields.iter().map(|field| field.name).collect();
            format!("remove it; known here are {}", known.join(", "))
        }
    };
    let shown = match value {
        Value::Array(_) => "[…]".into(),
        Value::Object(_) => "{…}".into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    };
    Violation::new(path, Some(&shown), "is no field of an IPUJob", fix)
}

/// The field here that `name` was probably meant to be: equal but for case, or a few slips of the fingers away.
fn nearest(name: &str, fields: &[Field]) -> Option<String> {
    let same = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    let close = || {
        if name.len() > MAX_SUGGESTION_LEN {
            return None;
        }
        let slips = fields
            .iter()
            .map(|field| (strsim::damerau_levenshtein(field.name, name), field));
        let (slips, field) = slips.min_by_key(|(slips, _)| *slips)?;
        (slips <= 1.max(name.chars().count() / 4)).then_some(field)
    };
    same.or_else(close).map(|field| field.name.to_owned())
}

/// The path of the field of that very name somewhere else in `spec`.
fn elsewhere(name: &str) -> Option<String> {
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
