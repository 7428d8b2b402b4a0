//! Automatic restarts (seed 000 §6.7.2): four policies, and how their jobs end.

use serde_json::{Value, json};

use crate::cluster_fixture::{ClusterFixture, worker_job};
use crate::guide::{job_with_launcher, load};

/// A policy, the code that every attempt ends with, and what becomes of the job.
struct Case {
    name: &'static str,
    policy: Value,
    ends_with: u32,
    phase: &'static str,
    restarts: u32,
    /// Part of the last message.
    says: &'static str,
}

/// Everything but success under Always, after which there is no end.
fn cases() -> Vec<Case> {
    let case = |name, policy, ends_with, phase, restarts, says| Case {
        name,
        policy,
        ends_with,
        phase,
        restarts,
        says,
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
async fn seed_000_6_7_2_four_restart_policies_judge_success_failure_and_exit_codes() {
    let test = "seed_000_6_7_2_four_restart_policies_judge_success_failure_and_exit_codes";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-7-2").await else {
        return;
    };
    for case in cases() {
        let mut job = worker_job(case.name, &format!("exit {}", case.ends_with));
        job["spec"]["restartPolicy"] = case.policy.clone();
        served.apply(&job);
    }
    let mut always = worker_job("always-succeeds", "true");
    always["spec"]["restartPolicy"] = json!({"type": "Always", "backOffLimit": 0, "backOffSeconds": 0});
    served.apply(&always);
    for case in cases() {
        let status = served.is(case.name, case.phase).await;
        let told = format!("{}: {status}", case.name);
        assert_eq!(status["restartCount"], case.restarts, "{told}");
        assert_eq!(status["launcherStatus"], case.phase, "{told}");
        assert_eq!(status["exitCode"], case.ends_with, "{told}");
        let message = status["lastMessage"].as_str().unwrap_or_default();
        assert!(message.contains(case.says), "{told}");
    }
    // Success is not what the limit counts.
    served
        .comes_to("always-succeeds", "it is restarted again and again", |status| {
            status["restartCount"].as_u64() >= Some(2)
        })
        .await;
    let events = served.kubectl(&["events", "--for=ipujob/always-succeeds"]);
    assert!(
        events.contains("IPUJobRestarting") && !events.contains("Warning"),
        "{events}"
    );
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_7_2_a_restart_runs_the_launcher_again_on_a_clean_partition() {
    let test = "seed_000_6_7_2_a_restart_runs_the_launcher_again_on_a_clean_partition";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-7-2-launcher").await else {
        return;
    };
    load(served.cluster).await;
    let mut job = job_with_launcher("again", "mpirun hostname; exit 130");
    job["spec"]["restartPolicy"] = json!({"type": "ExitCode", "backOffLimit": 1, "backOffSeconds": 0});
    served.apply(&job);
    let status = served.is("again", "Failed").await;
    assert_eq!(status["restartCount"], 1, "{status}");
    assert_eq!(status["exitCode"], 130, "{status}");
    assert_eq!(status["firstFailure"]["name"], "again-launcher", "{status}");
    assert_eq!(status["attempts"].as_array().map(Vec::len), Some(2), "{status}");
    assert_eq!(served.kubectl(&["logs", "again-launcher"]), "again-worker-0\n");
    // The same partition, which was reset for the second attempt.
    let held = served.ask("/v1/partitions").await;
    let held = held["partitions"].as_array().unwrap();
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(held[0]["attempt"], 1, "{held:?}");
    served.ends_without_a_trace().await;
}
