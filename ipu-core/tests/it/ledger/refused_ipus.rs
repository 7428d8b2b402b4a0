//! Controllers that refuse create calls with named IPUs: the ledger names IPUs there only if it has to keep
//! some.

use std::sync::Arc;

use ipu_core::{
    Admission, ControllerRejection, ControllersSnapshot, Cordon, CordonTarget, Entry, EntryState,
    InventoryCapacity, Listing, PlacementMode, QueueDecision, Timestamp, Topology,
};

use super::{LedgerHarness, controller, request};

/// Returns a snapshot after the controller refused named IPUs, requested at `requested`.
fn refusing(harness: &LedgerHarness, requested: u64) -> ControllersSnapshot {
    let mut snapshot = harness.snapshot();
    for view in &mut snapshot.controllers {
        let listing = view.listing.as_ref().unwrap().delegated();
        view.listing = Ok(Arc::new(listing.requested_at(Timestamp::from_millis(requested))));
    }
    snapshot
}

fn cordon(harness: &mut LedgerHarness, since: u64) {
    let cordon = Cordon::new(
        "fan".parse().unwrap(),
        controller(),
        CordonTarget::Machine("a4".parse().unwrap()),
        "admin".parse().unwrap(),
        "a fan is broken",
    );
    let since = Timestamp::from_millis(since);
    let step = harness.state.cordon(cordon, &harness.snapshot(), since).unwrap();
    harness.commit(step);
}

fn lift(harness: &mut LedgerHarness) {
    let (id, owner) = ("fan".parse().unwrap(), "admin".parse().unwrap());
    let step = harness.state.uncordon(&id, &owner).unwrap();
    harness.commit(step);
}

fn intent(harness: &mut LedgerHarness, name: &str, snapshot: &ControllersSnapshot) -> Entry {
    let request = request("ns", name, 4);
    let window = harness.window();
    let step = harness.state.request(&request, snapshot, &harness.policy, window);
    match harness.commit(step.unwrap()) {
        Admission::Drive(entry) => entry,
        other => panic!("{other:?}"),
    }
}

/// Returns whether the create call of each queued request that starts names IPUs.
fn names_ipus(harness: &LedgerHarness, snapshot: &ControllersSnapshot) -> Vec<bool> {
    let decisions = harness
        .state
        .evaluate_queue(snapshot, &harness.policy, harness.now());
    let starts = decisions.into_iter().filter_map(|(_, decision)| match decision {
        QueueDecision::Start { places, .. } => Some(!places.is_empty()),
        QueueDecision::Wait(_) => None,
    });
    starts.collect()
}

/// Returns a controller in delegated mode with two queued requests that start now.
fn with_two_queued() -> LedgerHarness {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.placement = PlacementMode::Delegated;
    let holder = request("ns", "holder", 16);
    harness.submit(&holder);
    harness.expect_queued(&request("ns", "first", 4));
    harness.expect_queued(&request("ns", "second", 4));
    harness.release(&holder);
    harness
}

#[test]
fn a_request_behind_others_is_not_placed_at_a_controller_that_refuses_ipus() {
    let harness = with_two_queued();
    assert_eq!(names_ipus(&harness, &harness.snapshot()), [false, true]);
    assert_eq!(names_ipus(&harness, &refusing(&harness, 1)), [false, false]);
}

#[test]
fn a_call_under_way_does_not_place_others_at_a_controller_that_refuses_ipus() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let snapshot = harness.snapshot();
    let named = intent(&mut harness, "named", &snapshot);
    assert!(!named.places.is_empty());
    let snapshot = refusing(&harness, 1);
    let next = intent(&mut harness, "next", &snapshot);
    assert_eq!(next.places, []);
}

