//! Size limit of a ConfigMap.

use std::sync::Arc;

use ipu_allocator::{Revision, Store, StoreError};
use ipu_core::Timestamp;
use ipu_core::allocator::{Change, Cordon, CordonTarget, Entry, Phase, RemovalRefusal, Request};
use ipu_core::hardware::{IpuPlace, PartitionSpec};
use ipu_k8s::store::ConfigMapStore;
use ipu_test_cluster::{Cluster, shared};

use super::fixtures::{entry, entry_of, id, owner, put, stored};
use super::{config, options, store};

/// Number of partitions: more than those of the largest known installation.
const PARTITIONS: u32 = 1_000;

/// Maximum size of a recorded IPU. The limit does not count these: the hardware bounds their number.
const BYTES_PER_IPU: usize = 28;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_partitions_fit() {
    let Some(cluster) = shared("a_thousand_partitions_fit") else {
        return;
    };
    let store = store(cluster, "large").await;
    let mut revision = store.open().await.unwrap().revision;
    let entries: Vec<Entry> = (0..PARTITIONS)
        .map(|number| active(entry(&format!("training-job-{number:04}")), number))
        .collect();
    for some in entries.chunks(256) {
        let changes: Vec<_> = some.iter().cloned().map(put).collect();
        revision = store.commit(&revision, &changes, &[]).await.unwrap();
    }
    let started = std::time::Instant::now();
    for attempt in 1..=10 {
        let mut changed = entries[17].clone();
        changed.attempt = attempt;
        revision = store.commit(&revision, &[put(changed)], &[]).await.unwrap();
    }
    println!("one change: {:?}", started.elapsed() / 10);
    let bytes = bytes(cluster, "large");
    println!("{bytes} bytes, {} an entry", bytes / entries.len());
    // There is space for more requests.
    revision = store.commit(&revision, &[put(entry("more"))], &[]).await.unwrap();

    // Beyond the limit of the API server.
    let mut enormous = active(entry("enormous"), 0);
    enormous.holder = "x".repeat(1 << 20);
    let error = store.commit(&revision, &[put(enormous)], &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    store
        .commit(&revision, &[Change::Remove(id("more"))], &[])
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_record_takes_cordons_and_every_change_until_all_queued_requests_are_released() {
    let name = "a_full_record_takes_cordons_and_every_change_until_all_queued_requests_are_released";
    let Some(cluster) = shared(name) else {
        return;
    };
    for size in [1, 16, 64] {
        let name = format!("full-{size}");
        let mut options = options(&name);
        options.max_bytes = 40_000;
        let store = ConfigMapStore::new(config(cluster).await, options).unwrap();
        let mut revision = store.open().await.unwrap().revision;
        let (mut queued, full) = fill(&store, &mut revision, size).await;
        assert!(full.contains("of 40000 bytes"), "{full}");
        assert!(queued.len() > 10, "{}", queued.len());
        let share = Store::fill(&store).map(|fill| (fill.bytes * 100 / fill.limit, fill.limit));
        assert!(matches!(share, Some((95..=100, 40_000))), "{share:?}");
        let cordon = Cordon::new(
            "rack-7".parse().unwrap(),
            "pod001:8090".parse().unwrap(),
            CordonTarget::Controller,
            "admin".parse().unwrap(),
            "x".repeat(Cordon::MAX_REASON_LEN),
        );
        let cordon = [Change::Cordon(Arc::new(cordon))];
        revision = store.commit(&revision, &cordon, &[]).await.unwrap();
        let uncordon = [Change::Uncordon("rack-7".parse().unwrap())];
        revision = store.commit(&revision, &uncordon, &[]).await.unwrap();
        type Advance = fn(Entry) -> Entry;
        let advance: [Advance; 3] = [
            |mut entry| {
                entry.phase = Phase::Creating;
                entry
            },
            |entry| active(entry, 0),
            |mut entry| {
                entry.phase = Phase::Releasing { refusal: None };
                entry.operations = 3;
                entry
            },
        ];
        for advance in advance {
            for entry in &mut queued {
                *entry = advance(entry.clone());
                revision = store.commit(&revision, &[put(entry.clone())], &[]).await.unwrap();
            }
            let bytes = bytes(cluster, &name);
            let places: usize = queued.iter().map(|entry| entry.places.len()).sum();
            assert!(
                bytes <= 40_000 + places * BYTES_PER_IPU,
                "{} of size {size}: {bytes} bytes",
                queued[0].phase
            );
        }
        // Beyond the limit.
        for entry in &mut queued {
            let refusal = RemovalRefusal::new(&"x".repeat(1_000), Timestamp::from_millis(0));
            entry.phase = Phase::Releasing {
                refusal: Some(refusal),
            };
            revision = store.commit(&revision, &[put(entry.clone())], &[]).await.unwrap();
        }
        let removals: Vec<_> = queued
            .iter()
            .map(|entry| Change::Remove(entry.id.clone()))
            .collect();
        revision = store.commit(&revision, &removals, &[]).await.unwrap();
        store
            .commit(&revision, &[put(entry("again"))], &[])
            .await
            .unwrap();
    }
}

/// Commits new requests until one is refused. Returns the entries and the message.
async fn fill(store: &ConfigMapStore, revision: &mut Revision, size: u32) -> (Vec<Entry>, String) {
    let mut queued = Vec::new();
    loop {
        let name = format!("job{}", queued.len());
        let spec = PartitionSpec::of_size(size.try_into().unwrap());
        let entry = entry_of(Request::of_instance(owner(&name), 0, spec));
        assert_eq!(entry.id, id(&name));
        match store.commit(revision, &[put(entry.clone())], &[]).await {
            Ok(next) => *revision = next,
            Err(StoreError::Full { detail }) => return (queued, detail),
            Err(error) => panic!("{error}"),
        }
        queued.push(entry);
    }
}

/// Returns the entry with its partition, as in a large installation.
fn active(mut entry: Entry, number: u32) -> Entry {
    entry.phase = Phase::Active;
    entry.operations = 1;
    entry.names_ipus = true;
    entry.controller = Some(
        format!("pod{:03}.cluster.local:8090", number / 16)
            .parse()
            .unwrap(),
    );
    let size = entry.spec.size.get();
    let first = (number % 16 * 4) % (65 - size.min(64));
    entry.places = (first..first + size)
        .map(|ipu| IpuPlace { link_domain: 0, ipu })
        .collect();
    entry.ticket += u64::from(number) + 100_000;
    entry.held_since = Some(entry.since);
    entry.since = entry.since.plus(std::time::Duration::from_millis(7_301));
    entry
}

/// Returns the size of all values of the ConfigMap `name`.
fn bytes(cluster: &Cluster, name: &str) -> usize {
    let map = stored(cluster, name);
    let values = map["data"].as_object().unwrap().values();
    values.map(|value| value.as_str().unwrap().len()).sum()
}
