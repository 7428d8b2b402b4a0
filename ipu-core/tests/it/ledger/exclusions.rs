//! Exclusions: who decides, and what the line makes of them.

use std::sync::Arc;

use ipu_core::{
    Admission, Excluded, Exclusion, ExclusionTarget, Illegal, IpuPlace, PlacedBy, Reason, Service, Topology,
    Unbounded,
};

use super::{Bench, Change, ControllerView, LinePolicy, Listing, PartitionSpec, World, controller, request};

fn exclusion(id: &str, what: ExclusionTarget) -> Exclusion {
    let (id, owner) = (id.parse().unwrap(), "admin".parse().unwrap());
    Exclusion::new(id, controller(), what, owner, "a cable")
}

fn machine(bench: &Bench, number: usize) -> ExclusionTarget {
    let (agent, _) = bench.inventory.topology().agents().nth(number).unwrap();
    ExclusionTarget::Machine(agent.clone())
}

impl Bench {
    fn exclude(&mut self, exclusion: &Exclusion) -> Result<Excluded, Illegal> {
        let step = self.state.exclude(exclusion.clone(), &self.world(), self.now())?;
        Ok(self.take(step))
    }

    /// Free IPUs and how many partitions of 4 fit.
    fn room(&self) -> (u32, u32) {
        let spec = PartitionSpec::of_size(4.try_into().unwrap());
        let rooms = self.state.room(&self.world(), &spec);
        let room = rooms[0].1.as_ref().unwrap();
        (room.free, room.fits)
    }
}

#[test]
fn the_reason_of_an_exclusion_is_bounded() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut long = exclusion("fan", ExclusionTarget::Controller);
    long.reason = "x".repeat(Exclusion::MAX_REASON_LEN + 1);
    let refused = bench.exclude(&long).unwrap_err().to_string();
    assert!(
        refused.contains("its reason has 257 bytes and may have 256; shorten it"),
        "{refused}"
    );
    assert_eq!(bench.state.exclusions().count(), 0);
    long.reason.pop();
    bench.exclude(&long).unwrap();
}

