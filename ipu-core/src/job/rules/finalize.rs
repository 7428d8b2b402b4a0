//! Finalize: in which order the resources of an instance are released.
//!
//! Fields: `metadata.deletionTimestamp`; also the fields of scale, suspend and clean-up, which end instances
//! Source: Graphcore's V-IPU user guide, "Training CRD Job" (`ipu.finalizers.graphcore.ai`)
//!
//! | processes | partition | step |
//! |---|---|---|
//! | some may still run | any | wait for them: IPUs in use are never released |
//! | none runs | queued, pending, active, in error | release it |
//! | none runs | being released | wait for it |
//! | only records of ended processes exist | absent | wait until the records are deleted |
//! | none | absent | done |
//!
//! The finalizer of a deleted job is removed once all its instances are done. Deletion takes precedence over
//! every other rule.

use crate::job::observation::PartitionFacts;

/// The remaining processes of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    /// Some may still use the partition.
    Alive,
    /// All remaining ones have ended.
    Ended,
    /// None.
    None,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalizeStep {
    /// Wait for processes to end.
    AwaitProcesses,
    /// Release the partition.
    Release,
    /// Wait for the release of the partition.
    AwaitRelease,
    /// The instance holds no resources.
    Done,
}

/// Returns the next step of releasing an instance.
pub(crate) const fn decide(processes: Processes, partition: &PartitionFacts) -> FinalizeStep {
    match (processes, partition) {
        (Processes::Alive, _) | (Processes::Ended, PartitionFacts::Absent) => FinalizeStep::AwaitProcesses,
        (Processes::Ended | Processes::None, PartitionFacts::Releasing) => FinalizeStep::AwaitRelease,
        (Processes::None, PartitionFacts::Absent) => FinalizeStep::Done,
        (
            Processes::Ended | Processes::None,
            PartitionFacts::Waiting { .. }
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. },
        ) => FinalizeStep::Release,
    }
}
