//! What users are told by Events: the words of the status, once for each change, and nothing of a job that is well.

use ipu_k8s::controller::{JobEvent, Severity};
use serde_json::{Value, json};

use super::fake_cluster::time;
use super::reconcile::{Fixture, sample};

/// Jobs of one worker and no launcher.
fn alone(command: &[&str]) -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(command);
    spec
}

/// Everybody hears of what was done to a Kubernetes Pod, and the job is looked at: at once, and when its words may be written.
fn after(setting: &Fixture, name: &str, change: impl FnOnce(&mut Value)) -> Value {
    setting.world.state().change_pod(name, change);
    setting.world.state().tell_all();
    setting.pass("a");
    setting.world.state().now += 20_000;
    for _ in 0..3 {
        setting.pass("a");
    }
    setting.world.state().jobs["a"].clone()
}

fn message(job: &Value) -> &str {
    job["status"]["lastMessage"].as_str().unwrap_or_default()
}

/// What was told since this was asked last, but for what is as it should be.
fn warnings(setting: &Fixture) -> Vec<JobEvent> {
    let told = std::mem::take(&mut setting.world.state().told);
    let told = told.into_iter();
    told.filter(|event| event.severity == Severity::Warning).collect()
}

#[test]
fn what_keeps_a_worker_from_starting_is_told_once_for_each_change_in_the_words_of_the_status() {
    let setting = Fixture::new();
    setting.world.submit("a", alone(&["run"]));
    setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-0"));
    let unplaced = |why: &str| json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]});
    let waits = |why: &str, words: &str| json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": why, "message": words}}}]});
    for (status, reason, note) in [
        (
            unplaced("no node has the label"),
            "Unschedulable",
            "a-worker-0: Unschedulable: no node has the label",
        ),
        (
            unplaced("no room"),
            "Unschedulable",
            "a-worker-0: Unschedulable: no room",
        ),
        (
            waits("ErrImagePull", "no such image"),
            "ErrImagePull",
            "a-worker-0: ErrImagePull: no such image",
        ),
        (
            waits("ImagePullBackOff", ""),
            "ImagePullBackOff",
            "a-worker-0: ImagePullBackOff",
        ),
        // What has no code of Kubernetes' own.
        (waits("", "it is late"), "NotStarted", "a-worker-0: it is late"),
    ] {
        let job = after(&setting, "a-worker-0", |pod| pod["status"] = status.clone());
        assert!(message(&job).ends_with(&format!("; {note}")), "{job}");
        let told = warnings(&setting);
        let told: Vec<_> = told
            .iter()
            .map(|event| (event.reason.as_str(), event.note.as_str()))
            .collect();
        assert_eq!(told, [(reason, note)]);
        // The same once more is no news.
        after(&setting, "a-worker-0", |pod| pod["status"] = status);
        assert_eq!(warnings(&setting), []);
    }
}

#[test]
fn a_node_that_is_not_heard_from_is_told_of() {
    let setting = Fixture::new();
    setting.world.submit("a", alone(&["sh", "-c", "sleep 1d"]));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    warnings(&setting);
    let now = time(setting.world.state().now);
    let job = after(&setting, "a-worker-0", |pod| {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": now}]);
    });
    let told = warnings(&setting);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].reason, "NotReady");
    assert!(message(&job).ends_with(&told[0].note), "{job}");
    setting.world.delete("a");
    let gone_by = time(setting.world.state().now);
    let job = after(&setting, "a-worker-0", |pod| {
        pod["metadata"]["deletionTimestamp"] = gone_by.into()
    });
    let told = warnings(&setting);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].reason, "DeletionOverdue");
    assert!(message(&job).ends_with(&told[0].note), "{job}");
}

#[test]
fn each_restart_of_a_crash_loop_is_told() {
    let setting = Fixture::new();
    let mut spec = alone(&["run"]);
    spec["restartPolicy"] = json!({"type": "OnFailure", "backOffLimit": 4, "backOffSeconds": 1});
    setting.world.submit("a", spec);
    for restarts in 1..4 {
        let attempt = (restarts - 1).to_string();
        setting.until("a", |_| {
            let state = setting.world.state();
            let worker = state.pods.get("a-worker-0");
            worker.is_some_and(|pod| pod["metadata"]["labels"]["graphcore.ai/attempt"] == attempt)
        });
        let now = time(setting.world.state().now);
        // It fails before it was ever ready: the job is not Running in between.
        after(&setting, "a-worker-0", |pod| {
            pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {
                "exitCode": 1, "finishedAt": now, "reason": "Error",
            }}}]});
        });
        let job = setting.world.state().jobs["a"].clone();
        assert_eq!(job["status"]["restartCount"], restarts, "{job}");
        assert_eq!(job["status"]["phase"], "Restarting", "{job}");
        let told = warnings(&setting);
        let told: Vec<_> = told
            .iter()
            .map(|event| (event.reason.as_str(), event.note.as_str()))
            .collect();
        let note = "RestartAfterFailure: worker 0 of instance 0 failed: exit code 1; it starts again";
        assert_eq!(told, [("IPUJobRestarting", note)]);
    }
}

#[test]
fn what_becomes_of_two_instances_in_one_pass_is_told_of_both() {
    let setting = Fixture::new();
    let mut spec = alone(&["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 2.into();
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    warnings(&setting);
    let now = time(setting.world.state().now);
    setting.world.state().take_by_force("a-worker-0");
    after(&setting, "a-worker-1", |pod| {
        let end = json!({"exitCode": 3, "finishedAt": now});
        pod["status"] = json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": end}}]});
    });
    let told = warnings(&setting);
    let told: Vec<&str> = told.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(told, ["WorkerGone", "NeverRestarted"]);
}

#[test]
fn a_job_that_is_well_is_told_of_when_it_runs_and_when_it_is_done() {
    let setting = Fixture::new();
    setting.world.submit("a", alone(&["run"]));
    let reasons = || -> Vec<String> {
        let told = std::mem::take(&mut setting.world.state().told);
        told.into_iter().map(|event| event.reason).collect()
    };
    let job = setting.until("a", |job| {
        let phase = job["status"]["phase"].as_str();
        phase.is_some_and(|phase| ["Completed", "Failed"].contains(&phase))
    });
    let end = format!("IPUJob{}", job["status"]["phase"].as_str().unwrap());
    assert_eq!(reasons(), ["IPUJobRunning".to_owned(), end]);
}

#[test]
fn another_refusal_of_the_same_kind_is_told_too() {
    let setting = Fixture::new();
    let mut spec = alone(&["sh", "-c", "sleep 1d"]);
    spec["jobInstances"] = 2.into();
    setting.world.submit("a", spec);
    for (quota, worker) in [(0, "a-worker-0"), (1, "a-worker-1")] {
        setting.world.state().quota = quota;
        let refused = format!("pods \"{worker}\" is forbidden: exceeded quota");
        setting.until("a", |job| {
            setting.world.state().now += 1000;
            message(job).ends_with(&refused)
        });
        for _ in 0..50 {
            setting.world.state().now += 1000;
            setting.pass("a");
        }
        let told = warnings(&setting);
        let told = told.iter().filter(|event| event.note == refused);
        assert_eq!(
            told.map(|event| &*event.reason).collect::<Vec<_>>(),
            ["Forbidden"]
        );
    }
}
