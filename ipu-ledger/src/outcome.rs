//! What the ledger answers.

use ipu_core::{
    Action, ControllerName, Entry, IpuPlace, PartitionId, PlacementConflict, QueueStatus, Timestamp,
};
use serde::Serialize;

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum EnsureOutcome {
    /// The partition is ready for the attempt.
    Active(Grant),
    /// It is not ready yet; ask again.
    Pending(Pending),
    /// It waits in the line; ask again.
    Waiting(QueueStatus),
    /// It does not fit now and was not to wait: nothing was recorded.
    Refused(QueueStatus),
}

/// A partition that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Grant {
    /// Which.
    pub id: PartitionId,
    /// Where.
    pub controller: ControllerName,
    /// The attempt that it is fresh for.
    pub attempt: u32,
    /// Since when.
    pub since: Timestamp,
    /// Its IPUs, if the ledger knows them.
    pub places: Vec<IpuPlace>,
}

impl Grant {
    pub(crate) fn of(entry: &Entry, controller: &ControllerName) -> Self {
        Self {
            id: entry.id.clone(),
            controller: controller.clone(),
            attempt: entry.attempt,
            since: entry.since,
            places: entry.places.clone(),
        }
    }
}

/// Why a partition is not ready yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Pending {
    /// The controller makes it.
    Creating,
    /// The controller resets it.
    Resetting,
    /// What was there before under this id is being given back.
    Releasing,
    /// The controller does not answer; what was begun is gone on with.
    Unanswered {
        /// Which controller.
        controller: ControllerName,
        /// What the last call said.
        detail: String,
    },
    /// It is in error; only a newer attempt or a release goes on.
    Failed {
        /// What the controller says.
        errors: Vec<String>,
    },
}

/// What a release comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Released {
    /// The controller does not know the partition any more.
    Gone,
    /// There was nothing to give back.
    Nothing,
    /// It had only waited in the line.
    LeftLine,
    /// It is recorded that it is given back; that is finished by a later call or by repair.
    InProgress {
        /// Why not now.
        detail: String,
    },
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RepairReport {
    /// What was done.
    pub done: Vec<Action>,
    /// What has to be gone on with later, and why.
    pub later: Vec<(PartitionId, String)>,
    /// Partitions that their controllers do not list and whose IPUs have been given to another partition.
    pub conflicts: Vec<PlacementConflict>,
    /// Controllers that could not be asked; what they hold was kept.
    pub silent: Vec<(ControllerName, String)>,
    /// Partitions in quarantine afterwards.
    pub quarantined: u32,
}

impl RepairReport {
    /// Whether nothing is left that a later repair would have to go on with.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.later.is_empty() && self.silent.is_empty()
    }
}
