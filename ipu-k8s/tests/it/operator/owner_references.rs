//! Owner references of Pods: which Pods count for a job, and what is left when it is deleted.

use ipu_k8s::controller::Reconciler;
use ipu_k8s::resources::InstallationDefaults;
use serde_json::{Value, json};

use super::reconcile::{Fixture, sample};

/// Returns a job of one worker without a launcher.
fn worker_job() -> Value {
    let mut spec = sample();
    spec.as_object_mut().unwrap().remove("launcher");
    spec["workers"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", "sleep 1d"]);
    spec
}

/// Starts another operator, which knows only what it lists.
fn start_new_operator(fixture: &mut Fixture) {
    let (port, cache) = (fixture.world.port(), fixture.world.restart(0));
    let clock = fixture.world.clock();
    fixture.operator = Reconciler::new(port.clone(), port, cache, InstallationDefaults::default(), clock);
}

#[test]
fn a_pod_with_the_labels_but_not_the_owner_of_a_worker_does_not_end_the_job() {
    let mut fixture = Fixture::new();
    fixture.world.submit("a", worker_job());
    let key = super::fake_cluster::key(&fixture.world.state().jobs["a"]);
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
    fixture.world.state().pods.insert(name.clone(), forged);
    start_new_operator(&mut fixture);
    let job = fixture.run_until("a", |job| {
        fixture.world.state().now += 1000;
        let message = job["status"]["lastMessage"].as_str();
        message.is_some_and(|message| message.contains("NameTaken"))
    });
    assert_eq!(job["status"]["phase"], "Pending", "no worker of the job has run");
    // The operator does not delete the foreign Pod.
    assert!(fixture.world.state().pods.contains_key(&name));
    fixture.world.state().pods.remove(&name);
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
}

#[test]
fn a_job_deleted_without_its_dependents_releases_its_partition_once_they_have_ended() {
    let mut fixture = Fixture::new();
    fixture.world.submit("a", worker_job());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    // Kubernetes removes the owner reference before it deletes the job itself.
    fixture.world.state().change_pod("a-worker-0", |pod| {
        pod["metadata"]["ownerReferences"] = json!([]);
    });
    start_new_operator(&mut fixture);
    fixture.world.delete("a");
    fixture.run_until("a", Value::is_null);
    assert!(fixture.world.state().pods.is_empty());
}

#[test]
fn a_worker_without_its_owner_reference_continues() {
    let fixture = Fixture::new();
    fixture.world.submit("a", worker_job());
    fixture.run_until("a", |job| job["status"]["phase"] == "Running");
    fixture.world.state().change_pod("a-worker-0", |pod| {
        pod["metadata"]["ownerReferences"] = json!([]);
    });
    let before = fixture.world.state().writes;
    for _ in 0..50 {
        assert_eq!(fixture.reconcile("a")["status"]["phase"], "Running");
        fixture.world.step();
    }
    assert_eq!(fixture.world.state().writes, before);
}
