//! Calls that may be in flight, and illegal transitions.

use super::*;

#[test]
fn a_partition_is_not_granted_while_another_reset_may_be_in_flight() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut job = request("ns", "job", 4);
    harness.submit(&job);
    job.attempt = 1;
    let Admission::Drive(first) = harness.request(&job).unwrap() else {
        panic!("the partition is reset for the attempt");
    };
    let EntryState::Intent {
        fence: first_fence, ..
    } = first.state
    else {
        panic!("{first:?}");
    };
    let step = harness.state.claim_call(&job.id, None, harness.window()).unwrap();
    let EntryState::Intent {
        fence: second_fence, ..
    } = harness.commit(step).state
    else {
        panic!("the entry remains an intent");
    };
    let ready = |answered_fence, now| {
        harness.state.mark_active(
            &job.id,
            1,
            &Location::default(),
            Some(answered_fence),
            Timestamp::from_millis(now),
        )
    };
    assert!(
        matches!(ready(first_fence, 0), Err(TransitionError::Unsettled { .. })),
        "the reset of the other driver"
    );
    assert!(
        matches!(
            ready(second_fence, 29_999),
            Err(TransitionError::Unsettled { .. })
        ),
        "the first reset"
    );
    assert!(ready(second_fence, 30_000).is_ok());
    assert!(matches!(
        harness
            .state
            .downgrade_to_reset(&job.id, first_fence, Location::default()),
        Err(TransitionError::Moved { .. })
    ));
}

#[test]
fn a_rejected_create_is_kept_while_an_earlier_call_may_still_create_the_partition() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.request(&job).unwrap();
    let step = harness.state.claim_call(&job.id, None, harness.window()).unwrap();
    let EntryState::Intent { fence, .. } = harness.commit(step).state else {
        panic!("the entry remains an intent");
    };
    let step = harness
        .state
        .drop_refused(&job.id, fence, harness.window())
        .unwrap();
    harness.commit(step);
    assert_eq!(harness.state.get(&job.id).unwrap().state.label(), "releasing");
}

#[test]
fn illegal_transitions_are_named_in_the_error() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    let now = harness.now();
    let error_of = |result: Result<_, TransitionError>| result.map(|_: ()| ()).unwrap_err().to_string();
    assert!(
        error_of(
            harness
                .state
                .mark_active(&job.id, 0, &Location::default(), None, now)
                .map(|_| ())
        )
        .contains("is gone")
    );
    harness.submit(&job);
    assert!(
        error_of(harness.state.remove_released(&job.id, None, now).map(|_| ()))
            .contains("is active and cannot become removed")
    );
    assert!(
        error_of(
            harness
                .state
                .claim_call(&job.id, None, harness.window())
                .map(|_| ())
        )
        .contains("active")
    );
    assert!(
        error_of(
            harness
                .state
                .release_quarantined(&job.id, harness.window())
                .map(|_| ())
        )
        .contains("active")
    );
    let mut newer = job.clone();
    newer.attempt = 1;
    harness.submit(&newer);
    assert!(matches!(
        harness.request(&job),
        Err(TransitionError::StaleAttempt { .. })
    ));
}

#[test]
fn an_entry_is_not_deleted_while_a_call_may_be_in_flight() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.request(&job).unwrap();
    harness.now = 5_000;
    let step = harness
        .state
        .release(&job.id, &job.owner, None, None, harness.window())
        .unwrap();
    let Release::Drive(entry) = harness.commit(step) else {
        panic!("the partition must be removed");
    };
    let EntryState::Releasing { fence } = entry.state else {
        panic!("{entry:?}");
    };
    // The removal has completed, but the result of the create of the intent is unknown.
    let until = harness
        .state
        .remove_released(&job.id, Some(fence), harness.now())
        .unwrap_err();
    assert!(
        matches!(until, TransitionError::Unsettled { until, .. } if until == Timestamp::from_millis(30_000))
    );
    let step = harness
        .state
        .remove_released(&job.id, Some(fence), Timestamp::from_millis(30_000))
        .unwrap();
    assert_eq!(step.changes, [Change::Remove(job.id.clone())]);
}

#[test]
fn a_request_is_not_requeued_while_an_earlier_call_may_still_create_its_partition() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    harness.request(&job).unwrap();
    harness.now = 5_000;
    let step = harness.state.claim_call(&job.id, None, harness.window()).unwrap();
    let EntryState::Intent { fence, .. } = harness.commit(step).state else {
        panic!("the entry remains an intent");
    };
    let rejection = ControllerRejection {
        controller: controller(),
        message: "full".into(),
        fingerprint: 0,
        at: harness.now(),
    };
    let early = harness
        .state
        .reject_create(&job.id, fence, rejection.clone(), harness.now());
    assert!(
        matches!(early, Err(TransitionError::Unsettled { until, .. }) if until == Timestamp::from_millis(30_000))
    );
    harness.now = 30_000;
    let step = harness
        .state
        .reject_create(&job.id, fence, rejection, harness.now())
        .unwrap();
    harness.commit(step);
    assert_eq!(harness.state.get(&job.id).unwrap().state.label(), "waiting");
}
