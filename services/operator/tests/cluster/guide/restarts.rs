//! Automatic restarts (V-IPU guide §6.7.2): four policies and their outcomes.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, worker_job};
use crate::guide::{job_with_launcher, load_image};

/// A restart policy, the exit code of every attempt, and the expected outcome.
struct Case {
    name: &'static str,
    policy: Value,
    ends_with: u32,
    phase: &'static str,
    restarts: u32,
    /// Part of the last message.
    message_part: &'static str,
}

/// All cases except success under `Always`, which never ends.
fn cases() -> Vec<Case> {
    let case = |name, policy, ends_with, phase, restarts, message_part| Case {
        name,
        policy,
        ends_with,
        phase,
        restarts,
        message_part,
    };
    let of_kind = |kind: &str| json!({"type": kind, "backOffLimit": 1, "backOffSeconds": 0});
    let mut own_codes = of_kind("ExitCode");
    own_codes["exitCodes"] = "3,40-42".into();
    let done = "All instances done";
    let used = "the back-off limit of 1 is reached";
    vec![
        case("never-succeeds", of_kind("Never"), 0, "Completed", 0, done),
        case("never-fails", of_kind("Never"), 1, "Failed", 0, "never restarted"),
        case(
            "on-failure-succeeds",
            of_kind("OnFailure"),
            0,
            "Completed",
            0,
            done,
        ),
        case("on-failure-fails", of_kind("OnFailure"), 1, "Failed", 1, used),
        case("always-fails", of_kind("Always"), 1, "Failed", 1, used),
        case("code-0", of_kind("ExitCode"), 0, "Completed", 0, done),
        // "1-127: permanent error, do not restart", "128-255: retryable error, will restart the job"
        case("code-127", of_kind("ExitCode"), 127, "Failed", 0, "not retryable"),
        case("code-128", of_kind("ExitCode"), 128, "Failed", 1, used),
        case("code-255", of_kind("ExitCode"), 255, "Failed", 1, used),
        // "that user should provide exit codes by themselves"
        case("own-code-41", own_codes.clone(), 41, "Failed", 1, used),
        case("own-code-200", own_codes, 200, "Failed", 0, "not retryable"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_7_2_four_restart_policies_handle_success_failure_and_exit_codes() {
    let test = "vipu_guide_6_7_2_four_restart_policies_handle_success_failure_and_exit_codes";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-7-2").await else {
        return;
    };
    for case in cases() {
        let mut job = worker_job(case.name, &format!("exit {}", case.ends_with));
        job["spec"]["restartPolicy"] = case.policy.clone();
        fixture.apply(&job);
    }
    let mut always = worker_job("always-succeeds", "true");
    always["spec"]["restartPolicy"] = json!({"type": "Always", "backOffLimit": 0, "backOffSeconds": 0});
    fixture.apply(&always);
    for case in cases() {
        let status = fixture.wait_for_phase(case.name, case.phase).await;
        let context = format!("{}: {status}", case.name);
        assert_eq!(status["restartCount"], case.restarts, "{context}");
        assert_eq!(status["launcherStatus"], case.phase, "{context}");
        assert_eq!(status["exitCode"], case.ends_with, "{context}");
        let message = status["lastMessage"].as_str().unwrap_or_default();
        assert!(message.contains(case.message_part), "{context}");
        if case.phase == "Failed" {
            // The last attempt is the one that failed the job.
            assert_eq!(status["firstFailure"]["attempt"], case.restarts, "{context}");
            let attempts = status["attempts"].as_array().unwrap();
            assert_eq!(attempts.len(), 1 + case.restarts as usize, "{context}");
        }
    }
    // The limit does not count successes.
    fixture
        .wait_for_status("always-succeeds", "the job restarts repeatedly", |status| {
            status["restartCount"].as_u64() >= Some(2)
        })
        .await;
    let events = fixture.kubectl(&["events", "--for=ipujob/always-succeeds"]);
    assert!(
        events.contains("IPUJobRestarting") && !events.contains("Warning"),
        "{events}"
    );
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_7_2_a_restart_runs_the_launcher_again_on_a_clean_partition() {
    let test = "vipu_guide_6_7_2_a_restart_runs_the_launcher_again_on_a_clean_partition";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-7-2-launcher").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let mut job = job_with_launcher("again", "mpirun hostname; exit 130");
    job["spec"]["restartPolicy"] = json!({"type": "ExitCode", "backOffLimit": 1, "backOffSeconds": 0});
    fixture.apply(&job);
    let status = fixture.wait_for_phase("again", "Failed").await;
    assert_eq!(status["restartCount"], 1, "{status}");
    assert_eq!(status["exitCode"], 130, "{status}");
    assert_eq!(status["firstFailure"]["name"], "again-launcher", "{status}");
    assert_eq!(status["attempts"].as_array().map(Vec::len), Some(2), "{status}");
    assert_eq!(fixture.kubectl(&["logs", "again-launcher"]), "again-worker-0\n");
    // Its partition is kept, and reset for the second attempt.
    let held = fixture.get_from_proxy("/v1/partitions").await;
    let held = held["partitions"].as_array().unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0]["attempt"], 1, "{held:?}");
    fixture.delete_all_and_shut_down().await;
}
