//! Clean-up: what of a finished job is removed.
//!
//! Fields: `cleanPodPolicy`, `ttlSecondsAfterFinished`
//! Source: seed 000 §6.7.3
//!
//! | policy | workers | launcher | partition (IPUs) |
//! |---|---|---|---|
//! | None | keep | keep | keep |
//! | Workers | remove | keep | keep |
//! | All | remove | remove | remove |
//! | any, once `ttlSecondsAfterFinished` is over | remove | remove | remove |
//!
//! Once that time is over and nothing is left, the record of the job goes too, where there is one: the IPUJob is deleted, as
//! Kubernetes does with a Job.
//!
//! A place in the line for a partition is never kept. Before the job has finished, everything is kept, but for this: an instance that
//! has ended gives its partition back, and stops what still runs in it, while another instance of the job stands in the line. Otherwise
//! instances that do not fit at once could wait for ever for what their own job keeps. What is kept stays until the job is deleted:
//! under None the sleeping workers of a launcher go on sleeping, and `status.ipusHeld` says what the finished job still holds.

use core::time::Duration;

use crate::job::CleanPodPolicy;
use crate::observation::PartitionFacts;
use crate::plan::JobPhase;
use crate::units::Timestamp;

/// What something is to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceRole {
    /// A worker.
    Worker,
    /// A launcher.
    Launcher,
    /// The partition of an instance.
    Partition,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupDecision {
    /// It stays.
    Keep,
    /// It goes.
    Remove,
}

/// How long a finished job keeps what its policy leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Until it is deleted.
    UntilDeleted,
    /// Until this moment, still to come.
    Until(Timestamp),
    /// No longer.
    Over,
}

/// Whether something of this `role` stays.
pub(crate) const fn decide(
    policy: CleanPodPolicy,
    role: ResourceRole,
    phase: JobPhase,
    retention: Retention,
) -> CleanupDecision {
    if !phase.is_finished() {
        return CleanupDecision::Keep;
    }
    match (retention, policy, role) {
        (Retention::Over, _, ResourceRole::Worker | ResourceRole::Launcher | ResourceRole::Partition)
        | (_, CleanPodPolicy::All, ResourceRole::Worker | ResourceRole::Launcher | ResourceRole::Partition)
        | (_, CleanPodPolicy::Workers, ResourceRole::Worker) => CleanupDecision::Remove,
        (_, CleanPodPolicy::Workers, ResourceRole::Launcher | ResourceRole::Partition)
        | (
            _,
            CleanPodPolicy::None,
            ResourceRole::Worker | ResourceRole::Launcher | ResourceRole::Partition,
        ) => CleanupDecision::Keep,
    }
}

/// Whether another instance of the job that goes on stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuedPeers {
    /// None does.
    Empty,
    /// One does.
    Waits,
}

/// Whether the partition of an instance stays that has ended before its job.
pub(crate) const fn of_ended(partition: &PartitionFacts, others: QueuedPeers) -> CleanupDecision {
    match (partition, others) {
        (PartitionFacts::Waiting { .. }, _) | (_, QueuedPeers::Waits) => CleanupDecision::Remove,
        (_, QueuedPeers::Empty) => CleanupDecision::Keep,
    }
}

/// How long a job that finished at `finished` keeps what its policy leaves.
pub(crate) fn retention(ttl: Option<Duration>, finished: Option<Timestamp>, now: Timestamp) -> Retention {
    match (ttl, finished) {
        (Some(ttl), Some(finished)) if finished.plus(ttl) <= now => Retention::Over,
        (Some(ttl), Some(finished)) => Retention::Until(finished.plus(ttl)),
        (None, _) | (_, None) => Retention::UntilDeleted,
    }
}
