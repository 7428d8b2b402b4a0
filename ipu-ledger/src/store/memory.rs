//! A ledger in memory, for tests and for embedders whose controller does not outlive the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ipu_core::{Change, Cordon, CordonId, Entry, PartitionId};

use super::{LedgerStore, Revision, Snapshot, StoreError};

/// A ledger in memory. Clones share it, so a second driver can continue from the state of the first one.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    contents: Arc<Mutex<MemoryContents>>,
}

#[derive(Debug, Default)]
struct MemoryContents {
    revision: u64,
    entries: BTreeMap<PartitionId, Entry>,
    cordons: BTreeMap<CordonId, Cordon>,
}

impl MemoryStore {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // The critical sections do not panic, so the content of a poisoned lock is consistent.
    fn contents(&self) -> MutexGuard<'_, MemoryContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LedgerStore for MemoryStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        let contents = self.contents();
        let revision = Revision::new(contents.revision.to_string());
        if newer_than == Some(&revision) {
            return Ok(None);
        }
        Ok(Some(Snapshot {
            revision,
            entries: contents.entries.values().cloned().collect(),
            cordons: contents.cordons.values().cloned().collect(),
        }))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let mut contents = self.contents();
        if basis.as_str() != contents.revision.to_string() {
            return Err(StoreError::Conflict { basis: basis.clone() });
        }
        for change in changes {
            match change {
                Change::Put(entry) => drop(contents.entries.insert(entry.id.clone(), Entry::clone(entry))),
                Change::Remove(id) => drop(contents.entries.remove(id)),
                Change::Cordon(cordon) => {
                    contents.cordons.insert(cordon.id.clone(), Cordon::clone(cordon));
                }
                Change::Lift(id) => drop(contents.cordons.remove(id)),
            }
        }
        contents.revision += 1;
        Ok(Revision::new(contents.revision.to_string()))
    }
}
