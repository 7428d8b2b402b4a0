//! Start deadline: how long a partition waits for its workers, and then for their launcher.
//!
//! Fields: `startDeadlineSeconds`
//! Source: ours; IPUs that wait for Kubernetes Pods that cannot be scheduled are lost to everybody
//!
//! | workers of the attempt | launcher, if the job has one | verdict |
//! |---|---|---|
//! | every one that does not run yet could have started less than the deadline ago | | open |
//! | one could have started longer ago | | missed: the partition is given back, and the job waits again, reason `WorkersUnschedulable` |
//! | all ran once | could have started less than the deadline ago | open |
//! | all ran once | could have started longer ago | missed, reason `LauncherUnschedulable` |
//! | all ran once | ran once, or there is none | met |
//!
//! A worker could have started once the partition was active, the back-off was over and its image was there; a launcher
//! once all workers ran and its image was there. The pause before the next try grows as a back-off does; no restart is
//! consumed.

use core::time::Duration;

use crate::units::Timestamp;

/// Whether everything started in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartDeadlineStatus {
    /// It ran.
    Met,
    /// It has time until this moment.
    Open(Timestamp),
    /// It did not.
    Missed,
}

/// Judges what could have started earliest, at `earliest`, of what does not run; none if all ran.
pub(crate) fn decide(limit: Duration, earliest: Option<Timestamp>, now: Timestamp) -> StartDeadlineStatus {
    match earliest.map(|since| since.plus(limit)) {
        None => StartDeadlineStatus::Met,
        Some(end) if end <= now => StartDeadlineStatus::Missed,
        Some(end) => StartDeadlineStatus::Open(end),
    }
}
