//! Where it is kept who held what for how long.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
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

    /// Returns at most `limit` of the records of [`since`](Self::since), from the one after `after` on, in an order that
    /// does not change. The default implementation reads all of them.
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

/// The position of a record in a log. It has a text form, `RELEASED.TICKET.HELD.ID` with times in milliseconds since 1970.
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

/// The error for a text that is no [`UsagePosition`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written_and_nothing_else_is_one() {
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
