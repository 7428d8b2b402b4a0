//! Positions in the log of holds.

use std::fmt;
use std::str::FromStr;

use ipu_core::allocator::UsageRecord;
use ipu_core::{PartitionId, Timestamp};

/// The position of a record in a log. Its text form is `RELEASED.TICKET.HELD.ID`, with times in milliseconds
/// since 1970.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsagePosition {
    /// End of the hold.
    pub released_at: Timestamp,
    /// The partition.
    pub id: PartitionId,
    /// Queue ticket of the request.
    pub ticket: u64,
    /// Start of the hold.
    pub held_since: Timestamp,
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
