//! The store fulfils the contract of a store, and does not modify foreign objects.

use ipu_core::EntryState;
use ipu_k8s::store::ConfigMapStore;
use ipu_ledger::{Change, LedgerStore, StoreError, Timestamp};
use ipu_test_cluster::shared;
use ipu_testkit::ledger_store_suite;

use super::fixtures::{entry, id, put};
use super::{config, config_of, options, store};

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_store_fulfils_the_store_contract() {
    let Some(cluster) = shared("a_config_map_store_fulfils_the_store_contract") else {
        return;
    };
    let config = config(cluster).await;
    let report = ledger_store_suite(async |location| {
        ConfigMapStore::new(config.clone(), options(location.name())).unwrap()
    })
    .await;
    assert_eq!(report.skipped, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_almost_full_config_map_store_fulfils_the_store_contract() {
    let Some(cluster) = shared("an_almost_full_config_map_store_fulfils_the_store_contract") else {
        return;
    };
    let config = config(cluster).await;
    ledger_store_suite(async |location| {
        let mut options = options(location.name());
        options.max_bytes = 100_000;
        ConfigMapStore::new(config.clone(), options).unwrap()
    })
    .await;
}

#[tokio::test]
async fn the_reserve_of_a_full_config_map_suffices_to_activate_and_release_all_queued_requests() {
    let Some(cluster) =
        shared("the_reserve_of_a_full_config_map_suffices_to_activate_and_release_all_queued_requests")
    else {
        return;
    };
    let mut options = options("soon-full");
    options.max_bytes = 20_000;
    let store = ConfigMapStore::new(config(cluster).await, options).unwrap();
    let mut revision = store.load(None).await.unwrap().unwrap().revision;
    let mut count = 0;
    let detail = loop {
        match store
            .commit(&revision, &[put(entry(&format!("job{count}")))])
            .await
        {
            Ok(next) => revision = next,
            Err(StoreError::Full { detail }) => break detail,
            Err(error) => panic!("{error}"),
        }
        count += 1;
    };
    assert!(count > 50, "{count}");
    assert!(detail.contains("of 20000 bytes"), "{detail}");
    for state in [
        EntryState::Active,
        EntryState::Releasing {
            fence: Timestamp::from_millis(1_795_000_030_000),
        },
    ] {
        for number in 0..count {
            let mut entry = entry(&format!("job{number}"));
            entry.state = state.clone();
            entry.controller = Some("pod001.cluster.local:8090".parse().unwrap());
            entry.held_since = Some(entry.since);
            revision = store.commit(&revision, &[put(entry)]).await.unwrap();
        }
    }
    let removals: Vec<_> = (0..count)
        .map(|number| Change::Remove(id(&format!("job{number}"))))
        .collect();
    revision = store.commit(&revision, &removals).await.unwrap();
    store.commit(&revision, &[put(entry("again"))]).await.unwrap();
}

#[tokio::test]
async fn a_foreign_config_map_is_rejected_and_not_modified() {
    let Some(cluster) = shared("a_foreign_config_map_is_rejected_and_not_modified") else {
        return;
    };
    cluster
        .kubectl(&[
            "create",
            "configmap",
            "others",
            "--from-literal=partitions=what is this",
        ])
        .unwrap();
    let before = cluster
        .kubectl(&["get", "configmap", "others", "-o", "yaml"])
        .unwrap();
    let error = store(cluster, "others").await.load(None).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(
        error.to_string().contains("another program created it"),
        "{error}"
    );
    let after = cluster
        .kubectl(&["get", "configmap", "others", "-o", "yaml"])
        .unwrap();
    assert_eq!(before, after);
}

#[tokio::test]
async fn an_empty_existing_config_map_becomes_a_ledger_and_keeps_its_labels() {
    let name = "an_empty_existing_config_map_becomes_a_ledger_and_keeps_its_labels";
    let Some(cluster) = shared(name) else {
        return;
    };
    cluster.kubectl(&["create", "configmap", "prepared"]).unwrap();
    cluster
        .kubectl(&["label", "configmap", "prepared", "kept=yes"])
        .unwrap();
    let store = store(cluster, "prepared").await;
    let empty = store.load(None).await.unwrap().unwrap();
    assert_eq!(empty.entries, []);
    store.commit(&empty.revision, &[put(entry("job"))]).await.unwrap();
    let labels = cluster
        .kubectl(&[
            "get",
            "configmap",
            "prepared",
            "-o",
            "jsonpath={.metadata.labels.kept}",
        ])
        .unwrap();
    assert_eq!(labels, "yes");
}

#[tokio::test]
async fn records_of_a_newer_build_are_rejected_before_any_write() {
    let Some(cluster) = shared("records_of_a_newer_build_are_rejected_before_any_write") else {
        return;
    };
    let store = store(cluster, "newer").await;
    let revision = store.load(None).await.unwrap().unwrap().revision;
    store.commit(&revision, &[put(entry("job"))]).await.unwrap();
    let patch = format!(r#"{{"data":{{"{}":"{{\"v\":99}}"}}}}"#, id("job"));
    cluster
        .kubectl(&["patch", "configmap", "newer", "--type=merge", "-p", &patch])
        .unwrap();
    let error = store.load(None).await.unwrap_err();
    assert!(matches!(error, StoreError::Format(_)), "{error}");
    let error = store.commit(&revision, &[put(entry("other"))]).await.unwrap_err();
    assert!(matches!(error, StoreError::Format(_)), "{error}");
}

#[tokio::test]
async fn unusual_ids_are_valid_keys() {
    let Some(cluster) = shared("unusual_ids_are_valid_keys") else {
        return;
    };
    let store = store(cluster, "odd").await;
    let revision = store.load(None).await.unwrap().unwrap().revision;
    let entries = [".", "..", "...p", ".p", "-", "p", "_.-"].map(|id| {
        let mut entry = entry("odd");
        entry.id = id.parse().unwrap();
        entry
    });
    store.commit(&revision, &entries.clone().map(put)).await.unwrap();
    let mut found = super::store(cluster, "odd")
        .await
        .load(None)
        .await
        .unwrap()
        .unwrap()
        .entries;
    let mut entries = entries.to_vec();
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    found.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(found, entries);
}

#[tokio::test]
async fn a_forbidden_read_reports_the_message_of_the_api_server() {
    let Some(cluster) = shared("a_forbidden_read_reports_the_message_of_the_api_server") else {
        return;
    };
    let config = config_of(&cluster.user("unprivileged", &[]).unwrap()).await;
    let store = ConfigMapStore::new(config, options("secret")).unwrap();
    let error = store.load(None).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("\"unprivileged\" cannot get"),
        "{error}"
    );
}
