//! First failure of a job: processes that fail together and are observed one after another, and the rank
//! that a launcher reports.

use std::time::Duration;

use ipu_k8s::controller::Requeue;
use serde_json::{Value, json};

use super::fake_cluster::time;
use super::reconcile::{Fixture, block_on};

/// Returns a running job of two endless workers, and a launcher if `command` is not empty.
fn running(command: &[&str]) -> Fixture {
    let fixture = Fixture::new();
    let mut spec = json!({
        "jobInstances": 1, "ipusPerJobInstance": "2", "workersPerJobInstance": "2",
        "workers": {"template": {"spec": {"containers": [
            {"name": "main", "image": "i", "command": ["/bin/sh", "-c", "sleep 365d"]},
        ]}}},
    });
    if !command.is_empty() {
        spec["launcher"] = json!({"command": command});
    }
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture
}

/// Ends a Pod of one container, and delivers the event.
fn end_pod(fixture: &Fixture, name: &str, code: u8, message: &str) {
    let mut state = fixture.world.state();
    state.now += 1;
    // Kubernetes reports whole seconds.
    let second = time(state.now / 1000 * 1000);
    state.change_pod(name, |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] = json!([{"name": "main", "state": {"terminated": {
            "exitCode": code, "reason": "Error", "finishedAt": second, "startedAt": second, "message": message,
        }}}]);
    });
    state.deliver_all_events();
}

fn first_failure(job: &Value) -> (&str, u64) {
    let failure = &job["status"]["firstFailure"];
    let name = failure["name"].as_str().unwrap_or_default();
    (name, failure["exitCode"].as_u64().unwrap_or_default())
}

#[test]
fn a_failure_is_attributed_once_all_failures_of_the_attempt_are_observed() {
    let fixture = running(&[]);
    end_pod(&fixture, "a-worker-0", 1, "lost the other");
    let job = fixture.world.state().jobs["a"].clone();
    let requeue = block_on(fixture.operator.reconcile(&job));
    assert!(
        matches!(requeue, Ok(Requeue::After(delay)) if delay <= Duration::from_secs(2)),
        "{requeue:?}"
    );
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
    end_pod(&fixture, "a-worker-1", 143, "told to end");
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-worker-0", 1), "{job}");
    assert_eq!(job["status"]["phase"], "Failed", "{job}");
}

#[test]
fn a_single_failure_is_attributed_after_a_delay_and_ends_the_other_workers() {
    let fixture = running(&[]);
    end_pod(&fixture, "a-worker-1", 7, "no data");
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    fixture.world.state().now += 2000;
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    assert_eq!(job["status"]["firstFailure"]["log"], "no data", "{job}");
    let pods = &fixture.world.state().pods;
    let other = pods
        .get("a-worker-0")
        .map(|pod| &pod["metadata"]["deletionTimestamp"]);
    assert!(other.is_none_or(|deleted| !deleted.is_null()), "{other:?}");
}

/// Last output of `mpirun` if rank 1 exited with code 7.
const MPIRUN_REPORT: &str = "the job to be terminated. The first process to do so was:\n\n  Process name: [[5111,1],1]\n  Exit code:    7\n";

#[test]
fn the_first_failure_is_the_worker_of_the_rank_that_the_launcher_reports() {
    let fixture = running(&["mpirun", "-np", "2", "train"]);
    end_pod(&fixture, "a-launcher", 7, MPIRUN_REPORT);
    let job = fixture.reconcile("a");
    let status = &job["status"];
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    let failure = &status["firstFailure"];
    assert_eq!(
        (&failure["kind"], &failure["worker"], &failure["node"]),
        (&json!("Worker"), &json!(1), &json!("node"))
    );
    assert_eq!(
        failure["reason"],
        "exit code 7 of rank 1, as the launcher reports"
    );
    assert_eq!(status["exitCode"], 7, "{job}");
    let message = status["lastMessage"].as_str().unwrap_or_default();
    assert!(message.contains("exit code 7, as rank 1 did first"), "{message}");
    // The first failure does not change.
    let again = fixture.reconcile("a");
    assert_eq!(again["status"]["firstFailure"], *failure);
}

#[test]
fn the_rank_is_read_from_the_log_if_the_termination_message_lacks_it() {
    let fixture = running(&["mpirun", "-np", "2", "train"]);
    let log = format!("Killed\n{MPIRUN_REPORT}");
    let annotate = |log: &str| {
        fixture.world.state().change_pod("a-launcher", |pod| {
            pod["metadata"]["annotations"]["log"] = log.into()
        });
    };
    annotate(&log);
    end_pod(&fixture, "a-launcher", 7, "Killed\n");
    // The operator waits for failures of the workers.
    fixture.reconcile("a");
    fixture.world.state().now += 2000;
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 7), "{job}");
    let failure = &job["status"]["firstFailure"];
    assert_eq!(failure["log"], log, "{job}");
    assert_eq!(
        failure["reason"],
        "exit code 7 of rank 1, as the launcher reports"
    );
}

#[test]
fn a_log_about_another_exit_is_ignored() {
    let fixture = running(&["mpirun", "-np", "2", "train"]);
    fixture.world.state().change_pod("a-launcher", |pod| {
        pod["metadata"]["annotations"]["log"] = MPIRUN_REPORT.into()
    });
    end_pod(&fixture, "a-launcher", 9, "no more data\n");
    fixture.reconcile("a");
    fixture.world.state().now += 2000;
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-launcher", 9), "{job}");
    assert_eq!(job["status"]["firstFailure"]["log"], "no more data\n", "{job}");
}

#[test]
fn no_worker_is_named_if_the_placement_of_the_rank_is_unknown() {
    let fixture = running(&["mpirun", "--hostfile", "mine", "train"]);
    end_pod(&fixture, "a-launcher", 7, MPIRUN_REPORT);
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-launcher", 7), "{job}");
    assert_eq!(
        job["status"]["firstFailure"]["reason"], "exit code 7, as rank 1 did first",
        "{job}"
    );
}

#[test]
fn a_failed_worker_is_the_first_failure_even_if_its_launcher_is_observed_first() {
    let fixture = running(&["mpirun", "-np", "2", "train"]);
    end_pod(&fixture, "a-launcher", 1, "lost a daemon");
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
    end_pod(&fixture, "a-worker-1", 137, "");
    fixture.reconcile("a");
    fixture.world.state().now += 2000;
    let job = fixture.reconcile("a");
    assert_eq!(first_failure(&job), ("a-worker-1", 137), "{job}");
}
