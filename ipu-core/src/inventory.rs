//! What exists and who holds it.
//!
//! Free space is one 64-bit word for each link domain. Link domains are indexed by their free blocks, for each
//! allocation, so that to occupy and to vacate take the same time at 64 and at 65,536 IPUs.

use alloc::vec;
use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{AllocationId, ExclusionOwner, PartitionId};
use crate::topology::{IpuAddress, Topology};
use crate::units::IpuCount;

mod bits;
mod block;
mod blockers;
mod exclusions;
mod holders;
mod index;
mod observe;
mod pool;
mod view;
pub(crate) mod words;

pub(crate) use block::addresses;
pub use block::{Block, BlockError};
pub use blockers::Blockers;
pub use index::FreeIndex;
pub use observe::{Misfit, Observed};
pub use view::{UnknownAllocation, View};

use exclusions::Exclusions;
use holders::Holders;
use pool::Pool;

/// Why the inventory refuses a change. It is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum InventoryError {
    /// No such IPU.
    #[error("there is no {at}")]
    Unknown {
        /// The first one that does not exist.
        at: IpuAddress,
    },
    /// Someone holds it.
    #[error("{at} is held by {holder}; no IPU is ever held twice")]
    Held {
        /// The first one that is held.
        at: IpuAddress,
        /// By whom.
        holder: PartitionId,
    },
    /// It is excluded.
    #[error("{at} is excluded by {owner}; only {owner} can lift that")]
    Excluded {
        /// The first one that is excluded.
        at: IpuAddress,
        /// By whom; the first owner in order of their names.
        owner: ExclusionOwner,
    },
    /// The holder holds a block already.
    #[error("{holder} holds {block} already; vacate it first")]
    HoldsAlready {
        /// Who.
        holder: PartitionId,
        /// What it holds.
        block: Block,
    },
    /// The holder holds nothing.
    #[error("{holder} holds nothing")]
    HoldsNothing {
        /// Who.
        holder: PartitionId,
    },
    /// The holder holds something else.
    #[error("{holder} holds {held}, not {block}")]
    HoldsOther {
        /// Who.
        holder: PartitionId,
        /// What it holds.
        held: Block,
        /// What it was to vacate.
        block: Block,
    },
    /// Not this owner's exclusion.
    #[error("{at} is not excluded by {owner}; only who excludes an IPU can lift it")]
    NotExcluded {
        /// The first IPU.
        at: IpuAddress,
        /// Who wanted to lift it.
        owner: ExclusionOwner,
        /// Who does exclude it; empty if nobody does.
        owners: Vec<ExclusionOwner>,
    },
}

/// What exists and who holds it. See the [module documentation](self) for what its operations cost.
#[derive(Clone, Debug)]
pub struct Inventory {
    topology: Topology,
    holders: Holders,
    exclusions: Exclusions,
    /// IPUs that nobody holds, by link domain, excluded ones included.
    vacant: Vec<u64>,
    /// IPUs that someone excludes, by link domain.
    excluded: Vec<u64>,
    /// One for each allocation in their order; with several allocations, the last one is of all of them.
    pools: Vec<Pool>,
    /// For each link domain the rows of pools that show it: pool, row, IPUs of the row.
    rows: Vec<Vec<(usize, usize, u64)>>,
}

