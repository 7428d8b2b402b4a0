//! Interactive: when the session of an interactive job is over.
//!
//! Fields: `interactive.ttl`
//! Source: Graphcore's V-IPU user guide, "Interactive mode"
//!
//! | launcher | session |
//! |---|---|
//! | not yet running | not started: time in the queue or for an image pull does not count |
//! | running for less than `ttl` | open |
//! | running for `ttl` or longer | over: the job is Completed, its processes are stopped and its IPUs are released, under every policy |
//!
//! If the launcher exits earlier, its exit code decides, as for any launcher.

use core::time::Duration;

use crate::units::Timestamp;

/// The state of an interactive session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// The launcher has not run yet.
    NotStarted,
    /// The session lasts until this time.
    Open(Timestamp),
    /// The time of the session is over.
    Over,
}

/// Returns the state of a session of length `ttl` whose launcher has run since `running_since`.
pub(crate) fn decide(ttl: Duration, running_since: Option<Timestamp>, now: Timestamp) -> Session {
    match running_since.map(|since| since.plus(ttl)) {
        None => Session::NotStarted,
        Some(end) if end <= now => Session::Over,
        Some(end) => Session::Open(end),
    }
}
