//! Partitions that a restarted controller no longer lists, while their owners may still use the IPUs.

use std::sync::Arc;

use ipu_core::{
    Admission, Capacity, ControllerView, ControllersSnapshot, Cordon, CordonTarget, Entry, EntryState,
    InventoryCapacity, IpuPlace, LedgerState, Listing, Location, Partition, PartitionState, RepeatedCreate,
    Request, ServiceState, Timestamp, Topology, TransitionError, Unbounded,
};

use super::{LedgerHarness, controller, request};

/// Returns a snapshot of one listing that is newer than every entry.
fn listing(listed: Vec<Partition>, capacity: Box<dyn Capacity>) -> ControllersSnapshot {
    let listing = Listing::new(listed, capacity).requested_at(Timestamp::from_millis(u64::MAX));
    ControllersSnapshot::new(vec![ControllerView {
        name: controller(),
        service: ServiceState::Open,
        listing: Ok(Arc::new(listing)),
    }])
}

/// Returns a controller of 16 IPUs that restarted without its partitions.
fn restarted() -> ControllersSnapshot {
    let inventory = ipu_core::Inventory::new(&Topology::pod16());
    listing(Vec::new(), Box::new(InventoryCapacity::new(inventory)))
}

/// Returns a controller of unknown hardware that restarted without its partitions.
fn restarted_with_unknown_hardware() -> ControllersSnapshot {
    listing(Vec::new(), Box::new(Unbounded::default()))
}

fn places(ipus: impl IntoIterator<Item = u32>) -> Vec<IpuPlace> {
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    ipus.into_iter().map(place).collect()
}

fn location(ipus: impl IntoIterator<Item = u32>) -> Location {
    Location {
        cluster: None,
        ipus: places(ipus),
    }
}

fn intent(harness: &mut LedgerHarness, request: &Request, snapshot: &ControllersSnapshot) -> Entry {
    let step = harness
        .state
        .request(request, snapshot, &harness.policy, harness.window())
        .unwrap();
    match harness.commit(step) {
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

fn grant(harness: &mut LedgerHarness, entry: &Entry, location: &Location) -> Result<Entry, TransitionError> {
    let now = harness.now();
    let step = harness
        .state
        .mark_active(&entry.id, entry.attempt, location, Some(fence(entry)), now)?;
    Ok(harness.commit(step))
}

/// Returns a ledger with an active owner of 4 unrecorded IPUs, as an older build wrote it.
fn with_owner_of_unknown_ipus() -> (LedgerHarness, Request) {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let owner = request("ns", "owner", 4);
    let mut entry = intent(&mut harness, &owner, &restarted());
    entry = grant(&mut harness, &entry, &Location::default()).unwrap();
    entry.places.clear();
    harness.state = LedgerState::from_entries([entry]);
    (harness, owner)
}

fn assert_queued(
    harness: &mut LedgerHarness,
    request: &Request,
    snapshot: &ControllersSnapshot,
) -> ipu_core::QueueStatus {
    let step = harness
        .state
        .request(request, snapshot, &harness.policy, harness.window())
        .unwrap();
    match harness.commit(step) {
        Admission::Queued(status) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_owner_keeps_its_recorded_ipus_when_its_controller_restarts_without_partitions() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let first = intent(&mut harness, &request("ns", "first", 4), &restarted());
    assert_eq!(first.places, places(0..4));
    grant(&mut harness, &first, &Location::default()).unwrap();
    let second = intent(&mut harness, &request("ns", "second", 4), &restarted());
    assert_eq!(second.places, places(4..8), "before a repair has recorded IPUs");
}

#[test]
fn a_controller_gets_no_partitions_while_an_owner_of_unknown_ipus_is_unlisted() {
    let (mut harness, owner) = with_owner_of_unknown_ipus();
    let next = request("ns", "next", 4);
    let status = assert_queued(&mut harness, &next, &restarted());
    assert_eq!(status.reason.code, "LostPartition");
    assert!(
        status
            .reason
            .message
            .contains(&format!("does not list partition {} of Test ns/owner", owner.id)),
        "{}",
        status.reason.message
    );
    let blockers: Vec<_> = status.blockers.iter().map(|blocker| &blocker.id).collect();
    assert_eq!(blockers, [&owner.id]);
    let spec = ipu_core::PartitionSpec::of_size(4.try_into().unwrap());
    assert!(harness.state.free_capacity(&restarted(), &spec)[0].1.is_err());
    let four = [4.try_into().unwrap()];
    assert!(
        harness.state.dry_run(&restarted(), &four, &[])[0]
            .controller
            .is_none()
    );
    let ended = [owner.id.clone()];
    assert!(
        harness.state.dry_run(&restarted(), &four, &ended)[0]
            .controller
            .is_some()
    );

    harness.state.apply(&ipu_core::Change::Remove(owner.id));
    intent(&mut harness, &next, &restarted());
}

#[test]
fn a_controller_that_chooses_ipus_gets_no_partitions_while_an_owner_is_unlisted() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let owner = intent(
        &mut harness,
        &request("ns", "owner", 4),
        &restarted_with_unknown_hardware(),
    );
    assert!(owner.places.is_empty());
    let owner = grant(&mut harness, &owner, &location(0..4)).unwrap();
    assert_eq!(owner.places, places(0..4), "recorded by the write that grants");
    let status = assert_queued(
        &mut harness,
        &request("ns", "next", 4),
        &restarted_with_unknown_hardware(),
    );
    assert_eq!(status.reason.code, "LostPartition");
}

#[test]
fn no_partition_is_granted_on_ipus_that_another_owner_may_use() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let (first, second) = (request("ns", "first", 4), request("ns", "second", 4));
    let first = intent(&mut harness, &first, &restarted_with_unknown_hardware());
    let second = intent(&mut harness, &second, &restarted_with_unknown_hardware());
    grant(&mut harness, &first, &location(0..4)).unwrap();
    let error = grant(&mut harness, &second, &location(2..6)).unwrap_err();
    assert_eq!(
        error,
        TransitionError::InUse {
            id: second.id.clone(),
            by: first.id
        }
    );
    grant(&mut harness, &second, &location(4..8)).unwrap();
}

#[test]
fn a_repeated_create_without_capacity_beside_a_lost_partition_is_requeued_once_settled() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let owner = intent(
        &mut harness,
        &request("ns", "owner", 4),
        &restarted_with_unknown_hardware(),
    );
    let second = intent(
        &mut harness,
        &request("ns", "second", 4),
        &restarted_with_unknown_hardware(),
    );
    grant(&mut harness, &owner, &location(0..4)).unwrap();
    let repeat = |harness: &LedgerHarness, answered_fence| {
        harness.state.repeat_create(
            &second.id,
            answered_fence,
            &restarted_with_unknown_hardware(),
            harness.window(),
        )
    };
    assert!(matches!(
        repeat(&harness, None),
        Err(TransitionError::Unsettled { .. })
    ));
    let step = repeat(&harness, Some(fence(&second))).unwrap();
    assert_eq!(harness.commit(step), RepeatedCreate::Requeued);
    let entry = harness.state.get(&second.id).unwrap();
    assert!(matches!(entry.state, EntryState::Waiting { .. }));
    assert_eq!((entry.ticket, &entry.controller), (second.ticket, &None));
}

