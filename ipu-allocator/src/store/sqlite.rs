//! The record in one SQLite file, for one process of a host at a time.
//!
//! One row per entry, one per cordon and one for the revision; WAL, every commit synced. A process holds a
//! flock(2) on a file next to the record for as long as it runs. That file also has the last revision: a
//! record with a lower one, or without that file, is an old copy.

mod filesystem;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use ipu_core::allocator::{Change, Cordon, Entry, State, UsageRecord};
use ipu_core::{BootTime, Timestamp};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Record, Revision, Store, StoreError};
use crate::usage::UsagePosition;

/// "IPUA": identifies an SQLite file as a record of this crate.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"IPUA");

/// Time that SQLite waits for another program, such as the `sqlite3` tool.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of attempts to get the lock that another process holds.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

const TABLES: &str = "
    CREATE TABLE ledger (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL) STRICT;
    INSERT INTO ledger VALUES (1, 0);
    CREATE TABLE entries (id TEXT PRIMARY KEY, entry TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE cordons (id TEXT PRIMARY KEY, cordon TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE usage (released_at INTEGER, id TEXT, ticket INTEGER, held_since INTEGER, record TEXT NOT NULL,
        PRIMARY KEY (released_at, id, ticket, held_since)) STRICT, WITHOUT ROWID;";

/// A record in an SQLite file. Each allocator needs a store of its own, because the end of an allocator
/// closes it.
///
/// ```
/// use ipu_allocator::{SqliteStore, Store as _};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let directory = tempfile::tempdir()?;
/// let store = SqliteStore::at(directory.path().join("ledger.db"))?;
/// let record = store.open().await?;
/// assert_eq!(record.state.entries().count(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The path by which the embedder named it, which may be a link.
    given: PathBuf,
    lock_path: PathBuf,
    lock_file: File,
    /// Held by the thread that opens the file.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// A transaction that panics is rolled back.
    connection: Mutex<Option<Connection>>,
    /// Device and inode of the open file.
    identity: Mutex<Option<(u64, u64)>>,
}

impl SqliteStore {
    /// Names the record at `path`, which is created when it is opened. A missing directory is created with
    /// access for its owner only.
    ///
    /// # Errors
    ///
    /// [`StoreError::InvalidLocation`] on a network file system.
    pub fn at(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let given = path.as_ref();
        let path = filesystem::prepare(given)?;
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        Ok(Self {
            shared: Arc::new(Shared {
                lock_file: private_file(&lock_path)?,
                lock_path,
                given: std::path::absolute(given).unwrap_or_else(|_| path.clone()),
                opening: Arc::default(),
                connection: Mutex::new(None),
                identity: Mutex::new(None),
                path,
            }),
        })
    }

    /// Runs `work` on a thread that may block.
    async fn on_thread<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Shared, &mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = shared.connection.lock();
            let Some(connection) = &mut *connection else {
                return Err(unavailable(operation, &"it is not open"));
            };
            shared.check_identity()?;
            work(&shared, connection)
        });
        // After a panic, it is not known what was written.
        done.await.map_err(|_| StoreError::Conflict {
            basis: Revision::new(""),
        })?
    }
}

