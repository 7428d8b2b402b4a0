//! What a controller tells: its version, partitions by allocation, IPUoF configuration, attributes of IPUs.

use std::collections::BTreeSet;

use ipu_core::{AgentId, Allocation, AllocationId, Topology};
use vipu_sim::Simulator;

use super::{Bench, Transport, id, over_both_transports, request};

over_both_transports![
    the_version_is_told,
    an_empty_pod_lists_nothing,
    partitions_are_listed_by_allocation_and_never_span_two,
    the_ipuof_configuration_is_told_for_each_gcd_and_for_all,
    a_reconfigurable_partition_shows_devices_of_every_aligned_size,
    attributes_are_told_for_each_ipu_of_the_agents_asked_for,
];

async fn the_version_is_told(transport: Transport) {
    let bench = Bench::start(transport, Simulator::builder(Topology::pod4()).version("1.17.0")).await;
    assert_eq!(bench.controller.version().await, Ok("1.17.0".to_owned()));
}

async fn an_empty_pod_lists_nothing(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod4()).await;
    assert_eq!(bench.controller.list_partitions(None).await, Ok(Vec::new()));
}

/// A Pod16 cut into two allocations of two machines.
fn two_allocations() -> Topology {
    let whole = Topology::pod16();
    let agents: Vec<AgentId> = whole.agents().map(|(agent, _)| agent.clone()).collect();
    let allocation = |name: &str, agents: &[AgentId]| Allocation {
        id: AllocationId::new(name).unwrap(),
        cluster: whole.clusters()[0].id.clone(),
        agents: agents.iter().cloned().collect(),
    };
    let (low, high) = agents.split_at(2);
    let allocations = vec![allocation("low", low), allocation("high", high)];
    Topology::new(whole.clusters().to_vec(), Some(allocations)).unwrap()
}

async fn partitions_are_listed_by_allocation_and_never_span_two(transport: Transport) {
    let bench = Bench::quick(transport, two_allocations()).await;
    let allocation = |name: &str| Some(AllocationId::new(name).unwrap());
    for (name, within) in [("p1", "high"), ("p2", "low"), ("p3", "high")] {
        let mut wanted = request(name, 4);
        wanted.spec.allocation = allocation(within);
        bench.controller.create_partition(wanted).await.unwrap();
    }
    for (within, expected) in [(None, 3), (allocation("low"), 1), (allocation("high"), 2)] {
        let listed = bench.controller.list_partitions(within.clone()).await.unwrap();
        assert_eq!(listed.len(), expected, "{within:?}");
        let other = |found: &Option<AllocationId>| within.is_some() && *found != within;
        assert!(!listed.iter().any(|partition| other(&partition.spec.allocation)));
    }
    // Two free machines are left, one in each allocation.
    bench.controller.remove_partition(&id("p3"), false).await.unwrap();
    assert_eq!(super::label(bench.create("p4", 8).await), "no_capacity");
}

async fn the_ipuof_configuration_is_told_for_each_gcd_and_for_all(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let mut wanted = request("p1", 8);
    wanted.spec.gcds = 4;
    wanted.spec.replicas = 4;
    bench.controller.create_partition(wanted).await.unwrap();
    let all = bench.controller.ipuof_config(&id("p1"), None).await.unwrap();
    assert!(!all.reconfigurable && !all.server_version.is_empty());
    assert_eq!(all.gcds.len(), 4);
    for gcd in 0..4_u32 {
        let one = bench.controller.ipuof_config(&id("p1"), Some(gcd)).await.unwrap();
        assert_eq!(one.gcds, all.gcds[gcd as usize..=gcd as usize]);
        assert_eq!(one.gcds[0].attributes["GCD Id"], gcd.to_string());
        assert!(one.gcds[0].devices.is_sorted_by_key(|device| device.device_id));
    }
    let ipus: BTreeSet<_> = all
        .gcds
        .iter()
        .flat_map(|gcd| gcd.devices.iter().map(|device| (&device.ip, device.ipu_id)))
        .collect();
    assert_eq!(ipus.len(), 8, "no IPU is in two GCDs");
}

async fn a_reconfigurable_partition_shows_devices_of_every_aligned_size(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    for (name, reconfigurable, devices) in [("p1", true, 2 * 4 - 1), ("p2", false, 4 + 1)] {
        let mut wanted = request(name, 4);
        wanted.spec.reconfigurable = reconfigurable;
        bench.controller.create_partition(wanted).await.unwrap();
        let config = bench.controller.ipuof_config(&id(name), None).await.unwrap();
        assert_eq!(config.reconfigurable, reconfigurable);
        assert_eq!(config.gcds[0].devices.len(), devices);
    }
}

async fn attributes_are_told_for_each_ipu_of_the_agents_asked_for(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let all = bench.controller.ipu_attributes(&[]).await.unwrap();
    assert_eq!(all.len(), 4);
    let mut places = BTreeSet::new();
    for agent in &all {
        assert!(agent.ipus.keys().eq(&[0, 1, 2, 3]));
        for attributes in agent.ipus.values() {
            for key in ["cluster", "linkDomain", "ipu", "health", "allocation"] {
                assert!(attributes.contains_key(key), "{key} {attributes:?}");
            }
            places.insert((attributes["linkDomain"].clone(), attributes["ipu"].clone()));
        }
    }
    assert_eq!(places.len(), 16);

    let asked = [all[2].agent.clone(), all[1].agent.clone()];
    let two = bench.controller.ipu_attributes(&asked).await.unwrap();
    let (mut found, mut expected) = (two, vec![all[1].clone(), all[2].clone()]);
    found.sort_by(|a, b| a.agent.cmp(&b.agent));
    expected.sort_by(|a, b| a.agent.cmp(&b.agent));
    assert_eq!(found, expected);
}
