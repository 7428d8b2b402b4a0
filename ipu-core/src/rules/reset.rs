//! Reset: what a partition needs before, and while, an attempt uses it.
//!
//! Fields: none
//! Source: seed 000 §6.8.1 ("if this partition already exists and is already owned by this IPUJob, it will reset the partition")
//!
//! | partition | attempt a has not begun | attempt a has processes | a worker of attempt a is gone |
//! |---|---|---|---|
//! | absent, in the line | ask for it | the attempt fails | begin anew |
//! | pending | ask again, until it is ready | for a: wait; for an earlier one: the attempt fails | begin anew |
//! | active for a | use it | use it | begin anew |
//! | active for an earlier attempt | ask for a fresh one: it is reset | the attempt fails | begin anew |
//! | in error since an earlier attempt | reset it | the attempt fails | begin anew |
//! | in error for a | give it back, ask for another after a pause | the attempt fails | begin anew |
//! | being given back | wait | the attempt fails | begin anew |
//!
//! A worker is gone if nothing tells how it ended, and all workers of the attempt ran or it may have been there: somebody took
//! it away, by force perhaps, while it may still run where nobody can look. Another one is not started beside it: the attempt is closed, its other
//! workers are stopped, and all begin anew on a partition that is reset. Nobody failed, so that counts as no restart.
//!
//! An attempt that fails because of its partition counts against the back-off limit as any failure without exit code
//! does: a partition that keeps failing ends the job instead of resetting for ever. A partition that never became ready
//! costs no restart.

use crate::observation::PartitionFacts;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetDecision {
    /// It is asked for, or asked to become fresh.
    Ask,
    /// It is reset.
    Reset,
    /// It is ready for the attempt.
    Use,
    /// Nothing, until it has changed.
    Wait,
    /// It goes back; another is asked for after a pause.
    GiveBack,
    /// The attempt cannot go on.
    FailAttempt,
    /// The attempt is closed, and the next one begins at once: the partition is reset for it.
    BeginAnew,
}

/// Whether an attempt has begun to use its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// No process was started.
    Unused,
    /// Processes were started.
    InUse,
    /// One of its workers is gone that ran or may have run: what it left on the partition, or still does there, nobody knows.
    Torn,
}

/// What `partition` needs for `attempt`.
pub(crate) const fn decide(partition: &PartitionFacts, attempt: u32, usage: Usage) -> ResetDecision {
    match (partition, usage) {
        (_, Usage::Torn) => ResetDecision::BeginAnew,
        (
            PartitionFacts::Active {
                attempt: made_for, ..
            },
            _,
        ) if *made_for == attempt => ResetDecision::Use,
        (PartitionFacts::Pending { attempt: made_for }, Usage::InUse) if *made_for == attempt => {
            ResetDecision::Wait
        }
        (_, Usage::InUse) => ResetDecision::FailAttempt,
        (
            PartitionFacts::Failed {
                attempt: made_for, ..
            },
            Usage::Unused,
        ) if *made_for < attempt => ResetDecision::Reset,
        (PartitionFacts::Failed { .. }, Usage::Unused) => ResetDecision::GiveBack,
        (PartitionFacts::Releasing, Usage::Unused) => ResetDecision::Wait,
        (
            PartitionFacts::Absent
            | PartitionFacts::Waiting { .. }
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. },
            Usage::Unused,
        ) => ResetDecision::Ask,
    }
}
