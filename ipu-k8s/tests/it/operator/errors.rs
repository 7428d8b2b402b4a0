//! What is refused to a job, and what cannot be reached: its status says so, whatever it was doing before.

use std::time::Duration;

use ipu_k8s::controller::Requeue;
use serde_json::{Value, json};

use super::reconcile::{Fixture, finish, sample};

/// Instances of one worker, for inference.
fn serving(instances: u32) -> Value {
    json!({
        "jobInstances": instances, "ipusPerJobInstance": "1",
        "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["/bin/sh", "-c", "sleep 365d"]}]}}},
    })
}

fn message(job: &Value) -> &str {
    job["status"]["lastMessage"].as_str().unwrap_or_default()
}

/// Changes the specification, as the API server does.
fn change(setting: &Fixture, with: impl FnOnce(&mut Value)) {
    setting.world.state().change_job("a", |job| {
        with(&mut job["spec"]);
        let generation = job["metadata"]["generation"].as_i64().unwrap();
        job["metadata"]["generation"] = (generation + 1).into();
    });
}

fn is_forbidden(job: &Value) -> bool {
    message(job).ends_with("; Forbidden: pods \"a-worker-1\" is forbidden: exceeded quota")
}

#[test]
fn a_new_job_whose_worker_is_refused_says_what_it_holds_and_why_it_waits() {
    let setting = Fixture::new();
    setting.world.state().quota = 0;
    setting.world.submit("a", serving(1));
    let job = setting.until("a", |job| message(job).contains("Forbidden"));
    let status = &job["status"];
    assert_eq!(
        message(&job),
        "Successfully reconciled IPUJob: 0 of 1 workers of instance 0 run; Forbidden: pods \"a-worker-0\" is forbidden: \
         exceeded quota"
    );
    assert_eq!(status["phase"], "Pending");
    assert_eq!(
        (&status["desiredReplicas"], &status["ipusHeld"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(status["instances"][0]["state"], "Starting");
    assert_eq!(
        status["selector"],
        "graphcore.ai/ipujob-name=a,graphcore.ai/role=worker"
    );
    let events = setting.world.state().events.clone();
    assert_eq!(
        events.iter().filter(|event| *event == "Forbidden").count(),
        1,
        "{events:?}"
    );
    // It is tried again, and told once.
    setting.world.state().now += 20_000;
    setting.pass("a");
    let events = setting.world.state().events.clone();
    assert_eq!(
        events.iter().filter(|event| *event == "Forbidden").count(),
        1,
        "{events:?}"
    );
    setting.world.state().quota = 1;
    let job = setting.until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(message(&job), "Successfully reconciled IPUJob");
}

#[test]
fn a_running_job_that_cannot_be_scaled_says_so() {
    let setting = Fixture::new();
    setting.world.submit("a", serving(1));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().quota = 1;
    change(&setting, |spec| spec["jobInstances"] = 2.into());
    let job = setting.until("a", is_forbidden);
    let status = &job["status"];
    assert_eq!(
        (
            &status["currentReplicas"],
            &status["desiredReplicas"],
            &status["ipusHeld"]
        ),
        (&json!(1), &json!(2), &json!(2)),
        "{job}"
    );
    // What happens to the other instance meanwhile is recorded too.
    setting.world.state().change_pod("a-worker-0", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    let job = setting.until("a", |job| !job["status"]["firstFailure"].is_null());
    assert_eq!(job["status"]["firstFailure"]["exitCode"], 3);
}

#[test]
fn a_suspended_job_that_cannot_go_on_says_so() {
    let setting = Fixture::new();
    let mut spec = serving(1);
    spec["suspend"] = true.into();
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Suspended");
    setting.world.state().quota = 0;
    change(&setting, |spec| spec["suspend"] = false.into());
    let job = setting.until("a", |job| message(job).contains("Forbidden"));
    assert_eq!(
        (&job["status"]["phase"], &job["status"]["ipusHeld"]),
        (&json!("Pending"), &json!(1))
    );
}

#[test]
fn a_job_that_cannot_be_looked_at_says_so_if_it_is_deleted_or_was_changed_and_goes_on_otherwise() {
    let setting = Fixture::new();
    setting.world.submit("a", serving(1));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let unreachable = |setting: &Fixture| {
        setting.world.state().proxy_is_away = true;
        let job = setting.world.state().jobs["a"].clone();
        let wake = finish(setting.operator.reconcile(&job));
        assert!(
            matches!(wake, Ok(Requeue::After(pause)) if pause <= Duration::from_secs(1)),
            "{wake:?}"
        );
        setting.world.state().jobs["a"].clone()
    };
    assert_eq!(message(&unreachable(&setting)), "Successfully reconciled IPUJob");
    change(&setting, |spec| spec["jobInstances"] = 2.into());
    setting.world.state().now += 60_000;
    assert_eq!(
        message(&unreachable(&setting)),
        "the job was changed, which is not done yet; Unavailable: the proxy is away"
    );
    setting.world.state().proxy_is_away = false;
    setting.until("a", |job| job["status"]["currentReplicas"] == 2);
    setting.world.delete("a");
    setting.world.state().now += 60_000;
    assert_eq!(
        message(&unreachable(&setting)),
        "the job is being deleted; Unavailable: the proxy is away"
    );
}

#[test]
fn a_job_that_goes_on_and_may_not_be_looked_at_says_so_until_it_may() {
    let setting = Fixture::new();
    setting.world.submit("a", serving(1));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().proxy_refuses = true;
    setting.world.state().now += 60_000;
    let job = setting.pass("a");
    assert_eq!(
        message(&job),
        "the job is not worked on; Forbidden: the token is not known"
    );
    assert_eq!(job["status"]["phase"], "Running");
    assert_eq!(
        setting.world.state().events.last().map(String::as_str),
        Some("Forbidden")
    );
    setting.world.state().proxy_refuses = false;
    setting.world.state().now += 60_000;
    assert_eq!(message(&setting.pass("a")), "Successfully reconciled IPUJob");
}

#[test]
fn an_object_that_is_no_job_is_told_so_by_an_event_too() {
    let setting = Fixture::new();
    let mut spec = serving(1);
    spec["ipusPerJobInstance"] = "3".into();
    setting.world.submit("a", spec);
    let job = setting.until("a", |job| message(job).contains("cannot be run"));
    assert!(message(&job).contains("power of two"), "{job}");
    assert_eq!(setting.world.state().events, ["InvalidJob"]);
    let answered = |job: &Value| job["status"]["observedGeneration"] == job["metadata"]["generation"];
    assert!(answered(&job), "{job}");
    // Whoever waits for an answer to a change gets one also if the words are the same.
    change(&setting, |spec| spec["priority"] = 1.into());
    setting.world.state().now += 20_000;
    assert!(answered(&setting.pass("a")));
}

#[test]
fn what_workers_and_launcher_share_is_seen_to_for_each_attempt_and_after_a_refusal() {
    let setting = Fixture::new();
    let mut spec = super::reconcile::sample();
    spec["restartPolicy"] = json!({"type": "OnFailure"});
    setting.world.submit("a", spec);
    setting.world.state().quota = 0;
    setting.until("a", |job| message(job).contains("Forbidden"));
    let refused = setting.world.state().applied;
    assert!(refused >= 2, "{refused}");
    setting.world.state().quota = usize::MAX;
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let running = setting.world.state().applied;
    assert_eq!(running, refused + 4);
    let mut state = setting.world.state();
    let launcher = state.pods["a-launcher"]["metadata"]["uid"].clone();
    state.running.remove(launcher.as_str().unwrap());
    state.change_pod("a-launcher", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    drop(state);
    setting.until("a", |job| {
        job["status"]["restartCount"] == 1 && job["status"]["phase"] == "Running"
    });
    assert_eq!(setting.world.state().applied, running + 4);
}

#[test]
fn words_are_not_kept_back_because_the_clock_was_put_back() {
    let setting = Fixture::new();
    setting.world.state().quota = 0;
    setting.world.submit("a", serving(1));
    setting.until("a", |job| message(job).contains("a-worker-0"));
    setting.world.state().change_job("a", |job| {
        job["status"]["lastReconcileTime"] = "2099-01-01T00:00:00.000Z".into();
        job["status"]["lastMessage"] = "as it was".into();
    });
    assert!(message(&setting.pass("a")).contains("a-worker-0"));
}

#[test]
fn an_instance_that_has_failed_for_good_is_told_of_while_the_others_go_on() {
    let setting = Fixture::new();
    setting.world.submit("a", serving(2));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let mut state = setting.world.state();
    state.events.clear();
    let worker = state.pods["a-worker-1"]["metadata"]["uid"].clone();
    state.running.remove(worker.as_str().unwrap());
    state.change_pod("a-worker-1", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    drop(state);
    let job = setting.until("a", |job| message(job) != "Successfully reconciled IPUJob");
    assert_eq!(
        message(&job),
        "Successfully reconciled IPUJob: instance 1 has failed for good with code 3; the others go on"
    );
    assert_eq!(job["status"]["phase"], "Running");
    assert_eq!(setting.world.state().events, ["NeverRestarted"]);
}

#[test]
fn a_partition_that_nothing_could_run_on_in_time_is_told_of_when_it_is_given_back() {
    let setting = Fixture::new();
    let mut spec = serving(1);
    spec["startDeadlineSeconds"] = 5.into();
    setting.world.state().quota = 0;
    setting.world.submit("a", spec);
    setting.until("a", |job| message(job).contains("Forbidden"));
    setting.world.state().events.clear();
    let gave_back = |job: &Value| job["status"]["instances"][0]["givenBack"] == 1;
    setting.until("a", |job| {
        setting.world.state().now += 1000;
        gave_back(job)
    });
    let events = setting.world.state().events.clone();
    assert!(events.contains(&"WorkersUnschedulable".to_owned()), "{events:?}");
}

#[test]
fn a_launcher_that_cannot_start_gives_the_partition_back_and_says_what_it_waited_for() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec["startDeadlineSeconds"] = 5.into();
    setting.world.submit("a", spec);
    setting.until("a", |_| setting.world.state().pods.contains_key("a-launcher"));
    setting.world.state().change_pod("a-launcher", |pod| {
        pod["status"]["phase"] = "Pending".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no such Secret"}}}]);
    });
    setting.world.state().tell_all();
    let job = setting.until("a", |job| {
        setting.world.state().now += 1000;
        job["status"]["instances"][0]["givenBack"] == 1
    });
    let why = &job["status"]["instances"][0]["givenBackBecause"];
    assert_eq!(why["code"], "LauncherUnschedulable", "{job}");
    assert!(
        message(&job).contains("CreateContainerConfigError: no such Secret"),
        "{job}"
    );
    let events = setting.world.state().events.clone();
    assert!(events.contains(&"LauncherUnschedulable".to_owned()), "{events:?}");
}

#[test]
fn a_job_whose_status_cannot_be_read_is_left_alone_and_can_be_deleted() {
    let setting = Fixture::new();
    setting.world.submit("a", serving(1));
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let before = setting.world.state().jobs["a"]["status"].clone();
    setting
        .world
        .state()
        .change_job("a", |job| job["status"]["phase"] = "Dreaming".into());
    let writes = setting.world.state().writes;
    setting.world.state().events.clear();
    let job = setting.pass("a");
    assert_eq!(job["status"]["instances"], before["instances"]);
    assert_eq!(setting.world.state().writes, writes);
    assert_eq!(setting.world.state().events, ["UnreadableStatus"]);
    setting.world.delete("a");
    for _ in 0..1000 {
        if setting.pass("a").is_null() {
            break;
        }
        setting.world.step();
    }
    let state = setting.world.state();
    assert!(state.jobs.is_empty(), "{:?}", state.jobs);
    assert!(state.holds.values().all(|hold| hold.state == "releasing"));
}

#[test]
fn a_job_that_ended_under_the_operator_before_is_not_run_again() {
    for end in ["Completed", "Failed"] {
        let setting = Fixture::new();
        setting.world.submit("a", serving(1));
        setting.world.state().change_job("a", |job| {
            job["status"] = json!({"launcherStatus": end, "lastMessage": "as it was", "desiredReplicas": 1});
        });
        for _ in 0..20 {
            let job = setting.pass("a");
            assert_eq!(job["status"]["launcherStatus"], end, "{job}");
            setting.world.step();
        }
        let state = setting.world.state();
        assert!(state.holds.is_empty() && state.pods.is_empty());
    }
}

#[test]
fn no_worker_starts_while_the_nodes_that_reach_the_controller_are_not_known() {
    let setting = Fixture::new();
    setting.world.state().is_unlisted = true;
    setting.world.submit("a", serving(1));
    let job = setting.until("a", |job| message(job).contains("Unavailable"));
    assert!(
        message(&job).contains("the proxy does not say yet how partition"),
        "{job}"
    );
    assert!(setting.world.state().pods.is_empty());
    setting.world.state().is_unlisted = false;
    setting.until("a", |job| job["status"]["phase"] == "Running");
}
