//! What a controller tells: its version, partitions by allocation, IPUoF configuration, attributes of IPUs.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{AgentId, Allocation, AllocationId, Topology};
use ipu_vipu_client::Removal;

use super::harness::{Harness, id, place, refused, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, broken, ok, same};

cases![
    the_version_is_told,
    an_empty_pod_lists_nothing,
    every_partition_is_listed_and_has_a_status,
    partitions_are_listed_by_allocation_and_never_span_two,
    the_ipuof_configuration_is_told_for_each_gcd_and_for_all,
    a_reconfigurable_partition_shows_devices_of_every_aligned_size,
    attributes_are_told_for_each_ipu_of_the_agents_asked_for,
];

/// `GetVersion` answers a version (reference, Calls).
async fn the_version_is_told(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod4())).await;
    let version = ok("the version is told", pod.controller.version().await)?;
    same("the version is not empty", &version.is_empty(), &false)
}

/// A fresh controller has no partitions.
async fn an_empty_pod_lists_nothing(lab: Harness) -> CaseOutcome {
    lab.pod(Setup::quick(Topology::pod4()))
        .await
        .lists_exactly(&[])
        .await
}

/// "The partitions […] of all that the user may see" (`list_partitions`): one that is left out would look free.
async fn every_partition_is_listed_and_has_a_status(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod64())).await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for (at, name) in names.into_iter().enumerate() {
        pod.make(name, [1, 2, 4, 8][at % 4]).await?;
    }
    pod.lists_exactly(&names).await?;
    for partition in pod.listed().await? {
        let rule = "the listing and the status agree";
        same(rule, &partition.state, &pod.state(partition.id.as_str()).await?)?;
    }
    for name in ["c", "h"] {
        pod.remove(name, Removal::Regular).await?;
    }
    pod.lists_exactly(&["a", "b", "d", "e", "f", "g"]).await
}

/// A Pod16 cut into two allocations of two machines each, so that the middle block of one is not that of the other.
fn two_allocations() -> Topology {
    let whole = Topology::pod16();
    let mut agents: Vec<_> = whole.agents().collect();
    agents.sort_by_key(|(_, at)| *at);
    let cluster = whole
        .clusters()
        .first()
        .expect("a Pod16 is one cluster")
        .id
        .clone();
    let allocation = |name: &str, machines: [usize; 2]| Allocation {
        id: AllocationId::new(name).expect("a name"),
        cluster: cluster.clone(),
        agents: machines.iter().map(|at| agents[*at].0.clone()).collect(),
    };
    let allocations = vec![allocation("outer", [0, 3]), allocation("inner", [1, 2])];
    Topology::new(whole.clusters().to_vec(), Some(allocations)).expect("two allocations of one cluster")
}

/// "A partition draws from one allocation" (simulator, Documented), and is listed under it (reference, `allocation_id`).
async fn partitions_are_listed_by_allocation_and_never_span_two(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(two_allocations())).await;
    let allocation = |name: &str| Some(AllocationId::new(name).expect("a name"));
    // By place, so that the two machines that stay free are neighbours.
    for (name, within, first) in [("p1", "outer", 0), ("p2", "inner", 4), ("p3", "inner", 8)] {
        let mut wanted = request(name, 4);
        wanted.spec.allocation = allocation(within);
        wanted.ipus = (first..first + 4).map(|ipu| place(0, ipu)).collect();
        pod.make_as(wanted).await?;
    }
    for (within, expected) in [
        (None, &["p1", "p2", "p3"][..]),
        (allocation("outer"), &["p1"]),
        (allocation("inner"), &["p2", "p3"]),
    ] {
        let answer = pod.controller.list_partitions(within.clone()).await;
        let listed = ok("partitions of an allocation are listed", answer)?;
        let found: BTreeSet<_> = listed.iter().map(|one| one.id.as_str()).collect();
        let rule = "the partitions of an allocation are listed, and no others";
        same(
            rule,
            &(&within, found),
            &(&within, expected.iter().copied().collect()),
        )?;
        if within.is_some() {
            let rule = "a partition tells its allocation";
            let told: Vec<_> = listed.iter().map(|one| &one.spec.allocation).collect();
            same(rule, &told, &vec![&within; listed.len()])?;
        }
    }
    pod.remove("p3", Removal::Regular).await?;
    let rule = "a partition does not span allocations: each has four free IPUs, neither has eight";
    refused(rule, pod.create("p4", 8).await, &["no_capacity"]).map(drop)
}

