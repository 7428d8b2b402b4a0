//! A ledger in one SQLite file that several processes of a host share.
//!
//! One row per entry, one per cordon and one for the revision; WAL, every commit synced. Processes lock a
//! file beside it with flock(2), because SQLite's own lock is unfair: of sixteen processes some starved for
//! seconds. The compare-and-swap is in the transaction itself; the lock only provides fairness.

mod filesystem;
mod usage;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Change, Cordon, Entry, FormatError, check_format};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use rustix::fs::FlockOperation;

use super::{LedgerStore, Revision, Snapshot, StoreError, WriteLock};
use crate::codec::{DecodeError, decode, decode_cordon, encode, encode_cordon};

/// "IPUL": identifies an SQLite file as a ledger.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"IPUL");

/// Time that SQLite waits for a process that does not use the lock file, such as the `sqlite3` tool.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A ledger in an SQLite file. Clones share the connection.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    lock_file: File,
    connection: Mutex<Connection>,
    /// Device and inode of the open file.
    identity: (u64, u64),
}

impl SqliteStore {
    /// Opens the ledger at `path`, and creates it if it does not exist. A missing directory is created with
    /// access for its owner only. Blocks for a moment.
    ///
    /// # Errors
    ///
    /// [`StoreError::InvalidLocation`] on a network file system, [`StoreError::Format`] for a ledger of a
    /// newer build, [`StoreError::Corrupt`] for a file that is no ledger. Nothing is written in these cases.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = filesystem::prepare(path.as_ref())?;
        let lock_file = private_file(&lock_path(&path))?;
        rustix::fs::flock(&lock_file, FlockOperation::LockExclusive)
            .map_err(|error| unavailable("lock", &error))?;
        let file = private_file(&path)?;
        let opened = file.metadata().map_err(|error| unavailable("open", &error))?;
        let connection = open(&path);
        rustix::fs::flock(&lock_file, FlockOperation::Unlock)
            .map_err(|error| unavailable("unlock", &error))?;
        Ok(Self {
            shared: Arc::new(Shared {
                identity: (opened.dev(), opened.ino()),
                connection: Mutex::new(connection?),
                lock_file,
                path,
            }),
        })
    }

    /// Returns the path of the ledger.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Runs `work` on a thread that may block.
    async fn on_thread<T: Send + 'static>(
        &self,
        step: &'static str,
        work: impl FnOnce(&Shared, &mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let done = tokio::task::spawn_blocking(move || {
            shared.check_identity()?;
            work(&shared, &mut shared.connection())
        });
        done.await.map_err(|error| unavailable(step, &error))?
    }
}

impl Shared {
    // A transaction that panics is rolled back, so the content of a poisoned lock is consistent.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the ledger is at `revision`, without blocking: one row, read from memory unless
    /// another process wrote. Errors count as no, and the following full load reports them.
    fn is_at(&self, current: &Revision) -> bool {
        let Ok(mut connection) = self.connection.try_lock() else {
            return false;
        };
        if self.check_identity().is_err() {
            return false;
        }
        let Ok(transaction) = connection.transaction() else {
            return false;
        };
        revision(&transaction).is_ok_and(|now| now == *current)
    }

    /// Checks that the file was not deleted or replaced: two processes must not use two files of one name.
    fn check_identity(&self) -> Result<(), StoreError> {
        let same = std::fs::metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity);
        if same {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            step: "use",
            detail: format!(
                "{} was deleted or replaced while it was open; restart",
                self.path.display()
            ),
        })
    }

    fn to_store_error(&self, step: &'static str, error: &rusqlite::Error) -> StoreError {
        // Without a revision no commit could detect an earlier one.
        if matches!(error, rusqlite::Error::QueryReturnedNoRows) {
            return self.corrupt("it has no revision");
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => self.corrupt(&error.to_string()),
            Some(ErrorCode::DiskFull) => StoreError::Full {
                detail: format!("no space is left for {}", self.path.display()),
            },
            _ => unavailable(step, error),
        }
    }

    fn corrupt(&self, detail: &str) -> StoreError {
        corrupt(&self.path, detail)
    }
}