impl Shared {
    /// Checks that neither the file nor its lock was deleted or replaced: two processes must not use two
    /// files of one name.
    fn check_identity(&self) -> Result<(), StoreError> {
        let Some(identity) = *self.identity.lock() else {
            return Ok(());
        };
        let is_same = |path: &Path, (device, inode)| {
            std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (device, inode))
        };
        let lock = self.lock_file.metadata().map(|lock| (lock.dev(), lock.ino()));
        let is_named = is_same(&self.path, identity) && is_same(&self.given, identity);
        if is_named && lock.is_ok_and(|lock| is_same(&self.lock_path, lock)) {
            return Ok(());
        }
        // The present file may have another writer.
        let basis = Revision::new("of a file that was deleted or replaced");
        Err(StoreError::Conflict { basis })
    }

    fn to_store_error(&self, operation: &'static str, error: &rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => self.corrupt(&error.to_string()),
            // The change may be in the log, although it was not synced.
            Some(ErrorCode::SystemIoFailure) if operation == "write" => {
                tracing::error!(%error, "the disk failed: it is not known what was written");
                let basis = Revision::new("of a failed write");
                StoreError::Conflict { basis }
            }
            // The path is of no use to clients.
            Some(ErrorCode::DiskFull) => StoreError::Full {
                detail: "no space is left on its disk; free some".into(),
            },
            _ if matches!(error, rusqlite::Error::QueryReturnedNoRows) => self.corrupt("it has no revision"),
            _ => unavailable(operation, error),
        }
    }

    fn corrupt(&self, detail: &str) -> StoreError {
        StoreError::Corrupt {
            what: self.path.display().to_string(),
            detail: detail.into(),
        }
    }

    /// Opens the file, and returns the record at a new revision. The caller holds the lock.
    fn open(&self) -> Result<Record, StoreError> {
        let to_store_error = |error: rusqlite::Error| self.to_store_error("open", &error);
        let opened = private_file(&self.path)?.metadata();
        let opened = opened.map_err(|error| unavailable("open", &error))?;
        let mut connection = Connection::open(&self.path).map_err(to_store_error)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(to_store_error)?;
        let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let application = number("application_id").map_err(to_store_error)?;
        let count = "SELECT count(*) FROM sqlite_master";
        let tables: u32 = connection
            .query_row(count, [], |row| row.get(0))
            .map_err(to_store_error)?;
        if application != APPLICATION_ID && (application, tables) != (0, 0) {
            return Err(self.corrupt("it is a database of another program or an older version; move it away"));
        }
        connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
            .and_then(|_| connection.pragma_update(None, "synchronous", "FULL"))
            .map_err(to_store_error)?;
        let record = self.take_over(&mut connection, tables == 0)?;
        *self.identity.lock() = Some((opened.dev(), opened.ino()));
        *self.connection.lock() = Some(connection);
        Ok(record)
    }

    fn take_over(&self, connection: &mut Connection, is_new: bool) -> Result<Record, StoreError> {
        let to_store_error = |error: rusqlite::Error| self.to_store_error("open", &error);
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(to_store_error)?;
        if is_new {
            transaction
                .pragma_update(None, "application_id", APPLICATION_ID)
                .and_then(|()| transaction.execute_batch(TABLES))
                .map_err(to_store_error)?;
        }
        let found = revision(&transaction).map_err(to_store_error)?;
        let last = self.last_revision();
        let rows = |query: &str| -> Result<Vec<String>, StoreError> {
            transaction
                .prepare(query)
                .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
                .map_err(to_store_error)
        };
        let entries: Vec<Entry> = self.decode(&rows("SELECT entry FROM entries")?)?;
        let cordons: Vec<Cordon> = self.decode(&rows("SELECT cordon FROM cordons")?)?;
        let mut state = State::new(entries, cordons);
        let mut marks = Vec::new();
        if !is_new && last.is_none_or(|last| last > found) {
            marks = state.as_copy();
            marks.iter().for_each(|mark| state.apply(mark));
            tracing::warn!("the ledger is an old copy: its entries are kept until their owners are heard");
        }
        // Higher than any that a predecessor used.
        let next = found.max(last.unwrap_or(0)).saturating_add(1);
        write(&transaction, &marks, &[])
            .and_then(|()| transaction.execute("UPDATE ledger SET revision = ?1", [next]))
            .map_err(to_store_error)?;
        transaction.commit().map_err(to_store_error)?;
        self.note_revision(next)?;
        // Without it, the record looks like an old copy after a power failure.
        let synced = self.lock_file.sync_all();
        synced.map_err(|error| unavailable("write", &error))?;
        Ok(Record {
            revision: Revision::new(next.to_string()),
            state,
        })
    }

    /// Returns the last revision of the lock file; none if it is a copy of another one.
    fn last_revision(&self) -> Option<i64> {
        let mut contents = [0; 32];
        self.lock_file.read_exact_at(&mut contents, 0).ok()?;
        let (revision, birth) = contents.split_at(8);
        let is_own = birth == self.lock_birth().ok()?;
        is_own.then_some(i64::from_be_bytes(revision.try_into().ok()?))
    }

    fn note_revision(&self, revision: i64) -> Result<(), StoreError> {
        let write = || {
            let contents = [&revision.to_be_bytes()[..], &self.lock_birth()?].concat();
            self.lock_file.write_all_at(&contents, 0)
        };
        write().map_err(|error: std::io::Error| unavailable("write", &error))
    }

    /// Returns the inode of the lock file and the time of its creation, which a copy of it does not have.
    fn lock_birth(&self) -> std::io::Result<[u8; 24]> {
        let metadata = self.lock_file.metadata()?;
        let created = metadata.created().unwrap_or(SystemTime::UNIX_EPOCH);
        let created = created.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut birth = [0; 24];
        birth[..8].copy_from_slice(&metadata.ino().to_be_bytes());
        birth[8..].copy_from_slice(&created.as_nanos().to_be_bytes());
        Ok(birth)
    }

    fn decode<T: DeserializeOwned>(&self, rows: &[String]) -> Result<Vec<T>, StoreError> {
        let decoded: Result<Vec<T>, _> = rows.iter().map(|row| serde_json::from_str(row)).collect();
        decoded.map_err(|error| self.corrupt(&error.to_string()))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn open(&self) -> Result<Record, StoreError> {
        let operation = FlockOperation::NonBlockingLockExclusive;
        while let Err(error) = rustix::fs::flock(&self.shared.lock_file, operation) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(unavailable("lock", &error));
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
        let shared = Arc::clone(&self.shared);
        let opening = Arc::clone(&shared.opening).lock_owned().await;
        let opened = tokio::task::spawn_blocking(move || {
            let _opening = opening;
            shared.open()
        });
        opened.await.map_err(|error| unavailable("open", &error))?
    }

    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError> {
        let (basis, changes, usage) = (basis.clone(), changes.to_vec(), usage.to_vec());
        self.on_thread("write", move |shared, connection| {
            let to_store_error = |error: rusqlite::Error| shared.to_store_error("write", &error);
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(to_store_error)?;
            let found = revision(&transaction).map_err(to_store_error)?;
            if found.to_string() != basis.as_str() {
                return Err(StoreError::Conflict { basis });
            }
            let next = found.saturating_add(1);
            write(&transaction, &changes, &usage)
                .and_then(|()| transaction.execute("UPDATE ledger SET revision = ?1", [next]))
                .map_err(to_store_error)?;
            transaction.commit().map_err(to_store_error)?;
            // A lower number only hides that the record was replaced by an old copy.
            let _ = shared.note_revision(next);
            Ok(Revision::new(next.to_string()))
        })
        .await
    }

    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        const READ: &str = "SELECT record FROM usage
            WHERE released_at >= ?1 AND (released_at, id, ticket, held_since) > (?2, ?3, ?4, ?5)
            ORDER BY released_at, id, ticket, held_since LIMIT ?6";
        let after = after.map_or((-1, String::new(), 0, 0), |after| {
            let (released_at, held_since) = (to_sql(after.released_at), to_sql(after.held_since));
            (
                released_at,
                after.id.to_string(),
                to_sql_number(after.ticket),
                held_since,
            )
        });
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.on_thread("read", move |shared, connection| {
            let key = (to_sql(since), after.0, after.1, after.2, after.3, limit);
            let rows: Vec<String> = connection
                .prepare_cached(READ)
                .and_then(|mut query| query.query_map(key, |row| row.get(0))?.collect())
                .map_err(|error| shared.to_store_error("read", &error))?;
            shared.decode(&rows)
        })
        .await
    }

    fn leads_until(&self) -> Option<BootTime> {
        let is_own = self.shared.check_identity().is_ok();
        (!is_own).then(BootTime::default)
    }

    async fn close(&self) {
        // A thread that opens the file goes on even if the caller no longer waits.
        let _opened = self.shared.opening.lock().await;
        *self.shared.connection.lock() = None;
        *self.shared.identity.lock() = None;
        // The lock ends with the process in any case.
        let _ = rustix::fs::flock(&self.shared.lock_file, FlockOperation::Unlock);
    }
}

