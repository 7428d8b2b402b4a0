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

use crate::setup::{Fixture, advance, id, name, owner, request, state_of, unknown};

/// Longer than the settling time of a call, in seconds.
const PAUSE: u64 = 40;

/// A store whose process is suspended once for [`PAUSE`] seconds, before it reads the reply to a commit.
#[derive(Clone)]
struct SuspendingStore {
    store: MemoryStore,
    is_next: Arc<AtomicBool>,
}

#[async_trait]
impl LedgerStore for SuspendingStore {
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

/// Returns a ledger that is suspended after its next commit.
fn suspended_ledger(fixture: &Fixture) -> Ledger<FakeController, SuspendingStore> {
    let pool = ControllerPool::single(name("fake"), Arc::new(fixture.controller.clone()));
    let store = SuspendingStore {
        store: fixture.store.clone(),
        is_next: Arc::new(AtomicBool::new(true)),
    };
    Ledger::new(pool, store, fixture.options.clone())
}

fn fence_of(state: &EntryState) -> Timestamp {
    match state {
        EntryState::Intent { fence, .. } | EntryState::Releasing { fence } => *fence,
        other => panic!("{other:?}"),
    }
}

/// Runs `work` on a ledger that is suspended after its next commit. Returns by how much the fence of `a` was
/// renewed between the commit and the call.
async fn fence_renewal(
    fixture: &Fixture,
    call: &str,
    work: impl AsyncFnOnce(&Ledger<FakeController, SuspendingStore>),
) -> Duration {
    let ledger = suspended_ledger(fixture);
    let observer = fixture.ledger();
    let calls = || {
        fixture
            .controller
            .calls()
            .iter()
            .filter(|name| name.starts_with(call))
            .count()
    };
    let before = calls();
    let fence = async || Some(fence_of(&observer.get(&id("a")).await.unwrap()?.state));
    let observe = async {
        advance(1).await;
        let first = fence().await.unwrap();
        while calls() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fence().await.unwrap().since(first)
    };
    let ((), moved) = tokio::join!(work(&ledger), observe);
    moved
}

#[tokio::test(start_paused = true)]
async fn a_create_call_starts_within_its_fence_after_a_suspension() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(Duration::from_secs(90));
    let moved = fence_renewal(&fixture, "create", async |ledger| {
        ledger.ensure(request("a", 4)).await.unwrap();
    });
    let moved = moved.await;
    assert!(moved >= Duration::from_secs(20), "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn a_remove_call_starts_within_its_fence_after_a_suspension() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    fixture.controller.set_operation_time(Duration::from_secs(90));
    let moved = fence_renewal(&fixture, "remove", async |ledger| {
        let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
        assert!(matches!(released, Released::InProgress { .. }), "{released:?}");
    });
    let moved = moved.await;
    assert!(moved >= Duration::from_secs(20), "{moved:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_another_process_resumed_is_kept_although_its_controller_is_no_longer_listed() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(Duration::from_secs(90));
    let ledger = suspended_ledger(&fixture);
    let other = async {
        advance(35).await;
        fixture.ledger().repair(&unknown).await.unwrap();
        let connect = |_: &ControllerEndpoint| Ok::<_, Infallible>(fixture.controller.clone());
        ledger.pool().replace(&[], connect).unwrap();
    };
    let (answer, ()) = tokio::join!(ledger.ensure(request("a", 4)), other);
    assert!(matches!(answer.unwrap(), EnsureOutcome::Pending(_)));
    assert_eq!(fixture.controller.ids(), [id("a")]);
    assert_eq!(state_of(&fixture.ledger(), "a").await, "intent");
}

/// A store whose process is suspended for [`PAUSE`] seconds before its second write. It records the committed
/// fences.
#[derive(Clone)]
struct LateWriterStore {
    store: MemoryStore,
    write_locks: Arc<AtomicUsize>,
    fences: Arc<Mutex<Vec<Timestamp>>>,
}

#[async_trait]
impl LedgerStore for LateWriterStore {
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

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        if self.write_locks.fetch_add(1, Ordering::Relaxed) == 1 {
            advance(PAUSE).await;
        }
        Ok(WriteLock::default())
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_suspended_before_its_write_moves_no_fence_back() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let first = fixture.ledger();
    fixture.controller.inject(CallKind::Create, Fault::Broken);
    first.ensure(request("a", 4)).await.unwrap();
    let stale = first.get(&id("a")).await.unwrap().unwrap();
    let fence = fence_of(&stale.state);
    fixture.controller.set_operation_time(Duration::from_secs(90));

    let store = LateWriterStore {
        store: fixture.store.clone(),
        write_locks: Arc::default(),
        fences: Arc::default(),
    };
    let pool = ControllerPool::single(name("fake"), Arc::new(fixture.controller.clone()));
    let suspended = Ledger::new(pool, store.clone(), fixture.options.clone());
    let other = async {
        advance(PAUSE - 2).await;
        fixture.ledger().resume(&stale).await.unwrap();
        fence_of(&fixture.ledger().get(&id("a")).await.unwrap().unwrap().state)
    };
    let (done, moved_on) = tokio::join!(suspended.resume(&stale), other);
    done.unwrap();
    assert!(moved_on > fence, "the other process renewed the fence");
    assert!(
        store.write_locks.load(Ordering::Relaxed) >= 2,
        "the process was suspended"
    );
    let fences = store.fences.lock().unwrap().clone();
    assert!(
        fences.iter().all(|fence| *fence >= moved_on),
        "{moved_on:?} {fences:?}"
    );
}
