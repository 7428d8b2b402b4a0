//! Entries, and ledgers on a controller in memory.

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

/// The IPUJob `name`, with an id as long as real ones.
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

/// An entry as the ledger makes it for a request that waits.
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

/// A ledger in `store` that drives `controller`, as one more process does.
pub(super) fn ledger(
    controller: &FakeController,
    topology: &Topology,
    store: ConfigMapStore,
) -> ClusterLedger {
    let name = ipu_core::ControllerName::new("pod:8090").unwrap();
    let mut options = LedgerOptions::default();
    options.topologies.insert(name.clone(), topology.clone());
    options.queue_poll_interval = Duration::from_millis(50);
    options.longest_poll = Duration::from_millis(20);
    // A call of this controller ends with its caller.
    options.settle = Duration::ZERO;
    Ledger::new(
        ControllerPool::single(name, Arc::new(controller.clone())),
        store,
        options,
    )
}
