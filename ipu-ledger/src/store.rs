//! Where the ledger is kept: one trait, and the two stores of this crate.

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

/// Which state of the ledger: opaque, made by the store, only compared for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// The revision that the store calls `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What the store calls it.
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

/// All of the ledger at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Which.
    pub revision: Revision,
    /// The entries, in any order, each id once.
    pub entries: Vec<Entry>,
    /// The cordons, in any order, each id once.
    pub cordons: Vec<Cordon>,
}

/// The turn to write, among processes that share a store. It ends when it is dropped.
#[derive(Default)]
pub struct WriteLock(Option<Box<dyn Any + Send>>);

impl WriteLock {
    /// A turn that lasts until `guard` is dropped.
    #[must_use]
    pub fn held_by(guard: impl Any + Send) -> Self {
        Self(Some(Box::new(guard)))
    }
}

impl fmt::Debug for WriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.0.is_some()).finish()
    }
}

/// Why a store did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else wrote first. Load and try again.
    #[error("the ledger is no longer at revision {basis}")]
    Conflict {
        /// The revision that the changes were made for.
        basis: Revision,
    },
    /// The ledger was written by a build that this one does not understand. Nothing was written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// What is stored is not a ledger, or a damaged one. Nothing was written.
    #[error("{what} is not a ledger that can be read: {detail}")]
    Corrupt {
        /// The file or object.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The ledger must not be kept there.
    #[error("the ledger cannot be kept in {path}: {rule}")]
    Place {
        /// Where it was to be.
        path: String,
        /// The rule that this breaks, and what to do.
        rule: String,
    },
    /// The store has no room for more. What holds or releases is still taken.
    #[error("the ledger is full: {detail}")]
    Full {
        /// How full, and what to do.
        detail: String,
    },
    /// The store cannot be reached, or did not answer. Whether the changes were written is not known.
    #[error("{step} the ledger: {detail}")]
    Unavailable {
        /// What was being done, such as `read` or `write`.
        step: &'static str,
        /// What the system says.
        detail: String,
    },
}

/// A place that keeps the ledger.
///
/// Safety rests on [`commit`](Self::commit) alone. It has to be atomic, durable when it answers, and refused unless the
/// ledger is still at `basis`; then any number of processes may share the store. `ledger_store_suite` of `ipu-testkit`
/// proves a store in one line.
#[async_trait]
pub trait LedgerStore: Send + Sync + 'static {
    /// The ledger as it is now; `None` if it is still at `newer_than`. A store that was never written has a revision too.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; of a ledger of another format nothing is answered.
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError>;

    /// Writes all of `changes`, in their order, or none, and answers the new revision: one that never was before, also if
    /// the content was.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the ledger is not at `basis` any more.
    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError>;

    /// Waits until it is this process's turn to load and commit, so that several processes do not starve one another.
    /// A store that need not care answers at once.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    async fn turn(&self) -> Result<WriteLock, StoreError> {
        Ok(WriteLock::default())
    }
}
