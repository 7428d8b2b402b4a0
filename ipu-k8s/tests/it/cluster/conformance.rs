//! The store fulfils the contract of a store, and does not modify foreign objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ipu_allocator::{Store, StoreError};
use ipu_k8s::store::ConfigMapStore;
use ipu_test_cluster::shared;
use ipu_testkit::store_suite;

use super::fixtures::{entry, id, put, put_all, stored};
use super::{config, config_of, options, store};

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_store_fulfils_the_store_contract() {
    let Some(cluster) = shared("a_config_map_store_fulfils_the_store_contract") else {
        return;
    };
    let config = config(cluster).await;
    let count = AtomicU32::new(0);
    let report = store_suite(|| {
        let name = format!("contract-{}", count.fetch_add(1, Ordering::Relaxed));
        let config = config.clone();
        move || Arc::new(ConfigMapStore::new(config.clone(), options(&name)).unwrap()) as Arc<dyn Store>
    })
    .await;
    assert_eq!(report.skipped, []);
    // The record of writers would double the size.
    let metadata = &stored(cluster, "contract-0")["metadata"];
    assert_eq!(metadata["managedFields"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_foreign_config_map_or_one_of_another_layout_is_rejected_and_not_modified() {
    let name = "a_foreign_config_map_or_one_of_another_layout_is_rejected_and_not_modified";
    let Some(cluster) = shared(name) else {
        return;
    };
    let create = ["create", "configmap", "others", "--from-literal=partitions=x"];
    cluster.kubectl(&create).unwrap();
    for expected in ["another program created it", "its layout is \"2\""] {
        let before = stored(cluster, "others");
        let error = store(cluster, "others").await.open().await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(stored(cluster, "others"), before);
        let annotation = "ledger.graphcore.ai/layout=2";
        cluster
            .kubectl(&["annotate", "configmap", "others", annotation, "--overwrite"])
            .unwrap();
        // The next process need not wait.
        cluster.kubectl(&["delete", "lease", "others"]).unwrap();
    }
}

#[tokio::test]
async fn a_damaged_entry_is_reported_with_its_key() {
    let Some(cluster) = shared("a_damaged_entry_is_reported_with_its_key") else {
        return;
    };
    let one = store(cluster, "damaged").await;
    let revision = one.open().await.unwrap().revision;
    put_all(&one, revision, &["job"]).await;
    one.close().await;
    let key = format!("partition.{}", id("job"));
    let patch = format!(r#"{{"data":{{"{key}":"{{}}"}}}}"#);
    cluster
        .kubectl(&["patch", "configmap", "damaged", "--type=merge", "-p", &patch])
        .unwrap();
    let error = store(cluster, "damaged").await.open().await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn an_empty_existing_config_map_becomes_a_record_and_keeps_its_labels() {
    let name = "an_empty_existing_config_map_becomes_a_record_and_keeps_its_labels";
    let Some(cluster) = shared(name) else {
        return;
    };
    cluster.kubectl(&["create", "configmap", "prepared"]).unwrap();
    cluster
        .kubectl(&["label", "configmap", "prepared", "kept=yes"])
        .unwrap();
    let store = store(cluster, "prepared").await;
    let record = store.open().await.unwrap();
    put_all(&store, record.revision, &["job"]).await;
    assert_eq!(stored(cluster, "prepared")["metadata"]["labels"]["kept"], "yes");
}

#[tokio::test]
async fn unusual_ids_are_valid_keys() {
    let Some(cluster) = shared("unusual_ids_are_valid_keys") else {
        return;
    };
    let one = store(cluster, "odd").await;
    let revision = one.open().await.unwrap().revision;
    let ids = [".", "..", "cordon.", "partition.", "-", "p", "_.-"];
    let entries = ids.map(|id| {
        let mut entry = entry("odd");
        entry.id = id.parse().unwrap();
        entry
    });
    one.commit(&revision, &entries.map(put), &[]).await.unwrap();
    one.close().await;
    let record = store(cluster, "odd").await.open().await.unwrap();
    for id in ids {
        assert!(record.state.get(&id.parse().unwrap()).is_some(), "{id}");
    }
}

#[tokio::test]
async fn a_forbidden_read_reports_the_message_of_the_api_server() {
    let Some(cluster) = shared("a_forbidden_read_reports_the_message_of_the_api_server") else {
        return;
    };
    let config = config_of(&cluster.user("unprivileged", &[]).unwrap()).await;
    let store = ConfigMapStore::new(config, options("secret")).unwrap();
    let error = store.open().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("\"unprivileged\" cannot get"),
        "{error}"
    );
}
