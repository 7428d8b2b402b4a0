//! What may happen to a ledger in a ConfigMap while it is used: the API server dies, a person deletes it, etcd is restored.

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

/// How often the API server is killed, and after how many writes each time.
const KILLS: u32 = 3;
const WRITES_BETWEEN: u32 = 25;

/// How many writes are lost with a restored etcd, in a test that waits for their versions to be given again.
const LOST_WRITES: u32 = 40;

/// How often that is tried: something else in the cluster may be given the very version.
const RESTORES: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn no_write_is_lost_or_made_up_while_the_api_server_is_killed_again_and_again() {
    let name = "no_write_is_lost_or_made_up_while_the_api_server_is_killed_again_and_again";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let store = store(&cluster, "killed").await;
    let (told, heard) = channel();
    let over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_on(store, told, Arc::clone(&over)));
    let cluster = tokio::task::spawn_blocking(move || {
        for _ in 0..KILLS {
            heard.iter().take(WRITES_BETWEEN as usize).for_each(drop);
            cluster.kill_apiserver();
            cluster.start_apiserver().unwrap();
        }
        heard.iter().take(WRITES_BETWEEN as usize).for_each(drop);
        over.store(true, Ordering::Relaxed);
        cluster
    })
    .await
    .unwrap();
    let (taken, unknown) = writer.await.unwrap();
    println!(
        "{} writes were taken, of {} it is not known",
        taken.len(),
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
        taken.is_subset(&found),
        "{:?} were lost",
        taken.difference(&found)
    );
    let told: BTreeSet<u32> = taken.union(&unknown).copied().collect();
    assert!(
        found.is_subset(&told),
        "{:?} were made up",
        found.difference(&told)
    );
}

/// Writes numbers until it is over. Answers those that were taken, and those whose answer never came.
async fn write_on(
    store: ConfigMapStore,
    told: Sender<u32>,
    over: Arc<AtomicBool>,
) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut taken, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut basis: Option<Revision> = None;
    for number in 1.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let revision = match basis.take() {
            Some(basis) => basis,
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
                taken.insert(number);
                basis = Some(next);
                let _ = told.send(number);
            }
            // What was not known to be taken was; this number is not.
            Err(StoreError::Conflict { .. }) => {}
            Err(StoreError::Unavailable { .. }) => {
                unknown.insert(number);
            }
            Err(error) => panic!("{error}"),
        }
    }
    (taken, unknown)
}

/// Owners who tell by records of their own what they hold.
struct Claims(Vec<Request>);

