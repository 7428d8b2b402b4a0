//! Changes that a store has to write, and the check of the stored format.

use alloc::sync::Arc;

use crate::ids::{CordonId, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::cordon::Cordon;
use crate::ledger::entry::Entry;

/// One change of the ledger, to be written by a store. Not `non_exhaustive`: a store that does not handle a
/// kind of change must not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds this entry, or replaces the one of the same id.
    Put(Arc<Entry>),
    /// Removes the entry.
    Remove(PartitionId),
    /// Adds this cordon, or replaces the one of the same id.
    Cordon(Arc<Cordon>),
    /// Removes the cordon.
    Lift(CordonId),
}

/// The key of a change. Of several changes of one key the last counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKey {
    /// The entry of this id.
    Partition(PartitionId),
    /// The cordon of this id.
    Cordon(CordonId),
}

impl Change {
    /// Returns the key of the changed record.
    #[must_use]
    pub fn key(&self) -> ChangeKey {
        match self {
            Self::Put(entry) => ChangeKey::Partition(entry.id.clone()),
            Self::Remove(id) => ChangeKey::Partition(id.clone()),
            Self::Cordon(cordon) => ChangeKey::Cordon(cordon.id.clone()),
            Self::Lift(id) => ChangeKey::Cordon(id.clone()),
        }
    }

    /// Returns the id of the changed entry; none if the change is not about an entry.
    #[must_use]
    pub fn partition(&self) -> Option<&PartitionId> {
        match self {
            Self::Put(entry) => Some(&entry.id),
            Self::Remove(id) => Some(id),
            Self::Cordon(_) | Self::Lift(_) => None,
        }
    }
}

impl LedgerState {
    /// The newest version of the stored form that this build supports. A ledger without cordons has version
    /// 1, so that the previous build can continue with it; cordons came with version 2, preemption with
    /// version 3, releases without force with version 4.
    pub const FORMAT: u32 = Entry::UNFORCED_FORMAT;
    /// The oldest version of the stored form that this build reads.
    pub const OLDEST_FORMAT: u32 = 1;

    /// Returns the version of the stored form that holds all of this state. The oldest build that supports
    /// that version can continue with it.
    #[must_use]
    pub fn format(&self) -> u32 {
        let entries = self.entries().map(Entry::format);
        let cordons = self.cordons.values().map(|_| Cordon::FORMAT);
        entries.chain(cordons).max().unwrap_or(Entry::FORMAT)
    }
}

/// A stored ledger that this build must not read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A newer build wrote it.
    #[error(
        "the ledger has format {found}, newer than {} that this build knows; use the build that wrote it",
        LedgerState::FORMAT
    )]
    Newer {
        /// The stored version.
        found: u32,
    },
    /// It is too old for this build.
    #[error(
        "the ledger has format {found}, older than {} that this build still reads; upgrade one version at a time",
        LedgerState::OLDEST_FORMAT
    )]
    Older {
        /// The stored version.
        found: u32,
    },
}

/// Checks that this build may read and write a ledger of format `found`. Stores check this before they write
/// anything.
///
/// # Errors
///
/// [`FormatError`] names the version and the fix.
pub const fn check_format(found: u32) -> Result<(), FormatError> {
    if found > LedgerState::FORMAT {
        Err(FormatError::Newer { found })
    } else if found < LedgerState::OLDEST_FORMAT {
        Err(FormatError::Older { found })
    } else {
        Ok(())
    }
}
