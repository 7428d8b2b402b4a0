//! Rejections and unreachable services: the status of the job reports them in every phase.

use std::time::Duration;

use ipu_k8s::controller::Requeue;
use serde_json::{Value, json};

use super::reconcile::{Fixture, block_on, sample};

/// Returns an inference job with instances of one worker.
fn serving(instances: u32) -> Value {
    json!({
        "jobInstances": instances, "ipusPerJobInstance": "1",
        "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["/bin/sh", "-c", "sleep 365d"]}]}}},
    })
}

fn message(job: &Value) -> &str {
    job["status"]["lastMessage"].as_str().unwrap_or_default()
}

/// Changes the specification and its generation, as the API server does.
fn change_spec(fixture: &Fixture, with: impl FnOnce(&mut Value)) {
    fixture.world.state().change_job("a", |job| {
        with(&mut job["spec"]);
        let generation = job["metadata"]["generation"].as_i64().unwrap();
        job["metadata"]["generation"] = (generation + 1).into();
    });
}

fn is_forbidden(job: &Value) -> bool {
    message(job).ends_with("; Forbidden: pods \"a-worker-1\" is forbidden: exceeded quota")
}

#[test]
fn a_new_job_with_a_rejected_worker_reports_its_ipus_and_its_reason() {
    let fixture = Fixture::new();
    fixture.world.state().quota = 0;
    fixture.world.submit("a", serving(1));
    let job = fixture.run_until("a", |job| message(job).contains("Forbidden"));
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
    let events = fixture.world.state().event_reasons.clone();
    assert_eq!(
        events.iter().filter(|event| *event == "Forbidden").count(),
        1,
        "{events:?}"
    );
    // The creation is retried, and published once.
    fixture.world.state().now += 20_000;
    fixture.reconcile("a");
    let events = fixture.world.state().event_reasons.clone();
    assert_eq!(
        events.iter().filter(|event| *event == "Forbidden").count(),
        1,
        "{events:?}"
    );
    fixture.world.state().quota = 1;
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(message(&job), "Successfully reconciled IPUJob");
}