#[test]
fn what_is_excluded_gets_nothing_new_and_the_controller_is_told_where_to_place() {
    let mut bench = Bench::new(&Topology::pod16());
    let what = machine(&bench, 0);
    bench.exclude(&exclusion("x", what)).unwrap();
    assert_eq!(bench.room(), (12, 3));
    let Admission::Drive(entry) = bench.request(&request("ns", "job", 4)).unwrap() else {
        panic!("there is room");
    };
    let place = |ipu| IpuPlace { link_domain: 0, ipu };
    assert_eq!(entry.placed, PlacedBy::Ledger);
    assert_eq!(entry.places, [4, 5, 6, 7].map(place));

    let mut large = request("ns", "large", 16);
    large.line = LinePolicy::Refuse;
    let Admission::Refused(waiting) = bench.request(&large).unwrap() else {
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
    let excluded = bench.exclude(&exclusion("x", what)).unwrap();
    let holders: Vec<_> = excluded.holders.iter().map(|holder| &holder.id).collect();
    assert_eq!(holders, [&job.id]);
    assert_eq!(excluded.holders[0].owner.as_ref(), Some(&job.owner));
    let mut again = job.clone();
    again.attempt = 1;
    assert!(matches!(bench.drive(&again), Admission::Drive(_)));
    bench.release(&again);
    assert_eq!(bench.room(), (12, 3));
}

#[test]
fn only_its_owner_lifts_an_exclusion_and_an_id_is_taken_once() {
    let mut bench = Bench::new(&Topology::pod16());
    let first = exclusion("x", machine(&bench, 0));
    bench.now = 7;
    let recorded = bench.exclude(&first).unwrap().exclusion;
    assert_eq!(recorded.since, bench.now());
    bench.now = 9;
    // To say it again is safe and changes nothing, not even since when.
    assert_eq!(bench.exclude(&first).unwrap().exclusion, recorded);
    let mut other = exclusion("x", machine(&bench, 1));
    let taken = bench.exclude(&other).unwrap_err();
    assert!(matches!(&taken, Illegal::OtherExclusion { recorded: of } if **of == recorded));
    assert!(
        taken.to_string().contains("admin") && taken.to_string().contains("a cable"),
        "{taken}"
    );
    other.owner = "somebody".parse().unwrap();
    assert!(bench.state.lift(&first.id, &other.owner).is_err());
    assert_eq!(bench.room(), (12, 3));
    let step = bench.state.lift(&first.id, &first.owner).unwrap();
    assert_eq!(bench.take(step), Some(recorded));
    assert_eq!(bench.room(), (16, 4));
    let step = bench.state.lift(&first.id, &first.owner).unwrap();
    assert_eq!(bench.take(step), None);
}

#[test]
fn what_two_exclude_is_placed_on_when_both_have_lifted_it() {
    let mut bench = Bench::new(&Topology::pod16());
    let agent = match machine(&bench, 0) {
        ExclusionTarget::Machine(agent) => agent,
        other => panic!("{other:?}"),
    };
    let (one, two) = (
        exclusion("one", ExclusionTarget::Ipu(agent.clone(), 0)),
        exclusion("two", ExclusionTarget::Machine(agent)),
    );
    bench.exclude(&one).unwrap();
    assert_eq!(bench.room(), (15, 3));
    bench.exclude(&two).unwrap();
    assert_eq!(bench.room(), (12, 3));
    for (lifted, left) in [(&two, (15, 3)), (&one, (16, 4))] {
        let step = bench.state.lift(&lifted.id, &lifted.owner).unwrap();
        bench.take(step);
        assert_eq!(bench.room(), left);
    }
}

#[test]
fn what_cannot_be_excluded_is_refused_with_a_reason() {
    let mut bench = Bench::new(&Topology::pod16());
    let unknown = ExclusionTarget::Machine("nobody".parse().unwrap());
    let mut elsewhere = exclusion("x", ExclusionTarget::Controller);
    elsewhere.controller = "elsewhere".parse().unwrap();
    let mut reserved = exclusion("x", ExclusionTarget::Controller);
    reserved.owner = "health".parse().unwrap();
    for (refused, why) in [
        (exclusion("x", unknown), "there is no machine nobody"),
        (elsewhere, "not configured"),
        (reserved, "the ledger's own"),
    ] {
        let error = bench.exclude(&refused).unwrap_err();
        assert!(matches!(error, Illegal::CannotExclude { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert_eq!(bench.state.exclusions().count(), 0);
}

/// The world of a controller that does not tell its hardware, or does not answer.
fn world(listing: Result<Listing, Reason>) -> World {
    World::of(vec![ControllerView {
        name: controller(),
        service: Service::Open,
        listing: listing.map(Arc::new),
    }])
}

#[test]
fn of_a_controller_that_does_not_tell_its_hardware_only_the_whole_is_excluded() {
    let bench = Bench::new(&Topology::pod16());
    let blind = || world(Ok(Listing::new([], Box::new(Unbounded::default()))));
    let part = exclusion("x", machine(&bench, 0));
    let error = bench
        .state
        .exclude(part.clone(), &blind(), bench.now())
        .unwrap_err();
    assert!(
        error.to_string().contains("does not tell its hardware"),
        "{error}"
    );

    let mut request = request("ns", "job", 4);
    request.line = LinePolicy::Refuse;
    let code = |state: &ipu_core::LedgerState| {
        let step = state.request(&request, &blind(), &bench.rules, bench.window());
        match step.unwrap().outcome {
            Admission::Refused(waiting) => waiting.reason.code,
            other => format!("{other:?}"),
        }
    };
    let mut whole = bench.state.clone();
    let step = whole
        .exclude(exclusion("x", ExclusionTarget::Controller), &blind(), bench.now())
        .unwrap();
    step.changes.iter().for_each(|change| whole.apply(change));
    assert_eq!(code(&whole), "Excluded");

    // It told its hardware once and does not any more: what is excluded must not get anything all the same.
    let mut forgetful = bench.state.clone();
    forgetful.apply(&Change::Exclude(Arc::new(part)));
    assert_eq!(code(&forgetful), "Excluded");
}

#[test]
fn a_controller_that_does_not_answer_can_be_excluded_from() {
    let mut bench = Bench::new(&Topology::pod16());
    let silent = world(Err(Reason::new("ControllerUnavailable", "it is down")));
    let part = exclusion("x", machine(&bench, 0));
    let step = bench.state.exclude(part, &silent, bench.now()).unwrap();
    assert_eq!(bench.take(step).holders, []);
    assert_eq!(bench.room(), (12, 3));
}
