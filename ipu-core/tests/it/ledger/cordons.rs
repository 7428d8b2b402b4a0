//! Cordons: their owners, and their effect on the queue.

use std::sync::Arc;

use ipu_core::{
    Admission, Cordon, CordonEffect, CordonTarget, IpuPlace, PlacedBy, Reason, ServiceState, Topology,
    TransitionError, Unbounded,
};

use super::{
    Change, ControllerView, ControllersSnapshot, LedgerHarness, Listing, OnNoCapacity, PartitionSpec,
    controller, request,
};

fn cordon(id: &str, target: CordonTarget) -> Cordon {
    let (id, owner) = (id.parse().unwrap(), "admin".parse().unwrap());
    Cordon::new(id, controller(), target, owner, "a cable")
}

fn machine(harness: &LedgerHarness, number: usize) -> CordonTarget {
    let (agent, _) = harness.inventory.topology().agents().nth(number).unwrap();
    CordonTarget::Machine(agent.clone())
}

impl LedgerHarness {
    fn cordon(&mut self, cordon: &Cordon) -> Result<CordonEffect, TransitionError> {
        let step = self.state.cordon(cordon.clone(), &self.snapshot(), self.now())?;
        Ok(self.commit(step))
    }

    /// Returns the free IPUs and how many partitions of 4 IPUs fit.
    fn capacity(&self) -> (u32, u32) {
        let spec = PartitionSpec::of_size(4.try_into().unwrap());
        let capacities = self.state.free_capacity(&self.snapshot(), &spec);
        let capacity = capacities[0].1.as_ref().unwrap();
        (capacity.free, capacity.fit_count)
    }
}

#[test]
fn the_reason_of_a_cordon_is_bounded() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut long = cordon("fan", CordonTarget::Controller);
    long.reason = "x".repeat(Cordon::MAX_REASON_LEN + 1);
    let rejected = harness.cordon(&long).unwrap_err().to_string();
    assert!(
        rejected.contains("its reason has 257 bytes and may have 256; shorten it"),
        "{rejected}"
    );
    assert_eq!(harness.state.cordons().count(), 0);
    long.reason.pop();
    harness.cordon(&long).unwrap();
}

#[test]
fn cordoned_ipus_get_no_new_partitions_and_the_ledger_chooses_the_ipus() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let target = machine(&harness, 0);
    harness.cordon(&cordon("x", target)).unwrap();
    assert_eq!(harness.capacity(), (12, 3));
    let Admission::Drive(entry) = harness.request(&request("ns", "job", 4)).unwrap() else {
        panic!("the request fits");
    };
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    assert_eq!(entry.placed, PlacedBy::Ledger);
    assert_eq!(entry.places, [4, 5, 6, 7].map(place));

    let mut large = request("ns", "large", 16);
    large.on_no_capacity = OnNoCapacity::Reject;
    let Admission::Rejected(status) = harness.request(&large).unwrap() else {
        panic!("the request does not fit");
    };
    assert_eq!(status.reason.code, "NotEnoughFree");
    let mut pinned = request("ns", "pinned", 4);
    pinned.pin.ipus = [0, 1, 2, 3].map(place).to_vec();
    assert_eq!(harness.expect_queued(&pinned).reason.code, "PinnedIpusBusy");
}

#[test]
fn a_holder_of_cordoned_ipus_is_listed_and_keeps_them_until_it_releases() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 16);
    harness.submit(&job);
    let target = machine(&harness, 1);
    let cordoned = harness.cordon(&cordon("x", target)).unwrap();
    let holders: Vec<_> = cordoned.holders.iter().map(|holder| &holder.id).collect();
    assert_eq!(holders, [&job.id]);
    assert_eq!(cordoned.holders[0].owner.as_ref(), Some(&job.owner));
    let mut again = job.clone();
    again.attempt = 1;
    assert!(matches!(harness.submit(&again), Admission::Drive(_)));
    harness.release(&again);
    assert_eq!(harness.capacity(), (12, 3));
}

#[test]
fn only_its_owner_removes_a_cordon_and_an_id_is_unique() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let first = cordon("x", machine(&harness, 0));
    harness.now = 7;
    let recorded = harness.cordon(&first).unwrap().cordon;
    assert_eq!(recorded.since, harness.now());
    harness.now = 9;
    // A repeated cordon changes nothing, including its time.
    assert_eq!(harness.cordon(&first).unwrap().cordon, recorded);
    let mut other = cordon("x", machine(&harness, 1));
    let error = harness.cordon(&other).unwrap_err();
    assert!(matches!(&error, TransitionError::OtherCordon { recorded: of } if **of == recorded));
    assert!(
        error.to_string().contains("admin") && error.to_string().contains("a cable"),
        "{error}"
    );
    other.owner = "operator".parse().unwrap();
    assert!(harness.state.uncordon(&first.id, &other.owner).is_err());
    assert_eq!(harness.capacity(), (12, 3));
    let step = harness.state.uncordon(&first.id, &first.owner).unwrap();
    assert_eq!(harness.commit(step), Some(recorded));
    assert_eq!(harness.capacity(), (16, 4));
    let step = harness.state.uncordon(&first.id, &first.owner).unwrap();
    assert_eq!(harness.commit(step), None);
}