/// "The IPUoF configuration of one GCD, or of all" (`ipuof_config`), "one entry for each graph compilation domain asked for,
/// in order" (`IpuofConfig`), the attribute `GCD Id` (what PopTorch reads), devices "in order of their id" (`GcdConfig`).
async fn the_ipuof_configuration_is_told_for_each_gcd_and_for_all(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let mut wanted = request("p1", 8);
    wanted.spec.gcds = 4;
    wanted.spec.replicas = 4;
    pod.make_as(wanted).await?;
    let p1 = id("p1");
    let answer = pod.controller.ipuof_config(&p1, None).await;
    let all = ok("the configuration of all GCDs is told", answer)?;
    let rule = "a partition is configured as it was asked for";
    same(rule, &(all.reconfigurable, all.gcds.len()), &(false, 4))?;
    let mut holders = BTreeMap::new();
    for (number, gcd) in (0..).zip(&all.gcds) {
        let answer = pod.controller.ipuof_config(&p1, Some(number)).await;
        let one = ok("the configuration of one GCD is told", answer)?;
        let rule = "the configuration of one GCD is its part of that of all";
        same(rule, &(number, one.gcds), &(number, vec![gcd.clone()]))?;
        let told = gcd.attributes.get("GCD Id").cloned();
        same("a GCD tells its number", &told, &Some(number.to_string()))?;
        let ordered = gcd.devices.is_sorted_by_key(|device| device.device_id);
        same("devices are in order of their id", &ordered, &true)?;
        for device in &gcd.devices {
            let other = holders.insert((device.ip.clone(), device.ipu_id), number);
            if other.is_some_and(|other| other != number) {
                let seen = format!("IPU {} of {} is in two", device.ipu_id, device.ip);
                return Err(broken("no IPU is in two GCDs", "every IPU in one", seen));
            }
        }
    }
    same("every IPU is reached through a device", &holders.len(), &8)
}

/// A reconfigurable partition of N IPUs shows 2N − 1 devices (simulator, Documented).
async fn a_reconfigurable_partition_shows_devices_of_every_aligned_size(lab: Harness) -> CaseOutcome {
    let pod = lab.pod(Setup::quick(Topology::pod16())).await;
    let mut wanted = request("p1", 4);
    wanted.spec.reconfigurable = true;
    pod.make_as(wanted).await?;
    let answer = pod.controller.ipuof_config(&id("p1"), None).await;
    let config = ok("the configuration of all GCDs is told", answer)?;
    let devices: Vec<_> = config.gcds.iter().map(|gcd| gcd.devices.len()).collect();
    let rule = "a reconfigurable partition of N IPUs shows 2N - 1 devices";
    same(rule, &(config.reconfigurable, devices), &(true, vec![2 * 4 - 1]))
}

/// "The IPUs of the given agents, or of all if none is given" (`ipu_attributes`); the keys are an assumption (reference,
/// Attributes of IPUs), and what placement and the ledger read: together they tell the whole Pod.
async fn attributes_are_told_for_each_ipu_of_the_agents_asked_for(lab: Harness) -> CaseOutcome {
    let topology = Topology::pod16();
    let pod = lab.pod(Setup::quick(topology.clone())).await;
    let answer = pod.controller.ipu_attributes(&[]).await;
    let all = ok("the attributes of all IPUs are told", answer)?;
    let agents: BTreeMap<AgentId, _> = all.into_iter().map(|one| (one.agent, one.ipus)).collect();
    for (agent, ipus) in &agents {
        let rule = "an agent has four IPUs, numbered from 0";
        let numbers: Vec<_> = ipus.keys().copied().collect();
        same(rule, &(agent, numbers), &(agent, vec![0, 1, 2, 3]))?;
    }
    let rule = "the attributes tell the hardware";
    let found = ok(rule, Topology::from_agents(&agents))?;
    same(rule, &found.topology, &topology)?;
    same(
        "all IPUs of a fresh Pod are healthy",
        &found.unhealthy,
        &Vec::new(),
    )?;

    let asked: Vec<AgentId> = agents.keys().rev().take(2).cloned().collect();
    let answer = pod.controller.ipu_attributes(&asked).await;
    let two = ok("the attributes of two agents are told", answer)?;
    let two: BTreeMap<AgentId, _> = two.into_iter().map(|one| (one.agent, one.ipus)).collect();
    let expected = asked.iter().map(|agent| (agent.clone(), agents[agent].clone()));
    let rule = "the attributes of the agents that are asked for are told, and no others";
    same(rule, &two, &expected.collect())
}
