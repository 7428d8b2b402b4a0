//! Pods deleted by other clients: which are recreated, and on which partition.

use std::task::{Context, Waker};

use ipu_core::{MissingProcess, Timestamp};
use ipu_k8s::controller::Reconciler;
use ipu_k8s::crd::Time;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{key, time};
use super::reconcile::{Fixture, sample};

/// Deletes a Pod, which exits with code 0 on SIGTERM.
fn delete_gracefully(fixture: &Fixture, name: &str) {
    let now = fixture.world.state().now;
    let moment = |millis: u64| serde_json::to_value(Time(Timestamp::from_millis(millis))).unwrap();
    fixture.world.state().change_pod(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = moment(now + 30_000);
        pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        pod["status"]["phase"] = "Succeeded".into();
        pod["status"]["containerStatuses"] =
            json!([{"state": {"terminated": {"exitCode": 0, "finishedAt": moment(now + 500)}}}]);
    });
    // The kubelet finishes the deletion.
    fixture.world.state().change_pod(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = moment(now + 2_000);
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    });
    fixture.world.state().deliver_all_events();
}

/// Deletes a Pod by force: it is unknown whether its process has ended.
fn force_delete(fixture: &Fixture, name: &str) {
    fixture.world.state().remove_pod(name);
    fixture.world.state().deliver_all_events();
}

/// Checks that the Pod is recreated, and that the job neither completes nor fails.
fn assert_recreated(fixture: &Fixture, name: &str, delete: fn(&Fixture, &str)) {
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let before = uid(&fixture.world.state().pods[name]);
    delete(fixture, name);
    fixture.run_until("a", |job| {
        let phase = &job["status"]["phase"];
        assert!(
            phase.is_null() || phase == "Running" || phase == "Pending",
            "{job}"
        );
        let state = fixture.world.state();
        state.pods.get(name).is_some_and(|pod| uid(pod) != before)
    });
}

/// Returns a job of one worker that never exits by itself.
fn endless_job() -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec
}

#[test]
fn a_worker_deleted_by_hand_has_not_succeeded_and_restarts_on_a_reset_partition() {
    for delete in [delete_gracefully, force_delete] {
        let fixture = Fixture::new();
        fixture.world.submit("a", endless_job());
        fixture.run_until("a", |job| job["status"]["phase"] == "Running");
        assert_recreated(&fixture, "a-worker-0", delete);
        let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
        let attempts: Vec<u32> = fixture
            .world
            .state()
            .holds
            .values()
            .map(|hold| hold.wanted.attempt)
            .collect();
        assert_eq!(attempts, [1], "the attempt of the reset");
        assert_eq!(job["status"]["restartCount"], 0, "{job}");
        assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
        let events = fixture.world.state().event_reasons.clone();
        assert!(events.iter().any(|reason| reason == "WorkerGone"), "{events:?}");
    }
}

#[test]
fn a_worker_deleted_before_all_run_restarts_on_a_reset_partition() {
    let delete_when = |ready: bool, delete: fn(&Fixture, &str)| {
        let fixture = Fixture::new();
        let mut spec = sample();
        spec.as_object_mut().unwrap().remove("launcher");
        spec["ipusPerJobInstance"] = "2".into();
        spec["workersPerJobInstance"] = 2.into();
        fixture.world.submit("a", spec);
        fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-1"));
        let now = fixture.world.state().now;
        if ready {
            fixture.world.state().change_pod("a-worker-0", |pod| {
                pod["status"]["phase"] = "Running".into();
                pod["status"]["conditions"] =
                    json!([{"type": "Ready", "status": "True", "lastTransitionTime": time(now)}]);
            });
        }
        assert_recreated(&fixture, "a-worker-0", delete);
        let holds = fixture.world.state().holds.clone();
        let attempts: Vec<u32> = holds.values().map(|hold| hold.wanted.attempt).collect();
        (attempts, fixture.world.state().event_reasons.clone())
    };
    for (ready, delete) in [
        (false, force_delete as fn(&Fixture, &str)),
        (true, force_delete),
        (true, delete_gracefully),
    ] {
        let (attempts, events) = delete_when(ready, delete);
        assert_eq!(attempts, [1], "the attempt of the reset");
        assert!(events.iter().any(|reason| reason == "WorkerGone"), "{events:?}");
    }
}

#[test]
fn a_pod_deleted_by_hand_before_the_launcher_has_run_is_recreated() {
    let fixture_before_launcher_runs = || {
        let fixture = Fixture::new();
        fixture.world.submit("a", sample());
        fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-launcher"));
        fixture
    };
    let fixture = fixture_before_launcher_runs();
    assert_recreated(&fixture, "a-launcher", delete_gracefully);

    // The launcher waits for its workers, which the simulation does not do.
    let fixture = fixture_before_launcher_runs();
    delete_gracefully(&fixture, "a-worker-0");
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Pending", "{job}");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
}

