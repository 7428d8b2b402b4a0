//! Cordons: who decides, and what the line makes of them.

use std::sync::Arc;

use ipu_core::{
    Admission, Cordon, CordonEffect, CordonTarget, IpuPlace, PlacedBy, Reason, ServiceState, Topology,
    TransitionError, Unbounded,
};

use super::{
    Bench, Change, ControllerView, ControllersSnapshot, Listing, OnNoCapacity, PartitionSpec, controller,
    request,
};

fn cordon(id: &str, what: CordonTarget) -> Cordon {
    let (id, owner) = (id.parse().unwrap(), "admin".parse().unwrap());
    Cordon::new(id, controller(), what, owner, "a cable")
}

fn machine(bench: &Bench, number: usize) -> CordonTarget {
    let (agent, _) = bench.inventory.topology().agents().nth(number).unwrap();
    CordonTarget::Machine(agent.clone())
}

impl Bench {
    fn cordon(&mut self, cordon: &Cordon) -> Result<CordonEffect, TransitionError> {
        let step = self.state.cordon(cordon.clone(), &self.world(), self.now())?;
        Ok(self.take(step))
    }

    /// Free IPUs and how many partitions of 4 fit.
    fn room(&self) -> (u32, u32) {
        let spec = PartitionSpec::of_size(4.try_into().unwrap());
        let rooms = self.state.free_capacity(&self.world(), &spec);
        let room = rooms[0].1.as_ref().unwrap();
        (room.free, room.fit_count)
    }
}

#[test]
fn the_reason_of_an_cordon_is_bounded() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut long = cordon("fan", CordonTarget::Controller);
    long.reason = "x".repeat(Cordon::MAX_REASON_LEN + 1);
    let refused = bench.cordon(&long).unwrap_err().to_string();
    assert!(
        refused.contains("its reason has 257 bytes and may have 256; shorten it"),
        "{refused}"
    );
    assert_eq!(bench.state.cordons().count(), 0);
    long.reason.pop();
    bench.cordon(&long).unwrap();
}

#[test]
fn what_is_cordoned_gets_nothing_new_and_the_controller_is_told_where_to_place() {
    let mut bench = Bench::new(&Topology::pod16());
    let what = machine(&bench, 0);
    bench.cordon(&cordon("x", what)).unwrap();
    assert_eq!(bench.room(), (12, 3));
    let Admission::Drive(entry) = bench.request(&request("ns", "job", 4)).unwrap() else {
        panic!("there is room");
    };
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    assert_eq!(entry.placed, PlacedBy::Ledger);
    assert_eq!(entry.places, [4, 5, 6, 7].map(place));

    let mut large = request("ns", "large", 16);
    large.line = OnNoCapacity::Reject;
    let Admission::Rejected(waiting) = bench.request(&large).unwrap() else {
        panic!("there is no room");
    };
    assert_eq!(waiting.reason.code, "NotEnoughFree");
    let mut pinned = request("ns", "pinned", 4);
    pinned.pin.ipus = [0, 1, 2, 3].map(place).to_vec();
    assert_eq!(bench.waiting(&pinned).reason.code, "Illegal");
}

#[test]
fn who_holds_something_there_keeps_it_is_named_and_its_place_is_free_for_nobody_after_it() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 16);
    bench.drive(&job);
    let what = machine(&bench, 1);
    let cordoned = bench.cordon(&cordon("x", what)).unwrap();
    let holders: Vec<_> = cordoned.holders.iter().map(|holder| &holder.id).collect();
    assert_eq!(holders, [&job.id]);
    assert_eq!(cordoned.holders[0].owner.as_ref(), Some(&job.owner));
    let mut again = job.clone();
    again.attempt = 1;
    assert!(matches!(bench.drive(&again), Admission::Drive(_)));
    bench.release(&again);
    assert_eq!(bench.room(), (12, 3));
}

#[test]
fn only_its_owner_lifts_an_cordon_and_an_id_is_taken_once() {
    let mut bench = Bench::new(&Topology::pod16());
    let first = cordon("x", machine(&bench, 0));
    bench.now = 7;
    let recorded = bench.cordon(&first).unwrap().cordon;
    assert_eq!(recorded.since, bench.now());
    bench.now = 9;
    // To say it again is safe and changes nothing, not even since when.
    assert_eq!(bench.cordon(&first).unwrap().cordon, recorded);
    let mut other = cordon("x", machine(&bench, 1));
    let taken = bench.cordon(&other).unwrap_err();
    assert!(matches!(&taken, TransitionError::OtherCordon { recorded: of } if **of == recorded));
    assert!(
        taken.to_string().contains("admin") && taken.to_string().contains("a cable"),
        "{taken}"
    );
    other.owner = "somebody".parse().unwrap();
    assert!(bench.state.uncordon(&first.id, &other.owner).is_err());
    assert_eq!(bench.room(), (12, 3));
    let step = bench.state.uncordon(&first.id, &first.owner).unwrap();
    assert_eq!(bench.take(step), Some(recorded));
    assert_eq!(bench.room(), (16, 4));
    let step = bench.state.uncordon(&first.id, &first.owner).unwrap();
    assert_eq!(bench.take(step), None);
}

