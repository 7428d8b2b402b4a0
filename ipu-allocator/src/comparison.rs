//! The result of a comparison of record, controllers and owners.

use ipu_core::allocator::RepairAction;
use ipu_core::{ControllerName, PartitionId, Reason};

/// The result of a comparison of record, controllers and owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comparison {
    /// Repairs, each with its partition.
    pub actions: Vec<(RepairAction, PartitionId)>,
    /// Operations under way, each with the reason that it has not ended.
    pub unfinished: Vec<(PartitionId, Reason)>,
    /// Controllers that did not answer; their partitions are kept.
    pub unavailable: Vec<(ControllerName, Reason)>,
    /// Number of partitions in quarantine.
    pub quarantined: u32,
}
