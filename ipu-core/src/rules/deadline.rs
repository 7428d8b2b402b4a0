//! Deadline: when a job has run for too long.
//!
//! Fields: `activeDeadlineSeconds`
//! Source: ours, after `activeDeadlineSeconds` of a Kubernetes Job
//!
//! | job | verdict |
//! |---|---|
//! | no limit, or no worker has run yet | goes on |
//! | ran for less than the limit, restarts and back-off included | goes on |
//! | ran for the limit or longer | every instance that has not ended is ended; the job is Failed, reason `DeadlineExceeded`, code 124 |
//!
//! Waiting in the line costs no time, and a suspension starts the count anew.

use core::time::Duration;

use crate::units::Timestamp;

/// The exit code of a job that ran for too long: the one of timeout(1).
pub(crate) const EXIT_CODE: u8 = 124;

/// How much time a job has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineStatus {
    /// There is no limit, or the job has not begun.
    Unlimited,
    /// It may run until this moment.
    Until(Timestamp),
    /// Its time is over.
    Exceeded,
}

/// Whether a job that runs since `started` may go on.
pub(crate) fn decide(limit: Option<Duration>, started: Option<Timestamp>, now: Timestamp) -> DeadlineStatus {
    match (limit, started) {
        (Some(limit), Some(started)) if started.plus(limit) <= now => DeadlineStatus::Exceeded,
        (Some(limit), Some(started)) => DeadlineStatus::Until(started.plus(limit)),
        (None, _) | (_, None) => DeadlineStatus::Unlimited,
    }
}
