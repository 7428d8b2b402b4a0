//! Kubernetes Pods by their owners: who speaks for a job, and what is left of it when it goes.

use ipu_k8s::controller::Reconciler;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::reconcile::{Fixture, sample};

/// A job of one worker without a launcher.
fn alone() -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec
}

/// Another operator takes over, which knows nothing but what it lists.
fn take_over(setting: &mut Fixture) {
    let (port, cache) = (setting.world.port(), setting.world.restart(0));
    let clock = setting.world.clock();
    setting.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
}

#[test]
fn a_kubernetes_pod_that_has_all_but_the_owner_of_a_worker_has_not_ended_the_job() {
    let mut setting = Fixture::new();
    setting.world.submit("a", alone());
    let key = super::fake_cluster::key(&setting.world.state().jobs["a"]);
    let forged = json!({
        "metadata": {
            "name": "a-worker-0", "namespace": "default", "uid": "forged", "resourceVersion": "1",
            "labels": {
                "graphcore.ai/ipujob-name": "a", "graphcore.ai/ipujob-uid": key.uid, "graphcore.ai/role": "worker",
                "graphcore.ai/instance": "0", "graphcore.ai/worker": "0", "graphcore.ai/attempt": "0",
            },
            "ownerReferences": [{"uid": key.uid}, {"kind": "IPUJob", "name": "b", "uid": "another", "controller": true}],
        },
        "status": {"phase": "Succeeded"},
    });
    let name = "a-worker-0".to_owned();
    setting.world.state().pods.insert(name.clone(), forged);
    take_over(&mut setting);
    let job = setting.until("a", |job| {
        setting.world.state().now += 1000;
        let message = job["status"]["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    });
    assert_eq!(job["status"]["phase"], "Pending", "nothing of it has run");
    // It is for others to take away.
    assert!(setting.world.state().pods.contains_key(&name));
    setting.world.state().pods.remove(&name);
    setting.until("a", |job| job["status"]["phase"] == "Running");
}

#[test]
fn a_job_that_is_deleted_without_its_dependents_gives_its_partition_back_when_they_have_ended() {
    let mut setting = Fixture::new();
    setting.world.submit("a", alone());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    // As Kubernetes does before it deletes the job itself.
    setting.world.state().change_pod("a-worker-0", |pod| {
        pod["metadata"]["ownerReferences"] = json!([]);
    });
    take_over(&mut setting);
    setting.world.delete("a");
    setting.until("a", Value::is_null);
    assert!(setting.world.state().pods.is_empty());
}

#[test]
fn a_worker_whose_owner_was_taken_away_goes_on() {
    let setting = Fixture::new();
    setting.world.submit("a", alone());
    setting.until("a", |job| job["status"]["phase"] == "Running");
    setting.world.state().change_pod("a-worker-0", |pod| {
        pod["metadata"]["ownerReferences"] = json!([]);
    });
    let before = setting.world.state().writes;
    for _ in 0..50 {
        assert_eq!(setting.pass("a")["status"]["phase"], "Running");
        setting.world.step();
    }
    assert_eq!(setting.world.state().writes, before);
}
