//! Kubernetes Pods that others take away: which of them come back, and on what.

use std::task::{Context, Waker};

use ipu_core::{MissingProcess, Timestamp};
use ipu_k8s::controller::Reconciler;
use ipu_k8s::crd::Time;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::fake_cluster::{key, time};
use super::reconcile::{Fixture, sample};

/// Somebody deletes a Kubernetes Pod, which ends with code 0 as it is told to.
fn delete_by_hand(setting: &Fixture, name: &str) {
    let now = setting.world.state().now;
    let moment = |millis: u64| serde_json::to_value(Time(Timestamp::from_millis(millis))).unwrap();
    setting.world.state().change_pod(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = moment(now + 30_000);
        pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        pod["status"]["phase"] = "Succeeded".into();
        pod["status"]["containerStatuses"] =
            json!([{"state": {"terminated": {"exitCode": 0, "finishedAt": moment(now + 500)}}}]);
    });
    // So the kubelet lets go of it.
    setting.world.state().change_pod(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = moment(now + 2_000);
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    });
    setting.world.state().tell_all();
}

/// A Kubernetes Pod is taken away by force: nobody knows whether its process has ended.
fn take_by_force(setting: &Fixture, name: &str) {
    setting.world.state().remove_pod(name);
    setting.world.state().tell_all();
}

/// Whatever takes it, it is made again, and the job never takes it for done or failed.
fn assert_recreated(setting: &Fixture, name: &str, taken: fn(&Fixture, &str)) {
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let before = uid(&setting.world.state().pods[name]);
    taken(setting, name);
    setting.until("a", |job| {
        let phase = &job["status"]["phase"];
        assert!(
            phase.is_null() || phase == "Running" || phase == "Pending",
            "{job}"
        );
        let state = setting.world.state();
        state.pods.get(name).is_some_and(|pod| uid(pod) != before)
    });
}

/// A job of one worker that never ends by itself.
fn sleepers() -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec
}

#[test]
fn a_worker_that_is_deleted_by_hand_has_not_succeeded_and_is_started_again_on_a_partition_that_was_reset() {
    for taken in [delete_by_hand, take_by_force] {
        let setting = Fixture::new();
        setting.world.submit("a", sleepers());
        setting.until("a", |job| job["status"]["phase"] == "Running");
        assert_recreated(&setting, "a-worker-0", taken);
        let job = setting.until("a", |job| job["status"]["phase"] == "Running");
        let attempts: Vec<u32> = setting
            .world
            .state()
            .holds
            .values()
            .map(|hold| hold.wanted.attempt)
            .collect();
        assert_eq!(attempts, [1], "for which it was reset");
        assert_eq!(job["status"]["restartCount"], 0, "{job}");
        assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
        let told = setting.world.state().events.clone();
        assert!(told.iter().any(|reason| reason == "WorkerGone"), "{told:?}");
    }
}

#[test]
fn a_worker_that_is_taken_away_before_all_run_is_started_again_on_a_partition_that_was_reset() {
    let taken_when = |ready: bool, taken: fn(&Fixture, &str)| {
        let setting = Fixture::new();
        let mut spec = sample();
        spec.as_object_mut().unwrap().remove("launcher");
        spec["ipusPerJobInstance"] = "2".into();
        spec["workersPerJobInstance"] = 2.into();
        setting.world.submit("a", spec);
        setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-1"));
        let now = setting.world.state().now;
        if ready {
            setting.world.state().change_pod("a-worker-0", |pod| {
                pod["status"]["phase"] = "Running".into();
                pod["status"]["conditions"] =
                    json!([{"type": "Ready", "status": "True", "lastTransitionTime": time(now)}]);
            });
        }
        assert_recreated(&setting, "a-worker-0", taken);
        let holds = setting.world.state().holds.clone();
        let attempts: Vec<u32> = holds.values().map(|hold| hold.wanted.attempt).collect();
        (attempts, setting.world.state().events.clone())
    };
    for (ready, taken) in [
        (false, take_by_force as fn(&Fixture, &str)),
        (true, take_by_force),
        (true, delete_by_hand),
    ] {
        let (attempts, told) = taken_when(ready, taken);
        assert_eq!(attempts, [1], "for which it was reset");
        assert!(told.iter().any(|reason| reason == "WorkerGone"), "{told:?}");
    }
}

#[test]
fn what_is_deleted_by_hand_before_the_launcher_has_run_is_started_again() {
    let before_it_runs = || {
        let setting = Fixture::new();
        setting.world.submit("a", sample());
        setting.until("a", |_| setting.world.state().pods.contains_key("a-launcher"));
        setting
    };
    let setting = before_it_runs();
    assert_recreated(&setting, "a-launcher", delete_by_hand);

    // The launcher waits for its workers, which nobody does in this world.
    let setting = before_it_runs();
    delete_by_hand(&setting, "a-worker-0");
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Pending", "{job}");
    assert_eq!(job["status"]["firstFailure"], Value::Null, "{job}");
}

#[test]
fn a_launcher_that_is_taken_by_force_before_it_was_seen_to_run_is_started_again_on_a_partition_that_was_reset()
 {
    for while_no_operator_works in [false, true] {
        let mut setting = Fixture::new();
        setting.world.submit("a", sample());
        setting.until("a", |_| setting.world.state().pods.contains_key("a-launcher"));
        if while_no_operator_works {
            setting.world.state().take_by_force("a-launcher");
            let (port, cache) = (setting.world.port(), setting.world.restart(0));
            let clock = setting.world.clock();
            setting.operator =
                Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
        } else {
            take_by_force(&setting, "a-launcher");
        }
        setting.until("a", |job| job["status"]["phase"] == "Running");
        let state = setting.world.state();
        let attempts: Vec<u32> = state.holds.values().map(|hold| hold.wanted.attempt).collect();
        assert_eq!(
            attempts,
            [1],
            "for which it was reset: what it may have begun in its workers ended with them"
        );
        assert!(
            state.events.contains(&"LauncherGone".to_owned()),
            "{:?}",
            state.events
        );
        assert!(state.pods.contains_key("a-launcher"));
    }
}