#[async_trait]
impl LedgerStore for SqliteStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        if let Some(current) = newer_than
            && self.shared.is_at(current)
        {
            return Ok(None);
        }
        let newer_than = newer_than.cloned();
        self.on_thread("read", move |shared, connection| {
            let to_store_error = |error: rusqlite::Error| shared.to_store_error("read", &error);
            let transaction = connection.transaction().map_err(to_store_error)?;
            let revision = revision(&transaction).map_err(to_store_error)?;
            if newer_than.as_ref() == Some(&revision) {
                return Ok(None);
            }
            check(&transaction, shared)?;
            let rows = |query: &str| -> Result<Vec<String>, StoreError> {
                transaction
                    .prepare_cached(query)
                    .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
                    .map_err(to_store_error)
            };
            let (entries, cordons) = (
                rows("SELECT entry FROM entries")?,
                rows("SELECT exclusion FROM exclusions")?,
            );
            let read = |error| undecodable(shared, error);
            let entries: Result<Vec<Entry>, _> = entries.iter().map(|row| decode(row)).collect();
            let cordons: Result<Vec<Cordon>, _> = cordons.iter().map(|row| decode_cordon(row)).collect();
            Ok(Some(Snapshot {
                revision,
                entries: entries.map_err(read)?,
                cordons: cordons.map_err(read)?,
            }))
        })
        .await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let (basis, changes) = (basis.clone(), changes.to_vec());
        self.on_thread("write", move |shared, connection| {
            let to_store_error = |error: rusqlite::Error| shared.to_store_error("write", &error);
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(to_store_error)?;
            if revision(&transaction).map_err(to_store_error)? != basis {
                return Err(StoreError::Conflict { basis });
            }
            check(&transaction, shared)?;
            write(&transaction, &changes).map_err(to_store_error)?;
            let revision = revision(&transaction).map_err(to_store_error)?;
            transaction.commit().map_err(to_store_error)?;
            Ok(revision)
        })
        .await
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        let shared = Arc::clone(&self.shared);
        // The lock is mostly free, and then no other thread is needed.
        match rustix::fs::flock(&shared.lock_file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(WriteLock::held_by(WriteGuard(shared))),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(unavailable("lock", &error)),
        }
        let taken = tokio::task::spawn_blocking(move || {
            rustix::fs::flock(&shared.lock_file, FlockOperation::LockExclusive)
                .map_err(|error| unavailable("lock", &error))?;
            Ok(WriteLock::held_by(WriteGuard(shared)))
        });
        taken.await.map_err(|error| unavailable("lock", &error))?
    }
}

/// Releases the lock when dropped.
struct WriteGuard(Arc<Shared>);

impl Drop for WriteGuard {
    fn drop(&mut self) {
        // The lock ends with the file in any case.
        let _ = rustix::fs::flock(&self.0.lock_file, FlockOperation::Unlock);
    }
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    let to_store_error = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => corrupt(path, &error.to_string()),
        _ => unavailable("open", &error),
    };
    let mut connection = Connection::open(path).map_err(to_store_error)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(to_store_error)?;
    let application: i32 = connection
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(to_store_error)?;
    let version: u32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(to_store_error)?;
    let tables: u32 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(to_store_error)?;
    match (application, tables) {
        (APPLICATION_ID, _) => check_format(version)?,
        (0, 0) => {}
        _ => return Err(corrupt(path, "it is a database of another program")),
    }
    connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))
        .and_then(|_| connection.pragma_update(None, "synchronous", "FULL"))
        .map_err(to_store_error)?;
    let exists = |query: &str| connection.prepare(query).is_ok();
    let is_complete =
        || exists("SELECT exclusion FROM exclusions LIMIT 0") && exists("SELECT record FROM usage LIMIT 0");
    if application == 0 || !is_complete() {
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(to_store_error)?;
        if application == 0 {
            create(&transaction).map_err(to_store_error)?;
        }
        transaction
            .execute_batch(FORMAT_2_TABLES)
            .and_then(|()| transaction.execute_batch(usage::TABLE))
            .map_err(to_store_error)?;
        transaction.commit().map_err(to_store_error)?;
    }
    Ok(connection)
}

