//! Holders that block a placement.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::pool::Pool;
use super::view::domains_of;
use super::{Block, InventoryView, addresses, bitmap};
use crate::ids::PartitionId;
use crate::units::IpuCount;

/// Holders that would have to end for a partition to fit, and its placement then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Number of holders, then number of their IPUs, then the lowest address.
type BlockCost = (usize, u32, u32, u32);

impl InventoryView<'_> {
    /// Returns a smallest set of holders whose end frees a block of `size`; none if there is no such set (too
    /// large, or too much of it is cordoned).
    ///
    /// *Guarantees*. No smaller set is enough. Up to 64 IPUs it is, among sets of equal length, the one with
    /// the fewest IPUs in use, then the one at the lowest address; the same inventory gives the same result.
    /// Above 64 IPUs the length is minimal as long as every holder is an aligned block.
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

    /// Returns the number of holders with IPUs of a mask, and the total number of their IPUs.
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

    /// Returns the holders of a block.
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

    /// Returns the cheapest `wanted` whole link domains of one allocation.
    ///
    /// The cost of a link domain is the number of holders in it. The exception: one holder of several whole
    /// link domains frees all of them for the cost of one. The order of choice: free link domains, then the
    /// largest such holders (the last of them the smallest that is enough), then the link domains with the
    /// fewest holders.
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
            // The holder of a single link domain costs as much as a group and ends less work.
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
