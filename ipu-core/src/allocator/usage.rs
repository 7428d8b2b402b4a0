//! Usage accounting: one record per hold, with the owner, the size and the duration.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::allocator::entry::{Entry, Phase};
use crate::ids::{ControllerName, Owner, PartitionId};
use crate::units::{IpuCount, Timestamp};

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum HoldEnd {
    /// Released, by its owner or because its owner was dead; the controller confirmed the removal.
    Released,
    /// The partition vanished from its controller during a reset, and there was no capacity to create it
    /// again: its owner is queued again.
    Lost,
    /// The partition had no owner, and disappeared or was claimed.
    Unowned,
}

impl HoldEnd {
    /// Returns the label shown to users: `released`, `lost`, `unowned`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Unowned => "unowned",
        }
    }
}

/// One hold: from the recorded intent until the controller confirmed the removal of the partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct UsageRecord {
    /// The partition id.
    pub id: PartitionId,
    /// Queue ticket of the request.
    pub ticket: u64,
    /// The owner; none if no owner is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Instance of the owner.
    pub instance: u32,
    /// The account that is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// Number of IPUs.
    pub size: IpuCount,
    /// Number of attempts by the end of the hold.
    pub attempts: u32,
    /// Time of the recorded intent.
    pub held_since: Timestamp,
    /// Time at which the controller confirmed the removal.
    pub released_at: Timestamp,
    /// Cause of the end.
    pub end: HoldEnd,
}

impl UsageRecord {
    /// Builds the record of the hold that ends when `before` becomes `after` at `now`; none if none ends. A
    /// request that the controller refused held nothing.
    #[must_use]
    pub fn from_transition(before: &Entry, after: Option<&Entry>, now: Timestamp) -> Option<Self> {
        let held_since = before.held_since?;
        if after.is_some_and(|after| after.held_since == Some(held_since) && after.ticket == before.ticket) {
            return None;
        }
        let end = match &before.phase {
            Phase::Queued | Phase::Creating => return None,
            Phase::Resetting => HoldEnd::Lost,
            Phase::Quarantined => HoldEnd::Unowned,
            Phase::Active | Phase::Failed { .. } | Phase::Releasing { .. } => HoldEnd::Released,
        };
        Some(Self {
            id: before.id.clone(),
            ticket: before.ticket,
            owner: before.owner.clone(),
            instance: before.instance,
            account: before.account.clone(),
            controller: before.controller.clone(),
            size: before.spec.size,
            attempts: before.attempt.saturating_add(1),
            held_since,
            released_at: now,
            end,
        })
    }

    /// Returns the unique key of the hold: partition, ticket, and start.
    #[must_use]
    pub fn key(&self) -> (PartitionId, u64, Timestamp) {
        (self.id.clone(), self.ticket, self.held_since)
    }

    /// Returns IPUs times milliseconds; 0 if the clock was set back to before the start of the hold.
    #[must_use]
    pub fn ipu_millis(&self) -> u64 {
        let held = self.released_at.since(self.held_since).as_millis();
        u64::try_from(held)
            .unwrap_or(u64::MAX)
            .saturating_mul(u64::from(self.size.get()))
    }
}
