//! Deletion of jobs, one reconciliation at a time.

use ipu_k8s::controller::Requeue;
use serde_json::Value;

use super::reconcile::{Fixture, block_on, sample};

/// Returns a fixture with a running job that is being deleted.
fn deleted() -> Fixture {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().deliver_all_events();
    fixture.world.delete("a");
    fixture
}

#[test]
fn a_quick_deletion_is_not_reported() {
    let fixture = deleted();
    let (before, event) = {
        let state = fixture.world.state();
        (state.writes, state.event_reasons.len())
    };
    let now = fixture.world.state().now;
    for _ in 0..1000 {
        if fixture.reconcile("a") == Value::Null {
            break;
        }
        fixture.world.step();
        fixture.world.state().now = now;
    }
    let state = fixture.world.state();
    assert!(state.jobs.is_empty(), "{:?}", state.jobs);
    assert!(state.holds.is_empty());
    // Two writes: the deletion of the worker, and the removal of the finalizer.
    assert_eq!(state.writes - before, 2);
    assert_eq!(state.event_reasons.len(), event, "{:?}", state.event_reasons);
}

#[test]
fn a_slow_deletion_is_reported_after_two_seconds() {
    let fixture = deleted();
    let started = fixture.world.state().now;
    // The worker does not end.
    let reported_after = loop {
        let job = fixture.world.state().jobs["a"].clone();
        let pause = block_on(fixture.operator.reconcile(&job)).unwrap();
        let mut state = fixture.world.state();
        if state.jobs["a"]["status"]["phase"] == "Terminating" {
            break state.now - started;
        }
        let Requeue::After(pause) = pause else {
            panic!("no requeue is requested");
        };
        state.now += u64::try_from(pause.as_millis()).unwrap().max(1);
    };
    assert!((2000..2100).contains(&reported_after), "{reported_after}");
    let event = fixture.world.state().event_reasons.clone();
    assert_eq!(event.last().map(String::as_str), Some("IPUJobTerminating"));
}

#[test]
fn a_job_without_finalizer_is_not_reconciled_again_on_late_events() {
    let fixture = deleted();
    let mut versions = vec![fixture.world.state().jobs["a"].clone()];
    let is_deleted = |versions: &mut Vec<Value>| {
        versions.push(fixture.reconcile("a"));
        if versions.last() == Some(&Value::Null) {
            // Before the operator observes the deletion.
            return true;
        }
        fixture.world.step();
        fixture.world.state().now += 1000;
        false
    };
    assert!(
        (0..1000).any(|_| is_deleted(&mut versions)),
        "the job is not deleted"
    );
    let calls = fixture.world.state().calls;
    for job in versions.iter().filter(|job| !job.is_null()) {
        assert_eq!(
            block_on(fixture.operator.reconcile(job)).unwrap(),
            Requeue::AwaitChange
        );
    }
    assert_eq!(fixture.world.state().calls, calls, "no call is made");
}

/// Reconciles until the job is deleted.
fn reconcile_until_deleted(fixture: &Fixture) {
    for _ in 0..200 {
        if fixture.reconcile("a") == Value::Null {
            return;
        }
        fixture.world.step();
        fixture.world.state().now += 1000;
    }
    panic!("the job is not deleted: {}", fixture.world.state().jobs["a"]);
}

#[test]
fn a_job_is_deleted_although_its_partition_is_quarantined() {
    let fixture = deleted();
    let mut state = fixture.world.state();
    let id = state.holds.keys().next().cloned().unwrap();
    state.holds.get_mut(&id).unwrap().state = "quarantined";
    drop(state);
    reconcile_until_deleted(&fixture);
    assert_eq!(fixture.world.state().holds[&id].state, "quarantined");
}

#[test]
fn an_invalid_job_whose_worker_was_deleted_is_deleted() {
    let fixture = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    fixture.world.submit("a", spec);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    let mut state = fixture.world.state();
    state.change_pod("a-worker-0", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            serde_json::json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    state.remove_pod("a-worker-0");
    state.deliver_all_events();
    state.change_job("a", |job| job["spec"]["ipusPerJobInstance"] = "3".into());
    drop(state);
    fixture.world.delete("a");
    reconcile_until_deleted(&fixture);
    assert!(
        fixture
            .world
            .state()
            .holds
            .values()
            .all(|hold| hold.state == "releasing")
    );
}
