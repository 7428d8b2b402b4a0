//! The number of store accesses is minimal, and every reply is current when it is returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use ipu_core::{Change, Topology};
use ipu_ledger::{
    EnsureOutcome, Grant, Ledger, LedgerStore, MemoryStore, Pending, Released, Revision, Snapshot, StoreError,
};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use tokio::task::JoinSet;

use crate::setup::{Fixture, id, name, options, owner, request, state_of};

/// A store that counts its loads and commits.
#[derive(Clone, Default)]
struct CountingStore {
    store: MemoryStore,
    loads: Arc<AtomicU32>,
    commits: Arc<AtomicU32>,
}

#[async_trait]
impl LedgerStore for CountingStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        // Other callers arrive during the load.
        tokio::task::yield_now().await;
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.store.commit(basis, changes).await
    }
}

fn counting_ledger(store: &CountingStore) -> Ledger<FakeController, CountingStore> {
    let topology = Topology::pod16();
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    Ledger::new(pool, store.clone(), options(&topology))
}

#[tokio::test(start_paused = true)]
async fn a_single_writer_does_not_load_before_each_write() {
    let store = CountingStore::default();
    let ledger = counting_ledger(&store);
    for number in 0..20 {
        let job = format!("job{number}");
        ledger.ensure_active(request(&job, 4), &mut |_| {}).await.unwrap();
        ledger.release(&id(&job), &owner(&job), None).await.unwrap();
    }
    assert_eq!(store.commits.load(Ordering::Relaxed), 80);
    // Only the first write loads.
    assert_eq!(store.loads.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn concurrent_readers_share_a_load() {
    let store = CountingStore::default();
    let ledger = counting_ledger(&store);
    ledger.list().await.unwrap();
    let before = store.loads.load(Ordering::Relaxed);
    let mut readers = JoinSet::new();
    for _ in 0..50 {
        let ledger = ledger.clone();
        readers.spawn(async move { ledger.list().await.unwrap() });
    }
    readers.join_all().await;
    let loads = store.loads.load(Ordering::Relaxed) - before;
    // The first caller loads for itself; the others need a state from after their arrival.
    assert!((1..=2).contains(&loads), "{loads}");
}

#[tokio::test(start_paused = true)]
async fn a_read_returns_earlier_writes_of_other_processes() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    for number in 0..5 {
        let job = format!("job{number}");
        one.ensure_active(request(&job, 4), &mut |_| {}).await.unwrap();
        assert_eq!(state_of(&other, &job).await, "active");
        assert_eq!(
            one.release(&id(&job), &owner(&job), None).await.unwrap(),
            Released::Removed
        );
        assert_eq!(state_of(&other, &job).await, "gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_without_a_write_uses_the_newest_state() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    let held = one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    // An existing partition needs no write, and `one` has it cached.
    let is_unchanged = |answer: EnsureOutcome| matches!(answer, EnsureOutcome::Active(Grant { since, .. }) if since == held.since);
    assert!(is_unchanged(one.ensure(request("mine", 4)).await.unwrap()));
    other.release(&id("mine"), &owner("mine"), None).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(
        one.cached(&id("mine")).is_some(),
        "the cache must be stale for this test"
    );
    let renewed = one.ensure(request("mine", 4)).await.unwrap();
    assert!(
        matches!(&renewed, EnsureOutcome::Active(grant) if grant.since > held.since)
            || matches!(renewed, EnsureOutcome::Pending(Pending::Creating)),
        "{renewed:?}"
    );
    assert_eq!(fixture.controller.ids(), [id("mine")]);
}

#[tokio::test(start_paused = true)]
async fn the_cache_follows_own_writes_and_loads() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    assert!(one.cached(&id("mine")).is_none());
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    assert_eq!(one.cached(&id("mine")).unwrap().state.label(), "active");
    assert!(other.cached(&id("mine")).is_none());
    other.refresh().await.unwrap();
    assert_eq!(other.cached(&id("mine")).unwrap().state.label(), "active");
    one.release(&id("mine"), &owner("mine"), None).await.unwrap();
    assert!(one.cached(&id("mine")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_wait_does_not_request_a_released_partition_again() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let first = one.ensure(request("second", 16)).await.unwrap();
    assert!(matches!(first, EnsureOutcome::Waiting(_)), "{first:?}");
    other
        .release(&id("second"), &owner("second"), None)
        .await
        .unwrap();
    let outcome = one
        .wait_active_after(request("second", 16), first, &mut |_| {})
        .await;
    outcome.unwrap_err();
    assert_eq!(state_of(&one, "second").await, "gone");
}
