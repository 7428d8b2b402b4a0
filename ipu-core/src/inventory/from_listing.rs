//! An inventory of what a controller says.

use alloc::vec::Vec;

use super::{Block, BlockError, Inventory, InventoryError};
use crate::ids::{ClusterId, CordonOwner, PartitionId};
use crate::partition::Partition;
use crate::topology::{IpuAddress, Topology};

/// An inventory that was made from what a controller says, and what of it did not add up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedInventory {
    /// The inventory.
    pub inventory: Inventory,
    /// Partitions that could not be entered as the controller tells of them. Worth a warning: the hardware is
    /// understood wrongly, or the controller changed between two answers.
    pub conflicts: Vec<(PartitionId, ListingConflict)>,
}

/// Why a partition could not be entered as the controller tells of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListingConflict {
    /// An IPU that does not exist or is named twice.
    #[error("the controller names its IPUs wrongly")]
    Ipus(#[source] BlockError),
    /// An IPU that another partition has too.
    #[error("the controller places it where another partition is")]
    Conflict(#[source] InventoryError),
    /// Its IPUs are unknown, and nothing free is left that could be reserved for it.
    #[error("the controller does not say where it is, and no free block of {ipus} IPUs is left to reserve")]
    NoRoom {
        /// How many IPUs it has.
        ipus: u32,
    },
}

impl Inventory {
    /// The inventory of `topology` with what a controller lists: partitions that `is_ours` knows hold their IPUs, those of
    /// others become cordons owned by `foreign`, and `unhealthy` IPUs cordons owned by `health`.
    ///
    /// Every listed partition counts, in whatever state. One whose IPUs the controller does not tell (or tells wrongly)
    /// is counted by reserving the lowest free block of its size in its allocation, after all others, the largest
    /// first and then by id. The real place is likely another, so the free numbers are right and single places are not.
    #[must_use]
    pub fn observe(
        topology: &Topology,
        unhealthy: &[IpuAddress],
        partitions: &[Partition],
        is_ours: impl Fn(&PartitionId) -> bool,
    ) -> ListedInventory {
        let mut observed = ListedInventory {
            inventory: Self::new(topology),
            conflicts: Vec::new(),
        };
        let mut unplaced = Vec::new();
        for partition in partitions {
            let entered = match located(topology, partition) {
                Ok(Some(block)) => {
                    let entered = observed.inventory.enter(partition, block, is_ours(&partition.id));
                    entered.map_err(ListingConflict::Conflict).map(|()| true)
                }
                Ok(None) => Ok(false),
                Err(misfit) => Err(misfit),
            };
            let placed = entered.unwrap_or_else(|misfit| {
                observed.conflicts.push((partition.id.clone(), misfit));
                false
            });
            if !placed {
                unplaced.push(partition);
            }
        }
        unplaced.sort_by(|a, b| b.spec.size.cmp(&a.spec.size).then_with(|| a.id.cmp(&b.id)));
        for partition in unplaced {
            let inventory = &mut observed.inventory;
            let view = inventory
                .view(partition.spec.allocation.as_ref())
                .unwrap_or_else(|_| inventory.whole_view());
            let block = view.first_fit(partition.spec.size);
            let entered = block.map(|block| inventory.enter(partition, block, is_ours(&partition.id)));
            if !matches!(entered, Some(Ok(()))) {
                let misfit = ListingConflict::NoRoom {
                    ipus: partition.spec.size.get(),
                };
                observed.conflicts.push((partition.id.clone(), misfit));
            }
        }
        let unhealthy = unhealthy.iter().copied().filter(|at| topology.contains(*at));
        // All of them exist, so this cannot be refused.
        let _ = observed.inventory.cordon(&CordonOwner::health(), unhealthy);
        observed
    }

    fn enter(&mut self, partition: &Partition, block: Block, ours: bool) -> Result<(), InventoryError> {
        if ours {
            return self.occupy(partition.id.clone(), block);
        }
        self.check_available(&block)?;
        self.cordon(&CordonOwner::foreign(), block.addresses())
            .map(|_| ())
    }
}

/// The IPUs of a partition; none if the controller does not tell them.
fn located(topology: &Topology, partition: &Partition) -> Result<Option<Block>, ListingConflict> {
    if partition.ipus.is_empty() {
        return Ok(None);
    }
    let Some(cluster) = cluster_of(topology, partition) else {
        return Ok(None);
    };
    Block::of_places(topology, cluster, &partition.ipus)
        .map(Some)
        .map_err(ListingConflict::Ipus)
}

/// The cluster of a partition: the one it names, else its allocation's, else the only one.
fn cluster_of<'a>(topology: &'a Topology, partition: &'a Partition) -> Option<&'a ClusterId> {
    if let Some(cluster) = &partition.cluster {
        return Some(cluster);
    }
    let allocation = partition
        .spec
        .allocation
        .as_ref()
        .and_then(|id| topology.allocation(id));
    match (allocation, topology.clusters()) {
        (Some(allocation), _) => Some(&allocation.cluster),
        (None, [only]) => Some(&only.id),
        (None, _) => None,
    }
}
