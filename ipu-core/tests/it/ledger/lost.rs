//! Partitions that a controller no longer lists, because it restarted without them: their owners may still use the IPUs.

use std::sync::Arc;

use ipu_core::{
    Admission, Capacity, ControllerView, ControllersSnapshot, Cordon, CordonTarget, Entry, EntryState,
    InventoryCapacity, IpuPlace, LedgerState, Listing, Location, Partition, PartitionState, RepeatedCreate,
    Request, ServiceState, Timestamp, Topology, TransitionError, Unbounded,
};

use super::{Bench, controller, request};

/// A listing that is newer than every entry.
fn listing(listed: Vec<Partition>, capacity: Box<dyn Capacity>) -> ControllersSnapshot {
    let listing = Listing::new(listed, capacity).requested_at(Timestamp::from_millis(u64::MAX));
    ControllersSnapshot::of(vec![ControllerView {
        name: controller(),
        service: ServiceState::Open,
        listing: Ok(Arc::new(listing)),
    }])
}

/// A controller of 16 IPUs that has restarted without its partitions.
fn emptied() -> ControllersSnapshot {
    let inventory = ipu_core::Inventory::new(&Topology::pod16());
    listing(Vec::new(), Box::new(InventoryCapacity::new(inventory)))
}

/// The same, of unknown hardware.
fn emptied_unknown() -> ControllersSnapshot {
    listing(Vec::new(), Box::new(Unbounded::default()))
}

fn places(ipus: impl IntoIterator<Item = u32>) -> Vec<IpuPlace> {
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    ipus.into_iter().map(place).collect()
}

fn at(ipus: impl IntoIterator<Item = u32>) -> Location {
    Location {
        cluster: None,
        ipus: places(ipus),
    }
}

fn intent(bench: &mut Bench, request: &Request, world: &ControllersSnapshot) -> Entry {
    let step = bench
        .state
        .request(request, world, &bench.rules, bench.window())
        .unwrap();
    match bench.take(step) {
        Admission::Drive(entry) => entry,
        other => panic!("{other:?}"),
    }
}

fn fence(entry: &Entry) -> Timestamp {
    match entry.state {
        EntryState::Intent { fence, .. } => fence,
        _ => panic!("{entry:?}"),
    }
}

fn grant(bench: &mut Bench, entry: &Entry, location: &Location) -> Result<Entry, TransitionError> {
    let now = bench.now();
    let step = bench
        .state
        .mark_active(&entry.id, entry.attempt, location, Some(fence(entry)), now)?;
    Ok(bench.take(step))
}

/// A ledger with an active owner of 4 IPUs that it cannot name, as an older build left it.
fn with_owner_of_unknown_ipus() -> (Bench, Request) {
    let mut bench = Bench::new(&Topology::pod16());
    let owner = request("ns", "owner", 4);
    let mut entry = intent(&mut bench, &owner, &emptied());
    entry = grant(&mut bench, &entry, &Location::default()).unwrap();
    entry.places.clear();
    bench.state = LedgerState::of([entry]);
    (bench, owner)
}

