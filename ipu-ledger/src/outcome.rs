//! Outcomes of ledger operations.

use ipu_core::{
    Action, ControllerName, Entry, IpuPlace, PartitionId, PlacementConflict, QueueStatus, Timestamp,
};
use serde::Serialize;

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EnsureOutcome {
    /// The partition is ready for the attempt.
    Active(Grant),
    /// The partition is not ready yet; repeat the request.
    Pending(Pending),
    /// The request is queued; repeat it.
    Waiting(QueueStatus),
    /// The partition does not fit now, and the request does not wait. Nothing was recorded.
    Refused(QueueStatus),
}

/// A partition that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Grant {
    /// The partition.
    pub id: PartitionId,
    /// The controller that has it.
    pub controller: ControllerName,
    /// The attempt for which the partition is fresh.
    pub attempt: u32,
    /// The time since which the partition is held.
    pub since: Timestamp,
    /// The IPUs, if the ledger knows them.
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

/// The operation that keeps a partition from being ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Pending {
    /// The controller creates the partition.
    Creating,
    /// The controller resets the partition.
    Resetting,
    /// The previous partition of this id is being released.
    Releasing,
    /// The controller does not reply; the operation is resumed later.
    Unanswered {
        /// The controller.
        controller: ControllerName,
        /// The error of the last call.
        detail: String,
    },
    /// The partition is in error; only a newer attempt or a release continues.
    Failed {
        /// The errors that the controller reports.
        errors: Vec<String>,
    },
}

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Released {
    /// The controller no longer knows the partition.
    #[serde(rename = "gone")]
    Removed,
    /// There was no partition to release.
    #[serde(rename = "nothing")]
    NotFound,
    /// The request was only queued, and was removed from the queue.
    #[serde(rename = "leftLine")]
    Dequeued,
    /// The release is recorded; a later call or a repair finishes it.
    #[serde(rename = "later")]
    InProgress {
        /// The reason for the delay.
        detail: String,
    },
}

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RepairReport {
    /// The actions that were taken.
    #[serde(rename = "done")]
    pub actions: Vec<Action>,
    /// Operations that must be resumed later, each with its reason.
    #[serde(rename = "later")]
    pub deferred: Vec<(PartitionId, String)>,
    /// Partitions that their controllers do not list and whose IPUs belong to another partition now.
    pub conflicts: Vec<PlacementConflict>,
    /// Controllers that did not reply; their partitions were kept.
    #[serde(rename = "silent")]
    pub unavailable: Vec<(ControllerName, String)>,
    /// Number of partitions in quarantine after the repair.
    pub quarantined: u32,
}

impl RepairReport {
    /// Returns whether no work is left for a later repair.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.deferred.is_empty() && self.unavailable.is_empty()
    }
}
