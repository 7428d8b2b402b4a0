//! Calls that may be under way, and moves that are not legal.

use super::*;

#[test]
fn nobody_is_granted_a_partition_that_somebody_else_may_be_resetting() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut job = request("ns", "job", 4);
    bench.drive(&job);
    job.attempt = 1;
    let Admission::Drive(first) = bench.request(&job).unwrap() else {
        panic!("it is reset for the attempt");
    };
    let EntryState::Intent { fence: own, .. } = first.state else {
        panic!("{first:?}");
    };
    let step = bench.state.claim_call(&job.id, None, bench.window()).unwrap();
    let EntryState::Intent { fence: others, .. } = bench.take(step).state else {
        panic!("it stays an intent");
    };
    let ready = |answered, now| {
        bench.state.mark_active(
            &job.id,
            1,
            &Location::default(),
            Some(answered),
            Timestamp::from_millis(now),
        )
    };
    assert!(
        matches!(ready(own, 0), Err(TransitionError::Unsettled { .. })),
        "the other's reset"
    );
    assert!(
        matches!(ready(others, 29_999), Err(TransitionError::Unsettled { .. })),
        "the first reset"
    );
    assert!(ready(others, 30_000).is_ok());
    assert!(matches!(
        bench.state.downgrade_to_reset(&job.id, own, Location::default()),
        Err(TransitionError::Moved { .. })
    ));
}

#[test]
fn what_is_refused_is_not_forgotten_while_an_earlier_call_may_still_make_it() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.request(&job).unwrap();
    let step = bench.state.claim_call(&job.id, None, bench.window()).unwrap();
    let EntryState::Intent { fence, .. } = bench.take(step).state else {
        panic!("it stays an intent");
    };
    let step = bench.state.refused(&job.id, fence, bench.window()).unwrap();
    bench.take(step);
    assert_eq!(bench.state.get(&job.id).unwrap().state.label(), "releasing");
}

#[test]
fn moves_that_are_not_legal_are_named() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    let now = bench.now();
    let moved = |result: Result<_, TransitionError>| result.map(|_: ()| ()).unwrap_err().to_string();
    assert!(
        moved(
            bench
                .state
                .mark_active(&job.id, 0, &Location::default(), None, now)
                .map(|_| ())
        )
        .contains("is gone")
    );
    bench.drive(&job);
    assert!(
        moved(bench.state.remove_released(&job.id, None, now).map(|_| ()))
            .contains("is active and cannot become gone")
    );
    assert!(moved(bench.state.claim_call(&job.id, None, bench.window()).map(|_| ())).contains("active"));
    assert!(
        moved(
            bench
                .state
                .release_quarantined(&job.id, bench.window())
                .map(|_| ())
        )
        .contains("active")
    );
    let mut old = job.clone();
    old.attempt = 1;
    bench.drive(&old);
    assert!(matches!(
        bench.request(&job),
        Err(TransitionError::StaleAttempt { .. })
    ));
}

#[test]
fn an_entry_is_not_forgotten_while_a_call_may_be_under_way() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.request(&job).unwrap();
    bench.now = 5_000;
    let step = bench
        .state
        .release(&job.id, &job.owner, None, None, bench.window())
        .unwrap();
    let Release::Drive(entry) = bench.take(step) else {
        panic!("it has to be removed");
    };
    let EntryState::Releasing { fence } = entry.state else {
        panic!("{entry:?}");
    };
    // The remove was answered, but nobody knows of the create that the intent announced.
    let until = bench
        .state
        .remove_released(&job.id, Some(fence), bench.now())
        .unwrap_err();
    assert!(
        matches!(until, TransitionError::Unsettled { until, .. } if until == Timestamp::from_millis(30_000))
    );
    let step = bench
        .state
        .remove_released(&job.id, Some(fence), Timestamp::from_millis(30_000))
        .unwrap();
    assert_eq!(step.changes, [Change::Remove(job.id.clone())]);
}

#[test]
fn nobody_goes_back_to_the_line_while_an_earlier_call_may_still_make_his_partition() {
    let mut bench = Bench::new(&Topology::pod16());
    let job = request("ns", "job", 4);
    bench.request(&job).unwrap();
    bench.now = 5_000;
    let step = bench.state.claim_call(&job.id, None, bench.window()).unwrap();
    let EntryState::Intent { fence, .. } = bench.take(step).state else {
        panic!("it stays an intent");
    };
    let refused = ControllerRejection {
        controller: controller(),
        message: "full".into(),
        fingerprint: 0,
        at: bench.now(),
    };
    let early = bench
        .state
        .reject_create(&job.id, fence, refused.clone(), bench.now());
    assert!(
        matches!(early, Err(TransitionError::Unsettled { until, .. }) if until == Timestamp::from_millis(30_000))
    );
    bench.now = 30_000;
    let step = bench
        .state
        .reject_create(&job.id, fence, refused, bench.now())
        .unwrap();
    bench.take(step);
    assert_eq!(bench.state.get(&job.id).unwrap().state.label(), "waiting");
}
