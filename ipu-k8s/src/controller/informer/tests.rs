//! Tests of the cache through its public interface.

use ipu_core::{InstanceStatus, JobStatus};
use ipu_proxy_client::PartitionDocument;
use serde_json::{Value, json};

use super::*;
use crate::resources::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, ROLE, WORKER};

fn launcher() -> (u32, MissingProcess) {
    let process = MissingProcess {
        worker: None,
        attempt: 0,
    };
    (0, process)
}

#[test]
fn only_changes_of_relevant_fields_trigger_a_reconcile() {
    let pod = |version: u32, node: &str, status: &Value| {
        json!({
            "metadata": {
                "name": "a-worker-0", "namespace": "n", "uid": "p", "resourceVersion": version.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {ROLE: "worker", JOB_NAME: "a", JOB_UID: "u", INSTANCE: "0", WORKER: "0", ATTEMPT: "0"},
            },
            "spec": {"nodeName": node},
            "status": status,
        })
    };
    let pending_status = json!({"phase": "Pending"});
    let conditions =
        json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"}]);
    let ready = json!({"phase": "Running", "conditions": conditions});
    let changed = Some(a());
    let cache = Cache::new();
    assert_eq!(cache.on_applied(&pod(1, "", &pending_status)), changed);
    // The watch delivers the operator's own write.
    assert_eq!(cache.on_applied(&pod(1, "", &pending_status)), None);
    assert_eq!(cache.on_applied(&pod(2, "one", &pending_status)), None);
    assert_eq!(cache.pods(&a())[0].node.as_deref(), Some("one"));
    assert_eq!(cache.on_applied(&pod(3, "one", &ready)), changed);
    // An older version.
    assert_eq!(cache.on_applied(&pod(2, "one", &pending_status)), None);
    assert_eq!(cache.on_deleted(&pod(4, "one", &ready)), changed);
    assert!(cache.pods(&a()).is_empty());
}

/// A job of namespace `n`.
fn job(name: &str, uid: &str) -> JobKey {
    JobKey::new("n", name, uid).expect("a job key")
}

/// Job `a`, whose uid is `u`.
fn a() -> JobKey {
    job("a", "u")
}

/// Owner references to job `a`.
fn owners() -> Value {
    json!([{"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": "a", "uid": "u", "controller": true}])
}

/// The partition of instance 0 of job `a`.
fn partition(state: &str, attempt: u32, since: u64) -> PartitionDocument {
    serde_json::from_value(json!({
        "id": "p-a-0", "state": state, "instance": 0, "attempt": attempt, "since": since,
        "owner": {"kind": "IPUJob", "namespace": "n", "name": "a", "uid": "u"},
        "size": 1, "gcds": 1, "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "heldSince": null,
        "priority": 0, "account": null, "preemptible": false, "maxRuntimeSeconds": null, "leaseUntil": null,
        "errors": [], "env": {},
    }))
    .expect("a partition")
}

#[test]
fn a_partition_event_is_a_change_unless_a_response_returned_it_or_a_request_is_in_progress() {
    let cache = Cache::new();
    let (creating, active) = (partition("creating", 0, 1), partition("active", 0, 2));
    assert!(cache.is_change(&a(), &creating));
    assert!(cache.is_change(&a(), &active));
    let request_guard = cache.begin_request(&a(), 0);
    assert!(!cache.is_change(&a(), &creating));
    assert!(cache.is_change(&a(), &partition("failed", 0, 2)));
    assert!(cache.is_change(&job("other", "v"), &creating));
    cache.record_response(&a(), 0, Some(&active));
    drop(request_guard);
    assert!(!cache.is_change(&a(), &active));
    assert!(cache.is_change(&a(), &creating));
    assert!(cache.is_change(&a(), &partition("active", 0, 3)), "recreated");
    assert!(
        cache.is_change(&a(), &partition("active", 1, 2)),
        "for another attempt"
    );
    assert!(cache.is_change(&a(), &partition("releasing", 0, 3)));
    cache.record_response(&a(), 0, None);
    assert!(cache.is_change(&a(), &active));
}

/// Workers of job `u`.
const A: &str = "a-worker-0";
const B: &str = "a-worker-1";
const C: &str = "a-worker-2";
const D: &str = "a-worker-3";

/// A worker of job `u` that has this name and uid.
fn pod(name: &str, version: u32) -> Value {
    let worker = name.rsplit('-').next();
    json!({"metadata": {
        "ownerReferences": owners(),
        "name": name, "namespace": "n", "uid": name, "resourceVersion": version.to_string(),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {ROLE: "worker", JOB_NAME: "a", JOB_UID: "u", INSTANCE: "0", WORKER: worker, ATTEMPT: "0"},
    }})
}

