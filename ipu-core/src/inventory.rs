//! What exists and who holds it.
//!
//! Free space is one 64-bit word for each link domain. Link domains are indexed by their free blocks, for each
//! allocation, so that to occupy and to vacate take the same time at 64 and at 65,536 IPUs.

use alloc::vec;
use alloc::vec::Vec;

use crate::ids::{AllocationId, PartitionId};
use crate::topology::{IpuAddress, Topology};
use crate::units::IpuCount;

pub(crate) mod bitmap;
mod block;
mod blockers;
mod candidates;
mod cordons;
mod error;
mod free_blocks;
mod free_index;
mod from_listing;
mod holders;
mod pool;
mod view;

pub use block::Block;
pub(crate) use block::addresses;
pub use blockers::Blockers;
pub use error::{BlockError, InventoryError};
pub use free_index::FreeIndex;
pub use from_listing::{ListedInventory, ListingConflict};
pub use view::{InventoryView, UnknownAllocation};

use cordons::Cordons;
use holders::Holders;
use pool::Pool;

/// What exists and who holds it.
///
/// To occupy, to vacate, to look a holder up, and first-fit and best-fit up to 64 IPUs take a time that does not grow
/// with the number of IPUs; other questions look at each link domain once. A clone is a what-if of its own.
#[derive(Clone, Debug)]
pub struct Inventory {
    topology: Topology,
    holders: Holders,
    cordons: Cordons,
    /// IPUs that nobody holds, by link domain, cordoned ones included.
    vacant: Vec<u64>,
    /// IPUs that someone cordons, by link domain.
    cordoned: Vec<u64>,
    /// One for each allocation in their order; with several allocations, the last one is of all of them.
    pools: Vec<Pool>,
    /// For each link domain, where pools show it.
    parts: Vec<Vec<PoolRow>>,
}

/// Where a pool shows a link domain, or a part of it.
#[derive(Clone, Copy, Debug)]
struct PoolRow {
    pool: usize,
    row: usize,
    /// The IPUs of the row.
    mask: u64,
}

impl Inventory {
    /// All of `topology`, free.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let domains = topology.link_domains();
        let pools = Pool::all(topology);
        let mut parts = vec![Vec::new(); domains as usize];
        for (number, pool) in pools.iter().enumerate() {
            for (row, (domain, mask)) in pool.rows().enumerate() {
                parts[domain as usize].push(PoolRow {
                    pool: number,
                    row,
                    mask,
                });
            }
        }
        Self {
            topology: topology.clone(),
            holders: Holders::none(domains),
            cordons: Cordons::default(),
            vacant: (0..domains).map(|domain| topology.ipu_mask(domain)).collect(),
            cordoned: vec![0; domains as usize],
            pools,
            parts,
        }
    }

    /// The hardware.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How many IPUs can be placed on: in an allocation, not held, not cordoned.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.whole_view().free()
    }

    /// The size of the largest partition that fits now; none if nothing is free.
    #[must_use]
    pub fn largest_block(&self) -> Option<IpuCount> {
        self.whole_view().largest_block()
    }

    /// How many partitions of `size` fit now, at once, in `allocation` or in all; 0 if there is no such allocation.
    ///
    /// Exact, see [`InventoryView::fit_count`] for the one exception. Source: the numbers of seed 000 §6.8.1 (`/query`).
    #[must_use]
    pub fn fit_count(&self, size: IpuCount, allocation: Option<&AllocationId>) -> u32 {
        self.view(allocation).map_or(0, |view| view.fit_count(size))
    }

    /// What would have to end for `size` to fit; none if nothing that ends could help. See [`InventoryView::blockers_for`].
    #[must_use]
    pub fn blockers_for(&self, size: IpuCount, allocation: Option<&AllocationId>) -> Option<Blockers> {
        self.view(allocation).ok()?.blockers_for(size)
    }

    /// The IPUs of one allocation, or of all.
    ///
    /// # Errors
    ///
    /// [`UnknownAllocation`] if there is no such allocation.
    pub fn view(&self, allocation: Option<&AllocationId>) -> Result<InventoryView<'_>, UnknownAllocation> {
        let Some(id) = allocation else {
            return Ok(self.whole_view());
        };
        match self.topology.allocation_number(id) {
            Some(number) => Ok(InventoryView::new(self, number)),
            None => Err(UnknownAllocation {
                allocation: id.clone(),
            }),
        }
    }

    /// The view of all allocations.
    #[must_use]
    pub fn whole_view(&self) -> InventoryView<'_> {
        InventoryView::new(self, self.pools.len() - 1)
    }

    /// Lets `holder` hold `block`, all of which exists, is not held and is not cordoned.
    ///
    /// Whether the block is a legal partition is not asked here (a controller may have chosen otherwise):
    /// [`place`](crate::place) answers legal ones only.
    ///
    /// # Errors
    ///
    /// [`InventoryError`] `HoldsAlready`, `Unknown`, `Held` or `CordonEffect`.
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

    /// The IPUs of a link domain that are neither held nor cordoned, bit i for IPU i, whether or not in an allocation.
    #[must_use]
    pub fn free_mask(&self, link_domain: u32) -> u64 {
        self.vacant_mask(link_domain) & !self.cordoned_mask(link_domain)
    }

    /// The IPUs of a link domain that nobody holds.
    pub(crate) fn vacant_mask(&self, link_domain: u32) -> u64 {
        self.vacant.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// The IPUs of a link domain that someone cordons.
    pub(crate) fn cordoned_mask(&self, link_domain: u32) -> u64 {
        self.cordoned.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// Whether all of `block` exists, is not held and is not cordoned.
    pub(crate) fn check_available(&self, block: &Block) -> Result<(), InventoryError> {
        for (domain, mask) in block.masks() {
            let missing = mask & !self.topology.ipu_mask(domain);
            let held = mask & !self.vacant_mask(domain) & !missing;
            let cordoned = mask & self.cordoned_mask(domain);
            if let Some(at) = addresses(domain, missing).next() {
                return Err(InventoryError::Unknown { at });
            }
            if let Some((at, holder)) =
                addresses(domain, held).find_map(|at| Some((at, self.holder_at(at)?.0.clone())))
            {
                return Err(InventoryError::Held { at, holder });
            }
            if let Some((at, owner)) =
                addresses(domain, cordoned).find_map(|at| Some((at, self.cordoned_by(at).next()?.clone())))
            {
                return Err(InventoryError::Cordoned { at, owner });
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

    fn set_cordoned(&mut self, domain: u32, mask: u64) {
        self.cordoned[domain as usize] = mask;
        self.refresh(domain);
    }

    /// Tells the pools what is free in a link domain.
    fn refresh(&mut self, domain: u32) {
        let free = self.free_mask(domain);
        for part in &self.parts[domain as usize] {
            self.pools[part.pool].index.set(part.row, free & part.mask);
        }
    }

    /// Where pools show a link domain.
    fn parts(&self, link_domain: u32) -> &[PoolRow] {
        self.parts.get(link_domain as usize).map_or(&[], Vec::as_slice)
    }
}
