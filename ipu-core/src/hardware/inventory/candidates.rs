//! Free blocks, as candidates for a policy.

use alloc::vec::Vec;

use super::pool::Pool;
use super::view::domains_of;
use super::{Block, Inventory, InventoryView, bitmap};
use crate::units::IpuCount;

impl<'a> InventoryView<'a> {
    /// Returns the free block of `size` at the lowest address.
    #[must_use]
    pub fn first_fit(&self, size: IpuCount) -> Option<Block> {
        if let Some(domains) = domains_of(size) {
            return self
                .pools()
                .filter_map(|pool| lowest_whole(pool, domains))
                .min()
                .and_then(whole_block);
        }
        let order = size.order();
        let (row, _) = self.pool.index.first_fit(size)?;
        let starts = self.pool.siblings(row).fold(0, |all, row| {
            all | bitmap::starts(self.pool.index.row(row), order)
        });
        Some(Block::aligned(
            self.pool.domain(row),
            starts.trailing_zeros(),
            order,
        ))
    }

    /// Returns the tightest free block of `size`: the start of the smallest free block that it fits into, the
    /// lowest of those. Above the size of a link domain: link domains of the allocation with the fewest whole
    /// free ones that are enough.
    #[must_use]
    pub fn best_fit(&self, size: IpuCount) -> Option<Block> {
        if let Some(domains) = domains_of(size) {
            let candidates = self
                .pools()
                .filter_map(|pool| Some((pool.index.whole_count(), lowest_whole(pool, domains)?)));
            return candidates.min().and_then(|(_, domains)| whole_block(domains));
        }
        let (order, row) = self.pool.index.tightest(size)?;
        let starts = self.pool.siblings(row).fold(0, |all, row| {
            all | bitmap::maximal(self.pool.index.row(row), order)
        });
        Some(Block::aligned(
            self.pool.domain(row),
            starts.trailing_zeros(),
            size.order(),
        ))
    }

    /// Iterates over all free blocks of `size`, by address. Above the size of a link domain: one for each
    /// allocation that it fits into, of the lowest link domains, because the number of all combinations is
    /// too large.
    ///
    /// ```
    /// use ipu_core::IpuCount;
    /// use ipu_core::hardware::{Block, Inventory, Topology};
    ///
    /// let inventory = Inventory::new(&Topology::pod16());
    /// let blocks: Vec<Block> = inventory.whole_view().blocks(IpuCount::try_from(4)?).collect();
    /// assert_eq!(blocks.iter().map(|block| block.first().ipu).collect::<Vec<_>>(), [0, 4, 8, 12]);
    /// # Ok::<(), ipu_core::IpuCountError>(())
    /// ```
    pub fn blocks(&self, size: IpuCount) -> impl Iterator<Item = Block> + use<'a> {
        let view = *self;
        let domains = domains_of(size);
        let large = domains.into_iter().flat_map(move |domains| {
            view.pools()
                .filter_map(move |pool| lowest_whole(pool, domains))
                .filter_map(whole_block)
        });
        large.chain(self.blocks_in(size.order(), Inventory::free_mask))
    }

    /// Iterates over the blocks of 2^`order` IPUs that lie in the mask `usable` of a link domain, by address;
    /// none for an order over 6.
    pub(super) fn blocks_in<F>(&self, order: u32, usable: F) -> impl Iterator<Item = Block> + use<'a, F>
    where
        F: Fn(&Inventory, u32) -> u64,
    {
        let inventory = self.inventory;
        self.pool.by_domain().flat_map(move |(domain, rows)| {
            let usable = usable(inventory, domain);
            let starts = rows
                .iter()
                .fold(0, |all, (_, mask)| all | bitmap::starts(usable & mask, order));
            bitmap::bits(starts).map(move |first| Block::aligned(domain, first, order))
        })
    }

    /// Returns whether all of `block` is in one allocation of this view.
    #[must_use]
    pub fn covers(&self, block: &Block) -> bool {
        let Some((first, _)) = block.masks().next() else {
            return false;
        };
        self.inventory.pool_rows(first).iter().any(|candidate| {
            self.has_pool(candidate.pool)
                && block.masks().all(|(domain, mask)| {
                    let rows = self.inventory.pool_rows(domain);
                    rows.iter()
                        .any(|row| row.pool == candidate.pool && mask & !row.mask == 0)
                })
        })
    }
}

/// Returns the lowest `domains` whole free link domains of a pool, if it has that many.
fn lowest_whole(pool: &Pool, domains: usize) -> Option<Vec<u32>> {
    let enough = pool.index.whole_count() >= domains;
    enough.then(|| {
        pool.index
            .whole()
            .take(domains)
            .map(|row| pool.domain(row))
            .collect()
    })
}

fn whole_block(domains: Vec<u32>) -> Option<Block> {
    Block::whole(domains).ok()
}