#[test]
fn a_running_job_that_cannot_be_scaled_reports_it() {
    let fixture = Fixture::new();
    fixture.world.submit("a", serving(1));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().quota = 1;
    change_spec(&fixture, |spec| spec["jobInstances"] = 2.into());
    let job = fixture.run_until("a", is_forbidden);
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
    // Changes of the other instance are recorded meanwhile.
    fixture.world.state().change_pod("a-worker-0", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    let job = fixture.run_until("a", |job| !job["status"]["firstFailure"].is_null());
    assert_eq!(job["status"]["firstFailure"]["exitCode"], 3);
}

#[test]
fn a_suspended_job_that_cannot_resume_reports_it() {
    let fixture = Fixture::new();
    let mut spec = serving(1);
    spec["suspend"] = true.into();
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Suspended");
    fixture.world.state().quota = 0;
    change_spec(&fixture, |spec| spec["suspend"] = false.into());
    let job = fixture.run_until("a", |job| message(job).contains("Forbidden"));
    assert_eq!(
        (&job["status"]["phase"], &job["status"]["ipusHeld"]),
        (&json!("Pending"), &json!(1))
    );
}

#[test]
fn a_job_without_a_reachable_proxy_reports_it_only_if_deleted_or_changed() {
    let fixture = Fixture::new();
    fixture.world.submit("a", serving(1));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let unreachable = |fixture: &Fixture| {
        fixture.world.state().proxy_is_down = true;
        let job = fixture.world.state().jobs["a"].clone();
        let requeue = block_on(fixture.operator.reconcile(&job));
        assert!(
            matches!(requeue, Ok(Requeue::After(pause)) if pause <= Duration::from_secs(1)),
            "{requeue:?}"
        );
        fixture.world.state().jobs["a"].clone()
    };
    assert_eq!(message(&unreachable(&fixture)), "Successfully reconciled IPUJob");
    change_spec(&fixture, |spec| spec["jobInstances"] = 2.into());
    fixture.world.state().now += 60_000;
    assert_eq!(
        message(&unreachable(&fixture)),
        "the change of the job is not applied yet; Unavailable: the proxy is down"
    );
    fixture.world.state().proxy_is_down = false;
    fixture.run_until("a", |job| job["status"]["currentReplicas"] == 2);
    fixture.world.delete("a");
    fixture.world.state().now += 60_000;
    assert_eq!(
        message(&unreachable(&fixture)),
        "the job is being deleted; Unavailable: the proxy is down"
    );
}

#[test]
fn a_running_job_reports_a_rejection_by_the_proxy_until_it_ends() {
    let fixture = Fixture::new();
    fixture.world.submit("a", serving(1));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().proxy_refuses = true;
    fixture.world.state().now += 60_000;
    let job = fixture.reconcile("a");
    assert_eq!(
        message(&job),
        "the job is not reconciled; Forbidden: the token is unknown"
    );
    assert_eq!(job["status"]["phase"], "Running");
    assert_eq!(
        fixture.world.state().event_reasons.last().map(String::as_str),
        Some("Forbidden")
    );
    fixture.world.state().proxy_refuses = false;
    fixture.world.state().now += 60_000;
    assert_eq!(message(&fixture.reconcile("a")), "Successfully reconciled IPUJob");
}

#[test]
fn an_invalid_job_is_reported_by_an_event_too() {
    let fixture = Fixture::new();
    let mut spec = serving(1);
    spec["ipusPerJobInstance"] = "3".into();
    fixture.world.submit("a", spec);
    let job = fixture.run_until("a", |job| message(job).contains("cannot be run"));
    assert!(message(&job).contains("power of two"), "{job}");
    assert_eq!(fixture.world.state().event_reasons, ["InvalidJob"]);
    let is_acknowledged = |job: &Value| job["status"]["observedGeneration"] == job["metadata"]["generation"];
    assert!(is_acknowledged(&job), "{job}");
    // The generation is acknowledged even if the message stays the same.
    change_spec(&fixture, |spec| spec["priority"] = 1.into());
    fixture.world.state().now += 20_000;
    assert!(is_acknowledged(&fixture.reconcile("a")));
}

#[test]
fn shared_objects_are_applied_for_each_attempt_and_after_a_rejection() {
    let fixture = Fixture::new();
    let mut spec = super::reconcile::sample();
    spec["restartPolicy"] = json!({"type": "OnFailure"});
    fixture.world.submit("a", spec);
    fixture.world.state().quota = 0;
    fixture.run_until("a", |job| message(job).contains("Forbidden"));
    let refused = fixture.world.state().applied;
    assert!(refused >= 2, "{refused}");
    fixture.world.state().quota = usize::MAX;
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let running = fixture.world.state().applied;
    assert_eq!(running, refused + 4);
    let mut state = fixture.world.state();
    let launcher = state.pods["a-launcher"]["metadata"]["uid"].clone();
    state.running.remove(launcher.as_str().unwrap());
    state.change_pod("a-launcher", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    drop(state);
    fixture.run_until("a", |job| {
        job["status"]["restartCount"] == 1 && job["status"]["phase"] == "Running"
    });
    assert_eq!(fixture.world.state().applied, running + 4);
}

#[test]
fn a_message_is_not_delayed_by_a_clock_set_back() {
    let fixture = Fixture::new();
    fixture.world.state().quota = 0;
    fixture.world.submit("a", serving(1));
    fixture.run_until("a", |job| message(job).contains("a-worker-0"));
    fixture.world.state().change_job("a", |job| {
        job["status"]["lastReconcileTime"] = "2099-01-01T00:00:00.000Z".into();
        job["status"]["lastMessage"] = "as it was".into();
    });
    assert!(message(&fixture.reconcile("a")).contains("a-worker-0"));
}

#[test]
fn a_permanently_failed_instance_is_reported_while_the_others_continue() {
    let fixture = Fixture::new();
    fixture.world.submit("a", serving(2));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let mut state = fixture.world.state();
    state.event_reasons.clear();
    let worker = state.pods["a-worker-1"]["metadata"]["uid"].clone();
    state.running.remove(worker.as_str().unwrap());
    state.change_pod("a-worker-1", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    drop(state);
    let job = fixture.run_until("a", |job| message(job) != "Successfully reconciled IPUJob");
    assert_eq!(
        message(&job),
        "Successfully reconciled IPUJob: instance 1 has failed permanently with code 3; the others continue"
    );
    assert_eq!(job["status"]["phase"], "Running");
    assert_eq!(fixture.world.state().event_reasons, ["NeverRestarted"]);
}

#[test]
fn a_release_after_the_start_deadline_is_reported() {
    let fixture = Fixture::new();
    let mut spec = serving(1);
    spec["startDeadlineSeconds"] = 5.into();
    fixture.world.state().quota = 0;
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| message(job).contains("Forbidden"));
    fixture.world.state().event_reasons.clear();
    let has_released = |job: &Value| job["status"]["instances"][0]["givenBack"] == 1;
    fixture.run_until("a", |job| {
        fixture.world.state().now += 1000;
        has_released(job)
    });
    let events = fixture.world.state().event_reasons.clone();
    assert!(events.contains(&"WorkersUnschedulable".to_owned()), "{events:?}");
}

#[test]
fn a_launcher_that_cannot_start_releases_the_partition_and_reports_the_reason() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec["startDeadlineSeconds"] = 5.into();
    fixture.world.submit("a", spec);
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-launcher"));
    fixture.world.state().change_pod("a-launcher", |pod| {
        pod["status"]["phase"] = "Pending".into();
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no such Secret"}}}]);
    });
    fixture.world.state().deliver_all_events();
    let job = fixture.run_until("a", |job| {
        fixture.world.state().now += 1000;
        job["status"]["instances"][0]["givenBack"] == 1
    });
    let reason = &job["status"]["instances"][0]["givenBackBecause"];
    assert_eq!(reason["code"], "LauncherUnschedulable", "{job}");
    assert!(
        message(&job).contains("CreateContainerConfigError: no such Secret"),
        "{job}"
    );
    let events = fixture.world.state().event_reasons.clone();
    assert!(events.contains(&"LauncherUnschedulable".to_owned()), "{events:?}");
}

#[test]
fn a_job_with_an_unreadable_status_is_not_modified_and_can_be_deleted() {
    let fixture = Fixture::new();
    fixture.world.submit("a", serving(1));
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let before = fixture.world.state().jobs["a"]["status"].clone();
    fixture
        .world
        .state()
        .change_job("a", |job| job["status"]["phase"] = "Dreaming".into());
    let writes = fixture.world.state().writes;
    fixture.world.state().event_reasons.clear();
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["instances"], before["instances"]);
    assert_eq!(fixture.world.state().writes, writes);
    assert_eq!(fixture.world.state().event_reasons, ["UnreadableStatus"]);
    fixture.world.delete("a");
    for _ in 0..1000 {
        if fixture.reconcile("a").is_null() {
            break;
        }
        fixture.world.step();
    }
    let state = fixture.world.state();
    assert!(state.jobs.is_empty(), "{:?}", state.jobs);
    assert!(state.holds.values().all(|hold| hold.state == "releasing"));
}

#[test]
fn a_job_that_ended_under_an_earlier_operator_is_not_run_again() {
    for end in ["Completed", "Failed"] {
        let fixture = Fixture::new();
        fixture.world.submit("a", serving(1));
        fixture.world.state().change_job("a", |job| {
            job["status"] = json!({"launcherStatus": end, "lastMessage": "as it was", "desiredReplicas": 1});
        });
        for _ in 0..20 {
            let job = fixture.reconcile("a");
            assert_eq!(job["status"]["launcherStatus"], end, "{job}");
            fixture.world.step();
        }
        let state = fixture.world.state();
        assert!(state.holds.is_empty() && state.pods.is_empty());
    }
}

#[test]
fn no_worker_starts_while_the_endpoint_of_the_controller_is_unknown() {
    let fixture = Fixture::new();
    fixture.world.state().is_unlisted = true;
    fixture.world.submit("a", serving(1));
    let job = fixture.run_until("a", |job| message(job).contains("Unavailable"));
    assert!(
        message(&job).contains("the proxy does not report the endpoint of partition"),
        "{job}"
    );
    assert!(fixture.world.state().pods.is_empty());
    fixture.world.state().is_unlisted = false;
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
}
