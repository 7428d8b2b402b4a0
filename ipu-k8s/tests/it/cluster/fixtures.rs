//! Fixtures: entries, and ledgers with an in-memory controller.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{CallWindow, ControllersSnapshot, LedgerState, QueuePolicy, Topology};
use ipu_k8s::store::ConfigMapStore;
use ipu_ledger::{
    Change, Entry, Ledger, LedgerOptions, Owner, PartitionId, PartitionSpec, Request, Timestamp,
};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;

pub(super) type ClusterLedger = Ledger<FakeController, ConfigMapStore>;

/// Returns the IPUJob `name` as an owner, with a uid of realistic length.
pub(super) fn owner(name: &str) -> Owner {
    Owner {
        kind: "IPUJob".into(),
        job: ipu_core::JobKey::new("default", name, "beb81bbe-2309-494a-9e28-2a75a704be15").unwrap(),
    }
}

pub(super) fn request(name: &str, size: u32) -> Request {
    Request::of_instance(owner(name), 0, PartitionSpec::of_size(size.try_into().unwrap()))
}

pub(super) fn id(name: &str) -> PartitionId {
    owner(name).job.partition_id(0)
}

/// Returns an entry as the ledger creates it for a queued request.
pub(super) fn entry(name: &str) -> Entry {
    let window = CallWindow {
        now: Timestamp::from_millis(1_795_000_000_000),
        settle: Duration::from_secs(30),
    };
    let step = LedgerState::default()
        .request(
            &request(name, 4),
            &ControllersSnapshot::default(),
            &QueuePolicy::default(),
            window,
        )
        .unwrap();
    match step.changes.first() {
        Some(Change::Put(entry)) => Entry::clone(entry),
        other => panic!("{other:?}"),
    }
}

pub(super) fn put(entry: Entry) -> Change {
    Change::Put(Arc::new(entry))
}

/// Returns a ledger in `store` that drives `controller`, as another process does.
pub(super) fn ledger(
    controller: &FakeController,
    topology: &Topology,
    store: ConfigMapStore,
) -> ClusterLedger {
    let name = ipu_core::ControllerName::new("pod:8090").unwrap();
    let mut options = LedgerOptions::default();
    options.topologies.insert(name.clone(), topology.clone());
    options.queue_poll_interval = Duration::from_millis(50);
    options.max_poll_interval = Duration::from_millis(20);
    // Calls of this controller end with their caller.
    options.settle = Duration::ZERO;
    Ledger::new(
        ControllerPool::single(name, Arc::new(controller.clone())),
        store,
        options,
    )
}
