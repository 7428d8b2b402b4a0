//! Random topologies, and random things done to an inventory and to its model alike.

use std::collections::BTreeSet;

use ipu_core::{
    AgentId, Allocation, Block, Cluster, ExclusionOwner, Inventory, IpuAddress, IpuCount, LinkDomain,
    PartitionId, Topology,
};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

use crate::model::{Model, span};

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
pub(crate) fn apply(step: &Step, model: &mut Model, inventory: &mut Inventory) {
    let all: Vec<IpuAddress> = (0..model.topology.link_domains())
        .flat_map(|domain| span(domain, 0, 64))
        .filter(|at| model.topology.contains(*at))
        .collect();
    let pick = |ats: &[Index]| -> BTreeSet<IpuAddress> { ats.iter().map(|at| *at.get(&all)).collect() };
    let occupy = |model: &mut Model, inventory: &mut Inventory, holder: u8, block: Block| {
        let holder = PartitionId::new(format!("holder-{holder}")).unwrap();
        let ipus: BTreeSet<IpuAddress> = block.addresses().collect();
        let legal = ipus.iter().all(|at| model.is_free(*at)) && !model.held.contains_key(&holder);
        assert_eq!(inventory.occupy(holder.clone(), block).is_ok(), legal);
        if legal {
            model.held.insert(holder, ipus);
        }
    };
    match step {
        Step::Occupy { at, order, holder } => {
            let at = at.get(&all);
            let size = IpuCount::from_order(*order).unwrap();
            let block = Block::within(at.link_domain, at.ipu & !(size.get() as u8 - 1), size).unwrap();
            occupy(model, inventory, *holder, block);
        }
        Step::OccupyWhole { from, order, holder } => {
            let from = from.index(model.topology.link_domains() as usize) as u32;
            occupy(
                model,
                inventory,
                *holder,
                Block::whole(from..from + (1 << order)).unwrap(),
            );
        }
        Step::OccupyAny { ats, holder } => {
            occupy(model, inventory, *holder, Block::of_ipus(pick(ats)).unwrap());
        }
        Step::Vacate { holder } => {
            let holder = PartitionId::new(format!("holder-{holder}")).unwrap();
            let held = model.held.remove(&holder);
            let vacated = inventory
                .vacate(&holder)
                .ok()
                .map(|block| block.addresses().collect());
            assert_eq!(vacated, held);
        }
        Step::Exclude { owner, ats } => {
            let owner = ExclusionOwner::new(format!("owner-{owner}")).unwrap();
            let ats = pick(ats);
            let holders = ats.iter().filter_map(|at| model.holder(*at)).cloned().collect();
            assert_eq!(inventory.exclude(&owner, ats.iter().copied()), Ok(holders));
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
            assert_eq!(inventory.lift(&owner, ats.iter().copied()).is_ok(), legal);
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
            assert!(inventory.lift(&owner, ats).is_ok());
            model.excluded.retain(|(other, _)| *other != owner);
        }
    }
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
