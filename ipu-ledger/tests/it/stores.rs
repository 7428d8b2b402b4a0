//! The store suite for every store, and the specifics of SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use ipu_core::{FormatError, LedgerState, Topology};
use ipu_ledger::{
    Change, Cordon, CordonTarget, Entry, EntryState, Ledger, LedgerError, LedgerStore, MemoryStore, Revision,
    Snapshot, SqliteStore, StoreError, encode,
};
use ipu_testkit::{FakeController, ledger_store_suite};
use ipu_vipu_client::ControllerPool;

use crate::setup::{Fixture, all_dead, all_live, id, name, options, owner, request};

/// Returns an entry that a ledger created.
async fn entry(name: &str) -> Arc<Entry> {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture
        .ledger()
        .ensure_active(request(name, 1), &mut |_| {})
        .await
        .unwrap();
    Arc::new(fixture.ledger().get(&id(name)).await.unwrap().unwrap())
}

async fn load(store: &impl LedgerStore) -> Snapshot {
    store.load(None).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_memory_store_passes_the_store_suite() {
    ledger_store_suite(async |home| home.shared(MemoryStore::new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sqlite_store_passes_the_store_suite() {
    ledger_store_suite(async |home| SqliteStore::open(home.path().join("ledger.db")).unwrap()).await;
}

#[tokio::test]
async fn a_newer_ledger_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let store = SqliteStore::open(&path).unwrap();
    let revision = load(&store).await.revision;
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer
        .pragma_update(None, "user_version", LedgerState::FORMAT + 1)
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

/// The tables of the previous build.
const FORMAT_1_TABLES: &str =
    "CREATE TABLE ledger (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL) STRICT;
    INSERT INTO ledger VALUES (1, 41);
    CREATE TABLE entries (id TEXT PRIMARY KEY, entry TEXT NOT NULL) STRICT, WITHOUT ROWID;
    PRAGMA application_id = 0x4950554c;
    PRAGMA user_version = 1;";

#[tokio::test]
async fn a_ledger_of_the_previous_build_stays_readable_for_it_until_hardware_is_cordoned() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let before = rusqlite::Connection::open(&path).unwrap();
    before.execute_batch(FORMAT_1_TABLES).unwrap();
    let old = entry("a").await;
    before
        .execute(
            "INSERT INTO entries VALUES (?1, ?2)",
            (old.id.as_str(), encode(&old)),
        )
        .unwrap();
    let version = || -> u32 {
        before
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap()
    };

    let store = SqliteStore::open(&path).unwrap();
    let found = load(&store).await;
    assert_eq!(found.entries, [Entry::clone(&old)]);
    assert_eq!(found.cordons, []);
    let revision = store
        .commit(&found.revision, &[Change::Put(entry("b").await)])
        .await
        .unwrap();
    assert_eq!(version(), 1);
    let entries: Vec<String> = before
        .prepare("SELECT entry FROM entries")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    assert!(
        entries.iter().all(|entry| entry.starts_with("{\"format\":1,")),
        "{entries:?}"
    );

    let cordon = Cordon::new(
        "x".parse().unwrap(),
        name("c"),
        CordonTarget::Controller,
        "admin".parse().unwrap(),
        "a test",
    );
    let change = Change::Cordon(Arc::new(cordon.clone()));
    let revision = store.commit(&revision, &[change]).await.unwrap();
    // The previous build has no cordons, and refuses every number above 1.
    assert_eq!(version(), 2);
    let found = load(&SqliteStore::open(&path).unwrap()).await;
    assert_eq!(found.cordons.first(), Some(&cordon));
    store.commit(&revision, &[Change::Lift(cordon.id)]).await.unwrap();
    assert_eq!(version(), 1);
}

#[tokio::test]
async fn a_file_that_is_not_a_ledger_is_refused_and_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    let notes = "this is not a database but a text file. ".repeat(100);
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
        error.to_string().contains("a database of another program"),
        "{error}"
    );
}

#[tokio::test]
async fn a_ledger_without_a_revision_is_refused() {
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
async fn a_ledger_that_was_replaced_while_open_is_no_longer_used() {
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
fn the_directory_of_a_new_ledger_is_accessible_only_to_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("a/ledger.db")).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("a")), 0o700);
    assert_eq!(mode(store.path()), 0o600);
}

