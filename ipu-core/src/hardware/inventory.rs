//! The inventory of a topology: hardware, holders and cordons.
//!
//! Free space is one 64-bit word for each link domain. Link domains are indexed by their free blocks, for
//! each allocation, so `occupy` and `vacate` take the same time at 64 and at 65,536 IPUs.

use alloc::vec;
use alloc::vec::Vec;

use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{AllocationId, PartitionId};
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

pub(crate) use block::addresses;
pub use block::{Block, BlockError};
pub use blockers::Blockers;
pub use error::InventoryError;
pub use free_index::FreeIndex;
pub use from_listing::{ListedInventory, ListingConflict};
pub use view::{InventoryView, UnknownAllocation};

use cordons::Cordons;
use holders::Holders;
use pool::Pool;

/// The hardware of a topology with its holders and cordons.
///
/// The time of `occupy`, `vacate`, a lookup of a holder, and first-fit and best-fit up to 64 IPUs does not
/// grow with the number of IPUs. Other queries visit each link domain once. A clone is an independent copy
/// for hypothetical placements.
///
/// ```
/// use ipu_core::hardware::{Block, Inventory, Topology};
/// use ipu_core::{IpuCount, PartitionId};
///
/// let mut inventory = Inventory::new(&Topology::pod16());
/// let four = IpuCount::try_from(4)?;
/// let holder = PartitionId::new("p-mnist-0")?;
/// inventory.occupy(holder.clone(), Block::within(0, 4, four)?)?;
/// assert_eq!(inventory.fit_count(four, None), 3);
/// assert_eq!(inventory.largest_block(), Some(IpuCount::try_from(8)?));
/// inventory.vacate(&holder)?;
/// assert_eq!(inventory.free(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Inventory {
    topology: Topology,
    holders: Holders,
    cordons: Cordons,
    /// IPUs without a holder, by link domain, cordoned ones included.
    vacant: Vec<u64>,
    /// Cordoned IPUs, by link domain.
    cordoned: Vec<u64>,
    /// One for each allocation in their order; with several allocations, the last one covers all of them.
    pools: Vec<Pool>,
    /// Rows of the pools, by link domain.
    pool_rows: Vec<Vec<PoolRow>>,
}

/// The row of a pool for a link domain, or for a part of it.
#[derive(Clone, Copy, Debug)]
struct PoolRow {
    pool: usize,
    row: usize,
    /// The IPUs of the row.
    mask: u64,
}

