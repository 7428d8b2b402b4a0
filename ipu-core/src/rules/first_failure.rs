//! First failure: which of several failures is judged and reported, rather than the cascade that followed it.
//!
//! Fields: none
//! Source: ours; that a status does not name the failing rank is a common complaint about MPI operators
//!
//! | compared in this order | first is |
//! |---|---|
//! | time of the failure | the earlier |
//! | who | anything else before the launcher, whose failure mostly follows a worker's |
//! | exit code | any other code before 143 and 137, which are what being stopped leaves |
//! | who | the partition, then workers by number |
//!
//! Only processes of the attempt that still runs are asked: what we stopped ourselves belongs to a closed attempt.

use crate::exit::Exit;
use crate::plan::Culprit;
use crate::units::Timestamp;

/// Something that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    /// What.
    pub(crate) culprit: Culprit,
    /// How; none if it was lost, or is the partition.
    pub(crate) exit: Option<Exit>,
    /// When.
    pub(crate) at: Timestamp,
    /// What is known of the cause.
    pub(crate) cause: &'a str,
    /// The end of its output.
    pub(crate) last_lines: &'a str,
}

/// The first of `candidates`; none if nothing failed.
pub(crate) fn decide<'a>(candidates: impl IntoIterator<Item = Candidate<'a>>) -> Option<Candidate<'a>> {
    candidates.into_iter().min_by_key(|candidate| {
        let follows = candidate.culprit == Culprit::Launcher;
        (
            candidate.at,
            follows,
            looks_stopped(candidate.exit),
            candidate.culprit,
        )
    })
}

/// SIGTERM and SIGKILL: what is left of a process that was told to end.
fn looks_stopped(exit: Option<Exit>) -> bool {
    exit.is_some_and(|exit| matches!(exit.code(), 137 | 143))
}
