//! Faults of a ledger in a ConfigMap in use: killed API server, deletion by hand, restored etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Claim, Topology};
use ipu_k8s::store::ConfigMapStore;
use ipu_ledger::{EnsureOutcome, Entry, LedgerStore, Liveness, OwnerLiveness, Request, Revision, StoreError};
use ipu_test_cluster::{Cluster, private, shared};
use ipu_testkit::FakeController;

use super::fixtures::{ClusterLedger, entry, id, ledger, put, request};
use super::store;

/// Number of kills of the API server, and of writes before each.
const KILLS: u32 = 3;
const WRITES_BETWEEN: u32 = 25;

/// Number of writes that a restored etcd loses, in a test that waits until their versions are reused.
const LOST_WRITES: u32 = 40;

/// Number of attempts: another object in the cluster may get the same version.
const RESTORES: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn no_write_is_lost_or_invented_while_the_api_server_is_killed_repeatedly() {
    let name = "no_write_is_lost_or_invented_while_the_api_server_is_killed_repeatedly";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let store = store(&cluster, "killed").await;
    let (sender, receiver) = channel();
    let over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_until_over(store, sender, Arc::clone(&over)));
    let cluster = tokio::task::spawn_blocking(move || {
        for _ in 0..KILLS {
            receiver.iter().take(WRITES_BETWEEN as usize).for_each(drop);
            cluster.kill_apiserver();
            cluster.start_apiserver().unwrap();
        }
        receiver.iter().take(WRITES_BETWEEN as usize).for_each(drop);
        over.store(true, Ordering::Relaxed);
        cluster
    })
    .await
    .unwrap();
    let (accepted, unknown) = writer.await.unwrap();
    println!(
        "{} writes were accepted, {} are unknown",
        accepted.len(),
        unknown.len()
    );
    let found: BTreeSet<u32> = super::store(&cluster, "killed")
        .await
        .load(None)
        .await
        .unwrap()
        .unwrap()
        .entries
        .iter()
        .map(|entry| entry.attempt)
        .collect();
    assert!(
        accepted.is_subset(&found),
        "{:?} were lost",
        accepted.difference(&found)
    );
    let attempted: BTreeSet<u32> = accepted.union(&unknown).copied().collect();
    assert!(
        found.is_subset(&attempted),
        "{:?} were never written",
        found.difference(&attempted)
    );
}

/// Writes numbers until `over` is set. Returns the accepted numbers, and those without a response.
async fn write_until_over(
    store: ConfigMapStore,
    written: Sender<u32>,
    over: Arc<AtomicBool>,
) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut accepted, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut last_revision: Option<Revision> = None;
    for number in 1.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let revision = match last_revision.take() {
            Some(last_revision) => last_revision,
            None => loop {
                match store.load(None).await {
                    Ok(found) => break found.unwrap().revision,
                    Err(StoreError::Unavailable { .. }) => {
                        tokio::time::sleep(Duration::from_millis(10)).await
                    }
                    Err(error) => panic!("{error}"),
                }
            },
        };
        let mut entry = entry(&format!("job{number}"));
        entry.attempt = number;
        match store.commit(&revision, &[put(entry)]).await {
            Ok(next) => {
                accepted.insert(number);
                last_revision = Some(next);
                let _ = written.send(number);
            }
            // An earlier write without a response was accepted; this one was not.
            Err(StoreError::Conflict { .. }) => {}
            Err(StoreError::Unavailable { .. }) => {
                unknown.insert(number);
            }
            Err(error) => panic!("{error}"),
        }
    }
    (accepted, unknown)
}

/// Owners that claim partitions by their own records.
struct ClaimingOwners(Vec<Request>);

