//! What is refused of a name, and of a job that has nothing else.

use serde_json::json;

use super::{Place, named, refused};

#[test]
fn a_name_that_no_process_can_have_and_a_job_that_asks_for_nothing_are_refused_without_a_webhook() {
    let name =
        "a_name_that_no_process_can_have_and_a_job_that_asks_for_nothing_are_refused_without_a_webhook";
    let Some(place) = Place::new(name, "named") else {
        return;
    };
    // With 25 instances the last worker has the longest name, as long as that of the last launcher.
    for (characters, instances, fits) in [
        (54, 1, true),
        (55, 1, false),
        (54, 2, false),
        (52, 25, false),
        (51, 25, true),
        (48, 16_384, true),
        (49, 16_384, false),
    ] {
        let job = named(&"x".repeat(characters), instances).to_string();
        let words = "must fit in 63 characters";
        match place.try_apply(&job) {
            Ok(_) => assert!(fits, "{characters} {instances}"),
            Err(error) => assert!(
                !fits && error.contains(words),
                "{characters} {instances}: {error}"
            ),
        }
        place.kubectl(&["delete", "ipujob", "--all"]);
    }
    refused(
        place.try_apply(&named("a.b", 1).to_string()),
        "because host names are derived from it; leave out the dots",
    );
    let nothing = r#"{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "job"}}"#;
    let absent = "spec is absent: every job says what it asks for; add ipusPerJobInstance and workers to it";
    refused(place.try_apply(nothing), absent);
    place.try_job(&json!({"ipusPerJobInstance": 4})).unwrap();
    refused(place.patch("", &json!({"spec": null})), absent);
    let explained = place.kubectl(&["explain", "ipujob"]);
    assert!(
        explained.contains("What the job asks for. Required."),
        "{explained}"
    );
    assert!(
        place
            .kubectl(&["describe", "ipujob", "job"])
            .contains("Ipus Per Job Instance")
    );
}
