//! A model of an inventory that is too simple to be wrong: sets of IPUs, and questions answered by trying everything.
//! It shares no code with the crate beyond the value types.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{
    AgentId, Allocation, AllocationId, Block, Cluster, ExclusionOwner, Inventory, IpuAddress, IpuCount,
    LinkDomain, PartitionId, Topology,
};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

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

/// Something done to an inventory. Indexes choose among what exists when it is done.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Occupy this aligned block, free or not.
    Occupy {
        at: Index,
        order: u32,
        holder: u8,
    },
    /// Occupy whole link domains, free or not.
    OccupyWhole {
        from: Index,
        order: u32,
        holder: u8,
    },
    /// Occupy a set of IPUs that is no legal partition.
    OccupyAny {
        ats: Vec<Index>,
        holder: u8,
    },
    Vacate {
        holder: u8,
    },
    Exclude {
        owner: u8,
        ats: Vec<Index>,
    },
    Lift {
        owner: u8,
        ats: Vec<Index>,
    },
    /// Lift all that the owner excludes.
    LiftAll {
        owner: u8,
    },
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let ats = || prop::collection::vec(any::<Index>(), 1..4);
    let holder = || 0_u8..24;
    let owner = || 0_u8..3;
    let step = prop_oneof![
        8 => (any::<Index>(), 0_u32..=6, holder()).prop_map(|(at, order, holder)| Step::Occupy { at, order, holder }),
        2 => (any::<Index>(), 1_u32..=2, holder()).prop_map(|(from, order, holder)| Step::OccupyWhole { from, order, holder }),
        1 => (ats(), holder()).prop_map(|(ats, holder)| Step::OccupyAny { ats, holder }),
        5 => holder().prop_map(|holder| Step::Vacate { holder }),
        2 => (owner(), ats()).prop_map(|(owner, ats)| Step::Exclude { owner, ats }),
        1 => (owner(), ats()).prop_map(|(owner, ats)| Step::Lift { owner, ats }),
        1 => owner().prop_map(|owner| Step::LiftAll { owner }),
    ];
    prop::collection::vec(step, 0..most)
}

/// Does a step to both, and asserts that both take it or refuse it alike.
pub(crate) fn apply(step: &Step, model: &mut Model, inventory: &mut Inventory) -> Result<(), TestCaseError> {
    let all: Vec<IpuAddress> = (0..model.topology.link_domains())
        .flat_map(|domain| span(domain, 0, 64))
        .filter(|at| model.topology.contains(*at))
        .collect();
    let pick = |ats: &[Index]| -> BTreeSet<IpuAddress> { ats.iter().map(|at| *at.get(&all)).collect() };
    let occupy = |model: &mut Model, inventory: &mut Inventory, holder: u8, block: Block| {
        let holder = PartitionId::new(format!("holder-{holder}")).unwrap();
        let ipus: BTreeSet<IpuAddress> = block.addresses().collect();
        let legal = ipus.iter().all(|at| model.is_free(*at)) && !model.held.contains_key(&holder);
        prop_assert_eq!(inventory.occupy(holder.clone(), block).is_ok(), legal);
        if legal {
            model.held.insert(holder, ipus);
        }
        Ok(())
    };
    match step {
        Step::Occupy { at, order, holder } => {
            let at = at.get(&all);
            let size = IpuCount::from_order(*order).unwrap();
            let block = Block::within(at.link_domain, at.ipu & !(size.get() as u8 - 1), size).unwrap();
            occupy(model, inventory, *holder, block)?;
        }
        Step::OccupyWhole { from, order, holder } => {
            let from = from.index(model.topology.link_domains() as usize) as u32;
            occupy(
                model,
                inventory,
                *holder,
                Block::whole(from..from + (1 << order)).unwrap(),
            )?;
        }
        Step::OccupyAny { ats, holder } => {
            occupy(model, inventory, *holder, Block::of_ipus(pick(ats)).unwrap())?;
        }
        Step::Vacate { holder } => {
            let holder = PartitionId::new(format!("holder-{holder}")).unwrap();
            let held = model.held.remove(&holder);
            let vacated = inventory
                .vacate(&holder)
                .ok()
                .map(|block| block.addresses().collect());
            prop_assert_eq!(vacated, held);
        }
        Step::Exclude { owner, ats } => {
            let owner = ExclusionOwner::new(format!("owner-{owner}")).unwrap();
            let ats = pick(ats);
            let holders = ats.iter().filter_map(|at| model.holder(*at)).cloned().collect();
            prop_assert_eq!(inventory.exclude(&owner, ats.iter().copied()), Ok(holders));
            model
                .excluded
                .extend(ats.into_iter().map(|at| (owner.clone(), at)));
        }
        Step::Lift { owner, ats } => {
            let owner = ExclusionOwner::new(format!("owner-{owner}")).unwrap();
            let ats = pick(ats);
            let legal = ats
                .iter()
                .all(|at| model.excluded.contains(&(owner.clone(), *at)));
            prop_assert_eq!(inventory.lift(&owner, ats.iter().copied()).is_ok(), legal);
            if legal {
                model
                    .excluded
                    .retain(|(other, at)| *other != owner || !ats.contains(at));
            }
        }
        Step::LiftAll { owner } => {
            let owner = ExclusionOwner::new(format!("owner-{owner}")).unwrap();
            let ats: Vec<IpuAddress> = model
                .excluded
                .iter()
                .filter(|(other, _)| *other == owner)
                .map(|(_, at)| *at)
                .collect();
            prop_assert!(inventory.lift(&owner, ats).is_ok());
            model.excluded.retain(|(other, _)| *other != owner);
        }
    }
    Ok(())
}