#[test]
fn what_two_cordon_is_placed_on_when_both_have_lifted_it() {
    let mut bench = Bench::new(&Topology::pod16());
    let agent = match machine(&bench, 0) {
        CordonTarget::Machine(agent) => agent,
        other => panic!("{other:?}"),
    };
    let (one, two) = (
        cordon("one", CordonTarget::Ipu(agent.clone(), 0)),
        cordon("two", CordonTarget::Machine(agent)),
    );
    bench.cordon(&one).unwrap();
    assert_eq!(bench.room(), (15, 3));
    bench.cordon(&two).unwrap();
    assert_eq!(bench.room(), (12, 3));
    for (lifted, left) in [(&two, (15, 3)), (&one, (16, 4))] {
        let step = bench.state.uncordon(&lifted.id, &lifted.owner).unwrap();
        bench.take(step);
        assert_eq!(bench.room(), left);
    }
}

#[test]
fn what_cannot_be_cordoned_is_refused_with_a_reason() {
    let mut bench = Bench::new(&Topology::pod16());
    let unknown = CordonTarget::Machine("nobody".parse().unwrap());
    let mut elsewhere = cordon("x", CordonTarget::Controller);
    elsewhere.controller = "elsewhere".parse().unwrap();
    let mut reserved = cordon("x", CordonTarget::Controller);
    reserved.owner = "health".parse().unwrap();
    for (refused, why) in [
        (cordon("x", unknown), "there is no machine nobody"),
        (elsewhere, "not configured"),
        (reserved, "the ledger's own"),
    ] {
        let error = bench.cordon(&refused).unwrap_err();
        assert!(matches!(error, TransitionError::CannotCordon { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(bench.state.cordons().count(), 0);
}

/// The world of a controller that does not tell its hardware, or does not answer.
fn world(listing: Result<Listing, Reason>) -> ControllersSnapshot {
    ControllersSnapshot::of(vec![ControllerView {
        name: controller(),
        service: ServiceState::Open,
        listing: listing.map(Arc::new),
    }])
}

#[test]
fn of_a_controller_that_does_not_tell_its_hardware_only_the_whole_is_cordoned() {
    let bench = Bench::new(&Topology::pod16());
    let blind = || world(Ok(Listing::new([], Box::new(Unbounded::default()))));
    let part = cordon("x", machine(&bench, 0));
    let error = bench
        .state
        .cordon(part.clone(), &blind(), bench.now())
        .unwrap_err();
    assert!(
        error.to_string().contains("does not tell its hardware"),
        "{error}"
    );

    let mut request = request("ns", "job", 4);
    request.line = OnNoCapacity::Reject;
    let code = |state: &ipu_core::LedgerState| {
        let step = state.request(&request, &blind(), &bench.rules, bench.window());
        match step.unwrap().outcome {
            Admission::Rejected(waiting) => waiting.reason.code,
            other => format!("{other:?}"),
        }
    };
    let mut whole = bench.state.clone();
    let step = whole
        .cordon(cordon("x", CordonTarget::Controller), &blind(), bench.now())
        .unwrap();
    step.changes.iter().for_each(|change| whole.apply(change));
    assert_eq!(code(&whole), "Excluded");

    // It told its hardware once and does not any more: what is cordoned must not get anything all the same.
    let mut forgetful = bench.state.clone();
    forgetful.apply(&Change::Cordon(Arc::new(part)));
    assert_eq!(code(&forgetful), "Excluded");
}

#[test]
fn a_controller_that_does_not_answer_can_be_cordoned_from() {
    let mut bench = Bench::new(&Topology::pod16());
    let silent = world(Err(Reason::new("ControllerUnavailable", "it is down")));
    let part = cordon("x", machine(&bench, 0));
    let step = bench.state.cordon(part, &silent, bench.now()).unwrap();
    assert_eq!(bench.take(step).holders, []);
    assert_eq!(bench.room(), (12, 3));
}
