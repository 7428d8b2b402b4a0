//! Size limit of a ConfigMap.

use ipu_core::{Entry, EntryState, IpuPlace};
use ipu_ledger::LedgerStore;
use ipu_test_cluster::shared;

use super::fixtures::{entry, put};
use super::store;

/// Number of partitions: several times those of the largest known installation.
const PARTITIONS: u32 = 5_000;

/// Maximum size of a ConfigMap, in bytes.
const MAX_BYTES: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_partitions_fit_with_a_reserve() {
    let Some(cluster) = shared("five_thousand_partitions_fit_with_a_reserve") else {
        return;
    };
    let first = store(cluster, "large").await;
    let mut revision = first.load(None).await.unwrap().unwrap().revision;
    let entries: Vec<Entry> = (0..PARTITIONS).map(active_entry).collect();
    let started = std::time::Instant::now();
    for some in entries.chunks(500) {
        let changes: Vec<_> = some.iter().cloned().map(put).collect();
        revision = first.commit(&revision, &changes).await.unwrap();
    }
    println!(
        "{PARTITIONS} partitions in commits of 500: {:?}",
        started.elapsed()
    );

    let started = std::time::Instant::now();
    let other = store(cluster, "large").await;
    let found = other.load(None).await.unwrap().unwrap();
    println!("first load: {:?}", started.elapsed());
    assert_eq!((found.entries.len(), &found.revision), (entries.len(), &revision));

    let started = std::time::Instant::now();
    for attempt in 1..=10 {
        let mut changed = entries[17].clone();
        changed.attempt = attempt;
        assert_eq!(first.load(Some(&revision)).await.unwrap(), None);
        revision = first.commit(&revision, &[put(changed)]).await.unwrap();
    }
    println!("one load and one change: {:?}", started.elapsed() / 10);

    let text = cluster
        .kubectl(&["get", "configmap", "large", "-o", "json"])
        .unwrap();
    let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(stored["metadata"]["managedFields"], serde_json::Value::Null);
    let values = stored["data"].as_object().unwrap().values();
    let bytes: usize = values.map(|value| value.as_str().unwrap().len()).sum();
    println!("{bytes} of {MAX_BYTES} bytes, {} an entry", bytes / entries.len());
    assert!(bytes < MAX_BYTES * 9 / 10, "{bytes}");
}

/// Returns an active partition of four IPUs as in a large installation.
fn active_entry(number: u32) -> Entry {
    let mut entry = entry(&format!("training-job-{number:04}"));
    entry.state = EntryState::Active;
    entry.controller = Some(format!("pod{:03}:8090", number / 16).parse().unwrap());
    let first = number % 16 * 4;
    entry.places = (first..first + 4)
        .map(|ipu| IpuPlace { link_domain: 0, ipu })
        .collect();
    entry.ticket = u64::from(number) + 100_000;
    entry.held_since = Some(entry.since);
    entry.since = entry.since.plus(std::time::Duration::from_millis(7_301));
    entry
}
