//! A process that is suspended between a commit and the call that the commit announces.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Change, Topology};
use ipu_ledger::{
    EnsureOutcome, EntryState, Ledger, LedgerStore, MemoryStore, Released, Revision, Snapshot, StoreError,
    Timestamp, WriteLock,
};
use ipu_testkit::{CallKind, FakeController, Fault};
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};

use crate::setup::{Bench, advance, id, name, owner, request, state_of, unknown};

/// Longer than a call takes to settle, in seconds.
const PAUSE: u64 = 40;

/// A store whose process is suspended once for [`PAUSE`] seconds, before it reads the reply to a commit.
#[derive(Clone)]
struct Suspending {
    store: MemoryStore,
    is_next: Arc<AtomicBool>,
}

#[async_trait]
impl LedgerStore for Suspending {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let revision = self.store.commit(basis, changes).await;
        if self.is_next.swap(false, Ordering::Relaxed) {
            advance(PAUSE).await;
        }
        revision
    }
}

/// A ledger that is suspended after its next commit.
fn suspending(bench: &Bench) -> Ledger<FakeController, Suspending> {
    let pool = ControllerPool::single(name("fake"), Arc::new(bench.controller.clone()));
    let store = Suspending {
        store: bench.store.clone(),
        is_next: Arc::new(AtomicBool::new(true)),
    };
    Ledger::new(pool, store, bench.options.clone())
}

fn fence_of(state: &EntryState) -> Timestamp {
    match state {
        EntryState::Intent { fence, .. } | EntryState::Releasing { fence } => *fence,
        other => panic!("{other:?}"),
    }
}

/// Starts `work` on a ledger that is suspended after its next commit, and returns how much longer than at the commit the
/// fence of `a` is when the controller gets the call.
async fn moved_on(
    bench: &Bench,
    call: &str,
    work: impl AsyncFnOnce(&Ledger<FakeController, Suspending>),
) -> Duration {
    let ledger = suspending(bench);
    let observer = bench.ledger();
    let calls = || {
        bench
            .controller
            .calls()
            .iter()
            .filter(|made| made.starts_with(call))
            .count()
    };
    let before = calls();
    let fence = async || Some(fence_of(&observer.get(&id("a")).await.unwrap()?.state));
    let watch = async {
        advance(1).await;
        let first = fence().await.unwrap();
        while calls() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fence().await.unwrap().since(first)
    };
    let ((), moved) = tokio::join!(work(&ledger), watch);
    moved
}

#[tokio::test(start_paused = true)]
async fn a_create_call_begins_within_its_fence_although_its_process_was_suspended() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(Duration::from_secs(90));
    let moved = moved_on(&bench, "create", async |ledger| {
        ledger.ensure(request("a", 4)).await.unwrap();
    });
    let moved = moved.await;
    assert!(moved >= Duration::from_secs(20), "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn a_remove_call_begins_within_its_fence_although_its_process_was_suspended() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    bench.controller.operation(Duration::from_secs(90));
    let moved = moved_on(&bench, "remove", async |ledger| {
        let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
        assert!(matches!(released, Released::InProgress { .. }), "{released:?}");
    });
    let moved = moved.await;
    assert!(moved >= Duration::from_secs(20), "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_another_process_went_on_with_stays_although_its_controller_is_off_the_list() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(Duration::from_secs(90));
    let ledger = suspending(&bench);
    let other = async {
        advance(35).await;
        bench.ledger().repair(&unknown).await.unwrap();
        let connect = |_: &ControllerEndpoint| Ok::<_, Infallible>(bench.controller.clone());
        ledger.pool().replace(&[], connect).unwrap();
    };
    let (answer, ()) = tokio::join!(ledger.ensure(request("a", 4)), other);
    assert!(matches!(answer.unwrap(), EnsureOutcome::Pending(_)));
    assert_eq!(bench.controller.ids(), [id("a")]);
    assert_eq!(state_of(&bench.ledger(), "a").await, "intent");
}

/// A store whose process is suspended for [`PAUSE`] seconds before its second write, and that notes the fences that it
/// commits.
#[derive(Clone)]
struct Tardy {
    store: MemoryStore,
    turns: Arc<AtomicUsize>,
    fences: Arc<Mutex<Vec<Timestamp>>>,
}

#[async_trait]
impl LedgerStore for Tardy {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let revision = self.store.commit(basis, changes).await?;
        for change in changes {
            if let Change::Put(entry) = change {
                self.fences.lock().unwrap().push(fence_of(&entry.state));
            }
        }
        Ok(revision)
    }

    async fn turn(&self) -> Result<WriteLock, StoreError> {
        if self.turns.fetch_add(1, Ordering::Relaxed) == 1 {
            advance(PAUSE).await;
        }
        Ok(WriteLock::default())
    }
}

#[tokio::test(start_paused = true)]
async fn no_fence_is_moved_back_by_a_process_that_was_suspended_before_it_wrote() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let first = bench.ledger();
    bench.controller.inject(CallKind::Create, Fault::Broken);
    first.ensure(request("a", 4)).await.unwrap();
    let seen = first.get(&id("a")).await.unwrap().unwrap();
    let fence = fence_of(&seen.state);
    bench.controller.operation(Duration::from_secs(90));

    let store = Tardy {
        store: bench.store.clone(),
        turns: Arc::default(),
        fences: Arc::default(),
    };
    let pool = ControllerPool::single(name("fake"), Arc::new(bench.controller.clone()));
    let suspended = Ledger::new(pool, store.clone(), bench.options.clone());
    let other = async {
        advance(PAUSE - 2).await;
        bench.ledger().resume(&seen).await.unwrap();
        fence_of(&bench.ledger().get(&id("a")).await.unwrap().unwrap().state)
    };
    let (done, moved_on) = tokio::join!(suspended.resume(&seen), other);
    done.unwrap();
    assert!(moved_on > fence, "the other process moved the fence on");
    assert!(
        store.turns.load(Ordering::Relaxed) >= 2,
        "the process was suspended"
    );
    let fences = store.fences.lock().unwrap().clone();
    assert!(
        fences.iter().all(|fence| *fence >= moved_on),
        "{moved_on:?} {fences:?}"
    );
}
