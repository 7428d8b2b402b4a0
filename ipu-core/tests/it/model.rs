//! A model of an inventory that is too simple to be wrong: sets of IPUs, and questions answered by trying everything.
//! It shares no code with the crate beyond the value types.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{AllocationId, ExclusionOwner, IpuAddress, PartitionId, Topology};

/// All sizes that are interesting: 1 to 64, and whole link domains.
pub(crate) const SIZES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// What is held and excluded.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) topology: Topology,
    pub(crate) held: BTreeMap<PartitionId, BTreeSet<IpuAddress>>,
    pub(crate) excluded: BTreeSet<(ExclusionOwner, IpuAddress)>,
}

impl Model {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            topology: topology.clone(),
            held: BTreeMap::new(),
            excluded: BTreeSet::new(),
        }
    }

    pub(crate) fn holder(&self, at: IpuAddress) -> Option<&PartitionId> {
        self.held
            .iter()
            .find(|(_, ipus)| ipus.contains(&at))
            .map(|(id, _)| id)
    }

    pub(crate) fn is_excluded(&self, at: IpuAddress) -> bool {
        self.excluded.iter().any(|(_, other)| *other == at)
    }

    pub(crate) fn is_free(&self, at: IpuAddress) -> bool {
        self.topology.contains(at) && self.holder(at).is_none() && !self.is_excluded(at)
    }

    /// The IPUs of each allocation of the scope.
    fn scopes(&self, allocation: Option<&AllocationId>) -> Vec<BTreeSet<IpuAddress>> {
        let chosen = self
            .topology
            .allocations()
            .iter()
            .filter(|other| allocation.is_none_or(|id| other.id == *id));
        chosen
            .map(|allocation| {
                allocation
                    .agents
                    .iter()
                    .flat_map(|agent| self.topology.agent_ipus(agent).unwrap())
                    .collect()
            })
            .collect()
    }

    /// All IPUs of the scope.
    pub(crate) fn ipus(&self, allocation: Option<&AllocationId>) -> BTreeSet<IpuAddress> {
        self.scopes(allocation).into_iter().flatten().collect()
    }

    pub(crate) fn free(&self, allocation: Option<&AllocationId>) -> u32 {
        self.ipus(allocation)
            .iter()
            .filter(|at| self.is_free(**at))
            .count() as u32
    }

    /// Every legal block of `size` in the scope all of whose IPUs are `usable`.
    pub(crate) fn blocks(
        &self,
        size: u32,
        allocation: Option<&AllocationId>,
        usable: impl Fn(IpuAddress) -> bool,
    ) -> BTreeSet<Vec<IpuAddress>> {
        let mut found = BTreeSet::new();
        for scope in self.scopes(allocation) {
            let usable: BTreeSet<IpuAddress> = scope.into_iter().filter(|at| usable(*at)).collect();
            let all = |block: &Vec<IpuAddress>| block.iter().all(|at| usable.contains(at));
            if size <= 64 {
                let starts = usable.iter().filter(|at| u32::from(at.ipu) % size == 0);
                found.extend(starts.map(|at| span(at.link_domain, at.ipu, size)).filter(all));
            } else {
                let whole: Vec<u32> = (0..self.topology.link_domains())
                    .filter(|domain| all(&span(*domain, 0, 64)))
                    .collect();
                for chosen in choices(&whole, (size / 64) as usize) {
                    found.insert(
                        chosen
                            .into_iter()
                            .flat_map(|domain| span(domain, 0, 64))
                            .collect(),
                    );
                }
            }
        }
        found
    }

    /// Every legal block of `size` in the scope that is free.
    pub(crate) fn free_blocks(
        &self,
        size: u32,
        allocation: Option<&AllocationId>,
    ) -> BTreeSet<Vec<IpuAddress>> {
        self.blocks(size, allocation, |at| self.is_free(at))
    }

    /// The most blocks of `size` that are free at once.
    pub(crate) fn fit_count(&self, size: u32, allocation: Option<&AllocationId>) -> u32 {
        let blocks = self.free_blocks(size, allocation);
        if size <= 64 {
            // Aligned blocks of one size never overlap.
            return blocks.len() as u32;
        }
        let blocks: Vec<BTreeSet<u32>> = blocks
            .into_iter()
            .map(|block| block.iter().map(|at| at.link_domain).collect())
            .collect();
        most_disjoint(&blocks, &BTreeSet::new())
    }

    /// The fewest holders to end, then the fewest IPUs that they hold, for `size` to fit.
    pub(crate) fn blockers(&self, size: u32, allocation: Option<&AllocationId>) -> Option<(usize, u32)> {
        let blocks = self.blocks(size, allocation, |at| !self.is_excluded(at));
        let costs = blocks.iter().map(|block| {
            let holders: BTreeSet<&PartitionId> = block.iter().filter_map(|at| self.holder(*at)).collect();
            (
                holders.len(),
                holders.iter().map(|holder| self.held[*holder].len() as u32).sum(),
            )
        });
        costs.min()
    }
}

/// `size` IPUs from `first` on.
pub(crate) fn span(link_domain: u32, first: u8, size: u32) -> Vec<IpuAddress> {
    (0..size as u8)
        .map(|i| IpuAddress {
            link_domain,
            ipu: first + i,
        })
        .collect()
}

/// Every choice of `count` of `from`.
fn choices(from: &[u32], count: usize) -> Vec<Vec<u32>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let Some((first, rest)) = from.split_first() else {
        return Vec::new();
    };
    let with = choices(rest, count - 1).into_iter().map(|mut choice| {
        choice.insert(0, *first);
        choice
    });
    with.chain(choices(rest, count)).collect()
}

fn most_disjoint(blocks: &[BTreeSet<u32>], used: &BTreeSet<u32>) -> u32 {
    let Some((first, rest)) = blocks.split_first() else {
        return 0;
    };
    let without = most_disjoint(rest, used);
    if first.is_disjoint(used) {
        without.max(1 + most_disjoint(rest, &(used | first)))
    } else {
        without
    }
}