/// A store that counts commits.
struct CountingStore(MemoryStore, Arc<AtomicU32>);

#[async_trait]
impl LedgerStore for CountingStore {
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
    let store = CountingStore(MemoryStore::new(), Arc::clone(&commits));
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
    // Four sequential transitions for each of 64 clients would be 256 commits.
    let commits = commits.load(Ordering::Relaxed);
    assert!(commits < 32, "{commits} commits");
    assert!(ledger.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_actions_of_a_repair_share_their_writes() {
    let topology = Topology::pod64();
    let commits = Arc::new(AtomicU32::new(0));
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    let store = CountingStore(MemoryStore::new(), Arc::clone(&commits));
    let ledger = Ledger::new(pool, store, options(&topology));
    for number in 0..64 {
        let wanted = request(&format!("client{number}"), 1);
        ledger.ensure_active(wanted, &mut |_| {}).await.unwrap();
    }
    commits.store(0, Ordering::Relaxed);
    // The IPUs of each entry are recorded with its intent: nothing is left to note.
    let report = ledger.repair(&all_live).await.unwrap();
    assert_eq!((report.actions.len(), commits.load(Ordering::Relaxed)), (0, 0));
    let entries = ledger.list().await.unwrap();
    assert!(entries.iter().all(|entry| entry.places.len() == 1), "{entries:?}");
    // All are released, in three steps each.
    ledger.repair(&all_dead).await.unwrap();
    let released = commits.load(Ordering::Relaxed);
    assert!(released < 24, "{released} commits");
    assert!(ledger.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_dropped_during_a_write_does_not_affect_other_callers() {
    let topology = Topology::pod64();
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    let store = CountingStore(MemoryStore::new(), Arc::default());
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

/// A store with capacity for two entries.
struct FullStore(MemoryStore);

#[async_trait]
impl LedgerStore for FullStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.0.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let before = load(&self.0).await.entries;
        let is_new = |change: &&Change| match change {
            Change::Put(entry) => before.iter().all(|other| other.id != entry.id),
            _ => false,
        };
        if before.len() + changes.iter().filter(is_new).count() > 2 {
            let detail = "two entries".into();
            return Err(StoreError::Full { detail });
        }
        self.0.commit(basis, changes).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_store_refuses_new_requests_but_no_concurrent_releases() {
    let topology = Topology::pod64();
    let pool = ControllerPool::single(name("fake"), Arc::new(FakeController::new(&topology, 1)));
    let ledger = Ledger::new(pool, FullStore(MemoryStore::new()), options(&topology));
    for job in ["a", "b"] {
        ledger.ensure_active(request(job, 1), &mut |_| {}).await.unwrap();
    }
    let mut new = tokio::task::JoinSet::new();
    let mut released = tokio::task::JoinSet::new();
    for number in 0..20 {
        let client = ledger.clone();
        new.spawn(async move { client.ensure(request(&format!("new{number}"), 1)).await });
        if let Some(job) = ["a", "b"].get(number / 10).filter(|_| number % 10 == 5) {
            let releasing = ledger.clone();
            released.spawn(async move { releasing.release(&id(job), &owner(job), None).await });
        }
    }
    for release in released.join_all().await {
        assert_eq!(release.unwrap(), ipu_ledger::Released::Removed);
    }
    let refused = new.join_all().await.into_iter().filter(Result::is_err);
    for error in refused.map(Result::unwrap_err) {
        let full = matches!(&error, LedgerError::Store(store) if matches!(**store, StoreError::Full { .. }));
        assert!(full, "{error:?}");
    }
    assert!(ledger.get(&id("a")).await.unwrap().is_none());
}
