//! Finalize: in what order everything that an instance has is given back.
//!
//! Fields: `metadata.deletionTimestamp`, and whatever else ends an instance: scale, suspend, clean-up
//! Source: seed 000 §6.6 (`ipu.finalizers.graphcore.ai`)
//!
//! | processes | partition | step |
//! |---|---|---|
//! | some may still run | any | wait for them: IPUs in use are never handed on |
//! | none runs | in the line, pending, active, in error | release it |
//! | none runs | being given back | wait for it |
//! | some ended ones are still remembered | absent | wait until they are forgotten |
//! | none | absent | gone |
//!
//! A deleted job is let go of when all its instances are gone. Every other rule yields to deletion.

use crate::observation::PartitionFacts;

/// What is left of an instance's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    /// Some may still use the partition.
    Alive,
    /// All that are left have ended.
    Ended,
    /// None.
    None,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalizeStep {
    /// Processes end.
    AwaitProcesses,
    /// The partition is released.
    Release,
    /// The partition is on its way back.
    AwaitRelease,
    /// Nothing is left.
    Gone,
}

/// The next step of giving an instance back.
pub(crate) const fn decide(processes: Processes, partition: &PartitionFacts) -> FinalizeStep {
    match (processes, partition) {
        (Processes::Alive, _) | (Processes::Ended, PartitionFacts::Absent) => FinalizeStep::AwaitProcesses,
        (Processes::Ended | Processes::None, PartitionFacts::Releasing) => FinalizeStep::AwaitRelease,
        (Processes::None, PartitionFacts::Absent) => FinalizeStep::Gone,
        (
            Processes::Ended | Processes::None,
            PartitionFacts::Waiting { .. }
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. },
        ) => FinalizeStep::Release,
    }
}
