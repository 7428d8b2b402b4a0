//! Whether a run may still use its partition.
//!
//! | slurmctld about the run | life |
//! |---|---|
//! | configuring, running, suspended, or completing with nodes left | live |
//! | finished, completing without nodes, not listed, or the job id has another run | dead |
//! | the same, but slurmctld may have got control since the hold began | unknown, until it has settled |
//! | the same after it has settled, but the job id has another run with nodes | superseded |
//! | the run has a later start | as with a slurmctld that got control later |
//! | pending, and slurmctld may have got control since the hold began, and has settled | start forgotten |
//!
//! Any other fact is unknown. Unknown and superseded keep the partition. Every answer is complete:
//! [`RunList::parse`](crate::RunList::parse) refuses others, and nothing is decided then.
//!
//! slurmctld gets control by its start, and a backup by its takeover. It has settled once every node has
//! reported to it. [`SlurmctldWatch`](crate::SlurmctldWatch) has both facts.
//!
//! slurmctld ends processes that it has forgotten when their node registers, but not if the job id runs on
//! that node again: it takes their steps for steps of the later run, and they end with that run.

use crate::job_state::JobState;
use crate::squeue::ListedState;

/// Whether a run may still use its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The run may use its partition, which is kept.
    Live,
    /// Its processes are gone. The partition may be released.
    Dead,
    /// Its processes are gone, but the run pends again: a hook of it may take over the partition at any time.
    /// Only the attempt that is listed may be released.
    StartForgotten,
    /// Its processes may go on until the later run or start of its job id has ended. The partition is kept.
    Superseded,
    /// The facts do not say. The partition is kept.
    Unknown,
}

/// The facts that decide about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifeFacts {
    /// The answer of slurmctld about the run.
    pub answer: ListedState,
    /// Whether the slurmctld that answers had control when the hold began, so that it has forgotten nothing.
    pub saw_begin: bool,
    /// Whether the slurmctld that answers knows the processes of all nodes.
    pub has_settled: bool,
}

/// Decides whether a run may still use its partition.
///
/// ```
/// use ipu_slurm::{Life, LifeFacts, ListedState, life_of};
///
/// let answer = ListedState::Unlisted;
/// let mut facts = LifeFacts { answer, saw_begin: false, has_settled: false };
/// // slurmctld may have forgotten the run, and its nodes have not reported yet.
/// assert_eq!(life_of(&facts), Life::Unknown);
/// facts.has_settled = true;
/// assert_eq!(life_of(&facts), Life::Dead);
/// ```
#[must_use]
pub fn life_of(facts: &LifeFacts) -> Life {
    match &facts.answer {
        ListedState::SameRun { state, has_nodes } => match state {
            JobState::Configuring | JobState::Running | JobState::Suspended => Life::Live,
            JobState::Completing if *has_nodes => Life::Live,
            JobState::Completing | JobState::Finished(_) => dead_if_settled(facts),
            // Before the hold, slurmctld cannot have forgotten the start.
            JobState::Pending if !has_nodes && facts.has_settled && !facts.saw_begin => Life::StartForgotten,
            _ => Life::Unknown,
        },
        ListedState::Unlisted => dead_if_settled(facts),
        // slurmctld has forgotten nothing: it ended this run before the next one.
        ListedState::OtherRun { .. } if facts.saw_begin => Life::Dead,
        // Only a slurmctld that got control since repeats a start.
        ListedState::OtherRun { has_nodes } | ListedState::LaterStart { has_nodes } => {
            match (facts.has_settled, has_nodes) {
                (false, _) => Life::Unknown,
                (true, true) => Life::Superseded,
                (true, false) => Life::Dead,
            }
        }
        ListedState::Indistinguishable => Life::Unknown,
    }
}

/// Returns dead, unless slurmctld may have forgotten processes of the run.
const fn dead_if_settled(facts: &LifeFacts) -> Life {
    if facts.saw_begin || facts.has_settled {
        Life::Dead
    } else {
        Life::Unknown
    }
}
