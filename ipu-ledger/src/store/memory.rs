//! A ledger in memory, for tests and for embedders whose controller does not outlive the process either.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ipu_core::{Change, Cordon, CordonId, Entry, PartitionId};

use super::{LedgerStore, Revision, Snapshot, StoreError};

/// A ledger in memory. Clones share it, so a second driver can be built on what a first one left.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<MemoryContents>>,
}

#[derive(Debug, Default)]
struct MemoryContents {
    revision: u64,
    entries: BTreeMap<PartitionId, Entry>,
    cordons: BTreeMap<CordonId, Cordon>,
}

impl MemoryStore {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn kept(&self) -> MutexGuard<'_, MemoryContents> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LedgerStore for MemoryStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        let kept = self.kept();
        let revision = Revision::new(kept.revision.to_string());
        if newer_than == Some(&revision) {
            return Ok(None);
        }
        Ok(Some(Snapshot {
            revision,
            entries: kept.entries.values().cloned().collect(),
            cordons: kept.cordons.values().cloned().collect(),
        }))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let mut kept = self.kept();
        if basis.as_str() != kept.revision.to_string() {
            return Err(StoreError::Conflict { basis: basis.clone() });
        }
        for change in changes {
            match change {
                Change::Put(entry) => drop(kept.entries.insert(entry.id.clone(), Entry::clone(entry))),
                Change::Remove(id) => drop(kept.entries.remove(id)),
                Change::Cordon(cordon) => {
                    kept.cordons.insert(cordon.id.clone(), Cordon::clone(cordon));
                }
                Change::Lift(id) => drop(kept.cordons.remove(id)),
            }
        }
        kept.revision += 1;
        Ok(Revision::new(kept.revision.to_string()))
    }
}
