//! What is not believed: that an end helps whom a controller refused before, and that one of two equals is the right one.

use core::time::Duration;
use std::sync::Arc;

use ipu_core::{
    Action, Admission, Change, Claim, ControllerName, ControllerRejection, ControllersSnapshot, EntryState,
    LedgerState, OwnerLiveness, Owners, Timestamp, Topology,
};

use super::{Bench, LIMIT, controller, request};

#[test]
fn who_was_refused_holds_nobody_back_for_those_who_came_afterwards() {
    let mut bench = Bench::new(&Topology::pod16());
    let first = request("ns", "first", 4);
    let Admission::Drive(entry) = bench.request(&first).unwrap() else {
        panic!("it fits");
    };
    let EntryState::Intent { fence, .. } = entry.state else {
        panic!("{entry:?}");
    };
    let refused = ControllerRejection {
        controller: controller(),
        message: "some IPUs are not well".into(),
        fingerprint: bench.world().listing(&controller()).unwrap().fingerprint(),
        at: bench.now(),
    };
    let step = bench
        .state
        .reject_create(&first.id, fence, refused, bench.now())
        .unwrap();
    bench.take(step);
    bench.now = 1;
    // None of them is at the controller yet, so that it shows no change.
    for number in 0..=2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        let admission = bench.request(&small).unwrap();
        assert!(
            matches!(admission, Admission::Drive(_)),
            "{number}: {admission:?}"
        );
    }
}

#[test]
fn what_a_reset_may_still_come_to_is_not_active_again_when_its_owner_is_back() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.drive(&job);
    let mut owners = Owners::default();
    owners.liveness.insert(job.id.clone(), OwnerLiveness::Live);
    let back = |until: u64| {
        let mut state = bench.state.clone();
        let mut entry = state.get(&job.id).unwrap().clone();
        entry.state = EntryState::Orphaned;
        entry.unsettled_reset = Some(Timestamp::from_millis(until));
        state.apply(&Change::Put(Arc::new(entry)));
        let reclaim = Action::Reclaim { id: job.id.clone() };
        for change in state.act(&reclaim, &bench.world(), &owners, bench.window()) {
            state.apply(&change);
        }
        state.get(&job.id).unwrap().state.label()
    };
    let now = bench.now().as_millis();
    assert_eq!((back(now), back(now + 1)), ("active", "failed"));
}

#[test]
fn a_claim_that_says_where_the_partition_is_is_granted_there_and_nowhere_else() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.drive(&job);
    let other = ControllerName::new("other:1").unwrap();
    let mut owners = Owners::default();
    owners
        .claims
        .insert(job.id.clone(), Claim::at(job.clone(), controller()));
    let mut two = bench.world();
    two.controllers.insert(0, bench.world().controllers.remove(0));
    two.controllers[0].name = other.clone();
    let adopted = |world: &ControllersSnapshot| {
        let mut state = LedgerState::default();
        for action in state.diff(world, &owners, Duration::ZERO, Timestamp::default()) {
            for change in state.act(&action, world, &owners, bench.window()) {
                state.apply(&change);
            }
        }
        let entry = state.get(&job.id).unwrap();
        (entry.state.label(), entry.controller.clone().unwrap())
    };
    assert_eq!(adopted(&two), ("active", controller()));
    two.controllers.reverse();
    assert_eq!(adopted(&two), ("active", controller()));

    // The one that he uses is silent: the other one is not his, although it looks as if it were.
    two.controllers.retain(|view| view.name == other);
    assert_eq!(adopted(&two), ("quarantined", other));
}

#[test]
fn of_a_partition_that_two_controllers_have_neither_is_taken_for_the_one_that_was_granted() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.drive(&job);
    let mut owners = Owners::default();
    owners.claims.insert(job.id.clone(), job.clone().into());
    let diff = |world: &ControllersSnapshot, owners: &Owners| {
        LedgerState::default().diff(world, owners, Duration::ZERO, Timestamp::default())
    };
    let actions = |world| diff(&world, &owners);

    let one = bench.world();
    assert!(matches!(&actions(one)[..], [Action::Adopt { .. }]));

    let mut two = bench.world();
    let mut other = bench.world().controllers.remove(0);
    other.name = ControllerName::new("other:1").unwrap();
    two.controllers.push(other);
    let found = actions(two.clone());
    assert!(
        matches!(&found[..], [Action::Quarantine { .. }, Action::Quarantine { .. }]),
        "{found:?}"
    );

    // Whoever had decided to adopt it before the other one answered does not.
    let adopt = Action::Adopt {
        id: job.id.clone(),
        controller: controller(),
    };
    let mut state = LedgerState::default();
    for change in state.act(&found[0], &two, &owners, bench.window()) {
        state.apply(&change);
    }
    assert_eq!(state.get(&job.id).unwrap().state, EntryState::Quarantined);
    assert!(state.act(&adopt, &two, &owners, bench.window()).is_empty());
    assert!(
        LedgerState::default()
            .act(&adopt, &two, &owners, bench.window())
            .is_empty()
    );
}

#[test]
fn a_quarantined_partition_is_forgotten_only_if_no_live_owner_claims_it() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.drive(&job);
    let listed = bench.world();
    let mut state = LedgerState::default();
    let nobody = Owners::default();
    for action in state.diff(&listed, &nobody, Duration::ZERO, bench.now()) {
        for change in state.act(&action, &listed, &nobody, bench.window()) {
            state.apply(&change);
        }
    }
    assert_eq!(state.get(&job.id).unwrap().state, EntryState::Quarantined);

    // Its controller restarts without it.
    let empty = Bench::new(&Topology::pod16()).world();
    let with = |claim: Option<Claim>| {
        let mut owners = Owners::default();
        owners.claims.extend(claim.map(|claim| (job.id.clone(), claim)));
        state.diff(&empty, &owners, Duration::ZERO, bench.now())
    };
    let other = ControllerName::new("other:1").unwrap();
    let forget = [Action::Forget { id: job.id.clone() }];
    assert_eq!(with(Some(Claim::at(job.clone(), controller()))), []);
    assert_eq!(with(Some(job.clone().into())), []);
    assert_eq!(with(Some(Claim::at(job.clone(), other.clone()))), forget);
    assert_eq!(with(None), forget);

    // The claim names the controller by its other name.
    let mut alias = empty.clone();
    alias.aliases.insert((controller(), other.clone()));
    let mut owners = Owners::default();
    owners
        .claims
        .insert(job.id.clone(), Claim::at(job.clone(), other));
    assert_eq!(state.diff(&alias, &owners, Duration::ZERO, bench.now()), []);
}

#[test]
fn a_claim_to_a_controller_of_two_names_is_granted_under_one_of_them() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.drive(&job);
    let other = ControllerName::new("other:1").unwrap();
    let mut two = bench.world();
    let mut second = bench.world().controllers.remove(0);
    second.name = other.clone();
    two.controllers.push(second);
    two.aliases.insert((controller(), other.clone()));
    for claim in [Claim::at(job.clone(), other), job.clone().into()] {
        let mut owners = Owners::default();
        owners.claims.insert(job.id.clone(), claim);
        let mut state = LedgerState::default();
        for action in state.diff(&two, &owners, Duration::ZERO, bench.now()) {
            for change in state.act(&action, &two, &owners, bench.window()) {
                state.apply(&change);
            }
        }
        assert_eq!(state.get(&job.id).unwrap().state, EntryState::Active);
    }
}
