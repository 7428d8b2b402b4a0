//! The attempt fence: a driver with an old record takes nothing away from a newer attempt.

use ipu_core::{Admission, EntryState, Topology, TransitionError};

use super::{Bench, controller, request};

fn stale(id: &ipu_core::PartitionId) -> TransitionError {
    TransitionError::StaleAttempt {
        id: id.clone(),
        asked: 2,
        recorded: 3,
    }
}

#[test]
fn a_release_by_an_old_attempt_is_refused_while_a_newer_one_has_waits_or_makes_the_partition() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    let other = request("ns", "other", 16);
    bench.drive(&other);
    for state in ["waiting", "intent", "active"] {
        match state {
            "waiting" => {
                bench.waiting(&job);
                bench.release(&other);
            }
            "intent" => {
                assert!(matches!(bench.request(&job).unwrap(), Admission::Drive(_)));
            }
            _ => {
                bench.drive(&job);
            }
        }
        assert_eq!(bench.state.get(&job.id).unwrap().state.label(), state);
        let refused = bench
            .state
            .release(&job.id, &job.owner, Some(2), None, bench.window());
        assert_eq!(refused.unwrap_err(), stale(&job.id));
    }
    let text = stale(&job.id).to_string();
    assert!(
        text.contains("attempt 2 ") && text.contains("attempt 3 "),
        "{text}"
    );
    for attempt in [Some(3), Some(4), None] {
        let step = bench
            .state
            .release(&job.id, &job.owner, attempt, None, bench.window());
        assert_eq!(step.unwrap().changes.len(), 1, "{attempt:?}");
    }
}

#[test]
fn a_reset_by_an_old_attempt_is_refused_under_a_newer_one() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    bench.drive(&job);
    let reset = |attempt| bench.state.reset(&job.id, &job.owner, attempt, bench.window());
    assert_eq!(reset(2).unwrap_err(), stale(&job.id));
    let entry = reset(3).unwrap().outcome;
    assert!(matches!(entry.state, EntryState::Intent { .. }));
    assert_eq!((entry.attempt, entry.controller), (3, Some(controller())));
}

#[test]
fn what_is_being_given_back_goes_on_for_an_old_attempt_too() {
    let mut bench = Bench::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    bench.drive(&job);
    let step = bench
        .state
        .release(&job.id, &job.owner, None, None, bench.window());
    bench.take(step.unwrap());
    let again = bench
        .state
        .release(&job.id, &job.owner, Some(2), None, bench.window())
        .unwrap();
    assert_eq!(again.changes, []);
}