#[test]
fn what_is_asked_for_and_is_newer_than_what_was_heard_is_acted_upon_when_it_is_answered() {
    is_acted_upon(|_| ());
}

#[test]
fn what_has_lost_its_owner_since_it_was_heard_of_is_acted_upon_too() {
    is_acted_upon(|pod| pod["metadata"]["ownerReferences"] = json!([]));
}

fn is_acted_upon(besides: impl FnOnce(&mut Value)) {
    let setting = Fixture::new();
    setting.world.submit("a", sleepers());
    setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-0"));
    {
        let mut state = setting.world.state();
        state.tell_all();
        let now = time(state.now);
        state.change_pod("a-worker-0", |pod| {
            pod["status"] = json!({"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": "True", "lastTransitionTime": now},
            ]});
            besides(pod);
        });
        // When the watch tells of it at last, it is no news.
        let who = MissingProcess {
            worker: Some(0),
            attempt: 0,
        };
        let job = key(&state.jobs["a"]);
        state.ears[0].cache.unconfirmed(&job, "a-worker-0", (0, who));
    }
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
}

#[test]
fn a_launcher_that_is_deleted_by_hand_has_not_succeeded() {
    let setting = Fixture::new();
    setting.world.submit("a", sample());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    delete_by_hand(&setting, "a-launcher");
    let job = setting.pass("a");
    let status = &job["status"];
    assert_eq!(status["phase"], "Failed", "{status}");
    assert_eq!(
        status["firstFailure"]["reason"], "deleted while it ran",
        "{status}"
    );
}

#[test]
fn what_is_taken_by_force_while_no_operator_works_is_started_again_on_a_partition_that_was_reset() {
    let mut setting = Fixture::new();
    setting.world.submit("a", sleepers());
    let started = |setting: &Fixture| setting.world.state().pods.contains_key("a-worker-0");
    setting.until("a", |_| started(&setting));
    setting.world.state().take_by_force("a-worker-0");
    let (port, cache) = (setting.world.port(), setting.world.restart(0));
    let clock = setting.world.clock();
    setting.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let attempts: Vec<u32> = {
        let state = setting.world.state();
        state.holds.values().map(|hold| hold.wanted.attempt).collect()
    };
    assert_eq!(attempts, [1], "for which it was reset");

    // What is there is no reason to begin anew.
    let (port, cache) = (setting.world.port(), setting.world.restart(0));
    let clock = setting.world.clock();
    setting.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
    let job = setting.pass("a");
    assert_eq!(job["status"]["phase"], "Running", "{job}");
    assert_eq!(job["status"]["instances"][0]["attempt"], 1, "{job}");
}

#[test]
fn a_failed_worker_that_somebody_deletes_before_it_is_judged_has_failed_all_the_same() {
    let setting = Fixture::new();
    let mut spec = sleepers();
    spec["ipusPerJobInstance"] = "2".into();
    spec["workersPerJobInstance"] = "2".into();
    setting.world.submit("a", spec);
    setting.until("a", |job| job["status"]["phase"] == "Running");
    let now = setting.world.state().now;
    setting.world.state().change_pod("a-worker-1", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["containerStatuses"] = json!([{"state": {"terminated": {
            "exitCode": 3, "reason": "Error", "message": "the end",
            "finishedAt": Time(Timestamp::from_millis(now)),
        }}}]);
    });
    take_by_force(&setting, "a-worker-1");
    let job = setting.until("a", |job| job["status"]["phase"] == "Failed");
    let failure = &job["status"]["firstFailure"];
    assert_eq!(
        (&failure["name"], &failure["exitCode"]),
        (&"a-worker-1".into(), &3.into()),
        "{job}"
    );
    assert_eq!(failure["node"], "node", "{job}");
    setting.world.delete("a");
    setting.until("a", Value::is_null);
}

#[test]
fn a_worker_that_was_taken_by_force_comes_back_on_a_partition_that_was_reset_although_nobody_wanted_it_meanwhile()
 {
    let setting = Fixture::new();
    setting.world.submit("a", sleepers());
    setting.until("a", |_| setting.world.state().pods.contains_key("a-worker-0"));
    let wants = |instances: u32| {
        let mut state = setting.world.state();
        state.change_job("a", |job| job["spec"]["jobInstances"] = instances.into());
        state.jobs["a"].clone()
    };
    take_by_force(&setting, "a-worker-0");
    // A pass that gets no further than to look: the partition is not given back.
    let job = wants(0);
    let mut pass = Box::pin(setting.operator.reconcile(&job));
    let mut get_on = || {
        let outcome = pass.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(outcome.is_pending(), "{outcome:?}");
    };
    let before = setting.world.state().calls;
    while setting.world.state().calls == before {
        get_on();
    }
    get_on();
    drop(pass);
    assert_eq!(
        setting.world.state().calls,
        before + 1,
        "it asked for the partition"
    );
    assert_eq!(
        setting.world.state().holds.values().next().unwrap().state,
        "active"
    );
    wants(1);
    let job = setting.until("a", |job| job["status"]["phase"] == "Running");
    assert_eq!(job["status"]["instances"][0]["attempt"], 1, "{job}");
}
