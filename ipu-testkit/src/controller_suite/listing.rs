//! Cases about read-only calls: version, partitions by allocation, IPUoF configuration, IPU attributes.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::hardware::{Allocation, Topology};
use ipu_core::{AgentId, AllocationId};

use super::harness::{Harness, Removal, check_error, id, place, request};
use super::{Setup, cases};
use crate::conformance::{CaseOutcome, broken, check_eq, check_ok};

cases![
    the_version_is_reported,
    an_empty_controller_lists_nothing,
    every_partition_is_listed_and_has_a_status,
    partitions_are_listed_by_allocation_and_never_span_two,
    the_ipuof_configuration_covers_each_gcd_and_all,
    a_reconfigurable_partition_shows_devices_of_every_aligned_size,
    attributes_cover_each_ipu_of_the_requested_agents,
];

/// `GetVersion` returns a version (reference, Calls).
async fn the_version_is_reported(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod4())).await;
    let version = check_ok("the version is reported", fixture.controller.version().await)?;
    check_eq("the version is not empty", &version.is_empty(), &false)
}

/// A fresh controller has no partitions.
async fn an_empty_controller_lists_nothing(harness: Harness) -> CaseOutcome {
    harness
        .start(Setup::quick(Topology::pod4()))
        .await
        .check_listing(&[])
        .await
}

/// "The partitions […] of all that the user may see" (`list_partitions`): the IPUs of a missing one would
/// look free.
async fn every_partition_is_listed_and_has_a_status(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod64())).await;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for (at, name) in names.into_iter().enumerate() {
        fixture.create_active(name, [1, 2, 4, 8][at % 4]).await?;
    }
    fixture.check_listing(&names).await?;
    for partition in fixture.listed().await? {
        let rule = "the listing and the status agree";
        check_eq(
            rule,
            &partition.state,
            &fixture.state(partition.id.as_str()).await?,
        )?;
    }
    for name in ["c", "h"] {
        fixture.remove(name, Removal::Regular).await?;
    }
    fixture.check_listing(&["a", "b", "d", "e", "f", "g"]).await
}

/// A Pod16 split into two allocations of two machines each, so that the middle block of one is outside the
/// other.
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
        id: AllocationId::new(name).expect("a valid name"),
        cluster: cluster.clone(),
        agents: machines.iter().map(|at| agents[*at].0.clone()).collect(),
    };
    let allocations = vec![allocation("outer", [0, 3]), allocation("inner", [1, 2])];
    Topology::new(whole.clusters().to_vec(), Some(allocations)).expect("two allocations of one cluster")
}

/// "A partition draws from one allocation" (simulator, Documented), and is listed under it (reference,
/// `allocation_id`).
async fn partitions_are_listed_by_allocation_and_never_span_two(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(two_allocations())).await;
    let allocation = |name: &str| Some(AllocationId::new(name).expect("a valid name"));
    // By place, so that the two free machines are adjacent.
    for (name, within, first) in [("p1", "outer", 0), ("p2", "inner", 4), ("p3", "inner", 8)] {
        let mut wanted = request(name, 4);
        wanted.spec.allocation = allocation(within);
        wanted.ipus = (first..first + 4).map(|ipu| place(0, ipu)).collect();
        fixture.create_active_from(wanted).await?;
    }
    for (within, expected) in [
        (None, &["p1", "p2", "p3"][..]),
        (allocation("outer"), &["p1"]),
        (allocation("inner"), &["p2", "p3"]),
    ] {
        let answer = fixture.controller.list_partitions(within.clone()).await;
        let listed = check_ok("partitions of an allocation are listed", answer)?;
        let found: BTreeSet<_> = listed.iter().map(|one| one.id.as_str()).collect();
        let rule = "only the partitions of the allocation are listed";
        check_eq(
            rule,
            &(&within, found),
            &(&within, expected.iter().copied().collect()),
        )?;
        if within.is_some() {
            let rule = "a partition reports its allocation";
            let reported_allocations: Vec<_> = listed.iter().map(|one| &one.spec.allocation).collect();
            check_eq(rule, &reported_allocations, &vec![&within; listed.len()])?;
        }
    }
    fixture.remove("p3", Removal::Regular).await?;
    let rule = "a partition does not span allocations: each has four free IPUs, neither has eight";
    check_error(rule, fixture.create("p4", 8).await, &["no_capacity"]).map(drop)
}

