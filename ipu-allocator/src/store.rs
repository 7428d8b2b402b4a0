//! The storage interface, and the two stores of this crate.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;

use async_trait::async_trait;
use ipu_core::allocator::{Change, State, UsageRecord};
use ipu_core::{BootTime, Timestamp};

use crate::usage::UsagePosition;

pub use memory::MemoryStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// The identity of a recorded state: opaque, assigned by the store, compared only for equality.
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

/// The recorded state, as a process that takes over finds it.
#[derive(Clone, Debug)]
pub struct Record {
    /// The revision, a new one.
    pub revision: Revision,
    /// The state. If the record may be an old copy that was put back, the store has marked its entries by
    /// [`State::as_copy`], in the write of the new revision: what it alone claims is not acted upon before
    /// the owner was heard.
    pub state: State,
}

/// The error of a store operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process wrote, or it is not known whether the changes were written. This process must end.
    #[error("the record may no longer be at revision {basis}: another process took over, or a write failed")]
    Conflict {
        /// The revision on which the changes are based.
        basis: Revision,
    },
    /// The stored data is not a record of this program, or is damaged. Nothing was written.
    #[error("{what} is not a readable ledger: {detail}")]
    Corrupt {
        /// The file or object.
        what: String,
        /// The defect.
        detail: String,
    },
    /// The location is not suitable.
    #[error("the ledger cannot be kept in {path}: {rule}")]
    InvalidLocation {
        /// The rejected path.
        path: String,
        /// The violated rule, and its fix.
        rule: String,
    },
    /// The store is full. Nothing was written.
    #[error("the ledger is full: {detail}")]
    Full {
        /// The usage of the store, and the fix.
        detail: String,
    },
    /// The store is unavailable. Nothing was written.
    #[error("cannot {operation} the ledger: {detail}")]
    Unavailable {
        /// The failed operation, a verb such as `read` or `write`.
        operation: &'static str,
        /// The error of the system.
        detail: String,
    },
}

/// Fill of a store with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFill {
    /// Bytes in use, including those that are reserved for the growth of existing entries.
    pub bytes: usize,
    /// Number of bytes from which new requests are refused.
    pub limit: usize,
}

impl StoreFill {
    /// Creates a fill.
    #[must_use]
    pub const fn new(bytes: usize, limit: usize) -> Self {
        Self { bytes, limit }
    }
}

/// A store that keeps the record for one process at a time.
///
/// Safety depends on two promises. [`open`](Self::open) ends with a new revision, so that every later commit
/// of a predecessor conflicts. [`commit`](Self::commit) is atomic, durable when it returns, and refused
/// unless the record is still at `basis`.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Waits until this process may be the only writer, and returns the record at a new revision.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the caller may try again.
    async fn open(&self) -> Result<Record, StoreError>;

    /// Writes all `changes` in their order and all `usage`, or nothing. Returns the new revision.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if the record is no longer at `basis`, or if it is not known whether the
    /// changes were written. After any other error nothing was written.
    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError>;

    /// Returns at most `limit` records of holds that ended at `since` or later, from the one after `after`
    /// on, in a stable order.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError>;

    /// Returns the time until which this process is certainly the only one that answers; unlimited if none.
    fn leads_until(&self) -> Option<BootTime> {
        None
    }

    /// Returns the fill of the store; none if it has no limit of its own.
    fn fill(&self) -> Option<StoreFill> {
        None
    }

    /// Lets another process take over at once. Called when the allocator ends.
    async fn close(&self) {}
}
