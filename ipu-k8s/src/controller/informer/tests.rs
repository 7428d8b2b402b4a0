//! The cache, as those who use it see it.

use ipu_core::{InstanceStatus, JobStatus};
use ipu_proxy_client::PartitionDocument;
use serde_json::{Value, json};

use super::*;
use crate::resources::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, ROLE, WORKER};

fn launcher() -> (u32, MissingProcess) {
    let gone = MissingProcess {
        worker: None,
        attempt: 0,
    };
    (0, gone)
}

#[test]
fn a_job_is_told_of_what_it_decides_on_and_of_nothing_else() {
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
    let begun = json!({"phase": "Pending"});
    let conditions =
        json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"}]);
    let ready = json!({"phase": "Running", "conditions": conditions});
    let told = Some(a());
    let cache = Cache::new();
    assert_eq!(cache.on_applied(&pod(1, "", &begun)), told);
    // What was made here is heard of a second time.
    assert_eq!(cache.on_applied(&pod(1, "", &begun)), None);
    assert_eq!(cache.on_applied(&pod(2, "one", &begun)), None);
    assert_eq!(cache.pods(&a())[0].node.as_deref(), Some("one"));
    assert_eq!(cache.on_applied(&pod(3, "one", &ready)), told);
    // An old one.
    assert_eq!(cache.on_applied(&pod(2, "one", &begun)), None);
    assert_eq!(cache.on_deleted(&pod(4, "one", &ready)), told);
    assert!(cache.pods(&a()).is_empty());
}

/// A job of namespace `n`.
fn job(name: &str, uid: &str) -> JobKey {
    JobKey::new("n", name, uid).expect("it is one")
}

/// Job `a`, whose uid is `u`.
fn a() -> JobKey {
    job("a", "u")
}

