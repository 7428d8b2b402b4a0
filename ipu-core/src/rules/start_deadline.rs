//! Start deadline: how long a partition waits for its workers.
//!
//! Fields: `startDeadlineSeconds`
//! Source: ours; IPUs that wait for Kubernetes Pods that cannot be scheduled are lost to everybody
//!
//! | workers of the attempt | verdict |
//! |---|---|
//! | all ran once | met |
//! | every one that does not run yet could have started less than the deadline ago | open |
//! | one could have started longer ago | missed: the partition is given back, and the job waits again, reason `WorkersUnschedulable` |
//!
//! A worker could have started once the partition was active, the back-off was over and its image was there. The pause
//! before the next try grows as a back-off does; no restart is consumed.

use core::time::Duration;

use crate::units::Timestamp;

/// Whether the workers started in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They all ran.
    Met,
    /// They have time until this moment.
    Open(Timestamp),
    /// They did not.
    Missed,
}

/// Judges the worker that could have started earliest, at `earliest`, of those that do not run; none if all ran.
pub(crate) fn decide(limit: Duration, earliest: Option<Timestamp>, now: Timestamp) -> Verdict {
    match earliest.map(|since| since.plus(limit)) {
        None => Verdict::Met,
        Some(end) if end <= now => Verdict::Missed,
        Some(end) => Verdict::Open(end),
    }
}
