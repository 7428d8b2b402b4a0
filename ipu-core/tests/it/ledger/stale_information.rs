//! Stale or ambiguous information: rejections by a controller, and claims that match two controllers.

use core::time::Duration;
use std::sync::Arc;

use ipu_core::{
    Action, Admission, Change, Claim, ControllerName, ControllerRejection, ControllersSnapshot, EntryState,
    LedgerState, OwnerLiveness, Owners, Timestamp, Topology,
};

use super::{LIMIT, LedgerHarness, controller, request};

#[test]
fn a_rejected_request_does_not_hold_back_later_requests() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let first = request("ns", "first", 4);
    let Admission::Drive(entry) = harness.request(&first).unwrap() else {
        panic!("it fits");
    };
    let EntryState::Intent { fence, .. } = entry.state else {
        panic!("{entry:?}");
    };
    let rejection = ControllerRejection {
        controller: controller(),
        message: "some IPUs are not well".into(),
        fingerprint: harness.snapshot().listing(&controller()).unwrap().fingerprint(),
        at: harness.now(),
    };
    let step = harness
        .state
        .reject_create(&first.id, fence, rejection, harness.now())
        .unwrap();
    harness.commit(step);
    harness.now = 1;
    // No later partition exists at the controller yet, so its listing is unchanged.
    for number in 0..=2 * LIMIT {
        let small = request("ns", &format!("small{number}"), 1);
        let admission = harness.request(&small).unwrap();
        assert!(
            matches!(admission, Admission::Drive(_)),
            "{number}: {admission:?}"
        );
    }
}

#[test]
fn a_reclaimed_partition_with_an_unsettled_reset_fails_instead_of_becoming_active() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    let mut owners = Owners::default();
    owners.liveness.insert(job.id.clone(), OwnerLiveness::Live);
    let state_after_reclaim = |until: u64| {
        let mut state = harness.state.clone();
        let mut entry = state.get(&job.id).unwrap().clone();
        entry.state = EntryState::Orphaned;
        entry.unsettled_reset = Some(Timestamp::from_millis(until));
        state.apply(&Change::Put(Arc::new(entry)));
        let reclaim = Action::Reclaim { id: job.id.clone() };
        for change in state.changes_for(&reclaim, &harness.snapshot(), &owners, harness.window()) {
            state.apply(&change);
        }
        state.get(&job.id).unwrap().state.label()
    };
    let now = harness.now().as_millis();
    assert_eq!(
        (state_after_reclaim(now), state_after_reclaim(now + 1)),
        ("active", "failed")
    );
}

#[test]
fn a_claim_with_a_controller_is_granted_only_there() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    let other = ControllerName::new("other:1").unwrap();
    let mut owners = Owners::default();
    owners
        .claims
        .insert(job.id.clone(), Claim::at(job.clone(), controller()));
    let mut both = harness.snapshot();
    both.controllers
        .insert(0, harness.snapshot().controllers.remove(0));
    both.controllers[0].name = other.clone();
    let adopted = |snapshot: &ControllersSnapshot| {
        let mut state = LedgerState::default();
        for action in state.diff(snapshot, &owners, Duration::ZERO, Timestamp::default()) {
            for change in state.changes_for(&action, snapshot, &owners, harness.window()) {
                state.apply(&change);
            }
        }
        let entry = state.get(&job.id).unwrap();
        (entry.state.label(), entry.controller.clone().unwrap())
    };
    assert_eq!(adopted(&both), ("active", controller()));
    both.controllers.reverse();
    assert_eq!(adopted(&both), ("active", controller()));

    // Its controller is unavailable; the partition at the other one is not its own, although it looks the
    // same.
    both.controllers.retain(|view| view.name == other);
    assert_eq!(adopted(&both), ("quarantined", other));
}

