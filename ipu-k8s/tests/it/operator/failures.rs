//! Whom a pass blames: processes that fail together, heard of one after the other, and what a launcher tells of its ranks.

use std::time::Duration;

use ipu_k8s::controller::Requeue;
use serde_json::{Value, json};

use super::fake_cluster::time;
use super::reconcile::{Fixture, finish};

/// Two workers that go on until something is done to them, and a launcher, if there is a command for one.
fn running(command: &[&str]) -> Fixture {
    let setting = Fixture::new();
    let mut spec = json!({
        "jobInstances": 1, "ipusPerJobInstance": "2", "workersPerJobInstance": "2",
        "workers": {"template": {"spec": {"containers": [
            {"name": "main", "image": "i", "command": ["/bin/sh", "-c", "sleep 365d"]},
        ]}}},
    });
    if !command.is_empty() {
        spec["launcher"] = json!({"command": command});
    }
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting
}

/// A Kubernetes Pod of one container ends, of which the operator hears.
fn ends(setting: &Fixture, name: &str, code: u8, words: &str) {
    let mut state = setting.world.state();
    state.now += 1;
    // As Kubernetes writes it.
    let second = time(state.now / 1000 * 1000);
    state.change_pod(name, |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] = json!([{"name": "main", "state": {"terminated": {
            "exitCode": code, "reason": "Error", "finishedAt": second, "startedAt": second, "message": words,
        }}}]);
    });
    state.tell_all();
}

fn first_failure(job: &Value) -> (&str, u64) {
    let failure = &job["status"]["firstFailure"];
    let name = failure["name"].as_str().unwrap_or_default();
    (name, failure["exitCode"].as_u64().unwrap_or_default())
}

#[test]
fn a_failure_is_judged_when_those_that_failed_with_it_were_heard_of() {
    let setting = running(&[]);
    ends(&setting, "a-worker-0", 1, "lost the other");
    let job = setting.world.state().jobs["a"].clone();
    let wake = finish(setting.operator.reconcile(&job));
    assert!(
        matches!(wake, Ok(Requeue::After(rest)) if rest <= Duration::from_secs(2)),
        "{wake:?}"
    );
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
    ends(&setting, "a-worker-1", 143, "told to end");
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-worker-0", 1), "{job}");
    assert_eq!(job["status"]["phase"], "Failed", "{job}");
}

#[test]
fn a_failure_is_judged_also_if_nobody_follows_and_ends_the_others() {
    let setting = running(&[]);
    ends(&setting, "a-worker-1", 7, "no data");
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    setting.world.state().now += 2000;
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    assert_eq!(job["status"]["firstFailure"]["log"], "no data", "{job}");
    let pods = &setting.world.state().pods;
    let other = pods
        .get("a-worker-0")
        .map(|pod| &pod["metadata"]["deletionTimestamp"]);
    assert!(other.is_none_or(|deleted| !deleted.is_null()), "{other:?}");
}

/// What `mpirun` says at last, if rank 1 ended with code 7.
const CLOSING: &str = "the job to be terminated. The first process to do so was:\n\n  Process name: [[5111,1],1]\n  Exit code:    7\n";

#[test]
fn the_worker_of_the_rank_that_the_launcher_names_is_blamed() {
    let setting = running(&["mpirun", "-np", "2", "train"]);
    ends(&setting, "a-launcher", 7, CLOSING);
    let job = setting.pass("a");
    let status = &job["status"];
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["kind"], &failure["worker"], &failure["node"]),
        (&json!("Worker"), &json!(1), &json!("node"))
    );
    assert_eq!(failure["reason"], "exit code 7 of rank 1, as the launcher tells");
    assert_eq!(status["exitCode"], 7, "{job}");
    let message = status["lastMessage"].as_str().unwrap_or_default();
    assert!(message.contains("exit code 7, as rank 1 did first"), "{message}");
    // It stays so.
    let again = setting.pass("a");
    assert_eq!(again["status"]["firstFailure"], *failure);
}

#[test]
fn the_log_is_asked_for_the_rank_if_the_kubelet_read_it_too_early() {
    let setting = running(&["mpirun", "-np", "2", "train"]);
    let log = format!("Killed\n{CLOSING}");
    let annotate = |log: &str| {
        setting.world.state().change_pod("a-launcher", |pod| {
            pod["metadata"]["annotations"]["log"] = log.into()
        });
    };
    annotate(&log);
    ends(&setting, "a-launcher", 7, "Killed\n");
    // Its workers may still have something to say.
    setting.pass("a");
    setting.world.state().now += 2000;
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    let failure = &job["status"]["firstFailure"];
    assert_eq!(failure["log"], log, "{job}");
    assert_eq!(failure["reason"], "exit code 7 of rank 1, as the launcher tells");
}

#[test]
fn a_log_that_tells_of_another_end_is_not_believed() {
    let setting = running(&["mpirun", "-np", "2", "train"]);
    setting.world.state().change_pod("a-launcher", |pod| {
        pod["metadata"]["annotations"]["log"] = CLOSING.into()
    });
    ends(&setting, "a-launcher", 9, "no more data\n");
    setting.pass("a");
    setting.world.state().now += 2000;
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-launcher", 9), "{job}");
    assert_eq!(job["status"]["firstFailure"]["log"], "no more data\n", "{job}");
}

#[test]
fn nobody_is_guessed_where_the_rank_may_be_anywhere() {
    let setting = running(&["mpirun", "--hostfile", "mine", "train"]);
    ends(&setting, "a-launcher", 7, CLOSING);
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-launcher", 7), "{job}");
    assert_eq!(
        job["status"]["firstFailure"]["reason"], "exit code 7, as rank 1 did first",
        "{job}"
    );
}

#[test]
fn a_worker_that_ended_is_blamed_for_the_end_of_its_launcher_whoever_is_heard_of_first() {
    let setting = running(&["mpirun", "-np", "2", "train"]);
    ends(&setting, "a-launcher", 1, "lost a daemon");
    let job = setting.pass("a");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
    ends(&setting, "a-worker-1", 137, "");
    setting.pass("a");
    setting.world.state().now += 2000;
    let job = setting.pass("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 137), "{job}");
}
