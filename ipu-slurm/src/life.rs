//! Whether a run may still use its partition.
//!
//! | slurmctld about the run | life |
//! |---|---|
//! | does not answer, or not completely | unknown |
//! | configuring, running, suspended, or completing with nodes left | live |
//! | finished, completing without nodes, not listed, or the job id has another run | dead |
//! | the same, but slurmctld has started since the hold began | unknown, until it has settled |
//! | the same after it has settled, but the job id has another run with nodes | beside a later run |
//! | the run has a later start | as after a start of slurmctld |
//! | pending, and slurmctld has started since the hold began, and has settled | start forgotten |
//!
//! Any other fact is unknown. Unknown and beside a later run keep the partition.
//!
//! A slurmctld that has started ends processes that it has forgotten when their node registers, but not if
//! the job id runs on that node again: it takes their steps for steps of the later run. They end with it.

use core::time::Duration;

use crate::job_state::JobState;
use crate::squeue::ListedState;

/// The clocks of the ledger's host and of slurmctld's host may differ by so much. A hold that began so
/// shortly after the start of slurmctld counts as older than the start.
const MAX_CLOCK_SKEW: u64 = 10;

/// Whether a run may still use its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It may. The partition is kept.
    Live,
    /// Its processes are gone. The partition may be released.
    Dead,
    /// Its processes are gone, but the run pends again: a hook of it may take over the partition at any time.
    /// Only the attempt that is listed may be released.
    StartForgotten,
    /// Its processes may go on until the later run or start of its job id has ended. The partition is kept.
    BesideLaterRun,
    /// The facts do not say. The partition is kept.
    Unknown,
}

/// The answer of slurmctld about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlurmctldReply {
    /// None, an error, or an answer that cannot be read completely.
    Incomplete,
    /// A complete answer.
    Complete(ListedState),
}

/// The facts that decide about a run. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifeFacts {
    /// The answer about the run.
    pub answer: SlurmctldReply,
    /// The start of slurmctld (`BOOT_TIME`), read **after** the answer; none if it is not known.
    pub slurmctld_started: Option<u64>,
    /// The time after which a slurmctld that has started knows every process:
    /// [`SlurmctldConfig::settle_time`](crate::SlurmctldConfig::settle_time).
    pub settle_time: Duration,
    /// The begin of the hold in the ledger.
    pub held_since: u64,
    /// The time.
    pub now: u64,
}

/// Decides whether a run may still use its partition.
#[must_use]
pub fn life_of(facts: &LifeFacts) -> Life {
    let SlurmctldReply::Complete(listed) = &facts.answer else {
        return Life::Unknown;
    };
    match listed {
        ListedState::SameRun { state, has_nodes } => match state {
            JobState::Configuring | JobState::Running | JobState::Suspended => Life::Live,
            JobState::Completing if *has_nodes => Life::Live,
            JobState::Completing => dead_if_settled(facts),
            state if state.is_finished() => dead_if_settled(facts),
            // Before the hold, slurmctld cannot have forgotten the start.
            JobState::Pending if !has_nodes && facts.has_settled() && !facts.has_started_before_hold() => {
                Life::StartForgotten
            }
            _ => Life::Unknown,
        },
        ListedState::Unlisted => dead_if_settled(facts),
        // slurmctld has forgotten nothing: it ended this run before the next one.
        ListedState::OtherRun { .. } if facts.has_started_before_hold() => Life::Dead,
        // Only a slurmctld that has started since repeats a start, whatever the clocks say.
        ListedState::OtherRun { has_nodes } | ListedState::LaterStart { has_nodes } => {
            match (facts.has_settled(), has_nodes) {
                (false, _) => Life::Unknown,
                (true, true) => Life::BesideLaterRun,
                (true, false) => Life::Dead,
            }
        }
        ListedState::Indistinguishable => Life::Unknown,
    }
}

/// Returns dead, unless slurmctld may have forgotten processes of the run.
fn dead_if_settled(facts: &LifeFacts) -> Life {
    if facts.has_started_before_hold() || facts.has_settled() {
        Life::Dead
    } else {
        Life::Unknown
    }
}

impl LifeFacts {
    /// Returns whether slurmctld runs since before the hold, so that it has forgotten nothing of the run.
    fn has_started_before_hold(&self) -> bool {
        let started = self.slurmctld_started;
        started.is_some_and(|started| started.saturating_add(MAX_CLOCK_SKEW) < self.held_since)
    }

    /// Returns whether every node has reported its processes to slurmctld since its start.
    fn has_settled(&self) -> bool {
        let started = self.slurmctld_started;
        let settled = started.and_then(|started| started.checked_add(self.settle_time.as_secs()));
        settled.is_some_and(|at| self.now > at)
    }
}
