//! Start deadline: how long a partition is held for its workers, and then for their launcher.
//!
//! Fields: `startDeadlineSeconds`
//! Source: this project; IPUs reserved for unschedulable Pods are unusable for all jobs
//!
//! | workers of the attempt | launcher, if the job has one | verdict |
//! |---|---|---|
//! | each one that does not run yet could have started less than the deadline ago | | open |
//! | one could have started longer ago | | missed: the partition is released and requested again later, reason `WorkersUnschedulable` |
//! | all ran once | could have started less than the deadline ago | open |
//! | all ran once | could have started longer ago | missed, reason `LauncherUnschedulable` |
//! | all ran once | ran once, or there is none | met |
//!
//! A worker could have started once the partition was active, the back-off was over and its image was pulled.
//! A launcher could have started once all workers ran and its image was pulled. The delay of the next request
//! grows like a back-off and consumes no restart.

use core::time::Duration;

use crate::units::Timestamp;

/// The state of the start deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartDeadlineStatus {
    /// All processes ran.
    Met,
    /// The deadline ends at this time.
    Open(Timestamp),
    /// A process did not start in time.
    Missed,
}

/// Evaluates the deadline. `earliest` is the first time at which a process that does not run could have
/// started; none if all ran.
pub(crate) fn decide(limit: Duration, earliest: Option<Timestamp>, now: Timestamp) -> StartDeadlineStatus {
    match earliest.map(|since| since.plus(limit)) {
        None => StartDeadlineStatus::Met,
        Some(end) if end <= now => StartDeadlineStatus::Missed,
        Some(end) => StartDeadlineStatus::Open(end),
    }
}
