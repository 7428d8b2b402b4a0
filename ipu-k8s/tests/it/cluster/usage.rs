//! Usage log beside the ledger.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::{Timestamp, UsageRecord};
use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
use ipu_ledger::{StoreError, UsageLog};
use ipu_test_cluster::{Cluster, shared};
use serde_json::json;
use tokio::task::JoinSet;

use super::fixtures::{id, owner};
use super::{config, options};

/// Returns options with small pages: some twelve records per page, five in the open one.
fn small(name: &str) -> ConfigMapOptions {
    let mut options = options(name);
    options.usage.pages = 3;
    options.usage.page_bytes = 4096;
    options.usage.open_bytes = 1500;
    options
}

async fn log(cluster: &Cluster, options: ConfigMapOptions) -> ConfigMapStore {
    ConfigMapStore::new(config(cluster).await, options).unwrap()
}

/// Returns the record of hold `number`, released at that millisecond.
fn record(number: u64) -> UsageRecord {
    let name = format!("job{number}");
    let record = json!({
        "id": id(&name), "ticket": number, "owner": owner(&name), "instance": 0, "controller": "pod001:8090", "size": 1,
        "attempts": 1, "heldSince": 0, "releasedAt": number, "end": "released",
    });
    serde_json::from_value(record).unwrap()
}

async fn tickets(log: &ConfigMapStore, since: u64) -> Vec<u64> {
    let records = log.since(Timestamp::from_millis(since)).await.unwrap();
    records.into_iter().map(|record| record.ticket).collect()
}

#[tokio::test]
async fn holds_are_returned_once_and_in_the_order_of_their_release() {
    let Some(cluster) = shared("holds_are_returned_once_and_in_the_order_of_their_release") else {
        return;
    };
    let log = log(cluster, options("usage-once")).await;
    assert!(tickets(&log, 0).await.is_empty());
    log.append(&[record(7), record(3)]).await.unwrap();
    // A repeated record, as after a crash before the ledger's own write: the later release counts.
    let mut repeated = record(3);
    repeated.released_at = Timestamp::from_millis(9);
    log.append(&[repeated, record(8)]).await.unwrap();
    assert_eq!(tickets(&log, 0).await, [7, 8, 3]);
    assert_eq!(tickets(&log, 8).await, [8, 3]);
    assert_eq!(log.since(Timestamp::from_millis(7)).await.unwrap()[0], record(7));
}

#[tokio::test]
async fn the_log_is_a_ring_that_drops_only_the_oldest_page() {
    let Some(cluster) = shared("the_log_is_a_ring_that_drops_only_the_oldest_page") else {
        return;
    };
    let log = log(cluster, small("usage-ring")).await;
    for number in 0..100 {
        log.append(&[record(number)]).await.unwrap();
        let kept = tickets(&log, 0).await;
        let first = kept[0];
        assert_eq!(kept, (first..=number).collect::<Vec<_>>());
        // At least two full pages, whatever the fill level of the third.
        assert!(
            number + 1 - first >= (number + 1).min(16),
            "{number}: from {first}"
        );
    }
    assert!(tickets(&log, 0).await[0] > 40);
    let maps = cluster.kubectl(&["get", "configmaps", "-o", "name"]).unwrap();
    let usage_maps: Vec<_> = maps.lines().filter(|name| name.contains("usage-ring")).collect();
    assert_eq!(usage_maps.len(), 4, "{usage_maps:?}");
}

#[tokio::test]
async fn deleted_pages_are_created_again_and_the_others_are_kept() {
    let Some(cluster) = shared("deleted_pages_are_created_again_and_the_others_are_kept") else {
        return;
    };
    let log = log(cluster, small("usage-deleted")).await;
    for number in 0..30 {
        log.append(&[record(number)]).await.unwrap();
    }
    let before: BTreeSet<u64> = tickets(&log, 0).await.into_iter().collect();
    cluster
        .kubectl(&["delete", "configmap", "usage-deleted-usage"])
        .unwrap();
    for number in 30..60 {
        log.append(&[record(number)]).await.unwrap();
    }
    let after: BTreeSet<u64> = tickets(&log, 0).await.into_iter().collect();
    // Records of the open page are lost with it; of the rest the newest are kept.
    assert!((50..60).all(|number| after.contains(&number)), "{after:?}");
    assert!(after.is_subset(&before.union(&(30..60).collect()).copied().collect()));
    cluster
        .kubectl(&["delete", "configmap", "usage-deleted-usage-01"])
        .unwrap();
    for number in 60..100 {
        log.append(&[record(number)]).await.unwrap();
    }
    let after = tickets(&log, 0).await;
    assert!(after.ends_with(&(90..100).collect::<Vec<_>>()), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_append_and_fold_at_the_same_time_lose_no_hold() {
    let Some(cluster) = shared("two_processes_that_append_and_fold_at_the_same_time_lose_no_hold") else {
        return;
    };
    let mut options = small("usage-two");
    // All records fit.
    options.usage.page_bytes = 64 * 1024;
    let mut tasks = JoinSet::new();
    for writer in 0..4 {
        let log = Arc::new(log(cluster, options.clone()).await);
        tasks.spawn(async move {
            for number in 0..25 {
                log.append(&[record(writer * 25 + number)]).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let log = log(cluster, options).await;
    assert_eq!(tickets(&log, 0).await, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_foreign_config_map_and_one_of_a_newer_build_are_not_modified() {
    let name = "a_foreign_config_map_and_one_of_a_newer_build_are_not_modified";
    let Some(cluster) = shared(name) else {
        return;
    };
    let log = log(cluster, options("usage-foreign")).await;
    let map = "usage-foreign-usage";
    cluster
        .kubectl(&["create", "configmap", map, "--from-literal=a=b"])
        .unwrap();
    let error = log.append(&[record(1)]).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { what, .. } if what.contains(map)),
        "{error}"
    );
    cluster
        .kubectl(&["annotate", "configmap", map, "ledger.graphcore.ai/usage=2"])
        .unwrap();
    for error in [
        log.append(&[record(1)]).await.unwrap_err(),
        log.since(Timestamp::from_millis(0)).await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Format(_)), "{error}");
    }
    let data = cluster
        .kubectl(&["get", "configmap", map, "-o", "jsonpath={.data}"])
        .unwrap();
    assert_eq!(data, r#"{"a":"b"}"#);
}
