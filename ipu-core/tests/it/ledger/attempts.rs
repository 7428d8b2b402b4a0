//! The attempt fence: a driver with a stale record cannot release or reset the partition of a newer attempt.

use ipu_core::{Admission, EntryState, Topology, TransitionError};

use super::{LedgerHarness, controller, request};

fn stale(id: &ipu_core::PartitionId) -> TransitionError {
    TransitionError::StaleAttempt {
        id: id.clone(),
        asked: 2,
        recorded: 3,
    }
}

#[test]
fn a_release_by_a_stale_attempt_is_rejected_while_a_newer_one_is_queued_creating_or_active() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    let other = request("ns", "other", 16);
    harness.submit(&other);
    for state in ["waiting", "intent", "active"] {
        match state {
            "waiting" => {
                harness.expect_queued(&job);
                harness.release(&other);
            }
            "intent" => {
                assert!(matches!(harness.request(&job).unwrap(), Admission::Drive(_)));
            }
            _ => {
                harness.submit(&job);
            }
        }
        assert_eq!(harness.state.get(&job.id).unwrap().state.label(), state);
        let refused = harness
            .state
            .release(&job.id, &job.owner, Some(2), None, harness.window());
        assert_eq!(refused.unwrap_err(), stale(&job.id));
    }
    let text = stale(&job.id).to_string();
    assert!(
        text.contains("attempt 2 ") && text.contains("attempt 3 "),
        "{text}"
    );
    for attempt in [Some(3), Some(4), None] {
        let step = harness
            .state
            .release(&job.id, &job.owner, attempt, None, harness.window());
        assert_eq!(step.unwrap().changes.len(), 1, "{attempt:?}");
    }
}

#[test]
fn a_reset_by_a_stale_attempt_is_rejected_under_a_newer_one() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    harness.submit(&job);
    let reset = |attempt| {
        harness
            .state
            .reset(&job.id, &job.owner, attempt, harness.window())
    };
    assert_eq!(reset(2).unwrap_err(), stale(&job.id));
    let entry = reset(3).unwrap().outcome;
    assert!(matches!(entry.state, EntryState::Intent { .. }));
    assert_eq!((entry.attempt, entry.controller), (3, Some(controller())));
}

#[test]
fn a_release_in_progress_continues_for_a_stale_attempt() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let mut job = request("ns", "job", 8);
    job.attempt = 3;
    harness.submit(&job);
    let step = harness
        .state
        .release(&job.id, &job.owner, None, None, harness.window());
    harness.commit(step.unwrap());
    let again = harness
        .state
        .release(&job.id, &job.owner, Some(2), None, harness.window())
        .unwrap();
    assert_eq!(again.changes, []);
}
