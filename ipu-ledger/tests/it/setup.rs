//! Ledgers over a fake controller, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, JobKey, PartitionId, Topology};
use ipu_ledger::{
    Entry, EntryState, Ledger, LedgerOptions, MemoryStore, Owner, OwnerLiveness, PartitionSpec, Request,
    Timestamp,
};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use tokio::time::Instant;

pub(crate) type TestLedger = Ledger<FakeController, MemoryStore>;

pub(crate) fn name(text: &str) -> ControllerName {
    ControllerName::new(text).unwrap()
}

pub(crate) fn owner(name: &str) -> Owner {
    Owner {
        kind: "Test".into(),
        job: JobKey::new("ns", name, "1").unwrap(),
    }
}

pub(crate) fn request(name: &str, size: u32) -> Request {
    Request::of_instance(owner(name), 0, PartitionSpec::of_size(size.try_into().unwrap()))
}

pub(crate) fn id(name: &str) -> PartitionId {
    owner(name).job.partition_id(0)
}

/// Options whose clock follows tokio's paused time.
pub(crate) fn options(topology: &Topology) -> LedgerOptions {
    let start = Instant::now();
    let mut options = LedgerOptions::default();
    options.clock = Arc::new(move || Timestamp::from_millis(1_000_000).plus(start.elapsed()));
    options.topologies.insert(name("fake"), topology.clone());
    options
}

/// A controller, a store and the options of ledgers on them.
pub(crate) struct Fixture {
    pub(crate) controller: FakeController,
    pub(crate) store: MemoryStore,
    pub(crate) options: LedgerOptions,
}

impl Fixture {
    pub(crate) fn new(topology: &Topology, seed: u64) -> Self {
        Self {
            controller: FakeController::new(topology, seed),
            store: MemoryStore::new(),
            options: options(topology),
        }
    }

    /// Returns a ledger without in-process state, as after a crash.
    pub(crate) fn ledger(&self) -> TestLedger {
        let pool = ControllerPool::single(name("fake"), Arc::new(self.controller.clone()));
        Ledger::new(pool, self.store.clone(), self.options.clone())
    }
}

pub(crate) async fn state_of(ledger: &TestLedger, name: &str) -> &'static str {
    ledger
        .get(&id(name))
        .await
        .unwrap()
        .map_or("gone", |entry| entry.state.label())
}

pub(crate) async fn advance(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

pub(crate) fn all_dead(_: &Entry) -> OwnerLiveness {
    OwnerLiveness::Dead
}

pub(crate) fn all_live(_: &Entry) -> OwnerLiveness {
    OwnerLiveness::Live
}

pub(crate) fn unknown(_: &Entry) -> OwnerLiveness {
    OwnerLiveness::Unknown
}

pub(crate) fn is_quarantined(entry: &Entry) -> bool {
    matches!(entry.state, EntryState::Quarantined)
}