#[test]
fn a_lost_partition_closes_a_controller_that_refuses_ipus() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let explicit = harness.snapshot();
    let held = intent(&mut harness, "held", &explicit);
    let EntryState::Intent { fence, .. } = held.state else {
        panic!("{held:?}")
    };
    let active_at = Timestamp::from_millis(10);
    let location = ipu_core::Location::default();
    let step = harness
        .state
        .mark_active(&held.id, held.attempt, &location, Some(fence), active_at);
    harness.commit(step.unwrap());
    // An older listing need not have it.
    let snapshot = refusing(&harness, 10);
    let next = intent(&mut harness, "next", &snapshot);
    assert_eq!(next.places, []);
    let last = request("ns", "last", 4);
    let snapshot = refusing(&harness, 11);
    let window = harness.window();
    let step = harness.state.request(&last, &snapshot, &harness.policy, window);
    let Admission::Queued(status) = step.unwrap().outcome else {
        panic!("the controller could choose the IPUs of the lost partition");
    };
    assert_eq!(&*status.reason.code, "LostPartition", "{}", status.reason);
    assert_eq!(status.blockers[0].id, held.id);
}

#[test]
fn a_cordon_closes_a_controller_that_refuses_ipus_until_it_is_lifted() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    cordon(&mut harness, 0);
    let snapshot = refusing(&harness, 1);
    let cordon = harness.state.cordon_at(&snapshot, &controller()).unwrap();
    assert_eq!(cordon.to_string(), "fan (machine a4) by admin: a fan is broken");
    let request = request("ns", "next", 4);
    let window = harness.window();
    let step = harness
        .state
        .request(&request, &snapshot, &harness.policy, window);
    let Admission::Queued(status) = harness.commit(step.unwrap()) else {
        panic!("a call that the controller refuses");
    };
    assert_eq!(status.reason.code, "ControllerRefused");
    assert_eq!(
        status.reason.message,
        "controller c does not accept named IPUs, and cordon fan (machine a4) by admin: a fan is broken needs \
         them; lift the cordon"
    );
    lift(&mut harness);
    assert_eq!(harness.state.cordon_at(&snapshot, &controller()), None);
    assert_eq!(intent(&mut harness, "next", &snapshot).places, []);
}

#[test]
fn a_refusal_ends_when_a_cordon_is_added_replaced_or_lifted() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let fingerprint = |harness: &LedgerHarness| {
        let snapshot = harness.snapshot();
        harness.state.capacity_fingerprint(&snapshot, &controller())
    };
    let free = fingerprint(&harness).unwrap();
    cordon(&mut harness, 1);
    let cordoned = fingerprint(&harness).unwrap();
    let snapshot = harness.snapshot();
    let entry = intent(&mut harness, "refused", &snapshot);
    let EntryState::Intent { fence, .. } = entry.state else {
        panic!("{entry:?}")
    };
    let refused = ControllerRejection {
        controller: controller(),
        message: "no IPUs, please".into(),
        fingerprint: cordoned,
        at: harness.now(),
    };
    let step = harness
        .state
        .reject_create(&entry.id, fence, refused, harness.now());
    harness.commit(step.unwrap());
    assert!(names_ipus(&harness, &harness.snapshot()).is_empty());
    lift(&mut harness);
    assert_eq!(names_ipus(&harness, &harness.snapshot()), [true]);
    assert_eq!(fingerprint(&harness), Some(free));
    cordon(&mut harness, 2);
    assert_ne!(fingerprint(&harness), Some(cordoned), "another cordon of that id");
}

#[test]
fn a_delegated_listing_keeps_its_partitions_and_changes_its_fingerprint() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("ns", "holder", 4));
    let snapshot = harness.snapshot();
    let explicit = snapshot.listing(&controller()).unwrap();
    let delegated = explicit.delegated();
    assert_eq!(delegated.partitions(), explicit.partitions());
    assert_eq!(delegated.capacity().free(), 12);
    assert!(delegated.capacity().is_delegated() && delegated.capacity().refuses_ipus());
    assert_ne!(delegated.fingerprint(), explicit.fingerprint());
    let listing = Listing::new([], Box::new(InventoryCapacity::new(harness.inventory.clone())));
    assert!(!listing.capacity().refuses_ipus());
}
