//! Random hardware topologies.

use ipu_core::AgentId;
use ipu_core::hardware::{Allocation, Cluster, LinkDomain, Topology};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// Returns small topologies: up to two clusters of up to four link domains, some whole, some with gaps.
/// Allocations are those of the clusters or any others: none, disjoint, nested or overlapping.
pub fn topologies() -> impl Strategy<Value = Topology> {
    let domain = prop_oneof![
        2 => (1..=4_usize).prop_map(|machines| vec![true; machines]),
        4 => Just(vec![true; 16]),
        1 => prop::collection::vec(prop::bool::weighted(0.8), 1..=4),
    ];
    let clusters = prop::collection::vec(prop::collection::vec(domain, 1..=4), 1..=2);
    clusters.prop_flat_map(|mut shape| {
        // At least one machine.
        shape[0][0][0] = true;
        with_allocations(clusters_of(&shape))
    })
}

/// Returns up to three clusters of 2 to 16 whole link domains, for partitions of up to 1,024 IPUs, with any
/// allocations.
pub fn wide_topologies() -> impl Strategy<Value = Topology> {
    let shapes: [&[usize]; 7] = [&[2, 2], &[4], &[3, 4], &[2, 4, 2], &[8], &[10], &[16]];
    select(shapes.map(<[usize]>::to_vec).to_vec()).prop_flat_map(|domains| {
        let shape: Vec<_> = domains
            .into_iter()
            .map(|domains| vec![vec![true; 16]; domains])
            .collect();
        with_allocations(clusters_of(&shape))
    })
}

/// Returns one cluster of 8, 10 or 16 whole link domains, all one allocation.
pub(crate) fn vast_topologies() -> impl Strategy<Value = Topology> {
    select(vec![8_usize, 10, 16]).prop_map(|domains| {
        let clusters = clusters_of(&[vec![vec![true; 16]; domains]]);
        Topology::new(clusters, None).expect("the generated topology is within the limits")
    })
}

/// Builds clusters from machine presence by link domain. Ids match those of the text form.
fn clusters_of(shape: &[Vec<Vec<bool>>]) -> Vec<Cluster> {
    let mut agents = 0;
    let mut machine = |present: bool| {
        agents += i32::from(present);
        present.then(|| AgentId::new(format!("a{agents}")).expect("a valid agent id"))
    };
    (1..)
        .zip(shape)
        .map(|(number, domains)| Cluster {
            id: format!("cl{number}").parse().expect("a valid id"),
            link_domains: domains
                .iter()
                .map(|domain| LinkDomain {
                    machines: domain.iter().map(|present| machine(*present)).collect(),
                })
                .collect(),
        })
        .collect()
}

fn with_allocations(clusters: Vec<Cluster>) -> impl Strategy<Value = Topology> {
    let allocations = prop_oneof![1 => Just(None), 2 => allocations(&clusters).prop_map(Some)];
    (Just(clusters), allocations).prop_map(|(clusters, allocations)| {
        Topology::new(clusters, allocations).expect("the generated topology is within the limits")
    })
}

/// Returns any sets of agents of each cluster, mostly of whole link domains.
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
        let (count, len) = (domains.len(), agents.len());
        let set = prop_oneof![
            2 => subsequence(domains, 1..=count).prop_map(|domains| domains.concat()),
            1 => subsequence(agents, 1..=len),
        ];
        let set = (Just(cluster.id.clone()), set);
        all.push(prop_oneof![
            9 => prop::collection::vec(set, 1..=3),
            1 => Just(Vec::new()),
        ]);
    }
    all.prop_map(|sets| {
        let sets = sets
            .into_iter()
            .flatten()
            .filter(|(_, agents)| !agents.is_empty());
        sets.enumerate()
            .map(|(number, (cluster, agents))| Allocation {
                id: format!("al{number}").parse().expect("a valid id"),
                cluster,
                agents: agents.into_iter().collect(),
            })
            .collect()
    })
}
