//! Lost replies, and a killed API server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ipu_allocator::{Revision, Store, StoreError};
use ipu_k8s::store::ConfigMapStore;
use ipu_test_cluster::{private, shared};
use tokio::time::Instant;

use super::fixtures::{entry, names, put, put_all};
use super::lossy_proxy::{LossyProxy, Writes};
use super::{config, options, store};

/// Number of kills of the API server, and of writes before each.
const KILLS: u32 = 3;
const WRITES_BETWEEN: u32 = 25;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_or_request_is_resolved_before_the_commit_returns() {
    let name = "a_lost_reply_or_request_is_resolved_before_the_commit_returns";
    let Some(cluster) = shared(name) else {
        return;
    };
    let proxy = LossyProxy::start(config(cluster).await).await;
    let one = ConfigMapStore::new(proxy.config.clone(), options("lost")).unwrap();
    let mut revision = one.open().await.unwrap().revision;
    for (writes, job) in [
        (Writes::LoseReply, "executed"),
        (Writes::LoseRequest, "not-executed"),
    ] {
        proxy.set(writes);
        revision = put_all(&one, revision, &[job]).await;
        proxy.wait_for_loss().await;
        revision = put_all(&one, revision, &[&format!("after-{job}")]).await;
    }
    // A refusal is certain: the caller may go on at the same revision.
    proxy.set(Writes::Refuse);
    let error = one
        .commit(&revision, &[put(entry("refused"))], &[])
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    put_all(&one, revision, &["after-refused"]).await;
    one.close().await;
    let mut found = names(&store(cluster, "lost").await.open().await.unwrap());
    found.sort();
    assert_eq!(
        found,
        [
            "after-executed",
            "after-not-executed",
            "after-refused",
            "executed",
            "not-executed"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_request_conflicts_if_another_process_has_taken_over_meanwhile() {
    let name = "a_lost_request_conflicts_if_another_process_has_taken_over_meanwhile";
    let Some(cluster) = shared(name) else {
        return;
    };
    let proxy = LossyProxy::start(config(cluster).await).await;
    let one = Arc::new(ConfigMapStore::new(proxy.config.clone(), options("overtaken")).unwrap());
    let revision = one.open().await.unwrap().revision;
    one.close().await;
    proxy.set(Writes::LoseAll);
    let (late, basis) = (Arc::clone(&one), revision.clone());
    let late = tokio::spawn(async move { late.commit(&basis, &[put(entry("late"))], &[]).await });
    proxy.wait_for_loss().await;
    let other = store(cluster, "overtaken").await;
    other.open().await.unwrap();
    proxy.set(Writes::Pass);
    let error = late.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    // The store does not guess afterwards.
    let error = one.commit(&revision, &[], &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    other.close().await;
    let record = store(cluster, "overtaken").await.open().await.unwrap();
    assert_eq!(names(&record), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_that_cannot_be_resolved_is_a_conflict_within_twenty_seconds() {
    let name = "a_doubt_that_cannot_be_resolved_is_a_conflict_within_twenty_seconds";
    let Some(cluster) = shared(name) else {
        return;
    };
    let proxy = LossyProxy::start(config(cluster).await).await;
    let one = ConfigMapStore::new(proxy.config.clone(), options("doubt")).unwrap();
    let revision = one.open().await.unwrap().revision;
    proxy.set(Writes::LoseAll);
    let begun = Instant::now();
    let error = one.commit(&revision, &[put(entry("a"))], &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_is_lost_or_invented_while_the_api_server_is_killed_repeatedly() {
    let name = "no_write_is_lost_or_invented_while_the_api_server_is_killed_repeatedly";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let writer_store = store(&cluster, "killed").await;
    let (sender, receiver) = channel();
    let over = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_until_over(writer_store, sender, Arc::clone(&over)));
    let cluster = tokio::task::spawn_blocking(move || {
        for _ in 0..KILLS {
            receiver.iter().take(WRITES_BETWEEN as usize).for_each(drop);
            cluster.kill_apiserver();
            cluster.start_apiserver().unwrap();
        }
        receiver.iter().take(WRITES_BETWEEN as usize).for_each(drop);
        over.store(true, Ordering::Relaxed);
        cluster
    });
    let cluster = cluster.await.unwrap();
    let (accepted, unknown) = writer.await.unwrap();
    let record = store(&cluster, "killed").await.open().await.unwrap();
    let found: BTreeSet<u32> = record.state.entries().map(|entry| entry.attempt).collect();
    let lost: Vec<_> = accepted.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?} were lost");
    let attempted: BTreeSet<u32> = accepted.union(&unknown).copied().collect();
    let invented: Vec<_> = found.difference(&attempted).collect();
    assert!(invented.is_empty(), "{invented:?} were refused or never written");
}

/// Writes numbers until `over` is set, as processes that end at a conflict. Returns the accepted numbers, and
/// those of which it is not known.
async fn write_until_over(
    store: ConfigMapStore,
    written: Sender<u32>,
    over: Arc<AtomicBool>,
) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut accepted, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    let mut last_revision: Option<Revision> = None;
    for number in 1.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let revision = match last_revision.take() {
            Some(last_revision) => last_revision,
            None => loop {
                match store.open().await {
                    Ok(record) => break record.revision,
                    Err(StoreError::Unavailable { .. } | StoreError::Conflict { .. }) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            },
        };
        let mut entry = entry(&format!("job{number}"));
        entry.attempt = number;
        match store.commit(&revision, &[put(entry)], &[]).await {
            Ok(next) => {
                accepted.insert(number);
                last_revision = Some(next);
                let _ = written.send(number);
            }
            Err(StoreError::Conflict { .. }) => {
                unknown.insert(number);
            }
            // Nothing was written.
            Err(StoreError::Unavailable { .. }) => last_revision = Some(revision),
            Err(error) => panic!("{error}"),
        }
    }
    store.close().await;
    (accepted, unknown)
}
