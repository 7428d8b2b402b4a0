//! Fixtures: entries, changes, and reading what is stored.

use std::sync::Arc;

use ipu_allocator::{Record, Revision, Store};
use ipu_core::allocator::{Change, Entry, Event, Hardware, Policy, Request, State, step};
use ipu_core::hardware::PartitionSpec;
use ipu_core::{JobKey, Owner, PartitionId, Timestamp};
use ipu_k8s::store::ConfigMapStore;
use ipu_test_cluster::Cluster;
use serde_json::Value;

/// Returns the IPUJob `name` as an owner, with a uid of realistic length.
pub(super) fn owner(name: &str) -> Owner {
    Owner {
        kind: "IPUJob".into(),
        job: JobKey::new("default", name, "beb81bbe-2309-494a-9e28-2a75a704be15").unwrap(),
    }
}

pub(super) fn id(name: &str) -> PartitionId {
    owner(name).job.partition_id(0)
}

/// Returns the entry of a new queued request.
pub(super) fn entry(name: &str) -> Entry {
    let spec = PartitionSpec::of_size(4.try_into().unwrap());
    entry_of(Request::of_instance(owner(name), 0, spec))
}

pub(super) fn entry_of(request: Request) -> Entry {
    let now = Timestamp::from_millis(1_795_000_000_000);
    let step = step(
        &State::default(),
        &Hardware::default(),
        &Policy::default(),
        now,
        &Event::Ensure(request),
    );
    match step.unwrap().changes.first() {
        Some(Change::Put(entry)) => Entry::clone(entry),
        other => panic!("{other:?}"),
    }
}

pub(super) fn put(entry: Entry) -> Change {
    Change::Put(Arc::new(entry))
}

/// Commits a new entry of each name.
pub(super) async fn put_all(store: &ConfigMapStore, mut revision: Revision, names: &[&str]) -> Revision {
    for name in names {
        revision = store.commit(&revision, &[put(entry(name))], &[]).await.unwrap();
    }
    revision
}

/// Returns the job names of all entries.
pub(super) fn names(record: &Record) -> Vec<String> {
    let owners = record.state.entries().filter_map(|entry| entry.owner.as_ref());
    owners.map(|owner| owner.job.name.to_string()).collect()
}

/// Returns the ConfigMap `name`.
pub(super) fn stored(cluster: &Cluster, name: &str) -> Value {
    let text = cluster
        .kubectl(&["get", "configmap", name, "-o", "json"])
        .unwrap();
    serde_json::from_str(&text).unwrap()
}
