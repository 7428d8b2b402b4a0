//! Invariants of an inventory.

use alloc::vec;
use alloc::vec::Vec;

use crate::hardware::inventory::{Inventory, addresses};
use crate::hardware::topology::IpuAddress;
use crate::ids::PartitionId;

/// A violated invariant of an [`Inventory`]. Each one is a defect of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenInventory {
    /// An IPU is in the blocks of two holders.
    #[error("{at} is held by {holder} and by another holder")]
    HeldTwice {
        /// Address of the IPU.
        at: IpuAddress,
        /// The second holder.
        holder: PartitionId,
    },
    /// A holder has an IPU outside the topology.
    #[error("{holder} holds {at}, which does not exist")]
    OutsideTopology {
        /// Address of the IPU.
        at: IpuAddress,
        /// Holder.
        holder: PartitionId,
    },
    /// A lookup by id or by one of its IPUs does not find a holder.
    #[error("a lookup by id or by {at} does not find {holder}")]
    NotFound {
        /// Address of the IPU.
        at: IpuAddress,
        /// Holder.
        holder: PartitionId,
    },
    /// The mask of vacant IPUs differs from the IPUs without holder.
    #[error("link domain {link_domain} has vacant IPUs {found:#018x}; expected {expected:#018x}")]
    Vacant {
        /// Link domain.
        link_domain: u32,
        /// Mask in the inventory, one bit per IPU.
        found: u64,
        /// Mask of the IPUs without holder.
        expected: u64,
    },
    /// The mask of cordoned IPUs differs from the recorded cordons.
    #[error("link domain {link_domain} has cordoned IPUs {found:#018x}; expected {expected:#018x}")]
    Cordoned {
        /// Link domain.
        link_domain: u32,
        /// Mask in the inventory, one bit per IPU.
        found: u64,
        /// Mask of the recorded cordons.
        expected: u64,
    },
    /// An index differs from a newly built one.
    #[error("the index of pool {pool} does not match the free IPUs")]
    Index {
        /// Index of the pool: that of its allocation, or one past the last for the whole inventory.
        pool: usize,
    },
    /// The holder count differs from the number of holders.
    #[error("the holder count is {found}; expected {expected}")]
    Count {
        /// Stored count.
        found: u32,
        /// Number of holders.
        expected: usize,
    },
}

/// Returns the violated invariants of `inventory`: empty unless this crate has a defect.
///
/// ```
/// use ipu_core::hardware::{Inventory, Topology, check_inventory};
///
/// assert_eq!(check_inventory(&Inventory::new(&Topology::pod16())), []);
/// ```
#[must_use]
pub fn check_inventory(inventory: &Inventory) -> Vec<BrokenInventory> {
    let domains = inventory.topology().link_domains();
    let mut broken = Vec::new();
    let mut held = vec![0_u64; domains as usize];
    let mut count = 0;
    for (holder, block) in inventory.entries() {
        count += 1;
        for at in block.addresses() {
            if !inventory.topology().contains(at) {
                broken.push(BrokenInventory::OutsideTopology {
                    at,
                    holder: holder.clone(),
                });
                continue;
            }
            let mask = &mut held[at.link_domain as usize];
            if *mask >> at.ipu & 1 == 1 {
                broken.push(BrokenInventory::HeldTwice {
                    at,
                    holder: holder.clone(),
                });
            }
            *mask |= 1 << at.ipu;
            let by_ipu = inventory.holder_at(at).map(|(id, _)| id);
            if by_ipu != Some(holder) || inventory.block_of(holder) != Some(block) {
                broken.push(BrokenInventory::NotFound {
                    at,
                    holder: holder.clone(),
                });
            }
        }
    }
    if inventory.holder_count() as usize != count {
        broken.push(BrokenInventory::Count {
            found: inventory.holder_count(),
            expected: count,
        });
    }
    let mut cordoned = vec![0_u64; domains as usize];
    for (_, at) in inventory.cordons() {
        cordoned[at.link_domain as usize] |= 1 << at.ipu;
    }
    for link_domain in 0..domains {
        let index = link_domain as usize;
        let (found, expected) = (
            inventory.vacant_mask(link_domain),
            inventory.topology().ipu_mask(link_domain) & !held[index],
        );
        if found != expected {
            broken.push(BrokenInventory::Vacant {
                link_domain,
                found,
                expected,
            });
        }
        let (found, expected) = (inventory.cordoned_mask(link_domain), cordoned[index]);
        if found != expected {
            broken.push(BrokenInventory::Cordoned {
                link_domain,
                found,
                expected,
            });
        }
        for at in addresses(
            link_domain,
            !held[index] & inventory.topology().ipu_mask(link_domain),
        ) {
            if let Some((holder, _)) = inventory.holder_at(at) {
                broken.push(BrokenInventory::NotFound {
                    at,
                    holder: holder.clone(),
                });
            }
        }
    }
    let free: Vec<u64> = (0..domains)
        .map(|domain| {
            inventory.topology().ipu_mask(domain) & !held[domain as usize] & !cordoned[domain as usize]
        })
        .collect();
    broken.extend(
        inventory
            .stale_pools(&free)
            .map(|pool| BrokenInventory::Index { pool }),
    );
    broken
}
