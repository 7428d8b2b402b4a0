//! Interactive: when the session of an interactive job is over.
//!
//! Fields: `interactive.ttl`
//! Source: seed 000 §6.6.1
//!
//! | launcher | session |
//! |---|---|
//! | not yet running | has not begun: waiting in the line or for an image costs no time |
//! | running for less than `ttl` | open |
//! | running for `ttl` or longer | over: the job is Completed, its processes end and its IPUs are released, whatever the policies |
//!
//! A launcher that ends by itself earlier is judged as any launcher: by its exit code.

use core::time::Duration;

use crate::units::Timestamp;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// The launcher has not run yet.
    NotBegun,
    /// It lasts until this moment.
    Open(Timestamp),
    /// Its time is over.
    Over,
}

/// The state of a session of `ttl` whose launcher runs since `running_since`.
pub(crate) fn decide(ttl: Duration, running_since: Option<Timestamp>, now: Timestamp) -> Session {
    match running_since.map(|since| since.plus(ttl)) {
        None => Session::NotBegun,
        Some(end) if end <= now => Session::Over,
        Some(end) => Session::Open(end),
    }
}
