//! Properties of the answers over whatever somebody may send.

use ipu_k8s::webhook::{AdmissionRules, ReviewResponse, mutate, validate};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{patched, review, seeds};

/// Any JSON, of names that an IPUJob has among others.
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

/// One of the seeds with one of its parts replaced by anything.
fn almost_a_job() -> impl Strategy<Value = Value> {
    const PLACES: &[&str] = &[
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
    let seed = prop::sample::select(seeds());
    (seed, prop::sample::select(PLACES), any_json()).prop_map(|(mut seed, place, value)| {
        if let Some(part) = seed.pointer_mut(place) {
            *part = value;
        }
        seed
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    prop_oneof![any_json(), almost_a_job()]
}

fn check(answer: &ReviewResponse) {
    let review = answer.to_review();
    assert_eq!(review["response"]["uid"], "705ab4f5-6393-11e8-b7cc-42010a800002");
    assert_eq!(review["response"]["allowed"], answer.allowed());
    assert_eq!(answer.message().is_empty(), answer.allowed());
    assert!(answer.warnings().len() <= 16);
}

proptest! {
    #[test]
    fn whatever_the_object_is_both_answer_with_the_uid(
        new in any_object(), old in any_object(),
        operation in prop::sample::select(&["CREATE", "UPDATE", "DELETE", "CONNECT", ""][..]),
        sub in prop::sample::select(&["", "scale", "status"][..]),
    ) {
        let review = review(operation, sub, &new, &old);
        let judged = validate(&review, &AdmissionRules::default()).unwrap();
        check(&judged);
        let changed = mutate(&review).unwrap();
        check(&changed);
        prop_assert!(changed.allowed());
        prop_assert!(judged.allowed() || operation == "CREATE" || operation == "UPDATE");
    }

    #[test]
    fn a_change_that_is_made_can_be_made_and_is_made_once_and_takes_nothing_away(
        new in any_object(), old in any_object(), creation in any::<bool>(),
    ) {
        let operation = if creation { "CREATE" } else { "UPDATE" };
        let asked = review(operation, "", &new, &old);
        let answer = mutate(&asked).unwrap();
        let stored = patched(&new, &answer);
        prop_assert!(mutate(&review(operation, "", &stored, &old)).unwrap().patch().is_empty());
        let rules = AdmissionRules::default();
        // What is admitted as it was written is admitted as it is stored.
        if validate(&asked, &rules).unwrap().allowed() {
            let judged = validate(&review(operation, "", &stored, &old), &rules).unwrap();
            prop_assert!(judged.allowed(), "{}", judged.message());
        }
    }

    #[test]
    fn an_update_that_leaves_the_spec_or_is_of_a_dying_object_is_never_refused(
        new in any_object(), old in any_object(), dying in any::<bool>(),
    ) {
        let mut new = new;
        if !new.is_object() {
            return Ok(());
        }
        if dying {
            new["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        }
        let old = if dying { old } else { json!({"spec": new["spec"].clone()}) };
        let answer = validate(&review("UPDATE", "", &new, &old), &AdmissionRules::default()).unwrap();
        prop_assert!(answer.allowed(), "{}", answer.message());
    }

    #[test]
    fn bytes_that_are_anything_are_an_error_or_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0..2000_usize, object in any_object()) {
        let rules = AdmissionRules::default();
        let _ = (validate(&bytes, &rules), mutate(&bytes));
        // A review with some of it overwritten.
        let mut review = review("CREATE", "", &object, &Value::Null);
        let at = cut.min(review.len());
        let end = (at + bytes.len()).min(review.len());
        review.splice(at..end, bytes.drain(..));
        if let Ok(answer) = validate(&review, &rules) {
            prop_assert!(!answer.to_review()["response"]["uid"].as_str().unwrap().is_empty());
        }
        let _ = mutate(&review);
    }
}
