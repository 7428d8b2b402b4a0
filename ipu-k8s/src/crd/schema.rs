//! Which fields an IPUJob has and of what kind each is, as one table; and what does not fit it, with its path.
//!
//! serde alone would stop at the first mistake and could not say where it is.

use ipu_core::Violation;
use serde_json::{Map, Value};

use self::Kind::{Any, Flag, Map as TextMap, Object, Objects, Scalar, Text, Texts};

/// A field and what it may hold.
pub(super) struct Field {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    /// A number or a text: the custom resource 1.2.0 wants some numbers as strings.
    Scalar,
    Text,
    Flag,
    Texts,
    /// Texts by name.
    Map,
    Object(&'static [Field]),
    Objects(&'static [Field]),
    /// Kubernetes' own: an object that is not looked into here.
    Any,
}

const fn field(name: &'static str, kind: Kind) -> Field {
    Field { name, kind }
}

/// The fields of the whole object.
pub(super) const IPU_JOB: &[Field] = &[
    field("apiVersion", Text),
    field("kind", Text),
    field("metadata", Object(METADATA)),
    field("spec", Object(SPEC)),
    field("status", Any),
];

const METADATA: &[Field] = &[
    field("name", Text),
    field("generateName", Text),
    field("namespace", Text),
    field("uid", Text),
    field("labels", TextMap),
    field("annotations", TextMap),
    field("creationTimestamp", Text),
    field("deletionGracePeriodSeconds", Scalar),
    field("deletionTimestamp", Text),
    field("finalizers", Texts),
    field("generation", Scalar),
    field("managedFields", Objects(&[])),
    field("ownerReferences", Objects(&[])),
    field("resourceVersion", Text),
    field("selfLink", Text),
];

const SPEC: &[Field] = &[
    field("jobInstances", Scalar),
    field("ipusPerJobInstance", Scalar),
    field("workersPerJobInstance", Scalar),
    field("workerPerJobInstance", Scalar),
    field("modelReplicasPerWorker", Scalar),
    field("modelReplicas", Scalar),
    field("ipusPerModelReplica", Scalar),
    field("cleanPodPolicy", Text),
    field("interactive", Object(&[field("ttl", Scalar)])),
    field("launcher", Object(LAUNCHER)),
    field("restartPolicy", Object(RESTART_POLICY)),
    field("workers", Object(WORKERS)),
    field("suspend", Flag),
    field("ttlSecondsAfterFinished", Scalar),
    field("activeDeadlineSeconds", Scalar),
    field("startDeadlineSeconds", Scalar),
    field("priority", Scalar),
    field("account", Text),
    field("preemptible", Flag),
    field("reconfigurable", Flag),
    field("allocation", Text),
];

const LAUNCHER: &[Field] = &[
    field("command", Texts),
    field("env", Objects(ENV)),
    field("tcpInterface", Text),
];

const ENV: &[Field] = &[field("name", Text), field("value", Text), field("valueFrom", Any)];

const RESTART_POLICY: &[Field] = &[
    field("type", Text),
    field("backOffLimit", Scalar),
    field("exitCodes", Scalar),
    field("backOffSeconds", Scalar),
];

const WORKERS: &[Field] = &[
    field("replicas", Scalar),
    field("strategy", Object(STRATEGY)),
    field("template", Any),
];

const STRATEGY: &[Field] = &[
    field("type", Text),
    field("rollingUpdate", Object(ROLLING_UPDATE)),
];

const ROLLING_UPDATE: &[Field] = &[field("maxSurge", Scalar), field("maxUnavailable", Scalar)];

/// Takes out of `object`, which stands at `path`, everything that does not fit `fields`, and says what that was. What
/// is null counts as absent. What is left can be read.
pub(super) fn prune(
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
                found.push(unknown(&path, name, value, fields));
                false
            }
        }
    });
}

/// Whether `value` may stay: not if it is of another kind, which is a violation.
fn fits(value: &mut Value, path: &str, kind: &Kind, found: &mut Vec<Violation>) -> bool {
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
            let before = found.len();
            for (index, item) in items.iter_mut().enumerate() {
                fits(item, &format!("{path}[{index}]"), &Text, found);
            }
            return found.len() == before;
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

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = include_str!("../../../docs/ipujob.md");

    /// The paths of all fields, but for those that are Kubernetes' own.
    fn paths(path: &str, fields: &[Field], to: &mut Vec<String>) {
        for field in fields {
            let path = format!("{path}{}", field.name);
            match &field.kind {
                Object(fields) | Objects(fields) => paths(&format!("{path}."), fields, to),
                Scalar | Text | Flag | Texts | TextMap | Any => {}
            }
            to.push(path);
        }
    }

    #[test]
    fn every_field_is_in_the_guide() {
        let mut all = Vec::new();
        paths("spec.", SPEC, &mut all);
        all.retain(|path| !GUIDE.contains(&format!("`{path}`")));
        // Only the parts of a group are explained.
        all.retain(|path| !GUIDE.contains(&format!("`{path}.")));
        assert!(all.is_empty(), "not in docs/ipujob.md: {all:?}");
    }

    #[test]
    fn the_guide_speaks_of_no_field_that_is_none() {
        let mut all = Vec::new();
        paths("", IPU_JOB, &mut all);
        let words = GUIDE.split('`').skip(1).step_by(2);
        let mut unknown: Vec<_> = words
            .filter(|word| word.starts_with("spec.") || word.starts_with("metadata."))
            .collect();
        unknown.retain(|word| !all.iter().any(|path| path == word));
        assert!(
            unknown.is_empty(),
            "fields of docs/ipujob.md that are none: {unknown:?}"
        );
    }
}
