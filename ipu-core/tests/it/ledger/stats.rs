//! The numbers of the whole system.

use ipu_core::{Cordon, CordonOwner, CordonTarget, IpuAddress, Reason, Topology};

use super::{
    Arc, Bench, ControllerView, InventoryCapacity, Listing, Namespace, ServiceState, controller, request,
};

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

#[test]
fn of_32_ipus_with_4_used_28_are_available() {
    let mut bench = Bench::new(&"1x8".parse().unwrap());
    bench.drive(&request("default", "job", 4));
    bench.waiting(&request("default", "large", 32));
    let stats = bench.state.stats(&bench.world());
    assert_eq!((stats.used, stats.available, stats.ipus), (4, 28, 32));
    assert_eq!(stats.by_namespace, [(namespace("default"), 4)].into());
    let text = serde_json::to_value(&stats).unwrap();
    assert_eq!(text["byNamespace"]["default"], 4);
    assert_eq!(text["available"], 28);
}

#[test]
fn every_ipu_is_in_one_of_the_numbers() {
    let mut bench = Bench::new(&Topology::pod16());
    bench.drive(&request("one", "a", 4));
    bench.drive(&request("two", "b", 2));
    let mut world = bench.world();
    let mut inventory = bench.inventory.clone();
    let stranger = request("other", "stranger", 2);
    let free = |ipu| IpuAddress { link_domain: 0, ipu };
    let wanted = ipu_core::PlacementRequest::of_size(stranger.spec.size);
    let ipu_core::Placement::Fits(block) = super::place(&inventory, &wanted, &super::BestFit) else {
        panic!("there is room");
    };
    inventory.occupy(stranger.id.clone(), block).unwrap();
    // One that is cordoned as well, and one that is held too.
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
    let partitions: Vec<_> = bench
        .state
        .entries()
        .map(|entry| listed(&entry.id, entry.spec.size.get()))
        .chain([listed(&stranger.id, 2)])
        .collect();
    let listing = || {
        Arc::new(Listing::new(
            partitions.clone(),
            Box::new(InventoryCapacity::new(inventory.clone())),
        ))
    };
    world.controllers[0].listing = Ok(listing());
    let step = bench.state.cordon(cordon, &world, bench.now()).unwrap();
    bench.take(step);
    world.controllers.push(ControllerView {
        name: "silent".parse().unwrap(),
        service: ServiceState::Open,
        listing: Err(Reason::new("ControllerUnavailable", "it is down")),
    });
    let stats = bench.state.stats(&world);
    assert_eq!((stats.used, stats.foreign), (6, 2));
    assert_eq!((stats.unhealthy, stats.cordoned, stats.available), (2, 2, 4));
    assert_eq!(stats.ipus, 16);
    assert_eq!(stats.unknown.len(), 1);
    assert_eq!(
        stats.by_namespace,
        [(namespace("one"), 4), (namespace("two"), 2)].into()
    );
    let room = bench.state.free_capacity(&world, &request("ns", "any", 1).spec);
    assert_eq!(room[0].1.as_ref().unwrap().free, stats.available);

    world.controllers[0].service = ServiceState::Draining;
    let draining = bench.state.stats(&world);
    assert_eq!((draining.used, draining.available), (6, 0));
    assert_eq!(
        draining.cordoned + draining.unhealthy + draining.foreign + draining.used,
        16
    );
}