impl Inventory {
    /// Creates an inventory of `topology` with all IPUs free.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let domains = topology.link_domains();
        let pools = Pool::all(topology);
        let mut pool_rows = vec![Vec::new(); domains as usize];
        for (number, pool) in pools.iter().enumerate() {
            for (row, (domain, mask)) in pool.rows().enumerate() {
                pool_rows[domain as usize].push(PoolRow {
                    pool: number,
                    row,
                    mask,
                });
            }
        }
        Self {
            topology: topology.clone(),
            holders: Holders::new(domains),
            cordons: Cordons::default(),
            vacant: (0..domains).map(|domain| topology.ipu_mask(domain)).collect(),
            cordoned: vec![0; domains as usize],
            pools,
            pool_rows,
        }
    }

    /// Returns the hardware.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the number of IPUs available for placement: in an allocation, not held, not cordoned.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.whole_view().free()
    }

    /// Returns the size of the largest partition that fits now; none if no IPU is free.
    #[must_use]
    pub fn largest_block(&self) -> Option<IpuCount> {
        self.whole_view().largest_block()
    }

    /// Returns the number of partitions of `size` that fit side by side now, in `allocation` or in all; 0 if
    /// there is no such allocation.
    ///
    /// Exact, see [`InventoryView::fit_count`] for the one exception. Source: the numbers of V-IPU guide
    /// §6.8.1 (`/query`).
    #[must_use]
    pub fn fit_count(&self, size: IpuCount, allocation: Option<&AllocationId>) -> u32 {
        self.view(allocation).map_or(0, |view| view.fit_count(size))
    }

    /// Returns the holders that would have to end for `size` to fit; none if no end helps. See
    /// [`InventoryView::blockers_for`].
    ///
    /// ```
    /// use ipu_core::hardware::{Block, Inventory, Topology};
    /// use ipu_core::{IpuCount, PartitionId};
    ///
    /// let mut inventory = Inventory::new(&Topology::pod16());
    /// inventory.occupy(PartitionId::new("p-mnist-0")?, Block::within(0, 0, IpuCount::try_from(1)?)?)?;
    /// let blockers = inventory.blockers_for(IpuCount::try_from(16)?, None);
    /// assert!(format!("{blockers:?}").contains("p-mnist-0"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn blockers_for(&self, size: IpuCount, allocation: Option<&AllocationId>) -> Option<Blockers> {
        self.view(allocation).ok()?.blockers_for(size)
    }

    /// Returns a view of one allocation, or of all.
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

    /// Returns the view of all allocations.
    #[must_use]
    pub fn whole_view(&self) -> InventoryView<'_> {
        InventoryView::new(self, self.pools.len() - 1)
    }

    /// Assigns `block` to `holder`. All of the block must exist, be not held and not be cordoned.
    ///
    /// The block need not be a legal partition, because a controller may have chosen it.
    /// [`place`](crate::placement::place) returns legal ones only.
    ///
    /// # Errors
    ///
    /// [`InventoryError`] `HoldsAlready`, `Unknown`, `Held` or `Cordoned`.
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

    /// Ends the hold of `holder` and returns its block.
    ///
    /// # Errors
    ///
    /// [`InventoryError::HoldsNothing`], so that a second vacate is detected and never frees the block of
    /// another holder.
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

    /// Returns the block of `holder`.
    #[must_use]
    pub fn block_of(&self, holder: &PartitionId) -> Option<&Block> {
        self.holders.block_of(holder)
    }

    /// Returns the holder of an IPU, with its block.
    #[must_use]
    pub fn holder_at(&self, at: IpuAddress) -> Option<(&PartitionId, &Block)> {
        self.topology
            .contains(at)
            .then(|| self.holders.at(at.link_domain, u32::from(at.ipu)))?
    }

    /// Iterates over the holders and their blocks, by the address of the first IPU.
    pub fn holders(&self) -> impl Iterator<Item = (&PartitionId, &Block)> {
        (0..self.topology.link_domains()).flat_map(move |link_domain| {
            addresses(link_domain, self.topology.ipu_mask(link_domain))
                .filter_map(move |at| self.holder_at(at).filter(|(_, block)| block.first() == at))
        })
    }

    /// Returns the number of holders.
    #[must_use]
    pub const fn holder_count(&self) -> u32 {
        self.holders.len()
    }

    /// Returns the IPUs of a link domain that are neither held nor cordoned, bit i for IPU i, in or outside
    /// of an allocation.
    #[must_use]
    pub fn free_mask(&self, link_domain: u32) -> u64 {
        self.vacant_mask(link_domain) & !self.cordoned_mask(link_domain)
    }

    /// Returns the IPUs of a link domain that are not held.
    pub(crate) fn vacant_mask(&self, link_domain: u32) -> u64 {
        self.vacant.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// Returns the cordoned IPUs of a link domain.
    pub(crate) fn cordoned_mask(&self, link_domain: u32) -> u64 {
        self.cordoned.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// Checks that all of `block` exists, is not held and is not cordoned.
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

    fn set_cordoned(&mut self, domain: u32, mask: u64) {
        self.cordoned[domain as usize] = mask;
        self.refresh(domain);
    }

    /// Updates the pools with the free IPUs of a link domain.
    fn refresh(&mut self, domain: u32) {
        let free = self.free_mask(domain);
        for row in &self.pool_rows[domain as usize] {
            self.pools[row.pool].index.set(row.row, free & row.mask);
        }
    }

    /// Returns the rows of the pools for a link domain.
    fn pool_rows(&self, link_domain: u32) -> &[PoolRow] {
        self.pool_rows
            .get(link_domain as usize)
            .map_or(&[], Vec::as_slice)
    }
}