#[async_trait]
impl Liveness for Claims {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
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
async fn a_ledger_that_is_deleted_by_hand_is_built_again_from_what_its_owners_claim() {
    let name = "a_ledger_that_is_deleted_by_hand_is_built_again_from_what_its_owners_claim";
    let Some(cluster) = shared(name) else {
        return;
    };
    let (topology, controller) = pod();
    let ledger = ledger(&controller, &topology, store(cluster, "deleted").await);
    start(&ledger, &controller, "live", 8).await;
    start(&ledger, &controller, "forgotten", 4).await;
    cluster.kubectl(&["delete", "configmap", "deleted"]).unwrap();
    assert_eq!(ledger.list().await.unwrap(), []);
    // Before any repair: the IPUs are taken, whatever the ledger knows.
    assert!(waits(&ledger, "next", 8).await);

    let report = ledger
        .repair(&Claims(vec![request("live", 8), request("next", 8)]))
        .await
        .unwrap();
    assert_eq!(report.quarantined, 1);
    assert_eq!(state_of(&ledger, "live").await, "active");
    assert_eq!(state_of(&ledger, "forgotten").await, "quarantined");
    assert!(waits(&ledger, "next", 8).await);
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    assert_eq!(controller.ids().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_restored_from_an_old_snapshot_under_running_ledgers_holds_nothing_twice() {
    let name = "etcd_restored_from_an_old_snapshot_under_running_ledgers_holds_nothing_twice";
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

    // What the snapshot does not know: one job has ended, another one has its IPUs, and the third was reset.
    controller.leave(&id("ended"));
    one.release(&id("ended"), &request("ended", 8).owner, None)
        .await
        .unwrap();
    start(&one, &controller, "started-since", 8).await;
    controller.leave(&id("goes-on"));
    let mut goes_on = request("goes-on", 8);
    goes_on.attempt = 1;
    other.ensure_active(goes_on.clone(), &mut |_| {}).await.unwrap();
    controller.use_it(&id("goes-on"));
    let cluster = restored(cluster, &snapshot).await;

    // Both go on with what they remember. Nothing is free, whatever the ledger says.
    assert!(waits(&one, "new", 8).await);
    assert!(waits(&other, "newer", 4).await);
    let claims = Claims(vec![
        goes_on.clone(),
        request("started-since", 8),
        request("new", 8),
        request("newer", 4),
    ]);
    for ledger in [&one, &other, &one] {
        ledger.repair(&claims).await.unwrap();
        assert!(waits(ledger, "new", 8).await);
    }
    let mut seen = Vec::new();
    for name in ["ended", "goes-on", "started-since"] {
        seen.push((name, state_of(&one, name).await));
    }
    assert_eq!(
        seen,
        [
            ("ended", "gone"),
            ("goes-on", "active"),
            ("started-since", "active")
        ]
    );
    // The owner who asks again, as it does on every occasion, has nothing reset under its workers.
    one.ensure_active(goes_on, &mut |_| {}).await.unwrap();
    assert_eq!(controller.disturbed(), Vec::<String>::new());

    // Whoever ends now leaves room for the next.
    controller.leave(&id("started-since"));
    other
        .release(&id("started-since"), &request("started-since", 8).owner, None)
        .await
        .unwrap();
    one.ensure_active(request("new", 8), &mut |_| {}).await.unwrap();
    controller.use_it(&id("new"));
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_given_again_after_a_restore_is_not_taken_for_the_one_before() {
    let name = "a_version_that_is_given_again_after_a_restore_is_not_taken_for_the_one_before";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let remembers = store(&cluster, "again").await;
    let mut old = remembers.load(None).await.unwrap().unwrap().revision;
    let snapshot = cluster.directory().join("snapshot");
    cluster.snapshot(&snapshot).unwrap();
    for number in 0..LOST_WRITES {
        let lost = entry(&format!("lost{number}"));
        old = remembers.commit(&old, &[put(lost)]).await.unwrap();
    }
    for _ in 0..RESTORES {
        cluster = restored(cluster, &snapshot).await;
        let writes = store(&cluster, "again").await;
        let mut new = writes.load(None).await.unwrap().unwrap().revision;
        let mut number = 0;
        while version(&new) < version(&old) {
            number += 1;
            new = writes
                .commit(&new, &[put(entry(&format!("new{number}")))])
                .await
                .unwrap();
        }
        if version(&new) != version(&old) {
            continue;
        }
        assert_ne!(new, old);
        let refused = remembers.commit(&old, &[put(entry("late"))]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
        let seen = remembers.load(Some(&old)).await.unwrap().unwrap();
        assert_eq!((seen.revision, seen.entries.len()), (new, number));
        return;
    }
    panic!("in {RESTORES} restores no version was given again");
}

/// The API server's number in a revision.
fn version(revision: &Revision) -> u64 {
    revision.as_str().split('/').nth(1).unwrap().parse().unwrap()
}

async fn restored(mut cluster: Cluster, snapshot: &std::path::Path) -> Cluster {
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
    controller.operation(Duration::from_millis(2));
    (topology, controller)
}

/// Has the job `name` get a partition and use it.
async fn start(ledger: &ClusterLedger, controller: &FakeController, name: &str, size: u32) {
    ledger
        .ensure_active(request(name, size), &mut |_| {})
        .await
        .unwrap();
    controller.use_it(&id(name));
}

/// Whether the job `name` is not let go when it asks.
async fn waits(ledger: &ClusterLedger, name: &str, size: u32) -> bool {
    let answer = ledger.ensure(request(name, size)).await.unwrap();
    !matches!(answer, EnsureOutcome::Active(_))
}

async fn state_of(ledger: &ClusterLedger, name: &str) -> &'static str {
    let entry = ledger.get(&id(name)).await.unwrap();
    entry.map_or("gone", |entry| entry.state.label())
}