#[async_trait]
impl Liveness for ClaimingOwners {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        let live = self
            .0
            .iter()
            .any(|claim| Some(&claim.owner) == entry.owner.as_ref());
        if live {
            OwnerLiveness::Live
        } else {
            OwnerLiveness::Dead
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        self.0.iter().cloned().map(Claim::from).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_ledger_is_rebuilt_from_the_claims_of_its_owners() {
    let name = "a_deleted_ledger_is_rebuilt_from_the_claims_of_its_owners";
    let Some(cluster) = shared(name) else {
        return;
    };
    let (topology, controller) = pod();
    let ledger = ledger(&controller, &topology, store(cluster, "deleted").await);
    start(&ledger, &controller, "live", 8).await;
    start(&ledger, &controller, "forgotten", 4).await;
    cluster.kubectl(&["delete", "configmap", "deleted"]).unwrap();
    assert_eq!(ledger.list().await.unwrap(), []);
    // The IPUs are in use before any repair, whatever the ledger contains.
    assert!(is_waiting(&ledger, "next", 8).await);

    let report = ledger
        .repair(&ClaimingOwners(vec![request("live", 8), request("next", 8)]))
        .await
        .unwrap();
    assert_eq!(report.quarantined, 1);
    assert_eq!(state_of(&ledger, "live").await, "active");
    assert_eq!(state_of(&ledger, "forgotten").await, "quarantined");
    assert!(is_waiting(&ledger, "next", 8).await);
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    assert_eq!(controller.ids().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_restored_from_an_old_snapshot_under_running_ledgers_holds_no_partition_twice() {
    let name = "etcd_restored_from_an_old_snapshot_under_running_ledgers_holds_no_partition_twice";
    let Some(cluster) = private(name) else {
        return;
    };
    let (topology, controller) = pod();
    let one = ledger(&controller, &topology, store(&cluster, "restored").await);
    let other = ledger(&controller, &topology, store(&cluster, "restored").await);
    start(&one, &controller, "ended", 8).await;
    start(&other, &controller, "goes-on", 8).await;
    let snapshot = cluster.directory().join("snapshot");
    cluster.snapshot(&snapshot).unwrap();

    // Changes after the snapshot: one job has ended, another one holds its IPUs, and the third was reset.
    controller.mark_unused(&id("ended"));
    one.release(&id("ended"), &request("ended", 8).owner, None)
        .await
        .unwrap();
    start(&one, &controller, "started-since", 8).await;
    controller.mark_unused(&id("goes-on"));
    let mut goes_on = request("goes-on", 8);
    goes_on.attempt = 1;
    other.ensure_active(goes_on.clone(), &mut |_| {}).await.unwrap();
    controller.mark_in_use(&id("goes-on"));
    let cluster = restore(cluster, &snapshot).await;

    // Both ledgers continue with their cached state. No IPU is free, whatever the ledger contains.
    assert!(is_waiting(&one, "new", 8).await);
    assert!(is_waiting(&other, "newer", 4).await);
    let claims = ClaimingOwners(vec![
        goes_on.clone(),
        request("started-since", 8),
        request("new", 8),
        request("newer", 4),
    ]);
    for ledger in [&one, &other, &one] {
        ledger.repair(&claims).await.unwrap();
        assert!(is_waiting(ledger, "new", 8).await);
    }
    let mut states = Vec::new();
    for name in ["ended", "goes-on", "started-since"] {
        states.push((name, state_of(&one, name).await));
    }
    assert_eq!(
        states,
        [
            ("ended", "gone"),
            ("goes-on", "active"),
            ("started-since", "active")
        ]
    );
    // A repeated request of an owner does not reset the partition under its workers.
    one.ensure_active(goes_on, &mut |_| {}).await.unwrap();
    assert_eq!(controller.disturbed(), Vec::<String>::new());

    // A release now provides capacity for the next request.
    controller.mark_unused(&id("started-since"));
    other
        .release(&id("started-since"), &request("started-since", 8).owner, None)
        .await
        .unwrap();
    one.ensure_active(request("new", 8), &mut |_| {}).await.unwrap();
    controller.mark_in_use(&id("new"));
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_reused_after_a_restore_is_not_mistaken_for_the_earlier_one() {
    let name = "a_version_reused_after_a_restore_is_not_mistaken_for_the_earlier_one";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let old_store = store(&cluster, "again").await;
    let mut old = old_store.load(None).await.unwrap().unwrap().revision;
    let snapshot = cluster.directory().join("snapshot");
    cluster.snapshot(&snapshot).unwrap();
    for number in 0..LOST_WRITES {
        let lost = entry(&format!("lost{number}"));
        old = old_store.commit(&old, &[put(lost)]).await.unwrap();
    }
    for _ in 0..RESTORES {
        cluster = restore(cluster, &snapshot).await;
        let new_store = store(&cluster, "again").await;
        let mut new = new_store.load(None).await.unwrap().unwrap().revision;
        let mut number = 0;
        while version(&new) < version(&old) {
            number += 1;
            new = new_store
                .commit(&new, &[put(entry(&format!("new{number}")))])
                .await
                .unwrap();
        }
        if version(&new) != version(&old) {
            continue;
        }
        assert_ne!(new, old);
        let refused = old_store.commit(&old, &[put(entry("late"))]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
        let reloaded = old_store.load(Some(&old)).await.unwrap().unwrap();
        assert_eq!((reloaded.revision, reloaded.entries.len()), (new, number));
        return;
    }
    panic!("no version was reused in {RESTORES} restores");
}

/// Returns the resource version in a revision.
fn version(revision: &Revision) -> u64 {
    revision.as_str().split('/').nth(1).unwrap().parse().unwrap()
}

async fn restore(mut cluster: Cluster, snapshot: &std::path::Path) -> Cluster {
    let snapshot = snapshot.to_owned();
    tokio::task::spawn_blocking(move || {
        cluster.restore(&snapshot).unwrap();
        cluster
    })
    .await
    .unwrap()
}

fn pod() -> (Topology, FakeController) {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    controller.set_operation_time(Duration::from_millis(2));
    (topology, controller)
}

/// Requests a partition for the job `name` and uses it.
async fn start(ledger: &ClusterLedger, controller: &FakeController, name: &str, size: u32) {
    ledger
        .ensure_active(request(name, size), &mut |_| {})
        .await
        .unwrap();
    controller.mark_in_use(&id(name));
}

/// Requests a partition for the job `name`; returns whether the request waits.
async fn is_waiting(ledger: &ClusterLedger, name: &str, size: u32) -> bool {
    let outcome = ledger.ensure(request(name, size)).await.unwrap();
    !matches!(outcome, EnsureOutcome::Active(_))
}

async fn state_of(ledger: &ClusterLedger, name: &str) -> &'static str {
    let entry = ledger.get(&id(name)).await.unwrap();
    entry.map_or("gone", |entry| entry.state.label())
}
