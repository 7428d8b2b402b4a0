//! What is stored beside what somebody wrote: the documented defaults, and the finalizer.

use serde_json::{Map, Value, json};

use super::{FINALIZER, spec_of};
use crate::crd::IpuJob;

/// The operations of JSON Patch that make `new` complete; none if it is, or cannot be.
pub(super) fn patch(new: &Value, old: Option<&Value>) -> Vec<Value> {
    let mut patch = Vec::new();
    let Some(spec) = new.get("spec").and_then(Value::as_object) else {
        return patch;
    };
    // On creation alone: somebody who takes the finalizer away later wants it to be gone, and the operator puts one to every
    // job before it takes anything for it.
    if old.is_none() {
        finalizer(new, spec, &mut patch);
    }
    // An update of labels, or of an object that was stored without defaults, is left as it is.
    if old.is_none_or(|old| spec_of(old) != spec_of(new)) {
        defaults(spec, &mut patch);
    }
    patch
}

fn finalizer(new: &Value, spec: &Map<String, Value>, patch: &mut Vec<Value>) {
    if IpuJob::other_manager_in(given(spec, "managedBy").and_then(Value::as_str)).is_some() {
        return;
    }
    let Some(metadata) = new.get("metadata").and_then(Value::as_object) else {
        return;
    };
    match given(metadata, "finalizers") {
        None => patch.push(add("/metadata/finalizers", json!([FINALIZER]))),
        Some(Value::Array(all)) if !all.iter().any(|one| one == FINALIZER) => {
            patch.push(add("/metadata/finalizers/-", json!(FINALIZER)));
        }
        Some(_) => {}
    }
}

fn defaults(spec: &Map<String, Value>, patch: &mut Vec<Value>) {
    if given(spec, "cleanPodPolicy").is_none() {
        patch.push(add("/spec/cleanPodPolicy", json!("None")));
    }
    match given(spec, "restartPolicy") {
        None => patch.push(add(
            "/spec/restartPolicy",
            json!({"type": "Never", "backOffLimit": 3}),
        )),
        Some(Value::Object(policy)) if given(policy, "backOffLimit").is_none() => {
            patch.push(add("/spec/restartPolicy/backOffLimit", json!(3)));
        }
        Some(_) => {}
    }
    if let Some(Value::Object(workers)) = given(spec, "workers")
        && given(workers, "replicas").is_none()
    {
        patch.push(add("/spec/workers/replicas", json!(1)));
    }
}

/// The value of a field; null is none.
fn given<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// It replaces what is there, such as null.
fn add(path: &str, value: Value) -> Value {
    json!({"op": "add", "path": path, "value": value})
}