/// Small topologies: up to two clusters of up to four link domains, some of them whole, with any allocations.
pub(crate) fn topologies() -> impl Strategy<Value = Topology> {
    let domain =
        prop_oneof![3 => Just(vec![true; 16]), 2 => prop::collection::vec(prop::bool::weighted(0.8), 1..=4)];
    let clusters = prop::collection::vec(prop::collection::vec(domain, 1..=4), 1..=2);
    clusters.prop_flat_map(|mut shape| {
        // At least one machine.
        shape[0][0][0] = true;
        let mut agents = 0;
        let clusters: Vec<Cluster> = shape
            .into_iter()
            .enumerate()
            .map(|(number, domains)| {
                let mut machine = |there: bool| {
                    agents += 1;
                    there.then(|| AgentId::new(format!("a{agents}")).unwrap())
                };
                let link_domains = domains.into_iter().map(|domain| LinkDomain {
                    machines: domain.into_iter().map(&mut machine).collect(),
                });
                Cluster {
                    id: format!("cl{number}").parse().unwrap(),
                    link_domains: link_domains.collect(),
                }
            })
            .collect();
        let allocations = prop_oneof![1 => Just(None), 2 => allocations(&clusters).prop_map(Some)];
        (Just(clusters), allocations)
            .prop_map(|(clusters, allocations)| Topology::new(clusters, allocations).unwrap())
    })
}

/// Any sets of agents of each cluster, mostly of whole link domains.
fn allocations(clusters: &[Cluster]) -> impl Strategy<Value = Vec<Allocation>> + use<> {
    let mut all = Vec::new();
    for cluster in clusters {
        let domains: Vec<Vec<AgentId>> = cluster
            .link_domains
            .iter()
            .map(|domain| domain.machines.iter().flatten().cloned().collect())
            .collect();
        let agents: Vec<AgentId> = domains.concat();
        if agents.is_empty() {
            continue;
        }
        let (most, len) = (domains.len(), agents.len());
        let set = prop_oneof![
            2 => subsequence(domains, 1..=most).prop_map(|domains| domains.concat()),
            1 => subsequence(agents, 1..=len),
        ];
        all.push(prop::collection::vec((Just(cluster.id.clone()), set), 0..=3));
    }
    all.prop_map(|sets| {
        let sets = sets
            .into_iter()
            .flatten()
            .filter(|(_, agents)| !agents.is_empty());
        sets.enumerate()
            .map(|(number, (cluster, agents))| Allocation {
                id: format!("al{number}").parse().unwrap(),
                cluster,
                agents: agents.into_iter().collect(),
            })
            .collect()
    })
}
