//! Invariants of an inventory.

use alloc::vec;
use alloc::vec::Vec;

use crate::ids::PartitionId;
use crate::inventory::{Inventory, addresses};
use crate::topology::IpuAddress;

/// An invariant of an [`Inventory`] that does not hold. Any of them is a defect of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenInventory {
    /// An IPU in the blocks of two holders.
    #[error("{at} is held twice, by {holder} and another")]
    HeldTwice {
        /// Which.
        at: IpuAddress,
        /// The second holder found.
        holder: PartitionId,
    },
    /// A holder has an IPU that does not exist.
    #[error("{holder} holds {at}, which does not exist")]
    HeldNowhere {
        /// Which.
        at: IpuAddress,
        /// The holder.
        holder: PartitionId,
    },
    /// Looked up by its id or by one of its IPUs, a holder is not found.
    #[error("{holder} is not found by its id and by {at}")]
    Lost {
        /// Which.
        at: IpuAddress,
        /// The holder.
        holder: PartitionId,
    },
    /// The word of vacant IPUs is not what the holders leave.
    #[error("link domain {link_domain} has the vacant IPUs {found:#018x}, not {expected:#018x}")]
    Vacant {
        /// The link domain.
        link_domain: u32,
        /// What the inventory says.
        found: u64,
        /// What the holders leave.
        expected: u64,
    },
    /// The word of cordoned IPUs is not what the cordons say.
    #[error("link domain {link_domain} has the excluded IPUs {found:#018x}, not {expected:#018x}")]
    CordonedWord {
        /// The link domain.
        link_domain: u32,
        /// What the inventory says.
        found: u64,
        /// What the cordons say.
        expected: u64,
    },
    /// An index differs from one made anew.
    #[error("the index of pool {pool} is not that of the free IPUs")]
    Index {
        /// The number of the pool: the allocation's, or one after the last for all of them.
        pool: usize,
    },
    /// The number of holders is not how many there are.
    #[error("{found} holders are counted, there are {expected}")]
    Count {
        /// What is counted.
        found: u32,
        /// How many there are.
        expected: usize,
    },
}

/// The invariants of `inventory` that do not hold: none, unless this crate is wrong.
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
                broken.push(BrokenInventory::HeldNowhere {
                    at,
                    holder: holder.clone(),
                });
                continue;
            }
            let word = &mut held[at.link_domain as usize];
            if *word >> at.ipu & 1 == 1 {
                broken.push(BrokenInventory::HeldTwice {
                    at,
                    holder: holder.clone(),
                });
            }
            *word |= 1 << at.ipu;
            let by_ipu = inventory.holder_at(at).map(|(id, _)| id);
            if by_ipu != Some(holder) || inventory.block_of(holder) != Some(block) {
                broken.push(BrokenInventory::Lost {
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
            broken.push(BrokenInventory::CordonedWord {
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
                broken.push(BrokenInventory::Lost {
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