#[test]
fn pods_possibly_deleted_while_the_watch_was_broken_are_confirmed() {
    let cache = Cache::new();
    for (name, version) in [(A, 1), (B, 2), (C, 3)] {
        let _ = cache.on_applied(&pod(name, version));
    }
    cache.on_init();
    cache.on_init_apply(&pod(B, 2));
    assert_eq!(cache.on_init_done(), [a()]);
    // A was certainly deleted. C may have been deleted too, or be newer than the list.
    let names: Vec<String> = cache.pods(&a()).into_iter().map(|pod| pod.name).collect();
    assert_eq!(names, [B, C]);
    let pending = cache.pending_checks(&a());
    assert_eq!(pending.keys().collect::<Vec<_>>(), [C]);
    // The confirmation is requested again while a response is on its way, so that response is outdated.
    cache.mark_unconfirmed(&a(), C, launcher());
    cache.mark_unconfirmed(&a(), D, launcher());
    cache.confirm(&a(), &pending, &BTreeSet::new());
    let pending = cache.pending_checks(&a());
    assert_eq!(pending.keys().collect::<Vec<_>>(), [C, D]);
    cache.confirm(&a(), &pending, &BTreeSet::new());
    assert!(cache.pending_checks(&a()).is_empty());
}

#[test]
fn a_disrupted_worker_is_remembered_until_the_next_attempt() {
    let pod = |worker: u32, version: u32, phase: &str| {
        json!({
            "metadata": {
                "name": format!("a-worker-{worker}"), "namespace": "n", "uid": format!("p{worker}"),
                "resourceVersion": version.to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": owners(),
                "labels": {ROLE: "worker", JOB_NAME: "a", JOB_UID: "u", INSTANCE: "0", WORKER: worker.to_string(), ATTEMPT: "0"},
            },
            "status": {"phase": phase},
        })
    };
    let cache = Cache::new();
    let evicted = |status: &JobStatus| -> Vec<u32> {
        let evicted = cache.evicted(&a(), 1, status, &BTreeSet::new()).into_iter();
        evicted.filter_map(|(_, process)| process.worker).collect()
    };
    let status = JobStatus::default();
    for worker in 0..6 {
        let _ = cache.on_applied(&pod(worker, worker + 1, "Pending"));
    }
    // One was deleted by force, one by the operator, and one after the kubelet reported its exit.
    let _ = cache.on_deleted(&pod(0, 10, "Pending"));
    cache.mark_stop_requested(&a(), "a-worker-1", "p1");
    let _ = cache.on_applied(&pod(1, 11, "Running"));
    let _ = cache.on_deleted(&pod(1, 12, "Running"));
    let _ = cache.on_deleted(&pod(2, 13, "Succeeded"));
    assert_eq!(evicted(&status), [0]);
    // While the watch was broken: one is not listed, one is, and one that the operator deleted goes later.
    cache.mark_stop_requested(&a(), "a-worker-5", "p5");
    cache.on_init();
    cache.on_init_apply(&pod(4, 20, "Pending"));
    cache.on_init_apply(&pod(5, 21, "Pending"));
    let _ = cache.on_init_done();
    let _ = cache.on_deleted(&pod(5, 22, "Pending"));
    assert_eq!(evicted(&status), [0, 3]);
    cache.mark_missing(&a(), "a-worker-4", "p4");
    assert_eq!(evicted(&status), [0, 3, 4]);
    // A pod that the operator deleted and that is missing already is no disruption, although the watch
    // reports it later.
    let _ = cache.on_applied(&pod(6, 30, "Pending"));
    cache.mark_stop_requested(&a(), "a-worker-6", "p6");
    cache.mark_missing(&a(), "a-worker-6", "p6");
    let _ = cache.on_deleted(&pod(6, 31, "Pending"));
    assert_eq!(evicted(&status), [0, 3, 4]);
    let mut next = JobStatus::default();
    next.instances.push(InstanceStatus::new(0));
    assert_eq!(evicted(&next), [0, 3, 4]);
    next.instances[0].attempt = 1;
    assert_eq!(evicted(&next), [0_u32; 0]);

    let _ = cache.on_applied(&pod(7, 40, "Pending"));
    let _ = cache.on_deleted(&pod(7, 41, "Pending"));
    assert_eq!(
        cache.evicted(&a(), 0, &status, &BTreeSet::new()),
        [],
        "the job no longer has the instance"
    );
    assert_eq!(
        evicted(&status),
        [7],
        "the job has the instance again before its partition was released"
    );
    assert_eq!(cache.evicted(&a(), 0, &status, &[0].into()), []);
    assert_eq!(
        evicted(&status),
        [0_u32; 0],
        "a new partition has no disrupted process"
    );
}

#[test]
fn a_pod_whose_creation_was_not_confirmed_and_that_is_missing_counts_as_disrupted() {
    let cache = Cache::new();
    let made = |worker| (0, MissingProcess { worker, attempt: 1 });
    cache.mark_unconfirmed(&a(), "a-worker-0", made(Some(0)));
    cache.mark_unconfirmed(&a(), "a-worker-1", made(Some(1)));
    cache.mark_unconfirmed(&a(), "a-launcher", made(None));
    let pending = cache.pending_checks(&a());
    // Another pod is created while the response is on its way.
    cache.mark_unconfirmed(&a(), "a-worker-2", made(Some(2)));
    cache.confirm(&a(), &pending, &["a-worker-1"].into());
    let mut status = JobStatus::default();
    status.instances.push(InstanceStatus::new(0));
    status.instances[0].attempt = 1;
    let evicted = |status: &JobStatus| -> Vec<Option<u32>> {
        let evicted = cache.evicted(&a(), 1, status, &BTreeSet::new()).into_iter();
        evicted.map(|(_, process)| process.worker).collect()
    };
    assert_eq!(evicted(&status), [None, Some(0)]);
    assert_eq!(
        cache.pending_checks(&a()).keys().collect::<Vec<_>>(),
        ["a-worker-2"]
    );
    status.instances[0].attempt = 2;
    assert_eq!(evicted(&status), []);
}

