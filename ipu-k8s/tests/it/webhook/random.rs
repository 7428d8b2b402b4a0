//! Properties of the responses for arbitrary input.

use ipu_k8s::kube::core::admission::AdmissionResponse;
use ipu_k8s::webhook::{AdmissionRules, mutate, validate};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{guide_jobs, review};

/// Generates arbitrary JSON with field names of an IPUJob among others.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[0-9]{1,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let name = prop_oneof![
            Just("metadata".to_owned()),
            Just("spec".to_owned()),
            Just("finalizers".to_owned()),
            Just("workers".to_owned()),
            Just("replicas".to_owned()),
            Just("restartPolicy".to_owned()),
            Just("jobInstances".to_owned()),
            Just("ipusPerJobInstance".to_owned()),
            Just("deletionTimestamp".to_owned()),
            ".{0,8}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Generates a job of the guides with one part replaced by an arbitrary value.
fn almost_a_job() -> impl Strategy<Value = Value> {
    const POINTERS: &[&str] = &[
        "/metadata",
        "/metadata/name",
        "/spec",
        "/spec/jobInstances",
        "/spec/ipusPerJobInstance",
        "/spec/workers",
        "/spec/launcher",
        "/spec/restartPolicy",
        "/spec/interactive",
        "/kind",
    ];
    let job = prop::sample::select(guide_jobs());
    (job, prop::sample::select(POINTERS), any_json()).prop_map(|(mut job, pointer, value)| {
        if let Some(part) = job.pointer_mut(pointer) {
            *part = value;
        }
        job
    })
}

/// Generates an object as the API server sends it: its metadata are checked, the rest may be anything.
fn any_object() -> impl Strategy<Value = Value> {
    prop_oneof![any_json(), almost_a_job()].prop_map(|part| {
        let mut object = if part.is_object() {
            part
        } else {
            json!({"spec": part})
        };
        object["metadata"] = json!({"name": "job"});
        object["apiVersion"] = json!("graphcore.ai/v1alpha1");
        object
    })
}

fn check(response: &AdmissionResponse) {
    assert_eq!(response.uid, "705ab4f5-6393-11e8-b7cc-42010a800002");
    assert_eq!(response.result.message.is_empty(), response.allowed);
    assert!(response.warnings.iter().flatten().count() <= 16);
}

proptest! {
    #[test]
    fn both_webhooks_respond_with_the_uid_for_any_object(
        new in any_object(), old in any_object(),
        operation in prop::sample::select(&["CREATE", "UPDATE", "DELETE", "CONNECT"][..]),
        sub in prop::sample::select(&["", "scale", "status"][..]),
    ) {
        let review = review(operation, sub, &new, &old);
        let validated = validate(&review, &AdmissionRules::default()).unwrap();
        check(&validated);
        let mutated = mutate(&review).unwrap();
        check(&mutated);
        prop_assert!(mutated.allowed);
        prop_assert!(validated.allowed || operation == "CREATE" || operation == "UPDATE");
    }

    #[test]
    fn an_update_without_spec_changes_or_of_a_deleting_object_is_never_rejected(
        new in any_object(), old in any_object(), deleting in any::<bool>(),
    ) {
        let mut new = new;
        if deleting {
            new["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        }
        let old = if deleting { old } else { json!({"metadata": {}, "spec": new["spec"].clone()}) };
        let response = validate(&review("UPDATE", "", &new, &old), &AdmissionRules::default()).unwrap();
        prop_assert!(response.allowed, "{}", response.result.message);
    }

    #[test]
    fn arbitrary_bytes_cause_an_error_or_a_response(mut bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0..2000_usize, object in any_object()) {
        let rules = AdmissionRules::default();
        let _ = (validate(&bytes, &rules), mutate(&bytes));
        // A review with some bytes overwritten.
        let mut review = review("CREATE", "", &object, &Value::Null);
        let at = cut.min(review.len());
        let end = (at + bytes.len()).min(review.len());
        review.splice(at..end, bytes.drain(..));
        let _ = (validate(&review, &rules), mutate(&review));
    }
}
