//! Where it is kept who held what for how long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ipu_core::{PartitionId, Timestamp, UsageRecord};

use crate::store::StoreError;

/// A log of holds. Nothing is ever taken out of it by the ledger.
///
/// A record is appended *before* the ledger forgets the hold, so that none is missing; after a crash in between it is
/// appended again. So [`append`](Self::append) goes by the record's key: there is one record of a key, the one that was
/// released last.
#[async_trait]
pub trait UsageLog: Send + Sync {
    /// Takes all of `records` or none. They need not survive the end of the machine before the ledger's next commit does.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; then the holds are not forgotten, and the records come again.
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError>;

    /// The records of holds that were released at `since` or later, in the order of their release.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError>;
}

/// A log in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsageLog {
    kept: Arc<Mutex<Kept>>,
}

type Kept = BTreeMap<(PartitionId, u64, Timestamp), UsageRecord>;

impl MemoryUsageLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UsageLog for MemoryUsageLog {
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        let mut kept = self.kept();
        for record in records {
            let known = kept.entry(record.key()).or_insert_with(|| record.clone());
            if known.released_at <= record.released_at {
                known.clone_from(record);
            }
        }
        Ok(())
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        let kept = self.kept();
        let mut records: Vec<_> = kept
            .values()
            .filter(|record| record.released_at >= since)
            .cloned()
            .collect();
        records.sort_by_key(|record| record.released_at);
        Ok(records)
    }
}