#[test]
fn a_response_that_arrives_after_a_relist_is_confirmed() {
    let cache = Cache::new();
    let lists = cache.relist_count();
    assert!(cache.observe_response(&pod(A, 1), lists));
    assert!(cache.pending_checks(&a()).is_empty());
    cache.on_init();
    let _ = cache.on_init_done();
    let pending = cache.pending_checks(&a());
    cache.confirm(&a(), &pending, &[A].into());
    // It was created before the list, which omits it.
    assert!(cache.observe_response(&pod(B, 2), lists));
    assert_eq!(cache.pending_checks(&a()).keys().collect::<Vec<_>>(), [B]);
    assert!(cache.observe_response(&pod(C, 3), cache.relist_count()));
    assert_eq!(cache.pending_checks(&a()).keys().collect::<Vec<_>>(), [B]);
}

#[test]
fn a_response_with_a_pod_missing_from_a_newer_list_records_a_disruption() {
    let cache = Cache::new();
    let evicted = || {
        let evicted = cache.evicted(&a(), 1, &JobStatus::default(), &BTreeSet::new());
        evicted
            .into_iter()
            .filter_map(|(_, process)| process.worker)
            .collect::<Vec<_>>()
    };
    let lists = cache.relist_count();
    cache.on_init();
    cache.on_init_apply(&pod(C, 9));
    let _ = cache.on_init_done();
    // It was created before the list, and the watch never reports it.
    assert!(cache.observe_response(&pod(A, 2), lists));
    assert_eq!(evicted(), [0]);
    assert_eq!(cache.pods(&a()).len(), 1);
    // It is listed, or the watch has delivered it since.
    assert!(!cache.observe_response(&pod(C, 8), lists));
    let _ = cache.on_applied(&pod(D, 10));
    assert!(!cache.observe_response(&pod(D, 10), lists));
    assert!(!cache.observe_response(&pod(B, 9), cache.relist_count()));
    assert_eq!(evicted(), [0]);
}

#[test]
fn a_pod_in_another_namespace_is_ignored_despite_its_labels() {
    let cache = Cache::new();
    let _ = cache.on_applied(&pod(A, 1));
    let mut foreign = pod(A, 9);
    foreign["metadata"]["namespace"] = "other".into();
    foreign["metadata"]["uid"] = "foreign".into();
    foreign["status"] = json!({"phase": "Succeeded"});
    let before = cache.pods(&a());
    let changed = |changed: Option<JobKey>| changed.is_some_and(|job| job == a());
    assert!(!changed(cache.on_applied(&foreign)));
    assert!(!cache.observe_response(&foreign, cache.relist_count()) && cache.pods(&a()) == before);
    assert!(!changed(cache.on_deleted(&foreign)));
    assert_eq!(cache.pods(&a()), before);
    cache.on_init();
    cache.on_init_apply(&foreign);
    cache.on_init_apply(&pod(A, 1));
    let _ = cache.on_init_done();
    assert_eq!(cache.pods(&a()), before);
    foreign["status"] = json!({"phase": "Running"});
    let _ = cache.on_applied(&foreign);
    let _ = cache.on_deleted(&foreign);
    assert_eq!(
        cache.evicted(&a(), 1, &JobStatus::default(), &BTreeSet::new()),
        [],
        "no worker of the job was disrupted"
    );
}

#[test]
fn a_pod_without_an_owner_reference_is_no_disruption_and_ownership_once_observed_persists() {
    let cache = Cache::new();
    let disowned = |name: &str, version: u32| {
        let mut pod = pod(name, version);
        pod["metadata"]["ownerReferences"] = json!([]);
        pod
    };
    let is_owned = |name: &str| {
        let pods = cache.pods(&a());
        pods.iter().find(|pod| pod.name == name).map(|pod| pod.owned)
    };
    let evicted = || {
        cache
            .evicted(&a(), 1, &JobStatus::default(), &BTreeSet::new())
            .len()
    };
    let _ = cache.on_applied(&disowned(A, 1));
    assert_eq!(is_owned(A), Some(false));
    let _ = cache.on_deleted(&disowned(A, 2));
    assert_eq!((is_owned(A), evicted()), (None, 0));
    // Its owner reference was removed: the process continues.
    let _ = cache.on_applied(&pod(B, 3));
    let _ = cache.on_applied(&disowned(B, 4));
    assert_eq!(is_owned(B), Some(true));
    let _ = cache.on_deleted(&disowned(B, 5));
    assert_eq!((is_owned(B), evicted()), (None, 1));
}