/// The tables of format 2. The previous build ignores them. The ledger keeps format 1, and the previous build
/// can use it, as long as these tables are empty.
const FORMAT_2_TABLES: &str = "CREATE TABLE IF NOT EXISTS exclusions (id TEXT PRIMARY KEY, exclusion TEXT NOT NULL) STRICT, WITHOUT ROWID;";

fn create(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", Entry::FORMAT)?;
    transaction.execute_batch(
        "CREATE TABLE ledger (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL) STRICT;
         INSERT INTO ledger VALUES (1, 0);
         CREATE TABLE entries (id TEXT PRIMARY KEY, entry TEXT NOT NULL) STRICT, WITHOUT ROWID;",
    )
}

/// Checks the format again: a newer build may have written since the file was opened.
fn check(transaction: &Transaction<'_>, shared: &Shared) -> Result<(), StoreError> {
    let version: u32 = transaction
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|error| shared.to_store_error("read", &error))?;
    check_format(version).map_err(|error: FormatError| error.into())
}

fn revision(transaction: &Transaction<'_>) -> rusqlite::Result<Revision> {
    let number: i64 = transaction
        .prepare_cached("SELECT revision FROM ledger")?
        .query_row([], |row| row.get(0))?;
    Ok(Revision::new(number.to_string()))
}

fn write(transaction: &Transaction<'_>, changes: &[Change]) -> rusqlite::Result<()> {
    let mut cordons = false;
    for change in changes {
        match change {
            Change::Put(entry) => transaction
                .prepare_cached(
                    "INSERT INTO entries VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET entry = ?2",
                )?
                .execute((entry.id.as_str(), encode(entry)))?,
            Change::Remove(id) => transaction
                .prepare_cached("DELETE FROM entries WHERE id = ?1")?
                .execute([id.as_str()])?,
            Change::Cordon(cordon) => {
                cordons = true;
                transaction
                    .prepare_cached(
                        "INSERT INTO exclusions VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET exclusion = ?2",
                    )?
                    .execute((cordon.id.as_str(), encode_cordon(cordon)))?
            }
            Change::Lift(id) => {
                cordons = true;
                transaction
                    .prepare_cached("DELETE FROM exclusions WHERE id = ?1")?
                    .execute([id.as_str()])?
            }
        };
    }
    if cordons {
        // A build without support for cordons must not place partitions on cordoned hardware.
        let left: bool =
            transaction.query_row("SELECT EXISTS (SELECT 1 FROM exclusions)", [], |row| row.get(0))?;
        let format = if left { Cordon::FORMAT } else { Entry::FORMAT };
        transaction.pragma_update(None, "user_version", format)?;
    }
    transaction
        .prepare_cached("UPDATE ledger SET revision = revision + 1")?
        .execute([])?;
    Ok(())
}

fn undecodable(shared: &Shared, error: DecodeError) -> StoreError {
    match error {
        DecodeError::Format(format) => StoreError::Format(format),
        DecodeError::Damaged(source) => shared.corrupt(&source.to_string()),
    }
}

/// Returns the path of the lock file.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
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

fn corrupt(path: &Path, detail: &str) -> StoreError {
    StoreError::Corrupt {
        what: path.display().to_string(),
        detail: detail.into(),
    }
}

fn unavailable(step: &'static str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable {
        step,
        detail: error.to_string(),
    }
}
