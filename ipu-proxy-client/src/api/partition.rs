//! Partitions as the ledger knows them.

use std::collections::BTreeMap;
use std::fmt;

use ipu_core::{Blocker, Entry, EntryState, IpuCount, IpuPlace, PartitionId, QueueStatus, Reason, Timestamp};
use serde::{Deserialize, Serialize};

use super::controller::ControllerDocument;
use super::owner::OwnerDocument;

/// How far a partition is in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum HoldState {
    /// In the line: nothing is held.
    Waiting,
    /// Being made or reset.
    Intent,
    /// Ready for its owner.
    Active,
    /// In error; it is still held.
    Failed,
    /// Being given back; the proxy goes on by itself.
    Releasing,
    /// Its owner is gone; it is released soon.
    Orphaned,
    /// Nobody owns it, and nobody has said that it may be removed.
    Quarantined,
    /// The ledger does not know it any more.
    Gone,
    /// One that this version does not know.
    #[serde(other)]
    Other,
}

impl HoldState {
    /// The word that people read, as on the wire.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Intent => "intent",
            Self::Active => "active",
            Self::Failed => "failed",
            Self::Releasing => "releasing",
            Self::Orphaned => "orphaned",
            Self::Quarantined => "quarantined",
            Self::Gone => "gone",
            Self::Other => "other",
        }
    }

    /// Whether IPUs are or may be held.
    #[must_use]
    pub const fn holds(self) -> bool {
        !matches!(self, Self::Waiting | Self::Gone)
    }
}

