//! Holders that block a placement.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::pool::Pool;
use super::view::domains_of;
use super::{Block, InventoryView};
use crate::ids::PartitionId;
use crate::units::IpuCount;

/// Holders that would have to end for a partition to fit, and its placement then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Blockers {
    /// Blocking holders, by id; empty if the partition fits now.
    pub holders: Vec<PartitionId>,
    /// Total number of IPUs of these holders.
    pub ipus: u32,
    /// Placement of the partition after they end.
    pub block: Block,
}

impl<'a> InventoryView<'a> {
    /// Returns a smallest set of holders whose end frees a block of `size`; none if there is no such set (too
    /// large, or too much of it is cordoned).
    ///
    /// *Guarantees*. No smaller set is enough. Up to 64 IPUs it is, among sets of equal length, the one with
    /// the fewest IPUs in use, then the one at the lowest address; the same inventory gives the same result.
    /// Above 64 IPUs the length is minimal as long as every holder is an aligned block.
    ///
    /// ```
    /// use ipu_core::hardware::{Block, Inventory, Topology};
    /// use ipu_core::{IpuCount, PartitionId};
    ///
    /// let mut inventory = Inventory::new(&Topology::pod16());
    /// for (holder, first, size) in [("small", 0, 4), ("large", 8, 8)] {
    ///     let block = Block::within(0, first, IpuCount::try_from(size)?)?;
    ///     inventory.occupy(PartitionId::new(holder)?, block)?;
    /// }
    /// let blockers = inventory.whole_view().blockers_for(IpuCount::try_from(8)?);
    /// assert_eq!(blockers.expect("a Pod16 is large enough").holders, [PartitionId::new("small")?]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn blockers_for(&self, size: IpuCount) -> Option<Blockers> {
        if let Some(domains) = domains_of(size) {
            let candidates = self.pools().filter_map(|pool| self.whole_blockers(pool, domains));
            return candidates.min_by_key(|found| (found.holders.len(), found.ipus, found.block.first()));
        }
        // By address, and the first of equal ones is returned.
        let blocks = self.blocks_in(size.order(), |inventory, domain| !inventory.cordoned_mask(domain));
        let block = blocks.min_by_key(|block| {
            let holders = block
                .masks()
                .flat_map(|(domain, mask)| self.holders_in(domain, mask));
            holders.fold((0, 0), |(count, total), (_, ipus)| (count + 1, total + ipus))
        });
        block.map(|block| self.blockers_of(block))
    }

    /// Iterates over the holders with IPUs of a mask, and their total numbers of IPUs.
    fn holders_in(&self, domain: u32, mask: u64) -> impl Iterator<Item = (&'a PartitionId, u32)> + use<'a> {
        let inventory = self.inventory;
        let mut rest = mask & !inventory.vacant_mask(domain);
        core::iter::from_fn(move || {
            let ipu = (rest != 0).then(|| rest.trailing_zeros())?;
            let (id, block) = inventory.holders.at(domain, ipu)?;
            let own = block.masks().filter(|(other, _)| *other == domain);
            rest = own.fold(rest, |rest, (_, mask)| rest & !mask);
            Some((id, block.ipus()))
        })
    }

    /// Returns the holders of a block.
    fn blockers_of(&self, block: Block) -> Blockers {
        let masks = block.masks();
        let holders: BTreeMap<_, u32> = masks
            .flat_map(|(domain, mask)| self.holders_in(domain, mask))
            .collect();
        Blockers {
            ipus: holders.values().sum(),
            holders: holders.into_keys().cloned().collect(),
            block,
        }
    }

    /// Returns the cheapest `wanted` whole link domains of one allocation.
    ///
    /// The cost of a link domain is the number of holders in it. The exception: one holder of several whole
    /// link domains frees all of them for the cost of one. The order of choice: free link domains, then the
    /// largest such holders (the last of them the smallest that is enough), then the link domains with the
    /// fewest holders.
    fn whole_blockers(&self, pool: &Pool, wanted: usize) -> Option<Blockers> {
        let mut groups: BTreeMap<Vec<(&PartitionId, u32)>, Vec<u32>> = BTreeMap::new();
        for (domain, mask) in pool.rows() {
            if mask == u64::MAX && self.inventory.cordoned_mask(domain) == 0 {
                let holders = self.holders_in(domain, mask).collect();
                groups.entry(holders).or_default().push(domain);
            }
        }
        let mut chosen = groups.remove([].as_slice()).unwrap_or_default();
        chosen.truncate(wanted);
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(holders, domains)| {
            let ipus: u32 = holders.iter().map(|(_, ipus)| ipus).sum();
            (
                holders.len(),
                Reverse(domains.len()),
                ipus,
                domains.first().copied(),
            )
        });
        while chosen.len() < wanted {
            let missing = wanted - chosen.len();
            let enough = groups
                .iter()
                .enumerate()
                .filter(|(_, (_, domains))| domains.len() >= missing)
                .min_by_key(|(_, (holders, domains))| (holders.len(), domains.len()));
            let next = enough.map_or(0, |(next, _)| next);
            let (_, domains) = (!groups.is_empty()).then(|| groups.remove(next))?;
            chosen.extend(domains.into_iter().take(missing));
        }
        Some(self.blockers_of(Block::whole(chosen).ok()?))
    }
}