fn revision(transaction: &Transaction<'_>) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached("SELECT revision FROM ledger")?
        .query_row([], |row| row.get(0))
}

fn write(transaction: &Transaction<'_>, changes: &[Change], usage: &[UsageRecord]) -> rusqlite::Result<()> {
    for change in changes {
        match change {
            Change::Put(entry) => transaction
                .prepare_cached("INSERT OR REPLACE INTO entries VALUES (?1, ?2)")?
                .execute((entry.id.as_str(), encode(&**entry)))?,
            Change::Remove(id) => transaction
                .prepare_cached("DELETE FROM entries WHERE id = ?1")?
                .execute([id.as_str()])?,
            Change::Cordon(cordon) => transaction
                .prepare_cached("INSERT OR REPLACE INTO cordons VALUES (?1, ?2)")?
                .execute((cordon.id.as_str(), encode(&**cordon)))?,
            Change::Uncordon(id) => transaction
                .prepare_cached("DELETE FROM cordons WHERE id = ?1")?
                .execute([id.as_str()])?,
        };
    }
    for record in usage {
        let mut insert =
            transaction.prepare_cached("INSERT OR REPLACE INTO usage VALUES (?1, ?2, ?3, ?4, ?5)")?;
        let (released_at, held_since) = (to_sql(record.released_at), to_sql(record.held_since));
        let ticket = to_sql_number(record.ticket);
        insert.execute((
            released_at,
            record.id.as_str(),
            ticket,
            held_since,
            encode(record),
        ))?;
    }
    Ok(())
}

