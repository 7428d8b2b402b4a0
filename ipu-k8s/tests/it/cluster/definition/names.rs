//! Rejected names, and rejected jobs without a spec.

use serde_json::json;

use super::{CrdFixture, assert_rejected, named};

#[test]
fn a_name_too_long_for_a_process_and_a_job_without_spec_are_rejected_without_a_webhook() {
    let name = "a_name_too_long_for_a_process_and_a_job_without_spec_are_rejected_without_a_webhook";
    let Some(fixture) = CrdFixture::new(name, "named") else {
        return;
    };
    // With 25 instances the last worker has the longest name, as long as that of the last launcher.
    for (characters, instances, is_valid) in [
        (54, 1, true),
        (55, 1, false),
        (54, 2, false),
        (52, 25, false),
        (51, 25, true),
        (48, 16_384, true),
        (49, 16_384, false),
    ] {
        let job = named(&"x".repeat(characters), instances).to_string();
        let rule = "must fit in 63 characters";
        match fixture.try_apply(&job) {
            Ok(_) => assert!(is_valid, "{characters} {instances}"),
            Err(error) => assert!(
                !is_valid && error.contains(rule),
                "{characters} {instances}: {error}"
            ),
        }
        fixture.kubectl(&["delete", "ipujob", "--all"]);
    }
    assert_rejected(
        fixture.try_apply(&named("a.b", 1).to_string()),
        "because host names are derived from it; leave out the dots",
    );
    let nothing = r#"{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job"}}"#;
    let absent = "spec: Required value";
    assert_rejected(fixture.try_apply(nothing), absent);
    fixture.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    assert_rejected(fixture.patch("", &json!({"spec": null})), absent);
    let explained = fixture.kubectl(&["explain", "ipujob"]);
    assert!(
        explained.contains("Specification of the job. Required."),
        "{explained}"
    );
    assert!(
        fixture
            .kubectl(&["describe", "ipujob", "job"])
            .contains("Ipus Per Job Instance")
    );
}
