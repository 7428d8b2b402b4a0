//! One process of several writes the record, and old copies are recognized.

use std::time::Duration;

use ipu_allocator::{Record, Store, StoreError, boot_time};
use ipu_test_cluster::{private, shared};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::fixtures::{entry, names, put, put_all, stored};
use super::store;

/// Longer than the Lease lasts without a renewal.
const SEVERAL_RENEWALS: Duration = Duration::from_secs(13);

/// Maximum time until a process takes over from a killed one.
const MAX_TAKEOVER: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a_process_waits_while_another_one_renews_and_takes_over_within_15_s_of_its_end() {
    let name = "a_process_waits_while_another_one_renews_and_takes_over_within_15_s_of_its_end";
    let Some(cluster) = shared(name) else {
        return;
    };
    let one = store(cluster, "renewed").await;
    let revision = one.open().await.unwrap().revision;
    put_all(&one, revision, &["job"]).await;
    let other = store(cluster, "renewed").await;
    let mut opening = Box::pin(other.open());
    assert!(timeout(SEVERAL_RENEWALS, &mut opening).await.is_err());
    assert!(one.leads_until().unwrap() > boot_time());
    assert!(other.leads_until().unwrap() < boot_time());
    let led_until = one.leads_until().unwrap();
    drop(one);
    let ended = Instant::now();
    let record = opening.await.unwrap();
    assert!(ended.elapsed() < MAX_TAKEOVER, "{:?}", ended.elapsed());
    assert!(boot_time() > led_until, "two processes led at the same time");
    assert_eq!((names(&record), unconfirmed(&record)), (vec!["job".into()], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_is_replaced_at_once_and_its_commits_conflict() {
    let Some(cluster) = shared("a_closed_store_is_replaced_at_once_and_its_commits_conflict") else {
        return;
    };
    let one = store(cluster, "replaced").await;
    let opened = one.open().await.unwrap().revision;
    let revision = put_all(&one, opened, &["a"]).await;
    one.close().await;
    assert!(one.leads_until().unwrap() < boot_time());
    let other = store(cluster, "replaced").await;
    let begun = Instant::now();
    let record = other.open().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // Nothing but the takeover has been written since.
    let error = one.commit(&revision, &[put(entry("b"))], &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    put_all(&other, record.revision, &["c"]).await;
    other.close().await;
    let mut found = names(&store(cluster, "replaced").await.open().await.unwrap());
    found.sort();
    assert_eq!(found, ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_deleted_or_replaced_conflicts_and_begins_again_at_a_higher_revision() {
    let name = "a_record_that_was_deleted_or_replaced_conflicts_and_begins_again_at_a_higher_revision";
    let Some(cluster) = shared(name) else {
        return;
    };
    let mut numbers = Vec::new();
    for manner in ["deleted", "replaced"] {
        let one = store(cluster, "deleted").await;
        let opened = one.open().await.unwrap();
        assert_eq!(names(&opened), Vec::<String>::new());
        let revision = put_all(&one, opened.revision, &["a"]).await;
        numbers.push(number(revision.as_str()));
        cluster.kubectl(&["delete", "configmap", "deleted"]).unwrap();
        if manner == "replaced" {
            cluster.kubectl(&["create", "configmap", "deleted"]).unwrap();
        }
        let error = one.commit(&revision, &[put(entry("b"))], &[]).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { .. }), "{manner}: {error}");
        one.close().await;
    }
    assert!(numbers[1] > numbers[0], "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entries_of_an_old_copy_are_marked_by_the_write_that_takes_over() {
    let Some(cluster) = shared("the_entries_of_an_old_copy_are_marked_by_the_write_that_takes_over") else {
        return;
    };
    let one = store(cluster, "copied").await;
    let mut revision = one.open().await.unwrap().revision;
    revision = put_all(&one, revision, &["a"]).await;
    let copy = stored(cluster, "copied");
    put_all(&one, revision, &["b"]).await;
    one.close().await;
    put_back(cluster, copy);

    // The entries stay marked.
    for _ in 0..2 {
        let next = store(cluster, "copied").await;
        let record = next.open().await.unwrap();
        assert_eq!((names(&record), unconfirmed(&record)), (vec!["a".into()], 1));
        next.close().await;
    }
    let next = store(cluster, "copied").await;
    let record = next.open().await.unwrap();
    put_all(&next, record.revision, &["c"]).await;
    next.close().await;
    let next = store(cluster, "copied").await;
    assert_eq!(unconfirmed(&next.open().await.unwrap()), 1);
    next.close().await;

    // A copy in another cluster, or one put back with its namespace, has no Lease.
    cluster.kubectl(&["delete", "lease", "copied"]).unwrap();
    let record = store(cluster, "copied").await.open().await.unwrap();
    assert_eq!(unconfirmed(&record), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_of_etcd_a_process_conflicts_and_without_the_lease_the_record_is_a_copy() {
    let name = "after_a_restore_of_etcd_a_process_conflicts_and_without_the_lease_the_record_is_a_copy";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let one = store(&cluster, "restored").await;
    let opened = one.open().await.unwrap().revision;
    let mut revision = put_all(&one, opened, &["a"]).await;
    let snapshot = cluster.directory().join("snapshot");
    cluster.snapshot(&snapshot).unwrap();
    revision = put_all(&one, revision, &["b"]).await;
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.restore(&snapshot).unwrap();
        cluster
    });
    let cluster = cluster.await.unwrap();
    let error = one.commit(&revision, &[put(entry("c"))], &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    drop(one);
    cluster.kubectl(&["delete", "lease", "restored"]).unwrap();
    let record = store(&cluster, "restored").await.open().await.unwrap();
    assert_eq!((names(&record), unconfirmed(&record)), (vec!["a".into()], 1));
}

/// Returns the number of entries that are marked as those of an old copy.
fn unconfirmed(record: &Record) -> usize {
    record.state.entries().filter(|entry| entry.unconfirmed).count()
}

/// Replaces a ConfigMap by an earlier state of it.
fn put_back(cluster: &ipu_test_cluster::Cluster, mut copy: Value) {
    let metadata = copy["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    metadata.remove("uid");
    let file = cluster.directory().join("copy.json");
    std::fs::write(&file, copy.to_string()).unwrap();
    cluster
        .kubectl(&["replace", "-f", &file.display().to_string()])
        .unwrap();
}

fn number(revision: &str) -> u64 {
    revision.split_once('.').unwrap().0.parse().unwrap()
}
