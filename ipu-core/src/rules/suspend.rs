//! Suspend: a job that is to hold nothing for now.
//!
//! Fields: `suspend`
//! Source: ours, after `suspend` of a Kubernetes Job
//!
//! | job | asked to suspend | verdict |
//! |---|---|---|
//! | finished | either | as its clean-up policy says |
//! | not finished | no | goes on |
//! | not finished | yes | workers end, then partitions are released, the place in the line too; phase Suspended |
//!
//! Instances that have ended stay ended. The others begin a new attempt when the job goes on, on a fresh partition and
//! without consuming a restart.

use crate::plan::JobPhase;

/// Whether a job goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspendDecision {
    /// It does.
    GoOn,
    /// It is to hold nothing.
    HoldNothing,
    /// It has finished: there is nothing to suspend.
    Finished,
}

/// Whether a job in `phase` goes on; `asked` is the wish of its owner.
pub(crate) const fn decide(asked: RunIntent, phase: JobPhase) -> SuspendDecision {
    match asked {
        RunIntent::Suspend | RunIntent::Run if phase.is_finished() => SuspendDecision::Finished,
        RunIntent::Suspend => SuspendDecision::HoldNothing,
        RunIntent::Run => SuspendDecision::GoOn,
    }
}

/// What the owner of a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunIntent {
    /// That it runs.
    Run,
    /// That it holds nothing.
    Suspend,
}