/// Returns the stored form of a value, which has string keys and finite numbers only: this cannot fail. If it
/// did, reading would return an error.
fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Converts to SQLite's integers; times beyond their range are clamped to the latest one.
fn to_sql(at: Timestamp) -> i64 {
    to_sql_number(at.as_millis())
}

fn to_sql_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn private_file(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|error| StoreError::InvalidLocation {
            path: path.display().to_string(),
            rule: error.to_string(),
        })
}

fn unavailable(operation: &'static str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable {
        operation,
        detail: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_commit_is_synced_to_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::at(directory.path().join("ledger.db")).unwrap();
        store.open().await.unwrap();
        let connection = store.shared.connection.lock();
        let setting = |name| {
            let connection = connection.as_ref().unwrap();
            connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0))
        };
        assert_eq!(setting("synchronous").unwrap(), 2.into(), "FULL");
        assert_eq!(setting("journal_mode").unwrap(), String::from("wal").into());
    }

    #[test]
    fn after_an_error_of_the_disk_it_is_not_known_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::at(directory.path().join("ledger.db")).unwrap();
        let error = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let written = |code| store.shared.to_store_error("write", &error(code));
        assert!(matches!(
            written(rusqlite::ffi::SQLITE_IOERR_FSYNC),
            StoreError::Conflict { .. }
        ));
        assert!(matches!(
            written(rusqlite::ffi::SQLITE_FULL),
            StoreError::Full { .. }
        ));
        assert!(matches!(
            written(rusqlite::ffi::SQLITE_BUSY),
            StoreError::Unavailable { .. }
        ));
        let failed_read = error(rusqlite::ffi::SQLITE_IOERR_READ);
        assert!(matches!(
            store.shared.to_store_error("read", &failed_read),
            StoreError::Unavailable { .. }
        ));
    }
}
