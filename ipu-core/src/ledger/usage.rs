//! Who held what for how long: one record a hold.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, Owner, PartitionId};
use crate::ledger::entry::{Entry, EntryState, Operation};
use crate::units::{IpuCount, Timestamp};

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum HoldEnd {
    /// It was given back, by its owner or because its owner was gone, and the controller said that it is gone.
    Released,
    /// The controller had lost it, and had no room to make it again: its owner waits anew.
    Lost,
    /// Nobody owned it, and it vanished or was claimed.
    Unowned,
}

impl HoldEnd {
    /// The word that people read: `released`, `lost`, `unowned`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Unowned => "unowned",
        }
    }
}

/// One hold: from the recorded intent until the controller said that the partition is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct UsageRecord {
    /// Which partition.
    pub id: PartitionId,
    /// The number in the line of the request.
    pub ticket: u64,
    /// Who held it; none if nobody is known to have owned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Which instance of the owner.
    pub instance: u32,
    /// Whom it is charged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// How many IPUs.
    pub size: IpuCount,
    /// How many attempts there had been by its end.
    pub attempts: u32,
    /// When the intent was recorded.
    pub held_since: Timestamp,
    /// When the controller said that it is gone.
    pub released_at: Timestamp,
    /// How it ended.
    pub end: HoldEnd,
}

impl UsageRecord {
    /// The record of the hold that ends when `before` becomes `after` at `now`; none if none ends. A request that the
    /// controller refused held nothing.
    #[must_use]
    pub fn of(before: &Entry, after: Option<&Entry>, now: Timestamp) -> Option<Self> {
        let held_since = before.held_since?;
        if after.is_some_and(|after| after.held_since == Some(held_since) && after.ticket == before.ticket) {
            return None;
        }
        let end = match &before.state {
            EntryState::Waiting { .. }
            | EntryState::Intent {
                operation: Operation::Create,
                ..
            } => return None,
            EntryState::Intent {
                operation: Operation::Reset,
                ..
            } => HoldEnd::Lost,
            EntryState::Quarantined => HoldEnd::Unowned,
            EntryState::Active
            | EntryState::Failed { .. }
            | EntryState::Releasing { .. }
            | EntryState::Orphaned => HoldEnd::Released,
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

    /// What tells this hold from every other: partition, ticket, and since when.
    #[must_use]
    pub fn key(&self) -> (PartitionId, u64, Timestamp) {
        (self.id.clone(), self.ticket, self.held_since)
    }

    /// IPUs times milliseconds. 0 if the clock was put back to before the hold began.
    #[must_use]
    pub fn ipu_millis(&self) -> u64 {
        let held = self.released_at.since(self.held_since).as_millis();
        u64::try_from(held)
            .unwrap_or(u64::MAX)
            .saturating_mul(u64::from(self.size.get()))
    }
}