/// What makes job `a` the owner.
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
fn a_partition_is_news_unless_it_was_answered_so_or_is_on_its_way_to_who_asks() {
    let cache = Cache::new();
    let (intent, active) = (partition("intent", 0, 1), partition("active", 0, 2));
    assert!(cache.is_change(&a(), &intent));
    assert!(cache.is_change(&a(), &active));
    let asking = cache.begin_request(&a(), 0);
    assert!(!cache.is_change(&a(), &intent));
    assert!(cache.is_change(&a(), &partition("failed", 0, 2)));
    assert!(cache.is_change(&job("other", "v"), &intent));
    cache.record_response(&a(), 0, Some(&active));
    drop(asking);
    assert!(!cache.is_change(&a(), &active));
    assert!(cache.is_change(&a(), &intent));
    assert!(cache.is_change(&a(), &partition("active", 0, 3)), "made anew");
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
fn what_may_have_gone_while_the_watch_was_broken_is_asked_for() {
    let cache = Cache::new();
    for (name, version) in [(A, 1), (B, 2), (C, 3)] {
        let _ = cache.on_applied(&pod(name, version));
    }
    cache.on_init();
    cache.on_init_apply(&pod(B, 2));
    assert_eq!(cache.on_init_done(), [a()]);
    // That A is gone is certain; C may be gone too, or be younger than the list.
    let names: Vec<String> = cache.pods(&a()).into_iter().map(|pod| pod.name).collect();
    assert_eq!(names, [B, C]);
    let doubts = cache.pending_checks(&a());
    assert_eq!(doubts.keys().collect::<Vec<_>>(), [C]);
    // While the answer is on its way, there is doubt once more: it was given of an earlier time.
    cache.unconfirmed(&a(), C, launcher());
    cache.unconfirmed(&a(), D, launcher());
    cache.confirm(&a(), &doubts, &BTreeSet::new());
    let doubts = cache.pending_checks(&a());
    assert_eq!(doubts.keys().collect::<Vec<_>>(), [C, D]);
    cache.confirm(&a(), &doubts, &BTreeSet::new());
    assert!(cache.pending_checks(&a()).is_empty());
}

#[test]
fn a_worker_that_others_took_away_is_remembered_until_the_next_attempt() {
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
    let taken = |status: &JobStatus| -> Vec<u32> {
        let taken = cache.evicted(&a(), 1, status, &BTreeSet::new()).into_iter();
        taken.filter_map(|(_, gone)| gone.worker).collect()
    };
    let status = JobStatus::default();
    for worker in 0..6 {
        let _ = cache.on_applied(&pod(worker, worker + 1, "Pending"));
    }
    // By force, told to stop here, and ended as the kubelet told at last.
    let _ = cache.on_deleted(&pod(0, 10, "Pending"));
    cache.will_be_stopped(&a(), "a-worker-1", "p1");
    let _ = cache.on_applied(&pod(1, 11, "Running"));
    let _ = cache.on_deleted(&pod(1, 12, "Running"));
    let _ = cache.on_deleted(&pod(2, 13, "Succeeded"));
    assert_eq!(taken(&status), [0]);
    // While the watch was broken: one that is not listed, one that is, and one that was told to stop and goes later.
    cache.will_be_stopped(&a(), "a-worker-5", "p5");
    cache.on_init();
    cache.on_init_apply(&pod(4, 20, "Pending"));
    cache.on_init_apply(&pod(5, 21, "Pending"));
    let _ = cache.on_init_done();
    let _ = cache.on_deleted(&pod(5, 22, "Pending"));
    assert_eq!(taken(&status), [0, 3]);
    cache.absent(&a(), "a-worker-4", "p4");
    assert_eq!(taken(&status), [0, 3, 4]);
    // Who was told to stop here and is gone already is no loss, although the watch tells later.
    let _ = cache.on_applied(&pod(6, 30, "Pending"));
    cache.will_be_stopped(&a(), "a-worker-6", "p6");
    cache.absent(&a(), "a-worker-6", "p6");
    let _ = cache.on_deleted(&pod(6, 31, "Pending"));
    assert_eq!(taken(&status), [0, 3, 4]);
    let mut next = JobStatus::default();
    next.instances.push(InstanceStatus::new(0));
    assert_eq!(taken(&next), [0, 3, 4]);
    next.instances[0].attempt = 1;
    assert_eq!(taken(&next), [0_u32; 0]);

    let _ = cache.on_applied(&pod(7, 40, "Pending"));
    let _ = cache.on_deleted(&pod(7, 41, "Pending"));
    assert_eq!(
        cache.evicted(&a(), 0, &status, &BTreeSet::new()),
        [],
        "it has that instance no more"
    );
    assert_eq!(
        taken(&status),
        [7],
        "it has it again, and its partition was not given back"
    );
    assert_eq!(cache.evicted(&a(), 0, &status, &[0].into()), []);
    assert_eq!(taken(&status), [0_u32; 0], "what it gets now is fresh");
}

#[test]
fn what_was_perhaps_created_and_is_not_there_may_have_been_taken_away() {
    let cache = Cache::new();
    let made = |worker| (0, MissingProcess { worker, attempt: 1 });
    cache.unconfirmed(&a(), "a-worker-0", made(Some(0)));
    cache.unconfirmed(&a(), "a-worker-1", made(Some(1)));
    cache.unconfirmed(&a(), "a-launcher", made(None));
    let doubts = cache.pending_checks(&a());
    // Another one was created while the answer was on its way.
    cache.unconfirmed(&a(), "a-worker-2", made(Some(2)));
    cache.confirm(&a(), &doubts, &["a-worker-1"].into());
    let mut status = JobStatus::default();
    status.instances.push(InstanceStatus::new(0));
    status.instances[0].attempt = 1;
    let taken = |status: &JobStatus| -> Vec<Option<u32>> {
        let taken = cache.evicted(&a(), 1, status, &BTreeSet::new()).into_iter();
        taken.map(|(_, gone)| gone.worker).collect()
    };
    assert_eq!(taken(&status), [None, Some(0)]);
    assert_eq!(
        cache.pending_checks(&a()).keys().collect::<Vec<_>>(),
        ["a-worker-2"]
    );
    status.instances[0].attempt = 2;
    assert_eq!(taken(&status), []);
}

#[test]
fn an_answer_that_comes_after_the_watch_began_anew_is_doubted() {
    let cache = Cache::new();
    let lists = cache.relist_count();
    assert!(cache.observe_response(&pod(A, 1), lists));
    assert!(cache.pending_checks(&a()).is_empty());
    cache.on_init();
    let _ = cache.on_init_done();
    let doubts = cache.pending_checks(&a());
    cache.confirm(&a(), &doubts, &[A].into());
    // It was created before the list was made, which has it no more.
    assert!(cache.observe_response(&pod(B, 2), lists));
    assert_eq!(cache.pending_checks(&a()).keys().collect::<Vec<_>>(), [B]);
    assert!(cache.observe_response(&pod(C, 3), cache.relist_count()));
    assert_eq!(cache.pending_checks(&a()).keys().collect::<Vec<_>>(), [B]);
}

#[test]
fn an_answer_that_a_newer_list_does_not_have_any_more_is_of_one_that_was_taken_away() {
    let cache = Cache::new();
    let taken = || {
        let taken = cache.evicted(&a(), 1, &JobStatus::default(), &BTreeSet::new());
        taken
            .into_iter()
            .filter_map(|(_, gone)| gone.worker)
            .collect::<Vec<_>>()
    };
    let lists = cache.relist_count();
    cache.on_init();
    cache.on_init_apply(&pod(C, 9));
    let _ = cache.on_init_done();
    // It was created before the list was made, and nothing ever tells of it.
    assert!(cache.observe_response(&pod(A, 2), lists));
    assert_eq!(taken(), [0]);
    assert_eq!(cache.pods(&a()).len(), 1);
    // It is listed, or was told of since.
    assert!(!cache.observe_response(&pod(C, 8), lists));
    let _ = cache.on_applied(&pod(D, 10));
    assert!(!cache.observe_response(&pod(D, 10), lists));
    assert!(!cache.observe_response(&pod(B, 9), cache.relist_count()));
    assert_eq!(taken(), [0]);
}

#[test]
fn a_kubernetes_pod_that_is_not_where_a_job_is_says_nothing_of_it_whatever_its_labels_are() {
    let cache = Cache::new();
    let _ = cache.on_applied(&pod(A, 1));
    let mut foreign = pod(A, 9);
    foreign["metadata"]["namespace"] = "other".into();
    foreign["metadata"]["uid"] = "foreign".into();
    foreign["status"] = json!({"phase": "Succeeded"});
    let before = cache.pods(&a());
    let told = |told: Option<JobKey>| told.is_some_and(|job| job == a());
    assert!(!told(cache.on_applied(&foreign)));
    assert!(!cache.observe_response(&foreign, cache.relist_count()) && cache.pods(&a()) == before);
    assert!(!told(cache.on_deleted(&foreign)));
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
        "nobody took a worker of the job away"
    );
}

#[test]
fn whoever_is_not_of_a_job_by_its_owner_was_not_taken_from_it_and_who_was_stays_so() {
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
    let taken = || {
        cache
            .evicted(&a(), 1, &JobStatus::default(), &BTreeSet::new())
            .len()
    };
    let _ = cache.on_applied(&disowned(A, 1));
    assert_eq!(is_owned(A), Some(false));
    let _ = cache.on_deleted(&disowned(A, 2));
    assert_eq!((is_owned(A), taken()), (None, 0));
    // Somebody has taken the owner away: the process goes on.
    let _ = cache.on_applied(&pod(B, 3));
    let _ = cache.on_applied(&disowned(B, 4));
    assert_eq!(is_owned(B), Some(true));
    let _ = cache.on_deleted(&disowned(B, 5));
    assert_eq!((is_owned(B), taken()), (None, 1));
}