fn stays(bench: &mut Bench, request: &Request, world: &ControllersSnapshot) -> ipu_core::QueueStatus {
    let step = bench
        .state
        .request(request, world, &bench.rules, bench.window())
        .unwrap();
    match bench.take(step) {
        Admission::Stay(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_owner_keeps_its_recorded_ipus_when_its_controller_restarts_without_partitions() {
    let mut bench = Bench::new(&Topology::pod16());
    let first = intent(&mut bench, &request("ns", "first", 4), &emptied());
    assert_eq!(first.places, places(0..4));
    grant(&mut bench, &first, &Location::default()).unwrap();
    let second = intent(&mut bench, &request("ns", "second", 4), &emptied());
    assert_eq!(second.places, places(4..8), "before any repair has noted IPUs");
}

#[test]
fn a_controller_gets_nothing_new_while_it_does_not_list_an_owner_of_unknown_ipus() {
    let (mut bench, owner) = with_owner_of_unknown_ipus();
    let next = request("ns", "next", 4);
    let waiting = stays(&mut bench, &next, &emptied());
    assert_eq!(waiting.reason.code, "LostPartition");
    assert!(
        waiting
            .reason
            .message
            .contains(&format!("does not list partition {} of Test ns/owner", owner.id)),
        "{}",
        waiting.reason.message
    );
    let blockers: Vec<_> = waiting.blockers.iter().map(|blocker| &blocker.id).collect();
    assert_eq!(blockers, [&owner.id]);
    let spec = ipu_core::PartitionSpec::of_size(4.try_into().unwrap());
    assert!(bench.state.free_capacity(&emptied(), &spec)[0].1.is_err());
    let four = [4.try_into().unwrap()];
    assert!(
        bench.state.dry_run(&emptied(), &four, &[])[0]
            .controller
            .is_none()
    );
    let ended = [owner.id.clone()];
    assert!(
        bench.state.dry_run(&emptied(), &four, &ended)[0]
            .controller
            .is_some()
    );

    bench.state.apply(&ipu_core::Change::Remove(owner.id));
    intent(&mut bench, &next, &emptied());
}

#[test]
fn a_controller_that_chooses_by_itself_gets_nothing_new_while_it_does_not_list_an_owner() {
    let mut bench = Bench::new(&Topology::pod16());
    let owner = intent(&mut bench, &request("ns", "owner", 4), &emptied_unknown());
    assert!(owner.places.is_empty());
    let owner = grant(&mut bench, &owner, &at(0..4)).unwrap();
    assert_eq!(owner.places, places(0..4), "in the write that grants");
    let waiting = stays(&mut bench, &request("ns", "next", 4), &emptied_unknown());
    assert_eq!(waiting.reason.code, "LostPartition");
}

#[test]
fn no_partition_is_granted_on_ipus_that_another_owner_may_use() {
    let mut bench = Bench::new(&Topology::pod16());
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    let first = intent(&mut bench, &first, &emptied_unknown());
    let second = intent(&mut bench, &second, &emptied_unknown());
    grant(&mut bench, &first, &at(0..4)).unwrap();
    let refused = grant(&mut bench, &second, &at(2..6)).unwrap_err();
    assert_eq!(
        refused,
        TransitionError::InUse {
            id: second.id.clone(),
            by: first.id
        }
    );
    grant(&mut bench, &second, &at(4..8)).unwrap();
}

#[test]
fn a_repeated_create_that_does_not_fit_beside_a_lost_partition_goes_back_to_the_queue_once_it_is_settled() {
    let mut bench = Bench::new(&Topology::pod16());
    let owner = intent(&mut bench, &request("ns", "owner", 4), &emptied_unknown());
    let second = intent(&mut bench, &request("ns", "second", 4), &emptied_unknown());
    grant(&mut bench, &owner, &at(0..4)).unwrap();
    let repeat = |bench: &Bench, answered| {
        bench
            .state
            .repeat_create(&second.id, answered, &emptied_unknown(), bench.window())
    };
    assert!(matches!(
        repeat(&bench, None),
        Err(TransitionError::Unsettled { .. })
    ));
    let step = repeat(&bench, Some(fence(&second))).unwrap();
    assert_eq!(bench.take(step), RepeatedCreate::Requeued);
    let entry = bench.state.get(&second.id).unwrap();
    assert!(matches!(entry.state, EntryState::Waiting { .. }));
    assert_eq!((entry.ticket, &entry.controller), (second.ticket, &None));
}

#[test]
fn a_repeated_create_keeps_its_ipus_and_one_without_gets_some_once_no_earlier_call_can_arrive() {
    let mut bench = Bench::new(&Topology::pod16());
    let first = intent(&mut bench, &request("ns", "first", 4), &emptied());
    let chosen = first.places.clone();
    let repeat = |bench: &Bench, answered| {
        let step = bench
            .state
            .repeat_create(&first.id, answered, &emptied(), bench.window());
        match step.unwrap().outcome {
            RepeatedCreate::Call(entry) => entry.places,
            RepeatedCreate::Requeued => panic!("there is room"),
        }
    };
    assert_eq!(repeat(&bench, None), chosen);
    let mut delegated = first.clone();
    delegated.places.clear();
    bench.state = LedgerState::of([delegated]);
    assert_eq!(repeat(&bench, None), [], "an earlier call may get other IPUs");
    assert_eq!(repeat(&bench, Some(fence(&first))), chosen);
}

#[test]
fn a_cordon_names_owners_whose_ipus_are_not_known_yet() {
    let (mut bench, owner) = with_owner_of_unknown_ipus();
    let (agent, _) = bench.inventory.topology().agents().nth(3).unwrap();
    let what = CordonTarget::Machine(agent.clone());
    let cordon = Cordon::new(
        "x".parse().unwrap(),
        controller(),
        what,
        "admin".parse().unwrap(),
        "a fan",
    );
    let step = bench.state.cordon(cordon, &emptied(), bench.now()).unwrap();
    let holders: Vec<_> = step.outcome.holders.iter().map(|holder| &holder.id).collect();
    assert_eq!(holders, [&owner.id]);
    bench.take(step);
}

#[test]
fn a_partition_that_is_listed_on_other_ipus_than_recorded_fails_and_keeps_the_recorded_ones() {
    let mut bench = Bench::new(&Topology::pod16());
    let owner = intent(&mut bench, &request("ns", "owner", 4), &emptied());
    grant(&mut bench, &owner, &Location::default()).unwrap();
    let moved = Partition {
        id: owner.id.clone(),
        spec: owner.spec.clone(),
        cluster: None,
        ipus: places(8..12),
        state: PartitionState::Active,
    };
    let world = listing(vec![moved], Box::new(Unbounded::default()));
    let owners = ipu_core::Owners::default();
    let actions = bench
        .state
        .diff(&world, &owners, std::time::Duration::ZERO, bench.now());
    assert_eq!(actions.len(), 1);
    assert_eq!(actions[0].label(), "relocated");
    for change in bench.state.act(&actions[0], &world, &owners, bench.window()) {
        bench.state.apply(&change);
    }
    let entry = bench.state.get(&owner.id).unwrap();
    assert!(matches!(entry.state, EntryState::Failed { .. }));
    assert_eq!(entry.places, places(0..4));
}

#[test]
fn a_foreign_partition_on_ipus_of_a_lost_one_is_a_conflict_and_the_rest_of_them_stays_taken() {
    let mut bench = Bench::new(&Topology::pod16());
    let owner = intent(&mut bench, &request("ns", "owner", 4), &emptied());
    grant(&mut bench, &owner, &Location::default()).unwrap();
    let topology = Topology::pod16();
    let mut inventory = ipu_core::Inventory::new(&topology);
    let cluster = &topology.clusters()[0].id;
    let ipus = places(0..2).into_iter();
    let block = ipu_core::Block::of_ipus(ipus.map(|at| topology.address(cluster, at).unwrap())).unwrap();
    inventory.occupy("by-hand".parse().unwrap(), block).unwrap();
    let foreign = Partition {
        id: "by-hand".parse().unwrap(),
        spec: ipu_core::PartitionSpec::of_size(2.try_into().unwrap()),
        cluster: None,
        ipus: places(0..2),
        state: PartitionState::Active,
    };
    let world = listing(vec![foreign], Box::new(InventoryCapacity::new(inventory)));
    let conflicts = bench.state.placement_conflicts(&world);
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].id, owner.id);
    let two = intent(&mut bench, &request("ns", "two", 2), &world);
    assert_eq!(two.places, places(4..6), "IPUs 2 and 3 may still be in use");
}
