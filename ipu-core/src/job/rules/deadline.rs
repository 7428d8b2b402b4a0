//! Deadline: when a job has exceeded its time limit.
//!
//! Fields: `activeDeadlineSeconds`
//! Source: this project, after `activeDeadlineSeconds` of a Kubernetes Job
//!
//! | job | verdict |
//! |---|---|
//! | no limit, or no worker has run yet | continues |
//! | ran for less than the limit, restarts and back-off included | continues |
//! | ran for the limit or longer | every unfinished instance is stopped; the job is Failed, reason `DeadlineExceeded`, code 124 |
//!
//! Time in the queue does not count. A suspension resets the count.

use core::time::Duration;

use crate::units::Timestamp;

/// The exit code of a job that exceeded its deadline, as of timeout(1).
pub(crate) const EXIT_CODE: u8 = 124;

/// The state of the deadline of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineStatus {
    /// The job has no limit or has not started.
    Unlimited,
    /// The job may run until this time.
    Until(Timestamp),
    /// The job has exceeded its deadline.
    Exceeded,
}

/// Decides whether a job that has run since `started` may continue.
pub(crate) fn decide(limit: Option<Duration>, started: Option<Timestamp>, now: Timestamp) -> DeadlineStatus {
    match (limit, started) {
        (Some(limit), Some(started)) if started.plus(limit) <= now => DeadlineStatus::Exceeded,
        (Some(limit), Some(started)) => DeadlineStatus::Until(started.plus(limit)),
        (None, _) | (_, None) => DeadlineStatus::Unlimited,
    }
}
