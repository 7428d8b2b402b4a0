//! A store in memory, for tests and for a proxy whose partitions end with it.

use async_trait::async_trait;
use ipu_core::Timestamp;
use ipu_core::allocator::{Change, State, UsageRecord};
use parking_lot::Mutex;

use super::{Record, Revision, Store, StoreError};
use crate::usage::UsagePosition;

/// A record in memory.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    revision: u64,
    state: State,
    usage: Vec<UsageRecord>,
}

#[async_trait]
impl Store for MemoryStore {
    async fn open(&self) -> Result<Record, StoreError> {
        let mut content = self.0.lock();
        content.revision += 1;
        Ok(Record {
            revision: Revision::new(content.revision.to_string()),
            state: content.state.clone(),
        })
    }

    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError> {
        let mut content = self.0.lock();
        if content.revision.to_string() != basis.as_str() {
            return Err(StoreError::Conflict { basis: basis.clone() });
        }
        content.revision += 1;
        changes.iter().for_each(|change| content.state.apply(change));
        content.usage.extend_from_slice(usage);
        Ok(Revision::new(content.revision.to_string()))
    }

    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let is_wanted = |record: &&UsageRecord| {
            let position = UsagePosition::from(*record);
            record.released_at >= since && after.is_none_or(|after| position > *after)
        };
        let mut records: Vec<UsageRecord> = self.0.lock().usage.iter().filter(is_wanted).cloned().collect();
        records.sort_by_cached_key(|record| UsagePosition::from(record));
        records.truncate(limit);
        Ok(records)
    }
}
