//! Partitions in a V-IPU allocation that the ledger does not record.

use ipu_core::{AllocationId, ControllerName, PartitionId};
use serde::{Deserialize, Serialize};

/// Response of `GET` and `DELETE /v1/allocations/{id}/partitions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AllocationPartitions {
    /// Controller of the allocation.
    pub controller: ControllerName,
    /// Allocation.
    pub allocation: AllocationId,
    /// Partitions in it that the ledger does not record, such as those of a user of the `vipu` tool. After
    /// `DELETE`: those whose removal has begun.
    pub partitions: Vec<UnrecordedPartition>,
}

/// A partition at a controller that the ledger does not record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UnrecordedPartition {
    /// Partition id.
    pub id: PartitionId,
    /// Number of IPUs.
    pub size: u32,
}

impl AllocationPartitions {
    /// Creates a response.
    #[must_use]
    pub const fn new(
        controller: ControllerName,
        allocation: AllocationId,
        partitions: Vec<UnrecordedPartition>,
    ) -> Self {
        Self {
            controller,
            allocation,
            partitions,
        }
    }
}

impl UnrecordedPartition {
    /// Creates the document of a partition.
    #[must_use]
    pub const fn new(id: PartitionId, size: u32) -> Self {
        Self { id, size }
    }
}