#[test]
fn a_partition_listed_by_two_controllers_is_quarantined_at_both() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    let mut owners = Owners::default();
    owners.claims.insert(job.id.clone(), job.clone().into());
    let diff = |snapshot: &ControllersSnapshot, owners: &Owners| {
        LedgerState::default().diff(snapshot, owners, Duration::ZERO, Timestamp::default())
    };
    let actions = |snapshot| diff(&snapshot, &owners);

    let one = harness.snapshot();
    assert!(matches!(&actions(one)[..], [Action::Adopt { .. }]));

    let mut both = harness.snapshot();
    let mut other = harness.snapshot().controllers.remove(0);
    other.name = ControllerName::new("other:1").unwrap();
    both.controllers.push(other);
    let actions_found = actions(both.clone());
    assert!(
        matches!(
            &actions_found[..],
            [Action::Quarantine { .. }, Action::Quarantine { .. }]
        ),
        "{actions_found:?}"
    );

    // A stale decision to adopt it, from before the second listing, has no effect.
    let adopt = Action::Adopt {
        id: job.id.clone(),
        controller: controller(),
    };
    let mut state = LedgerState::default();
    for change in state.changes_for(&actions_found[0], &both, &owners, harness.window()) {
        state.apply(&change);
    }
    assert_eq!(state.get(&job.id).unwrap().state, EntryState::Quarantined);
    assert!(
        state
            .changes_for(&adopt, &both, &owners, harness.window())
            .is_empty()
    );
    assert!(
        LedgerState::default()
            .changes_for(&adopt, &both, &owners, harness.window())
            .is_empty()
    );
}

#[test]
fn a_quarantined_partition_is_forgotten_only_without_a_claim_of_a_live_owner() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    let listed = harness.snapshot();
    let mut state = LedgerState::default();
    let no_owners = Owners::default();
    for action in state.diff(&listed, &no_owners, Duration::ZERO, harness.now()) {
        for change in state.changes_for(&action, &listed, &no_owners, harness.window()) {
            state.apply(&change);
        }
    }
    assert_eq!(state.get(&job.id).unwrap().state, EntryState::Quarantined);

    // Its controller restarts without it.
    let empty = LedgerHarness::new(&Topology::pod16()).snapshot();
    let actions_with_claim = |claim: Option<Claim>| {
        let mut owners = Owners::default();
        owners.claims.extend(claim.map(|claim| (job.id.clone(), claim)));
        state.diff(&empty, &owners, Duration::ZERO, harness.now())
    };
    let other = ControllerName::new("other:1").unwrap();
    let forget = [Action::Forget { id: job.id.clone() }];
    assert_eq!(actions_with_claim(Some(Claim::at(job.clone(), controller()))), []);
    assert_eq!(actions_with_claim(Some(job.clone().into())), []);
    assert_eq!(
        actions_with_claim(Some(Claim::at(job.clone(), other.clone()))),
        forget
    );
    assert_eq!(actions_with_claim(None), forget);

    // The claim names the controller by its other name.
    let mut alias = empty.clone();
    alias.aliases.insert((controller(), other.clone()));
    let mut owners = Owners::default();
    owners
        .claims
        .insert(job.id.clone(), Claim::at(job.clone(), other));
    assert_eq!(state.diff(&alias, &owners, Duration::ZERO, harness.now()), []);
}

#[test]
fn a_claim_at_a_controller_with_an_alias_is_granted() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.submit(&job);
    let other = ControllerName::new("other:1").unwrap();
    let mut both = harness.snapshot();
    let mut second = harness.snapshot().controllers.remove(0);
    second.name = other.clone();
    both.controllers.push(second);
    both.aliases.insert((controller(), other.clone()));
    for claim in [Claim::at(job.clone(), other), job.clone().into()] {
        let mut owners = Owners::default();
        owners.claims.insert(job.id.clone(), claim);
        let mut state = LedgerState::default();
        for action in state.diff(&both, &owners, Duration::ZERO, harness.now()) {
            for change in state.changes_for(&action, &both, &owners, harness.window()) {
                state.apply(&change);
            }
        }
        assert_eq!(state.get(&job.id).unwrap().state, EntryState::Active);
    }
}
