//! The storage interface of the ledger, and the two stores of this crate.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::any::Any;
use std::fmt;

use async_trait::async_trait;
use ipu_core::{Change, Cordon, Entry, FormatError};

pub use memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// The identity of a ledger state: opaque, assigned by the store, compared only for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// Creates the revision with the store's identifier `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the store's identifier of the revision.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The whole ledger at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision.
    pub revision: Revision,
    /// The entries, in any order, each id once.
    pub entries: Vec<Entry>,
    /// The cordons, in any order, each id once.
    pub cordons: Vec<Cordon>,
}

/// The write lock among processes that share a store. Dropping it releases the lock.
#[derive(Default)]
pub struct WriteLock(Option<Box<dyn Any + Send>>);

impl WriteLock {
    /// Creates a lock that is held until `guard` is dropped.
    #[must_use]
    pub fn held_by(guard: impl Any + Send) -> Self {
        Self(Some(Box::new(guard)))
    }
}

impl fmt::Debug for WriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteLock").field(&self.0.is_some()).finish()
    }
}

/// The error of a store operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process wrote first. Load and try again.
    #[error("the ledger is no longer at revision {basis}")]
    Conflict {
        /// The revision on which the changes are based.
        basis: Revision,
    },
    /// A build with an unknown format wrote the ledger. Nothing was written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The stored data is not a ledger, or is damaged. Nothing was written.
    #[error("{what} is not a readable ledger: {detail}")]
    Corrupt {
        /// The file or object.
        what: String,
        /// The defect.
        detail: String,
    },
    /// The location is not suitable for a ledger.
    #[error("the ledger cannot be kept in {path}: {rule}")]
    InvalidLocation {
        /// The rejected path.
        path: String,
        /// The violated rule, and its fix.
        rule: String,
    },
    /// The store is full. Transitions that need no more space, such as releases, still succeed.
    #[error("the ledger is full: {detail}")]
    Full {
        /// The usage of the store, and the fix.
        detail: String,
    },
    /// The store is unavailable or did not reply. The changes may or may not be written.
    #[error("{step} the ledger: {detail}")]
    Unavailable {
        /// The failed operation, such as `read` or `write`.
        step: &'static str,
        /// The error of the system.
        detail: String,
    },
}

/// A store that keeps the ledger.
///
/// Safety depends on [`commit`](Self::commit) alone. A commit must be atomic, durable when it returns, and
/// refused unless the ledger is still at `basis`. Then any number of processes may share the store.
/// `ledger_store_suite` of `ipu-testkit` tests a store with one call.
#[async_trait]
pub trait LedgerStore: Send + Sync + 'static {
    /// Returns the current ledger; `None` if it is still at `newer_than`. A store that was never written has
    /// a revision too.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; a ledger of another format returns no content.
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError>;

    /// Writes all `changes` in their order, or none. Returns the new revision, which is unique even if the
    /// content equals an earlier one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the ledger is no longer at `basis`.
    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError>;

    /// Waits for the write lock of this process, so that several processes do not starve one another while
    /// they load and commit. A store without contention returns at once.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    async fn lock(&self) -> Result<WriteLock, StoreError> {
        Ok(WriteLock::default())
    }
}
