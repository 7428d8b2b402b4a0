//! Reset: what a partition needs before and while an attempt uses it.
//!
//! Fields: none
//! Source: Graphcore's V-IPU user guide, "How does the IPU Operator work?"
//! ("already owned by this IPUJob, it will reset the partition")
//!
//! | partition | attempt a has no processes | attempt a has processes | a process of attempt a is missing |
//! |---|---|---|---|
//! | absent, queued | request it | the attempt fails | restart |
//! | pending | repeat the request until it is ready | for a: wait; for an earlier one: the attempt fails | restart |
//! | active for a | use it | use it | restart |
//! | active for an earlier attempt | request it for a: it is reset | the attempt fails | restart |
//! | in error since an earlier attempt | reset it | the attempt fails | restart |
//! | in error for a | release it, request another after a back-off | the attempt fails | restart |
//! | being released | wait | the attempt fails | restart |
//!
//! A process is missing if its end is unknown and either all workers of the attempt ran or it may have
//! existed. For example, it was force-deleted and may still run on an unreachable node. A second copy is not
//! started next to it: the attempt is closed, its other processes are stopped, and the next attempt starts on
//! a reset partition. No process failed, so no restart is counted.
//!
//! An attempt that fails because of its partition counts against the back-off limit, as any failure without
//! exit code. A partition that fails repeatedly therefore ends the job instead of resetting forever. A
//! partition that never became ready consumes no restart.

use crate::job::observation::PartitionFacts;

/// The decision about a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetDecision {
    /// Request it, fresh for the attempt.
    Request,
    /// Reset it.
    Reset,
    /// Use it: it is ready for the attempt.
    Use,
    /// Wait until its state changes.
    Wait,
    /// Release it and request another after a back-off.
    Release,
    /// Fail the attempt, which cannot continue.
    FailAttempt,
    /// Close the attempt; the next one starts without back-off on the reset partition.
    RestartAttempt,
}

/// Whether an attempt has started to use its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// No process was started.
    Unused,
    /// Processes were started.
    InUse,
    /// A process that ran or may have run is missing, and its effect on the partition is unknown.
    ProcessMissing,
}

/// Returns what `partition` needs for `attempt`.
pub(crate) const fn decide(partition: &PartitionFacts, attempt: u32, usage: Usage) -> ResetDecision {
    match (partition, usage) {
        (_, Usage::ProcessMissing) => ResetDecision::RestartAttempt,
        (
            PartitionFacts::Active {
                attempt: created_for, ..
            },
            _,
        ) if *created_for == attempt => ResetDecision::Use,
        (PartitionFacts::Pending { attempt: created_for }, Usage::InUse) if *created_for == attempt => {
            ResetDecision::Wait
        }
        (_, Usage::InUse) => ResetDecision::FailAttempt,
        (
            PartitionFacts::Failed {
                attempt: created_for, ..
            },
            Usage::Unused,
        ) if *created_for < attempt => ResetDecision::Reset,
        (PartitionFacts::Failed { .. }, Usage::Unused) => ResetDecision::Release,
        (PartitionFacts::Releasing, Usage::Unused) => ResetDecision::Wait,
        (
            PartitionFacts::Absent
            | PartitionFacts::Waiting { .. }
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. },
            Usage::Unused,
        ) => ResetDecision::Request,
    }
}
