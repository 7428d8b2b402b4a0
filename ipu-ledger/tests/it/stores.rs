//! The suite of every store, and what is SQLite's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use ipu_core::{FormatError, Topology};
use ipu_ledger::{
    Change, Entry, EntryState, Ledger, LedgerStore, MemoryStore, Revision, Snapshot, SqliteStore, StoreError,
};
use ipu_testkit::{FakeController, ledger_store_suite};
use ipu_vipu_client::ControllerPool;

use crate::setup::{Bench, id, name, options, owner, request};

/// An entry as a ledger makes it.
async fn entry(name: &str) -> Arc<Entry> {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench
        .ledger()
        .ensure_active(request(name, 1), &mut |_| {})
        .await
        .unwrap();
    Arc::new(bench.ledger().get(&id(name)).await.unwrap().unwrap())
}

async fn load(store: &impl LedgerStore) -> Snapshot {
    store.load(None).await.unwrap().unwrap()
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    ledger_store_suite(async |home| home.shared(MemoryStore::new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_the_contract() {
    ledger_store_suite(async |home| SqliteStore::open(home.path().join("ledger.db")).unwrap()).await;
}

#[tokio::test]
async fn a_newer_ledger_is_refused_by_name_and_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::open(&path).unwrap();
    let revision = load(&store).await.revision;
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer
        .pragma_update(None, "user_version", Entry::FORMAT + 1)
        .unwrap();

    let error = store
        .commit(&revision, &[Change::Put(entry("a").await)])
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::Format(FormatError::Newer { .. })),
        "{error}"
    );
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(
        error.to_string().contains("use the build that wrote it"),
        "{error}"
    );
    let entries: u32 = newer
        .query_row("SELECT count(*) FROM entries", [], |row| row.get(0))
        .unwrap();
    assert_eq!(entries, 0);
}

#[tokio::test]
async fn what_is_no_ledger_is_refused_and_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    let notes = "this is not a database, it is somebody's notes. ".repeat(100);
    std::fs::write(&text, &notes).unwrap();
    let error = SqliteStore::open(&text).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&text).unwrap(), notes);

    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other)
        .unwrap()
        .execute_batch("CREATE TABLE theirs (x)")
        .unwrap();
    let error = SqliteStore::open(&other).unwrap_err();
    assert!(
        error.to_string().contains("the database of another program"),
        "{error}"
    );
}

#[tokio::test]
async fn a_ledger_without_a_revision_is_refused_because_no_commit_could_see_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::open(&path).unwrap();
    let revision = load(&store).await.revision;
    let damage = rusqlite::Connection::open(&path).unwrap();
    damage.execute_batch("DELETE FROM ledger").unwrap();
    for error in [
        store.load(None).await.unwrap_err(),
        store.commit(&revision, &[]).await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_ledger_that_was_replaced_while_open_is_not_used_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::open(&path).unwrap();
    let revision = load(&store).await.revision;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let second = SqliteStore::open(&path).unwrap();
    load(&second).await;
    let error = store
        .commit(&revision, &[Change::Put(entry("a").await)])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("was deleted or replaced"), "{error}");
}

#[test]
fn the_directory_of_a_new_ledger_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("a/ledger.db")).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("a")), 0o700);
    assert_eq!(mode(store.path()), 0o600);
}

/// Counts commits.
struct Counting(MemoryStore, Arc<AtomicU32>);

#[async_trait]
impl LedgerStore for Counting {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.0.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        self.0.commit(basis, changes).await
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_their_writes() {
    let topology = Topology::pod64();
    let commits = Arc::new(AtomicU32::new(0));
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    let store = Counting(MemoryStore::new(), Arc::clone(&commits));
    let ledger = Ledger::new(pool, store, options(&topology));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..64 {
        let ledger = ledger.clone();
        clients.spawn(async move {
            let name = format!("client{number}");
            ledger
                .ensure_active(request(&name, 1), &mut |_| {})
                .await
                .unwrap();
            ledger.release(&id(&name), &owner(&name), None).await.unwrap();
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    // Four transitions for each of 64 clients, one after the other, would be 256.
    let commits = commits.load(Ordering::Relaxed);
    assert!(commits < 32, "{commits} commits");
    assert!(ledger.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_in_the_middle_of_a_write_takes_nobody_with_it() {
    let topology = Topology::pod64();
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    let store = Counting(MemoryStore::new(), Arc::default());
    let ledger = Ledger::new(pool, store, options(&topology));
    let leader = {
        let ledger = ledger.clone();
        tokio::spawn(async move { ledger.ensure(request("leader", 1)).await })
    };
    let follower = {
        let ledger = ledger.clone();
        tokio::spawn(async move { ledger.ensure_active(request("follower", 1), &mut |_| {}).await })
    };
    tokio::time::sleep(std::time::Duration::from_millis(4)).await;
    leader.abort();
    follower.await.unwrap().unwrap();
    let entries = ledger.list().await.unwrap();
    let active = entries
        .iter()
        .filter(|entry| entry.state == EntryState::Active)
        .count();
    assert_eq!(active, 1);
}
