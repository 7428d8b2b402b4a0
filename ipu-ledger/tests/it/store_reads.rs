//! The store is asked no more than is needed, and whatever is answered is still true when it is answered.

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

use crate::setup::{Bench, id, name, options, owner, request, state_of};

/// A store that counts how often it is looked at.
#[derive(Clone, Default)]
struct Counting {
    store: MemoryStore,
    loads: Arc<AtomicU32>,
    commits: Arc<AtomicU32>,
}

#[async_trait]
impl LedgerStore for Counting {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        // So that others come while it is looked at.
        tokio::task::yield_now().await;
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.store.commit(basis, changes).await
    }
}

fn counted(store: &Counting) -> Ledger<FakeController, Counting> {
    let topology = Topology::pod16();
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    Ledger::new(pool, store.clone(), options(&topology))
}

#[tokio::test(start_paused = true)]
async fn whoever_writes_alone_does_not_look_before_each_write() {
    let store = Counting::default();
    let ledger = counted(&store);
    for number in 0..20 {
        let job = format!("job{number}");
        ledger.ensure_active(request(&job, 4), &mut |_| {}).await.unwrap();
        ledger.release(&id(&job), &owner(&job), None).await.unwrap();
    }
    assert_eq!(store.commits.load(Ordering::Relaxed), 80);
    // The first of all, and no other.
    assert_eq!(store.loads.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn those_who_read_at_the_same_time_share_a_look() {
    let store = Counting::default();
    let ledger = counted(&store);
    ledger.list().await.unwrap();
    let before = store.loads.load(Ordering::Relaxed);
    let mut readers = JoinSet::new();
    for _ in 0..50 {
        let ledger = ledger.clone();
        readers.spawn(async move { ledger.list().await.unwrap() });
    }
    readers.join_all().await;
    let looks = store.loads.load(Ordering::Relaxed) - before;
    // The first looks for himself; who came while he did needs what was there after he came.
    assert!((1..=2).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn what_is_read_is_not_older_than_the_question_whoever_wrote() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (one, other) = (bench.ledger(), bench.ledger());
    for number in 0..5 {
        let job = format!("job{number}");
        one.ensure_active(request(&job, 4), &mut |_| {}).await.unwrap();
        assert_eq!(state_of(&other, &job).await, "active");
        assert_eq!(
            one.release(&id(&job), &owner(&job), None).await.unwrap(),
            Released::Gone
        );
        assert_eq!(state_of(&other, &job).await, "gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_writes_nothing_is_not_made_on_what_another_has_changed() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (one, other) = (bench.ledger(), bench.ledger());
    let held = one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    // Nothing is to be written for what is there already, and `one` remembers that it is.
    let again = |answer: EnsureOutcome| matches!(answer, EnsureOutcome::Active(Grant { since, .. }) if since == held.since);
    assert!(again(one.ensure(request("mine", 4)).await.unwrap()));
    other.release(&id("mine"), &owner("mine"), None).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(
        one.known(&id("mine")).is_some(),
        "it has not heard of that; else this shows nothing"
    );
    let anew = one.ensure(request("mine", 4)).await.unwrap();
    assert!(
        matches!(&anew, EnsureOutcome::Active(grant) if grant.since > held.since)
            || matches!(anew, EnsureOutcome::Pending(Pending::Creating)),
        "{anew:?}"
    );
    assert_eq!(bench.controller.ids(), [id("mine")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_follows_what_this_process_does_and_sees() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (one, other) = (bench.ledger(), bench.ledger());
    assert!(one.known(&id("mine")).is_none());
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    assert_eq!(one.known(&id("mine")).unwrap().state.label(), "active");
    assert!(other.known(&id("mine")).is_none());
    other.refresh().await.unwrap();
    assert_eq!(other.known(&id("mine")).unwrap().state.label(), "active");
    one.release(&id("mine"), &owner("mine"), None).await.unwrap();
    assert!(one.known(&id("mine")).is_none());
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_once_is_waited_for_without_asking_for_it_again() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (one, other) = (bench.ledger(), bench.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let first = one.ensure(request("second", 16)).await.unwrap();
    assert!(matches!(first, EnsureOutcome::Waiting(_)), "{first:?}");
    other
        .release(&id("second"), &owner("second"), None)
        .await
        .unwrap();
    let told = one.active_after(request("second", 16), first, &mut |_| {}).await;
    told.unwrap_err();
    assert_eq!(state_of(&one, "second").await, "gone");
}
