//! The defaults of the mutating webhook: documented values, and the finalizer.

use serde_json::{Map, Value, json};

use super::{FINALIZER, spec_of};
use crate::crd::IpuJob;

/// Returns the operations of JSON Patch that add missing defaults to `new`; none if it is complete, or
/// malformed.
pub(super) fn patch(new: &Value, old: Option<&Value>) -> Vec<Value> {
    let mut patch = Vec::new();
    let Some(spec) = new.get("spec").and_then(Value::as_object) else {
        return patch;
    };
    // Only on creation: a user who removes the finalizer later wants the job deleted, and the operator adds
    // one to every job before it requests a partition for it.
    if old.is_none() {
        finalizer(new, spec, &mut patch);
    }
    // An update of labels, or of an object that was stored without defaults, is left unchanged.
    if old.is_none_or(|old| spec_of(old) != spec_of(new)) {
        defaults(spec, &mut patch);
    }
    patch
}

fn finalizer(new: &Value, spec: &Map<String, Value>, patch: &mut Vec<Value>) {
    if IpuJob::other_manager_in(field_value(spec, "managedBy").and_then(Value::as_str)).is_some() {
        return;
    }
    let Some(metadata) = new.get("metadata").and_then(Value::as_object) else {
        return;
    };
    match field_value(metadata, "finalizers") {
        None => patch.push(add("/metadata/finalizers", json!([FINALIZER]))),
        Some(Value::Array(all)) if !all.iter().any(|one| one == FINALIZER) => {
            patch.push(add("/metadata/finalizers/-", json!(FINALIZER)));
        }
        Some(_) => {}
    }
}

fn defaults(spec: &Map<String, Value>, patch: &mut Vec<Value>) {
    if field_value(spec, "cleanPodPolicy").is_none() {
        patch.push(add("/spec/cleanPodPolicy", json!("None")));
    }
    match field_value(spec, "restartPolicy") {
        None => patch.push(add(
            "/spec/restartPolicy",
            json!({"type": "Never", "backOffLimit": 3}),
        )),
        Some(Value::Object(policy)) if field_value(policy, "backOffLimit").is_none() => {
            patch.push(add("/spec/restartPolicy/backOffLimit", json!(3)));
        }
        Some(_) => {}
    }
    if let Some(Value::Object(workers)) = field_value(spec, "workers")
        && field_value(workers, "replicas").is_none()
    {
        patch.push(add("/spec/workers/replicas", json!(1)));
    }
}

/// Returns the value of a field; `None` if it is null.
fn field_value<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// Returns an operation that adds a value, or replaces an existing one, such as null.
fn add(path: &str, value: Value) -> Value {
    json!({"op": "add", "path": path, "value": value})
}
