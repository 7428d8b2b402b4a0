//! Statistics of the whole system.

use ipu_core::{Cordon, CordonOwner, CordonTarget, IpuAddress, Reason, Topology, Unbounded};

use super::{
    Arc, ControllerView, InventoryCapacity, LedgerHarness, Listing, Namespace, ServiceState, controller,
    request,
};

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

#[test]
fn of_32_ipus_with_4_used_28_are_available() {
    let mut harness = LedgerHarness::new(&"1x8".parse().unwrap());
    harness.submit(&request("default", "job", 4));
    harness.expect_queued(&request("default", "large", 32));
    let stats = harness.state.stats(&harness.snapshot());
    assert_eq!((stats.used, stats.available, stats.ipus), (4, 28, 32));
    assert_eq!(stats.by_namespace, [(namespace("default"), 4)].into());
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["byNamespace"]["default"], 4);
    assert_eq!(json["available"], 28);
}

#[test]
fn every_ipu_counts_in_exactly_one_category() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("one", "a", 4));
    harness.submit(&request("two", "b", 2));
    let mut snapshot = harness.snapshot();
    let mut inventory = harness.inventory.clone();
    let foreign = request("other", "stranger", 2);
    let free = |ipu| IpuAddress { link_domain: 0, ipu };
    let placement_request = ipu_core::PlacementRequest::of_size(foreign.spec.size);
    let ipu_core::Placement::Fits(block) = super::place(&inventory, &placement_request, &super::BestFit)
    else {
        panic!("the request fits");
    };
    inventory.occupy(foreign.id.clone(), block).unwrap();
    // The cordoned IPUs include a held one.
    inventory
        .cordon(&CordonOwner::health(), [free(0), free(12), free(13)])
        .unwrap();
    let (agent, _) = inventory.topology().agents().nth(3).unwrap();
    let cordon = Cordon::new(
        "x".parse().unwrap(),
        controller(),
        CordonTarget::Machine(agent.clone()),
        "admin".parse().unwrap(),
        "a cable",
    );
    let listed = |id: &ipu_core::PartitionId, size: u32| ipu_core::Partition {
        id: id.clone(),
        spec: super::PartitionSpec::of_size(size.try_into().unwrap()),
        cluster: None,
        ipus: Vec::new(),
        state: super::PartitionState::Active,
    };
    let partitions: Vec<_> = harness
        .state
        .entries()
        .map(|entry| listed(&entry.id, entry.spec.size.get()))
        .chain([listed(&foreign.id, 2)])
        .collect();
    let listing = || {
        Arc::new(Listing::new(
            partitions.clone(),
            Box::new(InventoryCapacity::new(inventory.clone())),
        ))
    };
    snapshot.controllers[0].listing = Ok(listing());
    let step = harness.state.cordon(cordon, &snapshot, harness.now()).unwrap();
    harness.commit(step);
    snapshot.controllers.push(ControllerView {
        name: "silent".parse().unwrap(),
        service: ServiceState::Open,
        listing: Err(Reason::new("ControllerUnavailable", "it is down")),
    });
    let stats = harness.state.stats(&snapshot);
    assert_eq!((stats.used, stats.foreign), (6, 2));
    assert_eq!((stats.unhealthy, stats.cordoned, stats.available), (2, 2, 4));
    assert_eq!(stats.ipus, 16);
    assert_eq!(stats.unknown.len(), 1);
    assert_eq!(
        stats.by_namespace,
        [(namespace("one"), 4), (namespace("two"), 2)].into()
    );
    let capacity = harness
        .state
        .free_capacity(&snapshot, &request("ns", "any", 1).spec);
    assert_eq!(capacity[0].1.as_ref().unwrap().free, stats.available);

    snapshot.controllers[0].service = ServiceState::Draining;
    let draining = harness.state.stats(&snapshot);
    assert_eq!((draining.used, draining.available), (6, 0));
    assert_eq!(
        draining.cordoned + draining.unhealthy + draining.foreign + draining.used,
        16
    );
}

#[test]
fn the_fit_counts_of_all_sizes_agree_with_the_placement_of_each() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("ns", "one", 1));
    harness.submit(&request("ns", "four", 4));
    // The controller does not list it yet.
    harness.request(&request("ns", "intended", 2)).unwrap();
    let snapshot = harness.snapshot();
    let capacities = harness.state.capacity_by_size(&snapshot);
    let capacity = capacities[0].1.as_ref().unwrap();
    let counts: Vec<(u32, u32)> = capacity
        .fits
        .iter()
        .map(|fit| (fit.size.get(), fit.count))
        .collect();
    assert_eq!((capacity.free, capacity.largest_block), (9, 8));
    assert_eq!(counts, [(1, 9), (2, 4), (4, 2), (8, 1), (16, 0)]);
    for (size, count) in counts {
        let spec = request("ns", "any", size).spec;
        let one = harness.state.free_capacity(&snapshot, &spec);
        assert_eq!(one[0].1.as_ref().unwrap().fit_count, count, "of {size} IPUs");
    }
}

#[test]
fn a_controller_of_unknown_hardware_has_no_fit_counts() {
    let harness = LedgerHarness::new(&Topology::pod16());
    let mut snapshot = harness.snapshot();
    snapshot.controllers[0].listing = Ok(Arc::new(Listing::new([], Box::new(Unbounded::default()))));
    let capacities = harness.state.capacity_by_size(&snapshot);
    assert_eq!(capacities[0].1.as_ref().unwrap().fits, []);
}
