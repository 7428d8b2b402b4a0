//! Effects: the operations of a plan.

use serde::{Deserialize, Serialize};

use crate::hardware::partition::PartitionSpec;
use crate::ids::PartitionId;

/// One operation. It carries every choice, so that the caller that applies it decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do")]
pub enum Effect {
    /// Ensures that the instance has its partition, fresh for `attempt`. Creates it if absent, resets it
    /// after an earlier attempt, queues the request if it does not fit, and changes nothing if it is ready.
    EnsurePartition {
        /// Instance index.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Partition id.
        partition: PartitionId,
        /// Partition specification.
        spec: PartitionSpec,
    },
    /// Resets the partition, because it is in error or the end of its last user was not observed.
    ResetPartition {
        /// Instance index.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Partition id.
        partition: PartitionId,
    },
    /// Starts a worker on the partition.
    StartWorker {
        /// Instance index.
        instance: u32,
        /// Worker index within the instance; also its GCD.
        worker: u32,
        /// The attempt that the process belongs to.
        attempt: u32,
        /// The partition that the worker uses.
        partition: PartitionId,
    },
    /// Starts the launcher of an instance.
    StartLauncher {
        /// Instance index.
        instance: u32,
        /// The attempt that the process belongs to.
        attempt: u32,
        /// The partition that the workers of the instance use.
        partition: PartitionId,
    },
    /// Stops a worker and all its child processes, and deletes its record.
    StopWorker {
        /// Instance index.
        instance: u32,
        /// Worker index within the instance.
        worker: u32,
        /// The attempt that the process belongs to.
        attempt: u32,
    },
    /// Stops the launcher of an instance and all its child processes, and deletes its record.
    StopLauncher {
        /// Instance index.
        instance: u32,
        /// The attempt that the process belongs to.
        attempt: u32,
    },
    /// Releases the partition. Planned only once no process can use it.
    ReleasePartition {
        /// Instance index.
        instance: u32,
        /// The newest attempt known to the planner. The partition must not be released under a newer attempt.
        attempt: u32,
        /// Partition id.
        partition: PartitionId,
    },
    /// Removes the finalizer of the deleted job, which holds nothing. Always the last effect.
    Finalize,
}
