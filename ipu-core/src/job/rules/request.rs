//! Request: how many instances of a job are in the queue for a partition at once.
//!
//! Fields: none; `Limits::with_max_requested` of the installation
//! Source: this project; a job of a thousand instances that do not fit would fill the shared queue
//!
//! | partition of the instance | instances of the job that are queued or pending | verdict |
//! |---|---|---|
//! | absent | fewer than the limit | request it |
//! | absent | the limit or more | wait, reason `NotRequested`, until one of them has its partition |
//! | any other | any number | request it if the reset rule requires it: the ledger has its entry |
//!
//! An ended instance does not count: the ledger may report its partition as queued because it does not know
//! the owner.
//!
//! Instances send requests in the order of their index. All instances of a job request the same, so an
//! instance that waits here could not start before the queued ones.

use crate::job::observation::PartitionFacts;

/// The decision about an instance whose partition is not requested yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestDecision {
    /// Request it.
    Request,
    /// Do not request it yet.
    Wait,
}

/// Returns whether a partition counts against the limit.
pub(crate) const fn is_requested(partition: &PartitionFacts) -> bool {
    match partition {
        PartitionFacts::Waiting { .. } | PartitionFacts::Pending { .. } => true,
        PartitionFacts::Absent
        | PartitionFacts::Active { .. }
        | PartitionFacts::Failed { .. }
        | PartitionFacts::Releasing => false,
    }
}

/// Decides whether an instance may request its `partition` while `requested` instances of its job count
/// against `limit`.
pub(crate) const fn decide(partition: &PartitionFacts, requested: u32, limit: u32) -> RequestDecision {
    match partition {
        PartitionFacts::Absent if requested >= limit => RequestDecision::Wait,
        PartitionFacts::Absent
        | PartitionFacts::Waiting { .. }
        | PartitionFacts::Pending { .. }
        | PartitionFacts::Active { .. }
        | PartitionFacts::Failed { .. }
        | PartitionFacts::Releasing => RequestDecision::Request,
    }
}