#[test]
fn a_queued_request_that_needs_cordoned_hardware_names_the_cordon() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    harness.submit(&request("ns", "holder", 4));
    let fan = cordon("fan", machine(&harness, 0));
    harness.cordon(&fan).unwrap();
    let big = request("ns", "big", 16);
    let Admission::Queued(status) = harness.submit(&big) else {
        panic!("it is queued");
    };
    let message = &status.reason.message;
    assert!(
        message.contains("; cordons: fan (machine ") && message.ends_with(") by admin: a cable"),
        "{message}"
    );

    let step = harness.state.uncordon(&fan.id, &fan.owner).unwrap();
    harness.commit(step);
    let Admission::Queued(status) = harness.submit(&big) else {
        panic!("it is queued");
    };
    assert_eq!(status.blockers.len(), 1);
    assert!(!status.reason.message.contains("cordons"), "{}", status.reason);
}

#[test]
fn ipus_with_two_cordons_are_free_once_both_are_removed() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let agent = match machine(&harness, 0) {
        CordonTarget::Machine(agent) => agent,
        other => panic!("{other:?}"),
    };
    let (one, two) = (
        cordon("one", CordonTarget::Ipu(agent.clone(), 0)),
        cordon("two", CordonTarget::Machine(agent)),
    );
    harness.cordon(&one).unwrap();
    assert_eq!(harness.capacity(), (15, 3));
    harness.cordon(&two).unwrap();
    assert_eq!(harness.capacity(), (12, 3));
    for (removed, remaining) in [(&two, (15, 3)), (&one, (16, 4))] {
        let step = harness.state.uncordon(&removed.id, &removed.owner).unwrap();
        harness.commit(step);
        assert_eq!(harness.capacity(), remaining);
    }
}

#[test]
fn an_invalid_cordon_target_is_rejected_with_a_reason() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let unknown = CordonTarget::Machine("missing".parse().unwrap());
    let mut elsewhere = cordon("x", CordonTarget::Controller);
    elsewhere.controller = "elsewhere".parse().unwrap();
    let mut reserved = cordon("x", CordonTarget::Controller);
    reserved.owner = "health".parse().unwrap();
    for (rejected, expected) in [
        (
            cordon("x", unknown),
            "there is no machine missing; the machines are ",
        ),
        (elsewhere, "not configured"),
        (reserved, "is reserved"),
    ] {
        let error = harness.cordon(&rejected).unwrap_err();
        assert!(matches!(error, TransitionError::CannotCordon { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(harness.state.cordons().count(), 0);
}

/// Returns the snapshot of one controller with this listing, such as one of unknown hardware or an
/// unavailable one.
fn snapshot(listing: Result<Listing, Reason>) -> ControllersSnapshot {
    ControllersSnapshot::new(vec![ControllerView {
        name: controller(),
        service: ServiceState::Open,
        listing: listing.map(Arc::new),
    }])
}

#[test]
fn a_controller_of_unknown_hardware_can_only_be_cordoned_as_a_whole() {
    let harness = LedgerHarness::new(&Topology::pod16());
    let unknown_hardware = || snapshot(Ok(Listing::new([], Box::new(Unbounded::default()))));
    let part = cordon("x", machine(&harness, 0));
    let error = harness
        .state
        .cordon(part.clone(), &unknown_hardware(), harness.now())
        .unwrap_err();
    assert!(
        error.to_string().contains("does not report its hardware"),
        "{error}"
    );

    let mut request = request("ns", "job", 4);
    request.on_no_capacity = OnNoCapacity::Reject;
    let code = |state: &ipu_core::LedgerState| {
        let step = state.request(&request, &unknown_hardware(), &harness.policy, harness.window());
        match step.unwrap().outcome {
            Admission::Rejected(status) => status.reason.code,
            other => format!("{other:?}"),
        }
    };
    let mut whole = harness.state.clone();
    let step = whole
        .cordon(
            cordon("x", CordonTarget::Controller),
            &unknown_hardware(),
            harness.now(),
        )
        .unwrap();
    step.changes.iter().for_each(|change| whole.apply(change));
    assert_eq!(code(&whole), "Excluded");

    // The controller reported its hardware earlier and no longer does: the recorded cordon still applies.
    let mut recorded = harness.state.clone();
    recorded.apply(&Change::Cordon(Arc::new(part)));
    assert_eq!(code(&recorded), "Excluded");
}

#[test]
fn a_cordon_of_an_unavailable_controller_is_recorded() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let unavailable = snapshot(Err(Reason::new("ControllerUnavailable", "it is down")));
    let part = cordon("x", machine(&harness, 0));
    let step = harness.state.cordon(part, &unavailable, harness.now()).unwrap();
    assert_eq!(harness.commit(step).holders, []);
    assert_eq!(harness.capacity(), (12, 3));
}
