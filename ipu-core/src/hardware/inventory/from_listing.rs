//! Inventory from the partitions that a controller lists.

use alloc::vec::Vec;

use super::{Block, BlockError, Inventory, InventoryError};
use crate::hardware::partition::Partition;
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{ClusterId, CordonOwner, PartitionId};

/// An inventory built from a controller's listing, with the inconsistencies of the listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedInventory {
    /// The inventory.
    pub inventory: Inventory,
    /// Partitions that could not be entered as listed. Each deserves a warning: the topology is wrong, or the
    /// controller changed between two responses.
    pub conflicts: Vec<(PartitionId, ListingConflict)>,
}

/// The reason that a partition could not be entered as listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListingConflict {
    /// An IPU that does not exist or is listed twice.
    #[error("the controller lists invalid IPUs for it")]
    Ipus(#[source] BlockError),
    /// An IPU that another partition has too.
    #[error("the controller lists it on IPUs of another partition")]
    Conflict(#[source] InventoryError),
    /// Its IPUs are not listed, and no free block is left to reserve for it.
    #[error("the controller does not list its IPUs, and no free block of {ipus} IPUs is left to reserve")]
    NoFreeBlock {
        /// Its number of IPUs.
        ipus: u32,
    },
}

impl Inventory {
    /// Builds the inventory of `topology` from the partitions that a controller lists. Partitions for which
    /// `is_ours` is true hold their IPUs. All others become cordons owned by `foreign`, and `unhealthy` IPUs
    /// cordons owned by `health`.
    ///
    /// Every listed partition counts, in any state. If the controller lists no IPUs or invalid ones for a
    /// partition, it gets the lowest free block of its size in its allocation. These follow all others, the
    /// largest first and then by id. Their actual IPUs are probably others, so the free counts are right and
    /// single addresses are not.
    #[must_use]
    pub fn from_listing(
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
            let entered = match listed_block(topology, partition) {
                Ok(Some(block)) => {
                    let entered = observed.inventory.enter(partition, block, is_ours(&partition.id));
                    entered.map_err(ListingConflict::Conflict).map(|()| true)
                }
                Ok(None) => Ok(false),
                Err(conflict) => Err(conflict),
            };
            let placed = entered.unwrap_or_else(|conflict| {
                observed.conflicts.push((partition.id.clone(), conflict));
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
                let conflict = ListingConflict::NoFreeBlock {
                    ipus: partition.spec.size.get(),
                };
                observed.conflicts.push((partition.id.clone(), conflict));
            }
        }
        let unhealthy = unhealthy.iter().copied().filter(|at| topology.contains(*at));
        // All of them exist, so the call cannot fail.
        let _ = observed.inventory.cordon(&CordonOwner::health(), unhealthy);
        observed
    }

    fn enter(&mut self, partition: &Partition, block: Block, is_ours: bool) -> Result<(), InventoryError> {
        if is_ours {
            return self.occupy(partition.id.clone(), block);
        }
        self.check_available(&block)?;
        self.cordon(&CordonOwner::foreign(), block.addresses())
            .map(|_| ())
    }
}

/// Returns the IPUs of a partition; none if the controller does not list them.
fn listed_block(topology: &Topology, partition: &Partition) -> Result<Option<Block>, ListingConflict> {
    if partition.ipus.is_empty() {
        return Ok(None);
    }
    let Some(cluster) = cluster_of(topology, partition) else {
        return Ok(None);
    };
    Block::from_places(topology, cluster, &partition.ipus)
        .map(Some)
        .map_err(ListingConflict::Ipus)
}

/// Returns the cluster of a partition: the one it names, else its allocation's, else the only one.
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
