//! Queries of free space.

use alloc::vec;
use alloc::vec::Vec;

use super::pool::Pool;
use super::{Inventory, bitmap};
use crate::hardware::topology::IpuAddress;
use crate::ids::{AllocationId, CordonOwner};
use crate::units::IpuCount;

/// There is no such allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no allocation {allocation}; name one of those that the controller has")]
pub struct UnknownAllocation {
    /// The requested allocation.
    pub allocation: AllocationId,
}

/// Read-only view of the free space of one allocation, or of all, for a policy.
#[derive(Clone, Copy, Debug)]
pub struct InventoryView<'a> {
    pub(super) inventory: &'a Inventory,
    number: usize,
    pub(super) pool: &'a Pool,
}

impl<'a> InventoryView<'a> {
    /// Creates the view of the pool `number`, which must exist.
    pub(super) fn new(inventory: &'a Inventory, number: usize) -> Self {
        Self {
            inventory,
            number,
            pool: &inventory.pools[number],
        }
    }

    /// Returns the inventory of this view.
    #[must_use]
    pub const fn inventory(&self) -> &'a Inventory {
        self.inventory
    }

    /// Returns the allocation; none if this is the view of all (with a single allocation, that allocation).
    #[must_use]
    pub fn allocation(&self) -> Option<&'a AllocationId> {
        let allocations = self.inventory.topology().allocations();
        allocations.get(self.number).map(|allocation| &allocation.id)
    }

    /// Returns the number of free IPUs.
    #[must_use]
    pub fn free(&self) -> u32 {
        if self.pool.crossing {
            return self.union_bits(|domain, mask| self.inventory.free_mask(domain) & mask);
        }
        self.pool.index.free()
    }

    /// Returns the number of IPUs that are cordoned and not held.
    #[must_use]
    pub fn cordoned(&self) -> u32 {
        self.union_bits(|domain, mask| {
            self.inventory.vacant_mask(domain) & self.inventory.cordoned_mask(domain) & mask
        })
    }

    /// Returns the owners of the cordons that [`cordoned`](Self::cordoned) counts, by name.
    #[must_use]
    pub fn cordon_owners(&self) -> Vec<CordonOwner> {
        let is_here = |at: &IpuAddress| {
            let idle = self.inventory.vacant_mask(at.link_domain) & self.ipu_mask(at.link_domain);
            idle >> at.ipu & 1 == 1
        };
        let mut owners: Vec<CordonOwner> = self
            .inventory
            .cordons()
            .filter(|(_, at)| is_here(at))
            .map(|(owner, _)| owner.clone())
            .collect();
        owners.dedup();
        owners
    }

    /// Returns whether a partition of `size` would fit now without cordons.
    #[must_use]
    pub fn would_fit_without_cordons(&self, size: IpuCount) -> bool {
        let vacant = |domain, mask| self.inventory.vacant_mask(domain) & mask;
        match domains_of(size) {
            Some(domains) => self.pools().any(|pool| {
                pool.rows()
                    .filter(|(domain, mask)| vacant(*domain, *mask) == u64::MAX)
                    .count()
                    >= domains
            }),
            None => self
                .blocks_in(size.order(), Inventory::vacant_mask)
                .next()
                .is_some(),
        }
    }

    /// Returns the number of IPUs, in any state.
    #[must_use]
    pub fn ipus(&self) -> u32 {
        self.union_bits(|_, mask| mask)
    }

    /// Returns the IPUs of a link domain that are in the allocation, in any state, bit i for IPU i.
    #[must_use]
    pub fn ipu_mask(&self, link_domain: u32) -> u64 {
        let rows = self.inventory.pool_rows(link_domain).iter();
        rows.filter(|row| row.pool == self.number)
            .fold(0, |all, row| all | row.mask)
    }

    /// Returns the number of free IPUs of one link domain, without those outside of the allocation.
    #[must_use]
    pub fn free_in(&self, link_domain: u32) -> u32 {
        (self.inventory.free_mask(link_domain) & self.ipu_mask(link_domain)).count_ones()
    }

    /// Returns the size of the largest partition that fits now; none if no IPU is free.
    #[must_use]
    pub fn largest_block(&self) -> Option<IpuCount> {
        let whole = self
            .pools()
            .map(|pool| pool.index.whole_count())
            .max()
            .unwrap_or(0);
        match whole.checked_ilog2() {
            Some(order) => IpuCount::from_order((order + 6).min(IpuCount::MAX.order())),
            None => self.pool.index.largest(),
        }
    }

    /// Returns the size of the largest partition that would fit if all IPUs were free; none if there are no
    /// IPUs.
    #[must_use]
    pub fn capacity(&self) -> Option<IpuCount> {
        let whole = self
            .pools()
            .map(|pool| pool.rows().filter(|(_, mask)| *mask == u64::MAX).count())
            .max();
        match whole.unwrap_or(0).checked_ilog2() {
            Some(order) => IpuCount::from_order((order + 6).min(IpuCount::MAX.order())),
            None => {
                let orders = self
                    .pool
                    .rows()
                    .filter_map(|(_, mask)| bitmap::top(bitmap::signature(mask)));
                orders.max().and_then(IpuCount::from_order)
            }
        }
    }

    /// Returns whether a partition of `size` fits now.
    #[must_use]
    pub fn fits(&self, size: IpuCount) -> bool {
        self.largest_block().is_some_and(|largest| largest >= size)
    }

    /// Returns the number of partitions of `size` that fit side by side now.
    ///
    /// *Guarantees*. The number is exact, with one exception: more than 64 IPUs in the view of all
    /// allocations, where allocations share whole link domains without one containing the other. An exact
    /// result is a packing problem then; the result is reachable, but maybe not the largest.
    #[must_use]
    pub fn fit_count(&self, size: IpuCount) -> u32 {
        match domains_of(size) {
            Some(domains) => self.whole_count(domains),
            None => self.union_bits(|domain, mask| {
                bitmap::starts(self.inventory.free_mask(domain) & mask, size.order())
            }),
        }
    }

    /// Returns the number of disjoint groups of `domains` whole free link domains of one allocation.
    fn whole_count(&self, domains: usize) -> u32 {
        // The smallest allocation first; the rest of its link domains serves the larger ones around it.
        let mut pools: Vec<&Pool> = self.pools().collect();
        pools.sort_by_key(|pool| pool.rows().filter(|(_, mask)| *mask == u64::MAX).count());
        let mut used = vec![false; self.inventory.topology().link_domains() as usize];
        let mut count = 0;
        for pool in pools {
            let unused: Vec<usize> = pool
                .index
                .whole()
                .map(|row| pool.domain(row) as usize)
                .filter(|domain| !used[*domain])
                .collect();
            for group in unused.chunks_exact(domains) {
                count += 1;
                for domain in group {
                    used[*domain] = true;
                }
            }
        }
        count
    }

    /// Iterates over the pools of single allocations of this view.
    pub(super) fn pools(&self) -> impl Iterator<Item = &'a Pool> + use<'a> {
        let view = *self;
        let pools = self.inventory.pools.iter().enumerate();
        pools.filter_map(move |(number, pool)| view.has_pool(number).then_some(pool))
    }

    /// Returns whether the pool `number` is of a single allocation of this view.
    pub(super) fn has_pool(&self, number: usize) -> bool {
        let allocations = self.inventory.topology().allocations().len();
        number < allocations && (self.number == number || self.number == allocations)
    }

    /// Returns the number of distinct bits that `bits` yields for the rows of each link domain, summed over
    /// all link domains.
    fn union_bits(&self, bits: impl Fn(u32, u64) -> u64) -> u32 {
        let domains = self.pool.by_domain();
        domains
            .map(|(domain, rows)| {
                rows.iter()
                    .fold(0, |all, (_, mask)| all | bits(domain, *mask))
                    .count_ones()
            })
            .sum()
    }
}

/// Returns the number of whole link domains that a partition of `size` takes; none if it fits into one.
pub(super) fn domains_of(size: IpuCount) -> Option<usize> {
    (size > IpuCount::LINK_DOMAIN).then(|| (size.get() / IpuCount::LINK_DOMAIN.get()) as usize)
}
