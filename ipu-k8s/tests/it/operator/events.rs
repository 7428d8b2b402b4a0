//! Published Events: the message of the status, once per change, and none for a healthy job.

use ipu_k8s::controller::{JobEvent, Severity};
use serde_json::{Value, json};

use super::fake_cluster::time;
use super::reconcile::{Fixture, sample};

/// Returns a job of one worker and no launcher.
fn workers_only(command: &[&str]) -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(command);
    spec
}

/// Changes a Pod, delivers the event, and reconciles the job at once and after the minimum interval between
/// messages.
fn reconcile_after(fixture: &Fixture, name: &str, change: impl FnOnce(&mut Value)) -> Value {
    fixture.world.state().change_pod(name, change);
    fixture.world.state().deliver_all_events();
    fixture.reconcile("a");
    fixture.world.state().now += 20_000;
    for _ in 0..3 {
        fixture.reconcile("a");
    }
    fixture.world.state().jobs["a"].clone()
}

fn message(job: &Value) -> &str {
    job["status"]["lastMessage"].as_str().unwrap_or_default()
}

/// Returns the warnings published since the last call.
fn warnings(fixture: &Fixture) -> Vec<JobEvent> {
    let events = std::mem::take(&mut fixture.world.state().published);
    let events = events.into_iter();
    events
        .filter(|event| event.severity == Severity::Warning)
        .collect()
}

#[test]
fn a_blocking_condition_is_published_once_per_change_with_the_message_of_the_status() {
    let fixture = Fixture::new();
    fixture.world.submit("a", workers_only(&["run"]));
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-0"));
    let unschedulable = |message_text: &str| json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message_text}]});
    let waiting = |message_text: &str, text: &str| json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": message_text, "message": text}}}]});
    for (status, reason, note) in [
        (
            unschedulable("no node has the label"),
            "Unschedulable",
            "a-worker-0: Unschedulable: no node has the label",
        ),
        (
            unschedulable("no capacity"),
            "Unschedulable",
            "a-worker-0: Unschedulable: no capacity",
        ),
        (
            waiting("ErrImagePull", "no such image"),
            "ErrImagePull",
            "a-worker-0: ErrImagePull: no such image",
        ),
        (
            waiting("ImagePullBackOff", ""),
            "ImagePullBackOff",
            "a-worker-0: ImagePullBackOff",
        ),
        // A message without a Kubernetes reason.
        (waiting("", "it is late"), "NotStarted", "a-worker-0: it is late"),
    ] {
        let job = reconcile_after(&fixture, "a-worker-0", |pod| pod["status"] = status.clone());
        assert!(message(&job).ends_with(&format!("; {note}")), "{job}");
        let events = warnings(&fixture);
        let events: Vec<_> = events
            .iter()
            .map(|event| (event.reason.as_str(), event.note.as_str()))
            .collect();
        assert_eq!(events, [(reason, note)]);
        // An unchanged status publishes nothing.
        reconcile_after(&fixture, "a-worker-0", |pod| pod["status"] = status);
        assert_eq!(warnings(&fixture), []);
    }
}

#[test]
fn an_unreachable_node_is_published() {
    let fixture = Fixture::new();
    fixture.world.submit("a", workers_only(&["sh", "-c", "sleep 1d"]));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    warnings(&fixture);
    let now = time(fixture.world.state().now);
    let job = reconcile_after(&fixture, "a-worker-0", |pod| {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": now}]);
    });
    let events = warnings(&fixture);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].reason, "NotReady");
    assert!(message(&job).ends_with(&events[0].note), "{job}");
    fixture.world.delete("a");
    let deletion_time = time(fixture.world.state().now);
    let job = reconcile_after(&fixture, "a-worker-0", |pod| {
        pod["metadata"]["deletionTimestamp"] = deletion_time.into()
    });
    let events = warnings(&fixture);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].reason, "DeletionOverdue");
    assert!(message(&job).ends_with(&events[0].note), "{job}");
}

#[test]
fn each_restart_of_a_crash_loop_is_published() {
    let fixture = Fixture::new();
    let mut spec = workers_only(&["run"]);
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 4, "backOffSeconds": 1});
    fixture.world.submit("a", spec);
    for restarts in 1..4 {
        let attempt = (restarts - 1).to_string();
        fixture.run_until("a", |_| {
            let state = fixture.world.state();
            let worker = state.pods.get("a-worker-0");
            worker.is_some_and(|pod| pod["metadata"]["labels"]["graphcore.ai/attempt"] == attempt)
        });
        let now = time(fixture.world.state().now);
        // The worker fails before it was ready: the job is not Running in between.
        reconcile_after(&fixture, "a-worker-0", |pod| {
            pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {
                "exitCode": 1, "finishedAt": now, "reason": "Error",
            }}}]});
        });
        let job = fixture.world.state().jobs["a"].clone();
        assert_eq!(job["status"]["restartCount"], restarts, "{job}");
        assert_eq!(job["status"]["phase"], "Restarting", "{job}");
        let events = warnings(&fixture);
        let events: Vec<_> = events
            .iter()
            .map(|event| (event.reason.as_str(), event.note.as_str()))
            .collect();
        let note = "RestartAfterFailure: worker 0 of instance 0 failed: exit code 1; it restarts";
        assert_eq!(events, [("IPUJobRestarting", note)]);
    }
}

#[test]
fn events_of_two_instances_in_one_reconciliation_are_both_published() {
    let fixture = Fixture::new();
    let mut spec = workers_only(&["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 2.into();
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    warnings(&fixture);
    let now = time(fixture.world.state().now);
    fixture.world.state().force_delete("a-worker-0");
    reconcile_after(&fixture, "a-worker-1", |pod| {
        let end = json!({"exitCode": 3, "finishedAt": now});
        pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": end}}]});
    });
    let events = warnings(&fixture);
    let events: Vec<&str> = events.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(events, ["WorkerGone", "NeverRestarted"]);
}

#[test]
fn a_healthy_job_publishes_its_start_and_its_completion() {
    let fixture = Fixture::new();
    fixture.world.submit("a", workers_only(&["run"]));
    let reasons = || -> Vec<String> {
        let events = std::mem::take(&mut fixture.world.state().published);
        events.into_iter().map(|event| event.reason).collect()
    };
    let job = fixture.run_until("a", |job| {
        let phase = job["status"]["phase"].as_str();
        phase.is_some_and(|phase| ["Completed", "Failed"].contains(&phase))
    });
    let end = format!("IPUJob{}", job["status"]["phase"].as_str().unwrap());
    assert_eq!(reasons(), ["IPUJobRunning".to_owned(), end]);
}

#[test]
fn another_rejection_of_the_same_kind_is_published_too() {
    let fixture = Fixture::new();
    let mut spec = workers_only(&["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 2.into();
    fixture.world.submit("a", spec);
    for (quota, worker) in [(0, "a-worker-0"), (1, "a-worker-1")] {
        fixture.world.state().quota = quota;
        let refused = format!("pods \"{worker}\" is forbidden: exceeded quota");
        fixture.run_until("a", |job| {
            fixture.world.state().now += 1000;
            message(job).ends_with(&refused)
        });
        for _ in 0..50 {
            fixture.world.state().now += 1000;
            fixture.reconcile("a");
        }
        let events = warnings(&fixture);
        let events = events.iter().filter(|event| event.note == refused);
        assert_eq!(
            events.map(|event| &*event.reason).collect::<Vec<_>>(),
            ["Forbidden"]
        );
    }
}