impl From<&EntryState> for HoldState {
    fn from(state: &EntryState) -> Self {
        match state {
            EntryState::Waiting { .. } => Self::Waiting,
            EntryState::Intent { .. } => Self::Intent,
            EntryState::Active => Self::Active,
            EntryState::Failed { .. } => Self::Failed,
            EntryState::Releasing { .. } => Self::Releasing,
            EntryState::Orphaned => Self::Orphaned,
            EntryState::Quarantined => Self::Quarantined,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// A partition, or a request for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PartitionDocument {
    /// Which.
    pub id: PartitionId,
    /// How far it is.
    pub state: HoldState,
    /// Whose; none if nobody is known to own it.
    pub owner: Option<OwnerDocument>,
    /// Which instance of the owner.
    pub instance: u32,
    /// The attempt that it is, or is being made, fresh for.
    pub attempt: u32,
    /// IPUs.
    pub size: u32,
    /// Graph compilation domains.
    pub gcds: u32,
    /// Model replicas over all of them.
    pub replicas: u32,
    /// Whether Poplar may pick devices of any aligned size.
    pub reconfigurable: bool,
    /// The V-IPU allocation that it is drawn from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// The controller that has it; none while it waits.
    pub controller: Option<ControllerDocument>,
    /// Its IPUs; empty until it is known where its controller has put it: to ask for this one partition finds that out.
    pub ipus: Vec<IpuPlace>,
    /// Since when it is in its state.
    pub since: Timestamp,
    /// Since when it is held; none while it waits.
    pub held_since: Option<Timestamp>,
    /// Higher goes first in the line.
    pub priority: i32,
    /// Whom it is charged to.
    pub account: Option<String>,
    /// Whether it may be ended for a request of higher priority.
    pub preemptible: bool,
    /// For how long it is held at most, in seconds.
    pub max_runtime_seconds: Option<u64>,
    /// Until when its owner is taken for alive without renewing his lease; none if he has none.
    pub lease_until: Option<Timestamp>,
    /// Why it is not ready, in every state but active, as far as that is known.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// Why it waits, if it does and if that is known.
    pub waiting: Option<WaitingDocument>,
    /// What the controller says of a partition that is in error.
    pub errors: Vec<String>,
    /// The variables that lead a Poplar program to it, once it is active.
    pub env: BTreeMap<String, String>,
}

impl From<&Entry> for PartitionDocument {
    /// What the entry says. Of the controller that is the name alone; what the line tells, the lease and the variables are
    /// left open.
    fn from(entry: &Entry) -> Self {
        let errors = match &entry.state {
            EntryState::Failed { errors } => errors.clone(),
            _ => Vec::new(),
        };
        Self {
            id: entry.id.clone(),
            state: HoldState::from(&entry.state),
            owner: entry.owner.as_ref().map(OwnerDocument::from),
            instance: entry.instance,
            attempt: entry.attempt,
            size: entry.spec.size.get(),
            gcds: entry.spec.gcds,
            replicas: entry.spec.replicas,
            reconfigurable: entry.spec.reconfigurable,
            allocation: entry.spec.allocation.as_ref().map(ToString::to_string),
            controller: entry.controller.clone().map(ControllerDocument::new),
            ipus: entry.places.clone(),
            since: entry.since,
            held_since: entry.held_since,
            priority: entry.priority,
            account: entry.account.clone(),
            preemptible: entry.preemptible,
            max_runtime_seconds: entry.max_runtime.map(|runtime| runtime.as_secs()),
            lease_until: None,
            reason: None,
            waiting: None,
            errors,
            env: BTreeMap::new(),
        }
    }
}

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaitingDocument {
    /// Its place in the line, from 1.
    pub position: u32,
    /// Why.
    pub reason: Reason,
    /// Who would have to end.
    pub blockers: Vec<BlockerDocument>,
    /// When it fits at the latest, if that follows from what others declared.
    pub earliest_fit: Option<Timestamp>,
}

impl From<&QueueStatus> for WaitingDocument {
    fn from(waiting: &QueueStatus) -> Self {
        Self {
            position: waiting.position,
            reason: waiting.reason.clone(),
            blockers: waiting.blockers.iter().map(BlockerDocument::from).collect(),
            earliest_fit: waiting.earliest_fit,
        }
    }
}

/// Who would have to end, or holds something that is cordoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockerDocument {
    /// Which partition.
    pub id: PartitionId,
    /// Whose; none if it is not known.
    pub owner: Option<OwnerDocument>,
    /// Its IPUs; none if that is not known.
    pub size: Option<IpuCount>,
    /// Until when at most, by its owner's word.
    pub until: Option<Timestamp>,
}

impl From<&Blocker> for BlockerDocument {
    fn from(blocker: &Blocker) -> Self {
        Self {
            id: blocker.id.clone(),
            owner: blocker.owner.as_ref().map(OwnerDocument::from),
            size: blocker.size,
            until: blocker.until,
        }
    }
}

/// The answer of `GET /v1/partitions`, and the data of an event `snapshot`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartitionList {
    /// By their ids.
    pub partitions: Vec<PartitionDocument>,
}

impl PartitionList {
    /// A list of these.
    #[must_use]
    pub const fn new(partitions: Vec<PartitionDocument>) -> Self {
        Self { partitions }
    }
}

/// The answer of `GET /v1/waiting`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitingList {
    /// First come first.
    pub waiting: Vec<PartitionDocument>,
}

impl WaitingList {
    /// A list of these.
    #[must_use]
    pub const fn new(waiting: Vec<PartitionDocument>) -> Self {
        Self { waiting }
    }
}

/// What is left of a partition that was given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeletedDocument {
    /// Which.
    pub id: PartitionId,
    /// [`HoldState::Gone`], or [`HoldState::Releasing`]: the proxy goes on by itself.
    pub state: HoldState,
    /// Why it is not gone yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl DeletedDocument {
    /// It is gone.
    #[must_use]
    pub const fn gone(id: PartitionId) -> Self {
        Self {
            id,
            state: HoldState::Gone,
            detail: None,
        }
    }

    /// It is being given back, and why it is not gone yet.
    #[must_use]
    pub const fn releasing(id: PartitionId, detail: String) -> Self {
        Self {
            id,
            state: HoldState::Releasing,
            detail: Some(detail),
        }
    }
}