#[test]
fn a_repeated_create_keeps_its_ipus_or_gets_some_once_no_earlier_call_can_arrive() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let first = intent(&mut harness, &request("ns", "first", 4), &restarted());
    let chosen = first.places.clone();
    let repeat = |harness: &LedgerHarness, answered_fence| {
        let step = harness
            .state
            .repeat_create(&first.id, answered_fence, &restarted(), harness.window());
        match step.unwrap().outcome {
            RepeatedCreate::Call(entry) => entry.places,
            RepeatedCreate::Requeued => panic!("the request fits"),
        }
    };
    assert_eq!(repeat(&harness, None), chosen);
    let mut delegated = first.clone();
    delegated.places.clear();
    harness.state = LedgerState::from_entries([delegated]);
    assert_eq!(repeat(&harness, None), [], "an earlier call may get other IPUs");
    assert_eq!(repeat(&harness, Some(fence(&first))), chosen);
}

#[test]
fn a_cordon_lists_owners_of_unknown_ipus() {
    let (mut harness, owner) = with_owner_of_unknown_ipus();
    let (agent, _) = harness.inventory.topology().agents().nth(3).unwrap();
    let target = CordonTarget::Machine(agent.clone());
    let cordon = Cordon::new(
        "x".parse().unwrap(),
        controller(),
        target,
        "admin".parse().unwrap(),
        "a fan",
    );
    let step = harness.state.cordon(cordon, &restarted(), harness.now()).unwrap();
    let holders: Vec<_> = step.outcome.holders.iter().map(|holder| &holder.id).collect();
    assert_eq!(holders, [&owner.id]);
    harness.commit(step);
}

#[test]
fn a_partition_listed_on_other_ipus_fails_and_keeps_its_recorded_ipus() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let owner = intent(&mut harness, &request("ns", "owner", 4), &restarted());
    grant(&mut harness, &owner, &Location::default()).unwrap();
    let relocated = Partition {
        id: owner.id.clone(),
        spec: owner.spec.clone(),
        cluster: None,
        ipus: places(8..12),
        state: PartitionState::Active,
    };
    let snapshot = listing(vec![relocated], Box::new(Unbounded::default()));
    let owners = ipu_core::Owners::default();
    let actions = harness
        .state
        .diff(&snapshot, &owners, std::time::Duration::ZERO, harness.now());
    assert_eq!(actions.len(), 1);
    assert_eq!(actions[0].label(), "relocated");
    for change in harness
        .state
        .changes_for(&actions[0], &snapshot, &owners, harness.window())
    {
        harness.state.apply(&change);
    }
    let entry = harness.state.get(&owner.id).unwrap();
    assert!(matches!(entry.state, EntryState::Failed { .. }));
    assert_eq!(entry.places, places(0..4));
}

#[test]
fn a_foreign_partition_on_ipus_of_a_lost_one_is_a_conflict_and_the_other_ipus_remain_held() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let owner = intent(&mut harness, &request("ns", "owner", 4), &restarted());
    grant(&mut harness, &owner, &Location::default()).unwrap();
    let topology = Topology::pod16();
    let mut inventory = ipu_core::Inventory::new(&topology);
    let cluster = &topology.clusters()[0].id;
    let ipus = places(0..2).into_iter();
    let block =
        ipu_core::Block::from_ipus(ipus.map(|place| topology.address(cluster, place).unwrap())).unwrap();
    inventory.occupy("by-hand".parse().unwrap(), block).unwrap();
    let foreign = Partition {
        id: "by-hand".parse().unwrap(),
        spec: ipu_core::PartitionSpec::of_size(2.try_into().unwrap()),
        cluster: None,
        ipus: places(0..2),
        state: PartitionState::Active,
    };
    let snapshot = listing(vec![foreign], Box::new(InventoryCapacity::new(inventory)));
    let conflicts = harness.state.placement_conflicts(&snapshot);
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].id, owner.id);
    let two = intent(&mut harness, &request("ns", "two", 2), &snapshot);
    assert_eq!(two.places, places(4..6), "IPUs 2 and 3 may still be in use");
}
