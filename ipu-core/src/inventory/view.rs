//! Questions about free space.

use alloc::vec;
use alloc::vec::Vec;

use super::pool::Pool;
use super::{Block, Inventory, words};
use crate::ids::{AllocationId, ExclusionOwner};
use crate::topology::IpuAddress;
use crate::units::IpuCount;

/// There is no such allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no allocation {allocation}; name one of those that the controller has")]
pub struct UnknownAllocation {
    /// What was asked for.
    pub allocation: AllocationId,
}

/// The free space of one allocation, or of all, as a policy sees it. It cannot change anything.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) pool: &'a Pool,
}

impl<'a> View<'a> {
    pub(super) const fn new(inventory: &'a Inventory, pool: &'a Pool) -> Self {
        Self { inventory, pool }
    }

    /// The inventory that this is a view of.
    #[must_use]
    pub const fn inventory(&self) -> &'a Inventory {
        self.inventory
    }

    /// The allocation; none if this is the view of all (it is the view of one if there is only one).
    #[must_use]
    pub fn allocation(&self) -> Option<&'a AllocationId> {
        let number = self.pool.allocation?;
        self.inventory
            .topology()
            .allocations()
            .get(number)
            .map(|allocation| &allocation.id)
    }

    /// How many IPUs are free.
    #[must_use]
    pub fn free(&self) -> u32 {
        if self.pool.crossing {
            return self.union_bits(|domain, mask| self.inventory.free_mask(domain) & mask);
        }
        self.pool.index.free()
    }

    /// How many IPUs someone excludes and nobody holds.
    #[must_use]
    pub fn excluded(&self) -> u32 {
        self.union_bits(|domain, mask| {
            self.inventory.vacant_mask(domain) & self.inventory.excluded_mask(domain) & mask
        })
    }

    /// Who excludes any of the IPUs that [`excluded`](Self::excluded) counts, by name.
    #[must_use]
    pub fn excluders(&self) -> Vec<ExclusionOwner> {
        let here = |at: &IpuAddress| {
            let rows = self
                .pool
                .by_domain()
                .find(|(domain, _)| *domain == at.link_domain);
            let mask = rows.map_or(0, |(_, rows)| rows.iter().fold(0, |all, (_, mask)| all | mask));
            self.inventory.vacant_mask(at.link_domain) & mask & 1 << at.ipu != 0
        };
        let mut owners: Vec<ExclusionOwner> = self
            .inventory
            .exclusions()
            .filter(|(_, at)| here(at))
            .map(|(owner, _)| owner.clone())
            .collect();
        owners.dedup();
        owners
    }

    /// Whether a partition of `size` would fit now if nothing were excluded.
    #[must_use]
    pub fn would_fit_without_exclusions(&self, size: IpuCount) -> bool {
        let vacant = |domain, mask| self.inventory.vacant_mask(domain) & mask;
        match domains_of(size) {
            Some(domains) => self.pools().any(|pool| {
                pool.rows()
                    .filter(|(domain, mask)| vacant(*domain, *mask) == u64::MAX)
                    .count()
                    >= domains
            }),
            None => self
                .pool
                .rows()
                .any(|(domain, mask)| words::starts(vacant(domain, mask), size.order()) != 0),
        }
    }

    /// How many IPUs there are, in whatever state.
    #[must_use]
    pub fn ipus(&self) -> u32 {
        self.union_bits(|_, mask| mask)
    }

    /// How many IPUs of one link domain are free, those outside the allocation left out.
    #[must_use]
    pub fn free_in(&self, link_domain: u32) -> u32 {
        let rows = self.pool.by_domain().find(|(domain, _)| *domain == link_domain);
        let mask = rows.map_or(0, |(_, rows)| rows.iter().fold(0, |all, (_, mask)| all | mask));
        (self.inventory.free_mask(link_domain) & mask).count_ones()
    }

    /// The size of the largest partition that fits now; none if nothing is free.
    #[must_use]
    pub fn largest_block(&self) -> Option<IpuCount> {
        let whole = self
            .pools()
            .map(|pool| pool.index.whole().len())
            .max()
            .unwrap_or(0);
        match whole.checked_ilog2() {
            Some(order) if order > 0 => IpuCount::from_order((order + 6).min(IpuCount::MAX.order())),
            _ => self.pool.index.largest(),
        }
    }

    /// The size of the largest partition that would fit if everything were free; none if there is nothing at all.
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
                    .filter_map(|(_, mask)| words::top(words::signature(mask)));
                orders.max().and_then(IpuCount::from_order)
            }
        }
    }

    /// Whether a partition of `size` fits now.
    #[must_use]
    pub fn fits(&self, size: IpuCount) -> bool {
        self.largest_block().is_some_and(|largest| largest >= size)
    }

    /// How many partitions of `size` fit now, at once.
    ///
    /// *Guarantees*. The number is exact. The exception: more than 64 IPUs in the view of all allocations where
    /// allocations share whole link domains without one having all of the other's; to be exact is a packing problem
    /// then, and the answer is one that can be reached, but maybe not the largest.
    #[must_use]
    pub fn fit_count(&self, size: IpuCount) -> u32 {
        match domains_of(size) {
            Some(domains) => self.whole_count(domains),
            None => self.union_bits(|domain, mask| {
                words::starts(self.inventory.free_mask(domain) & mask, size.order())
            }),
        }
    }

    /// How many disjoint groups of `domains` whole free link domains of one allocation there are.
    fn whole_count(&self, domains: usize) -> u32 {
        // The smallest allocation first; what is left of its groups serves the larger ones around it.
        let mut pools: Vec<&Pool> = self.pools().collect();
        pools.sort_by_key(|pool| pool.rows().filter(|(_, mask)| *mask == u64::MAX).count());
        let mut used = vec![false; self.inventory.topology().link_domains() as usize];
        let mut count = 0;
        for pool in pools {
            let left: Vec<usize> = pool
                .index
                .whole()
                .iter()
                .map(|row| pool.domain(row) as usize)
                .filter(|domain| !used[*domain])
                .collect();
            let groups = left.len() / domains;
            for domain in left.into_iter().take(groups * domains) {
                used[domain] = true;
            }
            count += groups;
        }
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The free block of `size` at the lowest address.
    #[must_use]
    pub fn first_fit(&self, size: IpuCount) -> Option<Block> {
        if let Some(domains) = domains_of(size) {
            return self
                .pools()
                .filter_map(|pool| lowest_whole(pool, domains))
                .min()
                .and_then(whole);
        }
        let order = size.order();
        let (row, _) = self.pool.index.first_fit(size)?;
        let starts = self
            .pool
            .siblings(row)
            .fold(0, |all, row| all | words::starts(self.pool.index.row(row), order));
        Some(Block::aligned(
            self.pool.domain(row),
            starts.trailing_zeros(),
            order,
        ))
    }

    /// The tightest free block of `size`: the start of the smallest free block that it fits into, the lowest of those.
    /// Larger than a link domain: the link domains of the allocation with the fewest whole free ones that are enough.
    #[must_use]
    pub fn best_fit(&self, size: IpuCount) -> Option<Block> {
        if let Some(domains) = domains_of(size) {
            let candidates = self
                .pools()
                .filter_map(|pool| Some((pool.index.whole().len(), lowest_whole(pool, domains)?)));
            return candidates.min().and_then(|(_, domains)| whole(domains));
        }
        let (order, row) = self.pool.index.tightest_order(size)?;
        let starts = self.pool.siblings(row).fold(0, |all, row| {
            all | words::maximal(self.pool.index.row(row), order)
        });
        Some(Block::aligned(
            self.pool.domain(row),
            starts.trailing_zeros(),
            size.order(),
        ))
    }

    /// Every free block of `size`, by address. Larger than a link domain: one for each allocation that it fits into, of
    /// the lowest link domains, because all combinations would be too many.
    pub fn blocks(&self, size: IpuCount) -> impl Iterator<Item = Block> + use<'a> {
        let view = *self;
        let domains = domains_of(size);
        let large = domains.into_iter().flat_map(move |domains| {
            view.pools()
                .filter_map(move |pool| lowest_whole(pool, domains))
                .filter_map(whole)
        });
        let rows = if domains.is_none() {
            Some(self.pool.by_domain())
        } else {
            None
        };
        let small = rows.into_iter().flatten().flat_map(move |(domain, rows)| {
            let free = view.inventory.free_mask(domain);
            let starts = rows
                .iter()
                .fold(0, |all, (_, mask)| all | words::starts(free & mask, size.order()));
            (0..64_u32)
                .filter(move |first| starts >> first & 1 == 1)
                .map(move |first| Block::aligned(domain, first, size.order()))
        });
        large.chain(small)
    }

    /// Whether all of `block` is in one allocation of this view.
    #[must_use]
    pub fn covers(&self, block: &Block) -> bool {
        self.pools().any(|pool| {
            block.masks().all(|(domain, mask)| {
                pool.rows()
                    .any(|(other, row)| other == domain && mask & !row == 0)
            })
        })
    }

    /// The pools of single allocations of this view.
    pub(super) fn pools(&self) -> impl Iterator<Item = &'a Pool> + use<'a> {
        let allocation = self.pool.allocation;
        self.inventory.pools.iter().filter(move |pool| {
            pool.allocation.is_some() && (allocation.is_none() || pool.allocation == allocation)
        })
    }

    /// The number of bits that any row of a link domain gives, over all link domains.
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

/// How many whole link domains a partition of `size` takes; none if it fits into one.
pub(super) fn domains_of(size: IpuCount) -> Option<usize> {
    (size > IpuCount::LINK_DOMAIN).then(|| (size.get() / IpuCount::LINK_DOMAIN.get()) as usize)
}

/// The lowest whole free link domains of a pool, if it has so many.
fn lowest_whole(pool: &Pool, domains: usize) -> Option<Vec<u32>> {
    let enough = pool.index.whole().len() as usize >= domains;
    enough.then(|| {
        pool.index
            .whole()
            .iter()
            .take(domains)
            .map(|row| pool.domain(row))
            .collect()
    })
}

fn whole(domains: Vec<u32>) -> Option<Block> {
    Block::whole(domains).ok()
}
