//! Usage records next to the record.

use ipu_allocator::{Revision, Store, StoreError};
use ipu_core::Timestamp;
use ipu_core::allocator::UsageRecord;
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_test_cluster::{Cluster, shared};
use serde_json::json;

use super::fixtures::{id, owner};
use super::{config, options};

async fn open(cluster: &Cluster, options: ConfigMapOptions) -> (ConfigMapStore, Revision) {
    let store = ConfigMapStore::new(config(cluster).await, options).unwrap();
    let revision = store.open().await.unwrap().revision;
    (store, revision)
}

/// Returns the record of hold `number`, released at that millisecond.
fn record(number: u64) -> UsageRecord {
    let name = format!("job{number}");
    let record = json!({
        "id": id(&name), "ticket": number, "owner": owner(&name), "instance": 0, "controller": "pod001:8090",
        "size": 1, "attempts": 1, "heldSince": 0, "releasedAt": number, "end": "released",
    });
    serde_json::from_value(record).unwrap()
}

async fn tickets(store: &ConfigMapStore, since: u64) -> Vec<u64> {
    let records = store.usage(Timestamp::from_millis(since), None, usize::MAX).await;
    records.unwrap().into_iter().map(|record| record.ticket).collect()
}

#[tokio::test]
async fn a_repeated_hold_is_returned_once_with_its_later_release() {
    let name = "a_repeated_hold_is_returned_once_with_its_later_release";
    let Some(cluster) = shared(name) else {
        return;
    };
    let (store, revision) = open(cluster, options("usage-once")).await;
    assert!(tickets(&store, 0).await.is_empty());
    let revision = store
        .commit(&revision, &[], &[record(7), record(3)])
        .await
        .unwrap();
    // A repeated record, as after a commit that failed: the later release counts.
    let mut repeated = record(3);
    repeated.released_at = Timestamp::from_millis(9);
    store
        .commit(&revision, &[], &[repeated, record(8)])
        .await
        .unwrap();
    assert_eq!(tickets(&store, 0).await, [7, 8, 3]);
    assert_eq!(tickets(&store, 8).await, [8, 3]);
}

#[tokio::test]
async fn the_log_is_a_ring_that_drops_only_the_oldest_page_and_survives_a_restart() {
    let name = "the_log_is_a_ring_that_drops_only_the_oldest_page_and_survives_a_restart";
    let Some(cluster) = shared(name) else {
        return;
    };
    let mut options = options("usage-ring");
    // Some three records.
    options.usage_page_bytes = 1_200;
    let (mut store, mut revision) = open(cluster, options.clone()).await;
    for number in 0..100 {
        if number % 10 == 5 {
            store.close().await;
            (store, revision) = open(cluster, options.clone()).await;
        }
        revision = store.commit(&revision, &[], &[record(number)]).await.unwrap();
    }
    let kept = tickets(&store, 0).await;
    assert_eq!(kept, (kept[0]..100).collect::<Vec<_>>());
    // Fifteen full pages, and the page that was begun last.
    assert!((30..70).contains(&kept[0]), "{}", kept[0]);
    let maps = cluster.kubectl(&["get", "configmaps", "-o", "name"]).unwrap();
    let pages = maps
        .lines()
        .filter(|name| name.contains("usage-ring-usage"))
        .count();
    assert_eq!(pages, 16);

    // A deleted page is created again, and the others are kept.
    cluster
        .kubectl(&["delete", "configmap", "usage-ring-usage-01"])
        .unwrap();
    for number in 100..160 {
        revision = store.commit(&revision, &[], &[record(number)]).await.unwrap();
    }
    assert!(
        tickets(&store, 0)
            .await
            .ends_with(&(140..160).collect::<Vec<_>>())
    );
}

#[tokio::test]
async fn a_foreign_page_stops_the_commit_and_is_not_modified() {
    let Some(cluster) = shared("a_foreign_page_stops_the_commit_and_is_not_modified") else {
        return;
    };
    let mut options = options("usage-foreign");
    // Every commit moves the usage records of the one before to a page.
    options.usage_page_bytes = 16;
    let (store, revision) = open(cluster, options).await;
    let revision = store.commit(&revision, &[], &[record(1)]).await.unwrap();
    let map = "usage-foreign-usage-00";
    cluster
        .kubectl(&["create", "configmap", map, "--from-literal=a=b"])
        .unwrap();
    let error = store.commit(&revision, &[], &[record(2)]).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { what, .. } if what.contains(map)),
        "{error}"
    );
    let data = cluster
        .kubectl(&["get", "configmap", map, "-o", "jsonpath={.data}"])
        .unwrap();
    assert_eq!(data, r#"{"a":"b"}"#);
    // Nothing was written.
    cluster.kubectl(&["delete", "configmap", map]).unwrap();
    store.commit(&revision, &[], &[record(2)]).await.unwrap();
    assert_eq!(tickets(&store, 0).await, [1, 2]);
}
