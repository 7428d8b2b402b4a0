//! The store keeps the contract of a store, and leaves alone what is not its own.

use ipu_core::EntryState;
use ipu_k8s::store::ConfigMapStore;
use ipu_ledger::{Change, LedgerStore, StoreError, Timestamp};
use ipu_test_cluster::shared;
use ipu_testkit::ledger_store_suite;

use super::fixtures::{entry, id, put};
use super::{config, config_of, options, store};

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_in_a_config_map_keeps_the_contract_of_a_store() {
    let Some(cluster) = shared("a_ledger_in_a_config_map_keeps_the_contract_of_a_store") else {
        return;
    };
    let config = config(cluster).await;
    let report =
        ledger_store_suite(async |home| ConfigMapStore::new(config.clone(), options(home.name())).unwrap())
            .await;
    assert_eq!(report.skipped, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_is_soon_full_keeps_the_contract_too() {
    let Some(cluster) = shared("a_config_map_that_is_soon_full_keeps_the_contract_too") else {
        return;
    };
    let config = config(cluster).await;
    ledger_store_suite(async |home| {
        let mut options = options(home.name());
        options.max_bytes = 100_000;
        ConfigMapStore::new(config.clone(), options).unwrap()
    })
    .await;
}

#[tokio::test]
async fn what_is_kept_free_lets_everybody_in_the_line_be_served_and_released() {
    let Some(cluster) = shared("what_is_kept_free_lets_everybody_in_the_line_be_served_and_released") else {
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
    let gone: Vec<_> = (0..count)
        .map(|number| Change::Remove(id(&format!("job{number}"))))
        .collect();
    revision = store.commit(&revision, &gone).await.unwrap();
    store.commit(&revision, &[put(entry("again"))]).await.unwrap();
}

#[tokio::test]
async fn a_config_map_of_another_program_is_refused_and_left_as_it_is() {
    let Some(cluster) = shared("a_config_map_of_another_program_is_refused_and_left_as_it_is") else {
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
    assert!(error.to_string().contains("another program made it"), "{error}");
    let after = cluster
        .kubectl(&["get", "configmap", "others", "-o", "yaml"])
        .unwrap();
    assert_eq!(before, after);
}

#[tokio::test]
async fn an_empty_config_map_that_somebody_prepared_becomes_a_ledger_and_keeps_its_labels() {
    let name = "an_empty_config_map_that_somebody_prepared_becomes_a_ledger_and_keeps_its_labels";
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
async fn what_a_newer_build_wrote_is_refused_before_anything_is_written() {
    let Some(cluster) = shared("what_a_newer_build_wrote_is_refused_before_anything_is_written") else {
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
async fn odd_ids_are_keys_too() {
    let Some(cluster) = shared("odd_ids_are_keys_too") else {
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
async fn whoever_may_not_read_is_told_what_the_api_server_says() {
    let Some(cluster) = shared("whoever_may_not_read_is_told_what_the_api_server_says") else {
        return;
    };
    let config = config_of(&cluster.user("nobody", &[]).unwrap()).await;
    let store = ConfigMapStore::new(config, options("secret")).unwrap();
    let error = store.load(None).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("\"nobody\" cannot get"), "{error}");
}
