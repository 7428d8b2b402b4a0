//! What a store has to write, and whether this build may write it.

use alloc::sync::Arc;

use crate::ids::{CordonId, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::cordon::Cordon;
use crate::ledger::entry::Entry;

/// One change of the ledger: what a store has to write. Not `non_exhaustive`: a store that does not know of a kind of
/// change must not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This entry is new or replaces the one of the same id.
    Put(Arc<Entry>),
    /// The entry is gone.
    Remove(PartitionId),
    /// This cordon is new or replaces the one of the same id.
    Cordon(Arc<Cordon>),
    /// The cordon is gone.
    Lift(CordonId),
}

/// What a change is about. Of several changes of one key the last counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKey {
    /// The entry of this id.
    Partition(PartitionId),
    /// The cordon of this id.
    Cordon(CordonId),
}

impl Change {
    /// What it is about.
    #[must_use]
    pub fn key(&self) -> ChangeKey {
        match self {
            Self::Put(entry) => ChangeKey::Partition(entry.id.clone()),
            Self::Remove(id) => ChangeKey::Partition(id.clone()),
            Self::Cordon(cordon) => ChangeKey::Cordon(cordon.id.clone()),
            Self::Lift(id) => ChangeKey::Cordon(id.clone()),
        }
    }

    /// The id of the entry that it is about; none if it is about something else.
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
    /// The newest version of the stored form that this build knows. A ledger without cordons is of version 1, so that
    /// the build before can go on with it; cordons came with version 2.
    pub const FORMAT: u32 = Cordon::FORMAT;
    /// The oldest version of the stored form that this build reads.
    pub const OLDEST_FORMAT: u32 = 1;

    /// The version of the stored form that holds all of this state: the oldest build that knows that version can go on
    /// with it.
    #[must_use]
    pub fn format(&self) -> u32 {
        if self.cordons.is_empty() {
            Entry::FORMAT
        } else {
            Cordon::FORMAT
        }
    }
}

/// A stored ledger that this build must not touch.
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
    /// It is too old to be read by this build.
    #[error(
        "the ledger has format {found}, older than {} that this build still reads; upgrade one version at a time",
        LedgerState::OLDEST_FORMAT
    )]
    Older {
        /// The stored version.
        found: u32,
    },
}

/// Whether this build may read and write a ledger of format `found`. Stores ask before they write anything.
///
/// # Errors
///
/// [`FormatError`] names the version and what to do.
pub const fn check_format(found: u32) -> Result<(), FormatError> {
    if found > LedgerState::FORMAT {
        Err(FormatError::Newer { found })
    } else if found < LedgerState::OLDEST_FORMAT {
        Err(FormatError::Older { found })
    } else {
        Ok(())
    }
}
