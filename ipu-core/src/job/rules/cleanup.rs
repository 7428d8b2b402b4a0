//! Clean-up: which resources of a finished job are removed.
//!
//! Fields: `cleanPodPolicy`, `ttlSecondsAfterFinished`
//! Source: Graphcore's V-IPU user guide, "Clean up Kubernetes resources and IPU partitions"
//!
//! | policy | workers | launcher | partition (IPUs) |
//! |---|---|---|---|
//! | None | keep | keep | keep |
//! | Workers | remove | keep | keep |
//! | All | remove | remove | remove |
//! | any, once `ttlSecondsAfterFinished` has passed | remove | remove | remove |
//!
//! After that time, once the resources are removed, the IPUJob itself is deleted, as Kubernetes does with a
//! Job.
//!
//! A queued request for a partition is never kept. Before the job has finished, all other resources are kept,
//! with one exception. An ended instance stops its remaining processes and releases its partition while
//! another instance of the job is queued. Otherwise instances that do not fit together could wait forever for
//! IPUs that their own job keeps.
//!
//! Kept resources remain until the job is deleted. Under None, the idle workers of a launcher keep sleeping,
//! and `status.ipusHeld` shows the IPUs of the finished job.

use core::time::Duration;

use crate::job::CleanPodPolicy;
use crate::job::observation::PartitionFacts;
use crate::job::status::JobPhase;
use crate::units::Timestamp;

/// The role of a resource in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceRole {
    /// A worker.
    Worker,
    /// A launcher.
    Launcher,
    /// The partition of an instance.
    Partition,
}

/// The decision about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupDecision {
    /// Keep it.
    Keep,
    /// Remove it.
    Remove,
}

/// How long a finished job keeps the resources that its policy retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retention {
    /// Until it is deleted.
    UntilDeleted,
    /// Until this future time.
    Until(Timestamp),
    /// The retention has ended.
    Over,
}

/// Decides whether a resource in this `role` is kept.
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

/// Whether another instance of the job, which has not ended, is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuedPeers {
    /// No other instance is queued.
    Absent,
    /// At least one other instance is queued.
    Present,
}

/// Decides whether an instance that ended before its job keeps its partition.
pub(crate) const fn decide_ended(partition: &PartitionFacts, queued_peers: QueuedPeers) -> CleanupDecision {
    match (partition, queued_peers) {
        (PartitionFacts::Waiting { .. }, _) | (_, QueuedPeers::Present) => CleanupDecision::Remove,
        (_, QueuedPeers::Absent) => CleanupDecision::Keep,
    }
}

/// Returns how long a job that finished at `finished` keeps the resources that its policy retains.
pub(crate) fn retention(ttl: Option<Duration>, finished: Option<Timestamp>, now: Timestamp) -> Retention {
    match (ttl, finished) {
        (Some(ttl), Some(finished)) if finished.plus(ttl) <= now => Retention::Over,
        (Some(ttl), Some(finished)) => Retention::Until(finished.plus(ttl)),
        (None, _) | (_, None) => Retention::UntilDeleted,
    }
}