#[test]
fn a_launcher_force_deleted_before_it_was_observed_running_restarts_on_a_reset_partition() {
    for while_no_operator_works in [false, true] {
        let mut fixture = Fixture::new();
        fixture.world.submit("a", sample());
        fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-launcher"));
        if while_no_operator_works {
            fixture.world.state().force_delete("a-launcher");
            let (port, cache) = (fixture.world.port(), fixture.world.restart(0));
            let clock = fixture.world.clock();
            fixture.operator =
                Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
        } else {
            force_delete(&fixture, "a-launcher");
        }
        fixture.run_until("a", |job| job["status"]["phase"] == "Running");
        let state = fixture.world.state();
        let attempts: Vec<u32> = state.holds.values().map(|hold| hold.wanted.attempt).collect();
        assert_eq!(
            attempts,
            [1],
            "the attempt of the reset: processes that the launcher started ended with its workers"
        );
        assert!(
            state.event_reasons.contains(&"LauncherGone".to_owned()),
            "{:?}",
            state.event_reasons
        );
        assert!(state.pods.contains_key("a-launcher"));
    }
}

#[test]
fn a_response_newer_than_the_cache_is_reconciled() {
    check_reconciled(|_| ());
}

#[test]
fn a_response_without_the_former_owner_is_reconciled_too() {
    check_reconciled(|pod| pod["metadata"]["ownerReferences"] = json!([]));
}

fn check_reconciled(besides: impl FnOnce(&mut Value)) {
    let fixture = Fixture::new();
    fixture.world.submit("a", endless_job());
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-0"));
    {
        let mut state = fixture.world.state();
        state.deliver_all_events();
        let now = time(state.now);
        state.change_pod("a-worker-0", |pod| {
            pod["status"] = json!({"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": "True", "lastTransitionTime": now},
            ]});
            besides(pod);
        });
        // The later watch event contains no news.
        let process = MissingProcess {
            worker: Some(0),
            attempt: 0,
        };
        let job = key(&state.jobs["a"]);
        state.operator_watches[0]
            .cache
            .mark_unconfirmed(&job, "a-worker-0", (0, process));
    }
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
}

#[test]
fn a_launcher_deleted_by_hand_has_not_succeeded() {
    let fixture = Fixture::new();
    fixture.world.submit("a", sample());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    delete_gracefully(&fixture, "a-launcher");
    let job = fixture.reconcile("a");
    let status = &job["status"];
    assert_eq!(status["phase"], "Failed", "{status}");
    assert_eq!(
        status["firstFailure"]["reason"], "deleted while it ran",
        "{status}"
    );
}

#[test]
fn a_worker_force_deleted_without_an_operator_restarts_on_a_reset_partition() {
    let mut fixture = Fixture::new();
    fixture.world.submit("a", endless_job());
    let started = |fixture: &Fixture| fixture.world.state().pods.contains_key("a-worker-0");
    fixture.run_until("a", |_| started(&fixture));
    fixture.world.state().force_delete("a-worker-0");
    let (port, cache) = (fixture.world.port(), fixture.world.restart(0));
    let clock = fixture.world.clock();
    fixture.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let attempts: Vec<u32> = {
        let state = fixture.world.state();
        state.holds.values().map(|hold| hold.wanted.attempt).collect()
    };
    assert_eq!(attempts, [1], "the attempt of the reset");

    // An existing worker does not cause a restart.
    let (port, cache) = (fixture.world.port(), fixture.world.restart(0));
    let clock = fixture.world.clock();
    fixture.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
    let job = fixture.reconcile("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    assert_eq!(job["status"]["instances"][0]["attempt"], 1, "{job}");
}

#[test]
fn a_failed_worker_deleted_before_its_failure_is_recorded_has_failed_nevertheless() {
    let fixture = Fixture::new();
    let mut spec = endless_job();
    spec["ipusPerJobInstance"] = "2".into();
    spec["workersPerJobInstance"] = "2".into();
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let now = fixture.world.state().now;
    fixture.world.state().change_pod("a-worker-1", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] = json!([{"state": {"terminated": {
            "exitCode": 3, "reason": "Error", "message": "the end",
            "finishedAt": Time(Timestamp::from_millis(now)),
        }}}]);
    });
    force_delete(&fixture, "a-worker-1");
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Failed");
    let failure = &job["status"]["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["exitCode"]),
        (&"a-worker-1".into(), &3.into()),
        "{job}"
    );
    assert_eq!(failure["node"], "node", "{job}");
    fixture.world.delete("a");
    fixture.run_until("a", Value::is_null);
}

#[test]
fn a_force_deleted_worker_restarts_on_a_reset_partition_after_its_job_was_scaled_down_and_up() {
    let fixture = Fixture::new();
    fixture.world.submit("a", endless_job());
    fixture.run_until("a", |_| fixture.world.state().pods.contains_key("a-worker-0"));
    let scale_to = |instances: u32| {
        let mut state = fixture.world.state();
        state.change_job("a", |job| job["spec"]["jobInstances"] = instances.into());
        state.jobs["a"].clone()
    };
    force_delete(&fixture, "a-worker-0");
    // An interrupted reconciliation that only reads: the partition is not released.
    let job = scale_to(0);
    let mut reconciliation = Box::pin(fixture.operator.reconcile(&job));
    let mut poll_once = || {
        let outcome = reconciliation
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(outcome.is_pending(), "{outcome:?}");
    };
    let before = fixture.world.state().calls;
    while fixture.world.state().calls == before {
        poll_once();
    }
    poll_once();
    drop(reconciliation);
    assert_eq!(
        fixture.world.state().calls,
        before + 1,
        "the operator read the partition"
    );
    assert_eq!(
        fixture.world.state().holds.values().next().unwrap().state,
        "active"
    );
    scale_to(1);
    let job = fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(job["status"]["instances"][0]["attempt"], 1, "{job}");
}
