//! What becomes of jobs that are deleted, pass by pass.

use ipu_k8s::controller::Requeue;
use serde_json::Value;

use super::reconcile::{Fixture, finish, sample};

/// A job that runs, and is deleted.
fn deleted() -> Fixture {
    let setting = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().tell_all();
    setting.world.delete("a");
    setting
}

#[test]
fn a_job_that_goes_in_a_moment_is_not_told_of_before() {
    let setting = deleted();
    let (before, told) = {
        let state = setting.world.state();
        (state.writes, state.events.len())
    };
    let now = setting.world.state().now;
    for _ in 0..1000 {
        if setting.pass("a") == Value::Null {
            break;
        }
        setting.world.step();
        setting.world.state().now = now;
    }
    let state = setting.world.state();
    assert!(state.jobs.is_empty(), "{:?}", state.jobs);
    assert!(state.holds.is_empty());
    // The deletion of the worker, and the finalizer.
    assert_eq!(state.writes - before, 2);
    assert_eq!(state.events.len(), told, "{:?}", state.events);
}

#[test]
fn a_deletion_that_takes_longer_is_told_after_two_seconds() {
    let setting = deleted();
    let begun = setting.world.state().now;
    // Its worker takes its time.
    let told_after = loop {
        let job = setting.world.state().jobs["a"].clone();
        let pause = finish(setting.operator.reconcile(&job)).unwrap();
        let mut state = setting.world.state();
        if state.jobs["a"]["status"]["phase"] == "Terminating" {
            break state.now - begun;
        }
        let Requeue::After(pause) = pause else {
            panic!("it is never looked at again");
        };
        state.now += u64::try_from(pause.as_millis()).unwrap().max(1);
    };
    assert!((2000..2100).contains(&told_after), "{told_after}");
    let told = setting.world.state().events.clone();
    assert_eq!(told.last().map(String::as_str), Some("IPUJobTerminating"));
}

#[test]
fn a_job_that_was_let_go_of_is_not_worked_on_again_whatever_is_heard_of_it() {
    let setting = deleted();
    let mut seen = vec![setting.world.state().jobs["a"].clone()];
    let gone = |seen: &mut Vec<Value>| {
        seen.push(setting.pass("a"));
        if seen.last() == Some(&Value::Null) {
            // Before anybody hears of that.
            return true;
        }
        setting.world.step();
        setting.world.state().now += 1000;
        false
    };
    assert!((0..1000).any(|_| gone(&mut seen)), "it does not go");
    let calls = setting.world.state().calls;
    for job in seen.iter().filter(|job| !job.is_null()) {
        assert_eq!(
            finish(setting.operator.reconcile(job)).unwrap(),
            Requeue::AwaitChange
        );
    }
    assert_eq!(setting.world.state().calls, calls, "nobody is called");
}

/// Passes until the job is gone.
fn goes(setting: &Fixture) {
    for _ in 0..200 {
        if setting.pass("a") == Value::Null {
            return;
        }
        setting.world.step();
        setting.world.state().now += 1000;
    }
    panic!("it does not go: {}", setting.world.state().jobs["a"]);
}

#[test]
fn a_job_goes_although_its_partition_is_quarantined_for_a_person_to_decide() {
    let setting = deleted();
    let mut state = setting.world.state();
    let id = state.holds.keys().next().cloned().unwrap();
    state.holds.get_mut(&id).unwrap().state = "quarantined";
    drop(state);
    goes(&setting);
    assert_eq!(setting.world.state().holds[&id].state, "quarantined");
}

#[test]
fn a_job_goes_that_cannot_be_parsed_and_whose_worker_has_ended_and_gone() {
    let setting = Fixture::new();
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let mut state = setting.world.state();
    state.change_pod("a-worker-0", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] =
            serde_json::json!([{"name": "main", "state": {"terminated": {"exitCode": 3}}}]);
    });
    state.remove_pod("a-worker-0");
    state.tell_all();
    state.change_job("a", |job| job["spec"]["ipusPerJobInstance"] = "3".into());
    drop(state);
    setting.world.delete("a");
    goes(&setting);
    assert!(
        setting
            .world
            .state()
            .holds
            .values()
            .all(|hold| hold.state == "releasing")
    );
}
