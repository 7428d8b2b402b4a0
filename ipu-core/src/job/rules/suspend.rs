//! Suspend: whether a job must hold nothing for now.
//!
//! Fields: `suspend`
//! Source: this project, after `suspend` of a Kubernetes Job
//!
//! | job | `suspend` | verdict |
//! |---|---|---|
//! | finished | either | its clean-up policy decides |
//! | not finished | false | continues |
//! | not finished | true | processes are stopped, then partitions and queued requests are released; phase Suspended |
//!
//! Ended instances keep their outcome. The others start a new attempt when the job resumes, on a fresh
//! partition and without consuming a restart.

use crate::job::status::JobPhase;

/// The decision about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuspendDecision {
    /// The job continues.
    Continue,
    /// The job releases all its resources.
    ReleaseAll,
    /// The job has finished and cannot be suspended.
    Finished,
}

/// Decides whether a job in `phase` continues under the `intent` of its owner.
pub(crate) const fn decide(intent: RunIntent, phase: JobPhase) -> SuspendDecision {
    match intent {
        RunIntent::Suspend | RunIntent::Run if phase.is_finished() => SuspendDecision::Finished,
        RunIntent::Suspend => SuspendDecision::ReleaseAll,
        RunIntent::Run => SuspendDecision::Continue,
    }
}

/// The intent of the owner of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunIntent {
    /// The job runs.
    Run,
    /// The job is suspended.
    Suspend,
}
