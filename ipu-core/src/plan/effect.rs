//! What can be done for a job: values that carry every choice, so that applying one decides nothing.

use serde::{Deserialize, Serialize};

use crate::ids::PartitionId;
use crate::partition::PartitionSpec;

/// One thing to do. It carries every choice, so that applying it decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do")]
#[non_exhaustive]
pub enum Effect {
    /// See to it that the instance has its partition, fresh for `attempt`: made if absent, reset if it was used by an
    /// earlier attempt, put into the line if it does not fit, nothing if it is there.
    EnsurePartition {
        /// Which instance.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Its id.
        partition: PartitionId,
        /// What it is made of.
        spec: PartitionSpec,
    },
    /// Reset the partition, because it is in error or its last holder was not seen to end.
    ResetPartition {
        /// Which instance.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Its id.
        partition: PartitionId,
    },
    /// Start a worker on the partition.
    StartWorker {
        /// Which instance.
        instance: u32,
        /// Which worker of the instance; also its GCD.
        worker: u32,
        /// For which attempt.
        attempt: u32,
        /// The partition that it uses.
        partition: PartitionId,
    },
    /// Start the launcher of an instance.
    StartLauncher {
        /// Which instance.
        instance: u32,
        /// For which attempt.
        attempt: u32,
        /// The partition that its workers use.
        partition: PartitionId,
    },
    /// End a worker and everything that it started, and forget it.
    StopWorker {
        /// Which instance.
        instance: u32,
        /// Which worker of the instance.
        worker: u32,
        /// Of which attempt.
        attempt: u32,
    },
    /// End the launcher of an instance and everything that it started, and forget it.
    StopLauncher {
        /// Which instance.
        instance: u32,
        /// Of which attempt.
        attempt: u32,
    },
    /// Give the partition back. Only planned once no process can be using it.
    ReleasePartition {
        /// Which instance.
        instance: u32,
        /// The newest attempt that the decision knows of: under a newer one the partition must not be taken away.
        attempt: u32,
        /// Its id.
        partition: PartitionId,
    },
    /// Let go of the deleted job: nothing of it is left. Always last.
    Finalize,
}
