//! The stores of this crate keep the contract.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ipu_allocator::{MemoryStore, Record, SqliteStore, Store, StoreError, boot_time};
use ipu_core::allocator::{Change, Entry};
use ipu_testkit::store_suite;
use rustix::fs::FlockOperation;
use serde_json::json;

#[tokio::test]
async fn the_memory_store_passes_the_suite() {
    let report = store_suite(|| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        move || Arc::clone(&store)
    });
    assert!(report.await.skipped.is_empty());
}

#[tokio::test]
async fn the_sqlite_store_passes_the_suite() {
    let report = store_suite(|| {
        let directory = tempfile::tempdir().unwrap();
        move || -> Arc<dyn Store> { Arc::new(SqliteStore::at(directory.path().join("ledger.db")).unwrap()) }
    });
    assert!(report.await.skipped.is_empty());
}

#[tokio::test]
async fn a_second_process_waits_until_the_first_one_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let (first, second) = (SqliteStore::at(&path).unwrap(), SqliteStore::at(&path).unwrap());
    let held = first.open().await.unwrap().revision;
    let waiting = tokio::spawn(async move { second.open().await.map(|record| record.revision) });
    let next = first.commit(&held, &[], &[]).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    first.close().await;
    assert_ne!(waiting.await.unwrap().unwrap(), next);
}

#[tokio::test]
async fn a_link_to_the_file_has_the_lock_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (
        directory.path().join("ledger.db"),
        directory.path().join("link.db"),
    );
    let store = SqliteStore::at(&path).unwrap();
    store.open().await.unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let linked = SqliteStore::at(&link).unwrap();
    let waiting = tokio::spawn(async move { linked.open().await.map(|_| ()) });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    assert!(!directory.path().join("link.db.lock").exists());
    store.close().await;
    waiting.await.unwrap().unwrap();
}

#[test]
fn a_link_without_a_file_is_refused_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink("absent.db", &link).unwrap();
    let error = SqliteStore::at(link).unwrap_err().to_string();
    assert!(error.ends_with("name that file"), "{error}");
}

#[tokio::test]
async fn a_process_that_is_stopped_while_it_opens_the_file_does_not_disturb_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let first = SqliteStore::at(&path).unwrap();
    first.open().await.unwrap();
    first.close().await;
    let blocker = rusqlite::Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let opener = first.clone();
    let opening = tokio::spawn(async move { opener.open().await.map(|_| ()) });
    // The lock is taken, and then the thread waits for the database.
    while is_free(&path) {
        tokio::task::yield_now().await;
    }
    opening.abort();
    assert!(opening.await.is_err());
    let closing = tokio::spawn(async move { first.close().await });
    let second = SqliteStore::at(&path).unwrap();
    let next = second.clone();
    let waiting = tokio::spawn(async move { next.open().await });
    tokio::task::yield_now().await;
    blocker.execute_batch("COMMIT").unwrap();
    let opened = waiting.await.unwrap().unwrap();
    closing.await.unwrap();
    second.commit(&opened.revision, &[], &[]).await.unwrap();
}

/// Returns whether no process has the lock of the file.
fn is_free(path: &Path) -> bool {
    let lock = File::open(path.with_extension("db.lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[tokio::test]
async fn the_entries_of_a_record_that_was_put_back_are_marked_by_the_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::at(&path).unwrap();
    let opened = store.open().await.unwrap();
    let changes = [Change::Put(entry().into())];
    store.commit(&opened.revision, &changes, &[]).await.unwrap();
    store.close().await;
    let copy = std::fs::read(&path).unwrap();
    assert!(!is_marked(&store.open().await.unwrap()));
    store.close().await;
    std::fs::write(&path, copy).unwrap();
    // The mark stays, even if the process ends before its first commit.
    for _ in 0..2 {
        assert!(is_marked(&store.open().await.unwrap()));
        store.close().await;
    }
}

#[tokio::test]
async fn a_copy_of_the_whole_directory_is_an_old_copy() {
    let scratch = tempfile::tempdir().unwrap();
    let (original, copy) = (scratch.path().join("original"), scratch.path().join("copy"));
    let store = SqliteStore::at(original.join("ledger.db")).unwrap();
    let opened = store.open().await.unwrap();
    let changes = [Change::Put(entry().into())];
    store.commit(&opened.revision, &changes, &[]).await.unwrap();
    store.close().await;
    std::fs::create_dir(&copy).unwrap();
    for file in ["ledger.db", "ledger.db.lock"] {
        std::fs::copy(original.join(file), copy.join(file)).unwrap();
    }
    let store = SqliteStore::at(copy.join("ledger.db")).unwrap();
    assert!(is_marked(&store.open().await.unwrap()));
}

#[tokio::test]
async fn a_process_ends_once_its_file_or_the_link_to_it_or_the_lock_was_replaced() {
    for removed in ["ledger.db", "ledger.db.lock", "link.db"] {
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("link.db");
        File::create(scratch.path().join("ledger.db")).unwrap();
        std::os::unix::fs::symlink("ledger.db", &link).unwrap();
        let store = SqliteStore::at(link).unwrap();
        let opened = store.open().await.unwrap();
        assert_eq!(store.leads_until(), None);
        std::fs::remove_file(scratch.path().join(removed)).unwrap();
        assert!(store.leads_until().unwrap() < boot_time(), "{removed}");
        let error = store.commit(&opened.revision, &[], &[]).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict { .. }), "{removed}: {error}");
    }
}

fn entry() -> Entry {
    let entry = json!({"id": "a", "spec": {"size": 1}, "phase": {"is": "active"}, "ticket": 1, "since": 1});
    serde_json::from_value(entry).unwrap()
}

fn is_marked(record: &Record) -> bool {
    let mut entries = record.state.entries();
    entries.next().unwrap().unconfirmed && entries.next().is_none()
}

#[tokio::test]
async fn a_record_without_a_revision_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::at(&path).unwrap();
    store.open().await.unwrap();
    store.close().await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("DELETE FROM ledger").unwrap();
    drop(connection);
    let error = store.open().await.unwrap_err().to_string();
    assert!(
        error.ends_with("is not a readable ledger: it has no revision"),
        "{error}"
    );
}

#[tokio::test]
async fn an_error_of_the_database_is_passed_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::at(&path).unwrap();
    let opened = store.open().await.unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("DROP TABLE entries").unwrap();
    let changes = [Change::Put(entry().into())];
    let error = store
        .commit(&opened.revision, &changes, &[])
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot write the ledger: no such table: entries"),
        "{error}"
    );
}

#[tokio::test]
async fn a_database_of_another_program_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE theirs (a)").unwrap();
    drop(other);
    let before = std::fs::read(&path).unwrap();
    let error = SqliteStore::at(&path).unwrap().open().await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
