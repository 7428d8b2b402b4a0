//! Request: how many instances of a job stand in the queue for a partition at once.
//!
//! Fields: none; `Limits::with_max_requested` of the installation
//! Source: ours; a job of a thousand instances that do not fit would fill the queue of all users
//!
//! | partition of the instance | instances of the job that are queued or being made ready | verdict |
//! |---|---|---|
//! | absent | fewer than the limit | request it |
//! | absent | the limit or more | wait, reason `NotRequested`, until one of them has its partition |
//! | any other | any number | request it, if the reset rule asks for it: the ledger knows of it |
//!
//! An instance that has ended does not count: the ledger may report its partition as queued because it does not know the owner.
//!
//! Instances request in the order of their numbers. All instances of a job ask for the same, so that one that waits here could not have
//! been served before those in the queue.

use crate::observation::PartitionFacts;

/// The verdict on an instance whose partition is not requested yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestDecision {
    /// It is requested.
    Request,
    /// It is not requested yet.
    Wait,
}

/// Whether a partition counts against the limit.
pub(crate) const fn is_requested(partition: &PartitionFacts) -> bool {
    match partition {
        PartitionFacts::Waiting { .. } | PartitionFacts::Pending { .. } => true,
        PartitionFacts::Absent
        | PartitionFacts::Active { .. }
        | PartitionFacts::Failed { .. }
        | PartitionFacts::Releasing => false,
    }
}

/// Whether an instance with this `partition` may ask for it while `requested` instances of its job count against `limit`.
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