/// `ipuof_config` returns the IPUoF configuration of one GCD, or of all: one entry per requested GCD, in
/// order (`IpuofConfig`), with the attribute `GCD Id` (which PopTorch reads) and devices ordered by id
/// (`GcdConfig`).
async fn the_ipuof_configuration_covers_each_gcd_and_all(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let mut wanted = request("p1", 8);
    wanted.spec.gcds = 4;
    wanted.spec.replicas = 4;
    fixture.create_active_from(wanted).await?;
    let p1 = id("p1");
    let answer = fixture.controller.ipuof_config(&p1, None).await;
    let all = check_ok("the configuration of all GCDs is returned", answer)?;
    let rule = "a partition is configured as requested";
    check_eq(rule, &(all.reconfigurable, all.gcds.len()), &(false, 4))?;
    let mut holders = BTreeMap::new();
    for (number, gcd) in (0..).zip(&all.gcds) {
        let answer = fixture.controller.ipuof_config(&p1, Some(number)).await;
        let one = check_ok("the configuration of one GCD is returned", answer)?;
        let rule = "the configuration of one GCD matches its part of the configuration of all";
        check_eq(rule, &(number, one.gcds), &(number, vec![gcd.clone()]))?;
        let reported = gcd.attributes.get("GCD Id").cloned();
        check_eq("a GCD reports its number", &reported, &Some(number.to_string()))?;
        let ordered = gcd.devices.is_sorted_by_key(|device| device.device_id);
        check_eq("devices are ordered by id", &ordered, &true)?;
        for device in &gcd.devices {
            let other = holders.insert((device.ip.clone(), device.ipu_id), number);
            if other.is_some_and(|other| other != number) {
                let actual = format!("IPU {} of {} is in two GCDs", device.ipu_id, device.ip);
                return Err(broken("no IPU is in two GCDs", "every IPU in one GCD", actual));
            }
        }
    }
    check_eq("every IPU is reached through a device", &holders.len(), &8)
}

/// A reconfigurable partition of N IPUs shows 2N − 1 devices (simulator, Documented).
async fn a_reconfigurable_partition_shows_devices_of_every_aligned_size(harness: Harness) -> CaseOutcome {
    let fixture = harness.start(Setup::quick(Topology::pod16())).await;
    let mut wanted = request("p1", 4);
    wanted.spec.reconfigurable = true;
    fixture.create_active_from(wanted).await?;
    let answer = fixture.controller.ipuof_config(&id("p1"), None).await;
    let config = check_ok("the configuration of all GCDs is returned", answer)?;
    let devices: Vec<_> = config.gcds.iter().map(|gcd| gcd.devices.len()).collect();
    let rule = "a reconfigurable partition of N IPUs shows 2N - 1 devices";
    check_eq(rule, &(config.reconfigurable, devices), &(true, vec![2 * 4 - 1]))
}

/// "The IPUs of the given agents, or of all if none is given" (`ipu_attributes`); the keys are an assumption
/// (reference, Attributes of IPUs), and placement and the ledger read them: together they describe the whole
/// system.
async fn attributes_cover_each_ipu_of_the_requested_agents(harness: Harness) -> CaseOutcome {
    let topology = Topology::pod16();
    let fixture = harness.start(Setup::quick(topology.clone())).await;
    let answer = fixture.controller.ipu_attributes(&[]).await;
    let all = check_ok("the attributes of all IPUs are returned", answer)?;
    let agents: BTreeMap<AgentId, _> = all.into_iter().map(|one| (one.agent, one.ipus)).collect();
    for (agent, ipus) in &agents {
        let rule = "an agent has four IPUs, numbered from 0";
        let numbers: Vec<_> = ipus.keys().copied().collect();
        check_eq(rule, &(agent, numbers), &(agent, vec![0, 1, 2, 3]))?;
    }
    let rule = "the attributes describe the hardware";
    let found = check_ok(rule, Topology::from_agents(&agents))?;
    check_eq(rule, &found.topology, &topology)?;
    check_eq(
        "all IPUs of a fresh controller are healthy",
        &found.unhealthy,
        &Vec::new(),
    )?;

    let requested: Vec<AgentId> = agents.keys().rev().take(2).cloned().collect();
    let answer = fixture.controller.ipu_attributes(&requested).await;
    let two = check_ok("the attributes of two agents are returned", answer)?;
    let two: BTreeMap<AgentId, _> = two.into_iter().map(|one| (one.agent, one.ipus)).collect();
    let expected = requested
        .iter()
        .map(|agent| (agent.clone(), agents[agent].clone()));
    let rule = "only the attributes of the requested agents are returned";
    check_eq(rule, &two, &expected.collect())
}
