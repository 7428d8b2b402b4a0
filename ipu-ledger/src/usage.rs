//! Usage logs: the owner and duration of every hold.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ipu_core::{PartitionId, Timestamp, UsageRecord};

use crate::store::StoreError;

/// A log of holds. The ledger never deletes records.
///
/// A record is appended *before* the ledger removes the hold, so that none is missing. After a crash in
/// between, it is appended again. [`append`](Self::append) therefore keeps one record per key, the one with
/// the latest release.
#[async_trait]
pub trait UsageLog: Send + Sync {
    /// Appends all `records` or none. They may become durable as late as the ledger's next commit.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the holds are then kept, and their records are appended again later.
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError>;

    /// Returns the records of holds that were released at `since` or later, in the order of their release.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError>;

    /// Returns at most `limit` of the records of [`since`](Self::since), starting after `after`, in a stable
    /// order. The default implementation reads all of them.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    async fn page(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let since = after.map_or(since, |after| after.released_at.max(since));
        let mut records = self.since(since).await?;
        records.retain(|record| after.is_none_or(|after| UsagePosition::from(record) > *after));
        records.sort_by_cached_key(|record| UsagePosition::from(record));
        records.truncate(limit);
        Ok(records)
    }
}

/// The position of a record in a log. Its text form is `RELEASED.TICKET.HELD.ID`, with times in milliseconds
/// since 1970.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsagePosition {
    pub(crate) released_at: Timestamp,
    pub(crate) id: PartitionId,
    pub(crate) ticket: u64,
    pub(crate) held_since: Timestamp,
}

impl From<&UsageRecord> for UsagePosition {
    fn from(record: &UsageRecord) -> Self {
        Self {
            released_at: record.released_at,
            id: record.id.clone(),
            ticket: record.ticket,
            held_since: record.held_since,
        }
    }
}

impl fmt::Display for UsagePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (released, held) = (self.released_at.as_millis(), self.held_since.as_millis());
        write!(f, "{released}.{}.{held}.{}", self.ticket, self.id)
    }
}

/// The error for a text that is not a [`UsagePosition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be RELEASED.TICKET.HELD.ID, as the page before returned it")]
#[non_exhaustive]
pub struct InvalidUsagePosition;

impl FromStr for UsagePosition {
    type Err = InvalidUsagePosition;

    fn from_str(text: &str) -> Result<Self, InvalidUsagePosition> {
        let mut parts = text.splitn(4, '.');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let numbers = (number(), number(), number());
        let (Some(released), Some(ticket), Some(held)) = numbers else {
            return Err(InvalidUsagePosition);
        };
        let id = parts.next().ok_or(InvalidUsagePosition)?;
        Ok(Self {
            released_at: Timestamp::from_millis(released),
            id: PartitionId::new(id).map_err(|_| InvalidUsagePosition)?,
            ticket,
            held_since: Timestamp::from_millis(held),
        })
    }
}

/// A log in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryUsageLog {
    records_by_key: Arc<Mutex<RecordsByKey>>,
}

type RecordsByKey = BTreeMap<(PartitionId, u64, Timestamp), UsageRecord>;

impl MemoryUsageLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // The critical sections do not panic, so the content of a poisoned lock is consistent.
    fn records_by_key(&self) -> MutexGuard<'_, RecordsByKey> {
        self.records_by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UsageLog for MemoryUsageLog {
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        let mut records_by_key = self.records_by_key();
        for record in records {
            let latest = records_by_key
                .entry(record.key())
                .or_insert_with(|| record.clone());
            if latest.released_at <= record.released_at {
                latest.clone_from(record);
            }
        }
        Ok(())
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        let records_by_key = self.records_by_key();
        let mut records: Vec<_> = records_by_key
            .values()
            .filter(|record| record.released_at >= since)
            .cloned()
            .collect();
        records.sort_by_key(|record| record.released_at);
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_position_round_trips_and_malformed_texts_are_refused() {
        let text = "1700000000000.7.1600000000000.training";
        let position: UsagePosition = text.parse().unwrap();
        assert_eq!((position.to_string().as_str(), position.ticket), (text, 7));
        for broken in ["", "1", "1.2.3", "1.2.3.", "-1.2.3.p", "1.x.3.p", "1.2.3.a b"] {
            assert_eq!(
                broken.parse::<UsagePosition>(),
                Err(InvalidUsagePosition),
                "{broken}"
            );
        }
    }
}