impl Inventory {
    /// All of `topology`, free.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let domains = topology.link_domains();
        let pools = Pool::all(topology);
        let mut rows = vec![Vec::new(); domains as usize];
        for (number, pool) in pools.iter().enumerate() {
            for (row, (domain, mask)) in pool.rows().enumerate() {
                rows[domain as usize].push((number, row, mask));
            }
        }
        Self {
            topology: topology.clone(),
            holders: Holders::none(domains, topology.ipus()),
            exclusions: Exclusions::default(),
            vacant: (0..domains).map(|domain| topology.ipu_mask(domain)).collect(),
            excluded: vec![0; domains as usize],
            pools,
            rows,
        }
    }

    /// The hardware.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How many IPUs can be placed on: in an allocation, not held, not excluded.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.everything().free()
    }

    /// The size of the largest partition that fits now; none if nothing is free.
    #[must_use]
    pub fn largest_block(&self) -> Option<IpuCount> {
        self.everything().largest_block()
    }

    /// How many partitions of `size` fit now, at once, in `allocation` or in all; 0 if there is no such allocation.
    ///
    /// Exact, see [`View::fit_count`] for the one exception. Source: the numbers of seed 000 §6.8.1 (`/query`).
    #[must_use]
    pub fn fit_count(&self, size: IpuCount, allocation: Option<&AllocationId>) -> u32 {
        self.view(allocation).map_or(0, |view| view.fit_count(size))
    }

    /// What would have to end for `size` to fit; none if nothing that ends could help. See [`View::blockers_for`].
    #[must_use]
    pub fn blockers_for(&self, size: IpuCount, allocation: Option<&AllocationId>) -> Option<Blockers> {
        self.view(allocation).ok()?.blockers_for(size)
    }

    /// The IPUs of one allocation, or of all.
    ///
    /// # Errors
    ///
    /// [`UnknownAllocation`] if there is no such allocation.
    pub fn view(&self, allocation: Option<&AllocationId>) -> Result<View<'_>, UnknownAllocation> {
        let Some(id) = allocation else {
            return Ok(self.everything());
        };
        let number = self
            .topology
            .allocations()
            .iter()
            .position(|allocation| allocation.id == *id);
        match number.and_then(|number| self.pools.get(number)) {
            Some(pool) => Ok(View::new(self, pool)),
            None => Err(UnknownAllocation {
                allocation: id.clone(),
            }),
        }
    }

    /// The view of all allocations.
    #[must_use]
    pub fn everything(&self) -> View<'_> {
        match self.pools.last() {
            Some(pool) => View::new(self, pool),
            None => unreachable!("there is always the pool of all allocations"),
        }
    }

    /// Lets `holder` hold `block`, all of which exists, is not held and is not excluded.
    ///
    /// Whether the block is a legal partition is not asked here (a controller may have chosen otherwise):
    /// [`place`](crate::place) answers legal ones only.
    ///
    /// # Errors
    ///
    /// [`InventoryError`] `HoldsAlready`, `Unknown`, `Held` or `Excluded`.
    pub fn occupy(&mut self, holder: PartitionId, block: Block) -> Result<(), InventoryError> {
        if let Some(held) = self.holders.block_of(&holder) {
            return Err(InventoryError::HoldsAlready {
                holder,
                block: held.clone(),
            });
        }
        self.check_available(&block)?;
        for (domain, mask) in block.masks() {
            self.vacant[domain as usize] &= !mask;
            self.refresh(domain);
        }
        self.holders.insert(holder, block);
        Ok(())
    }

    /// Ends the hold of `holder` and answers what it held.
    ///
    /// # Errors
    ///
    /// [`InventoryError::HoldsNothing`], so that a second vacate is seen and never frees what someone else holds.
    pub fn vacate(&mut self, holder: &PartitionId) -> Result<Block, InventoryError> {
        let Some(block) = self.holders.remove(holder) else {
            return Err(InventoryError::HoldsNothing {
                holder: holder.clone(),
            });
        };
        for (domain, mask) in block.masks() {
            self.vacant[domain as usize] |= mask;
            self.refresh(domain);
        }
        Ok(block)
    }

    /// Ends the hold of `holder` if it holds exactly `block`.
    ///
    /// # Errors
    ///
    /// [`InventoryError::HoldsNothing`], or [`InventoryError::HoldsOther`] if the block is another's or only a part.
    pub fn vacate_block(&mut self, holder: &PartitionId, block: &Block) -> Result<(), InventoryError> {
        match self.holders.block_of(holder) {
            Some(held) if held == block => self.vacate(holder).map(|_| ()),
            Some(held) => Err(InventoryError::HoldsOther {
                holder: holder.clone(),
                held: held.clone(),
                block: block.clone(),
            }),
            None => Err(InventoryError::HoldsNothing {
                holder: holder.clone(),
            }),
        }
    }

    /// What `holder` holds.
    #[must_use]
    pub fn block_of(&self, holder: &PartitionId) -> Option<&Block> {
        self.holders.block_of(holder)
    }

    /// Who holds an IPU, and with it which block.
    #[must_use]
    pub fn holder_at(&self, at: IpuAddress) -> Option<(&PartitionId, &Block)> {
        self.topology
            .contains(at)
            .then(|| self.holders.at(at.link_domain, u32::from(at.ipu)))?
    }

    /// The holders and what they hold, by the address of the first IPU.
    pub fn holders(&self) -> impl Iterator<Item = (&PartitionId, &Block)> {
        (0..self.topology.link_domains()).flat_map(move |link_domain| {
            addresses(link_domain, self.topology.ipu_mask(link_domain))
                .filter_map(move |at| self.holder_at(at).filter(|(_, block)| block.first() == at))
        })
    }

    /// How many holders there are.
    #[must_use]
    pub const fn holder_count(&self) -> u32 {
        self.holders.len()
    }

    /// The IPUs of a link domain that are neither held nor excluded, bit i for IPU i, whether or not in an allocation.
    #[must_use]
    pub fn free_mask(&self, link_domain: u32) -> u64 {
        self.vacant_mask(link_domain) & !self.excluded_mask(link_domain)
    }

    /// The IPUs of a link domain that nobody holds.
    pub(crate) fn vacant_mask(&self, link_domain: u32) -> u64 {
        self.vacant.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// The IPUs of a link domain that someone excludes.
    pub(crate) fn excluded_mask(&self, link_domain: u32) -> u64 {
        self.excluded.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// Whether all of `block` exists, is not held and is not excluded.
    pub(crate) fn check_available(&self, block: &Block) -> Result<(), InventoryError> {
        for (domain, mask) in block.masks() {
            let missing = mask & !self.topology.ipu_mask(domain);
            let held = mask & !self.vacant_mask(domain) & !missing;
            let excluded = mask & self.excluded_mask(domain);
            if let Some(at) = addresses(domain, missing).next() {
                return Err(InventoryError::Unknown { at });
            }
            if let Some((at, holder)) =
                addresses(domain, held).find_map(|at| Some((at, self.holder_at(at)?.0.clone())))
            {
                return Err(InventoryError::Held { at, holder });
            }
            if let Some((at, owner)) =
                addresses(domain, excluded).find_map(|at| Some((at, self.excluded_by(at).next()?.clone())))
            {
                return Err(InventoryError::Excluded { at, owner });
            }
        }
        Ok(())
    }

    /// The holders in no order, from the table that the others refer to.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&PartitionId, &Block)> {
        self.holders.entries()
    }

    /// The pools whose index is not what one made anew of these free IPUs would be.
    pub(crate) fn stale_pools(&self, free: &[u64]) -> impl Iterator<Item = usize> {
        self.pools
            .iter()
            .enumerate()
            .filter_map(|(number, pool)| (!pool.is_index_of(free)).then_some(number))
    }

    fn set_excluded(&mut self, domain: u32, mask: u64) {
        self.excluded[domain as usize] = mask;
        self.refresh(domain);
    }

    /// Tells the pools what is free in a link domain.
    fn refresh(&mut self, domain: u32) {
        let free = self.free_mask(domain);
        for (pool, row, mask) in &self.rows[domain as usize] {
            self.pools[*pool].index.set(*row, free & mask);
        }
    }
}
