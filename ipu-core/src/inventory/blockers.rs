//! What would have to end for a partition to fit.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::pool::Pool;
use super::view::domains_of;
use super::{Block, InventoryView, addresses, bitmap};
use crate::ids::PartitionId;
use crate::units::IpuCount;

/// What would have to end for a partition to fit, and where it would be then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct Blockers {
    /// Who would have to end, by id; empty if it fits now.
    pub holders: Vec<PartitionId>,
    /// How many IPUs all of them hold.
    pub ipus: u32,
    /// Where the partition would fit then.
    pub block: Block,
}

/// Fewest holders, then fewest IPUs that they hold, then the lowest address.
type BlockCost = (usize, u32, u32, u32);

impl InventoryView<'_> {
    /// A smallest set of holders whose end makes room for `size`; none if no end could (too large, or too much of it is
    /// cordoned).
    ///
    /// *Guarantees*. No smaller set is enough. Of those of the same number for up to 64 IPUs it is the one that ends the
    /// fewest IPUs' work, the lowest of those; the same inventory gives the same answer. Above 64 IPUs the number is
    /// smallest as long as every holder is an aligned block.
    #[must_use]
    pub fn blockers_for(&self, size: IpuCount) -> Option<Blockers> {
        match domains_of(size) {
            Some(domains) => {
                let candidates = self.pools().filter_map(|pool| self.whole_blockers(pool, domains));
                candidates.min_by_key(|found| (found.holders.len(), found.ipus, found.block.first()))
            }
            None => self.block_blockers(size.order()),
        }
    }

    fn block_blockers(&self, order: u32) -> Option<Blockers> {
        let mut best: Option<(BlockCost, Block)> = None;
        for (domain, rows) in self.pool.by_domain() {
            let usable = !self.inventory.cordoned_mask(domain);
            let starts = rows
                .iter()
                .fold(0, |all, (_, mask)| all | bitmap::starts(usable & mask, order));
            for first in (0..64).filter(|first| starts >> first & 1 == 1) {
                let (holders, ipus) = self.holders_in(domain, bitmap::block(first, order));
                let cost = (holders, ipus, domain, first);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, Block::aligned(domain, first, order)));
                }
            }
        }
        best.map(|(_, block)| self.blockers_of(block))
    }

    /// How many holders have IPUs of a mask, and how many IPUs they hold in all.
    fn holders_in(&self, domain: u32, mask: u64) -> (usize, u32) {
        let held = mask & !self.inventory.vacant_mask(domain);
        let mut rest = held;
        let (mut count, mut ipus) = (0, 0);
        while rest != 0 {
            let Some((_, block)) = self.inventory.holders.at(domain, rest.trailing_zeros()) else {
                rest &= rest - 1;
                continue;
            };
            count += 1;
            ipus += block.ipus();
            rest = block
                .masks()
                .filter(|(other, _)| *other == domain)
                .fold(rest, |rest, (_, mask)| rest & !mask);
        }
        (count, ipus)
    }

    /// The holders of a block.
    fn blockers_of(&self, block: Block) -> Blockers {
        let mut holders: BTreeMap<&PartitionId, u32> = BTreeMap::new();
        for (domain, mask) in block.masks() {
            let held = mask & !self.inventory.vacant_mask(domain);
            for (id, held) in addresses(domain, held).filter_map(|at| self.inventory.holder_at(at)) {
                holders.insert(id, held.ipus());
            }
        }
        Blockers {
            ipus: holders.values().sum(),
            holders: holders.into_keys().cloned().collect(),
            block,
        }
    }

    /// The cheapest `wanted` whole link domains of one allocation.
    ///
    /// A link domain costs the holders in it, except that one holder of several whole link domains frees all of them
    /// for the cost of one. So: what is free, then the largest such holders (the last of them the smallest that is
    /// enough), then the link domains with the fewest holders.
    fn whole_blockers(&self, pool: &Pool, wanted: usize) -> Option<Blockers> {
        let mut chosen: BTreeSet<u32> = BTreeSet::new();
        let mut groups: BTreeMap<&PartitionId, Vec<u32>> = BTreeMap::new();
        let mut singles: Vec<(usize, u32, u32)> = Vec::new();
        for (domain, mask) in pool.rows() {
            if mask != u64::MAX || self.inventory.cordoned_mask(domain) != 0 {
                continue;
            }
            match self.inventory.holders.at(domain, 0) {
                Some((id, block)) if block.ipus() > 64 && block.size().is_some() => {
                    groups.entry(id).or_default().push(domain);
                }
                _ => {
                    let (holders, ipus) = self.holders_in(domain, u64::MAX);
                    singles.push((holders, ipus, domain));
                }
            }
        }
        singles.sort_unstable();
        let free = singles.partition_point(|(holders, _, _)| *holders == 0);
        chosen.extend(singles.drain(..free).map(|(_, _, domain)| domain).take(wanted));
        let mut singles = singles.into_iter().peekable();
        while chosen.len() < wanted {
            let missing = wanted - chosen.len();
            let enough = groups
                .iter()
                .filter(|(_, domains)| domains.len() >= missing)
                .min_by_key(|(_, domains)| domains.len());
            let largest = groups.iter().rev().max_by_key(|(_, domains)| domains.len());
            let group = enough.or(largest).map(|(id, _)| *id);
            // One holder of a single link domain costs as much as a group and ends less work.
            let single =
                singles.next_if(|(holders, _, _)| group.is_none() || (missing == 1 && *holders == 1));
            if let Some((_, _, domain)) = single {
                chosen.insert(domain);
            } else {
                let domains = groups.remove(group?)?;
                chosen.extend(domains.into_iter().take(missing));
            }
        }
        Some(self.blockers_of(Block::whole(chosen).ok()?))
    }
}
