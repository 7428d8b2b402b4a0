//! A component that resumes requests of other clients never makes new requests, however late it runs.

use std::time::Duration;

use ipu_core::{Topology, TransitionError};
use ipu_ledger::{EntryState, LedgerError, Released};

use crate::setup::{Fixture, TestLedger, id, owner, request};

/// Longer than a release polls its controller.
const SLOW_CALL: Duration = Duration::from_secs(60);

async fn release_until_removed(ledger: &TestLedger, name: &str) {
    while let Released::InProgress { .. } = ledger.release(&id(name), &owner(name), None).await.unwrap() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_was_released_since_is_not_created_again() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(SLOW_CALL);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure(request("mine", 4)).await.unwrap();
    let stale = one.get(&id("mine")).await.unwrap().unwrap();
    assert!(
        matches!(stale.state, EntryState::Intent { .. }),
        "{:?}",
        stale.state
    );
    other.resume(&stale).await.unwrap();
    release_until_removed(&one, "mine").await;
    for ledger in [&one, &other] {
        ledger.resume(&stale).await.unwrap();
        assert_eq!(ledger.list().await.unwrap(), []);
    }
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stale_resume_does_not_release_a_partition_that_was_requested_again() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(SLOW_CALL);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    one.release(&id("mine"), &owner("mine"), None).await.unwrap();
    let stale = one.get(&id("mine")).await.unwrap().unwrap();
    assert!(
        matches!(stale.state, EntryState::Releasing { .. }),
        "{:?}",
        stale.state
    );
    while one.get(&id("mine")).await.unwrap().is_some() {
        other.resume(&stale).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    other.resume(&stale).await.unwrap();
    let entry = one.get(&id("mine")).await.unwrap().unwrap();
    assert_eq!(entry.state, EntryState::Active);
    assert_eq!(fixture.controller.ids(), [id("mine")]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_an_error_once_another_process_releases_its_request() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(SLOW_CALL);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let wait = async { one.ensure_active(request("second", 16), &mut |_| {}).await };
    let release = async {
        while other.get(&id("second")).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        release_until_removed(&other, "second").await;
    };
    let (outcome, ()) = tokio::join!(wait, release);
    let error = outcome.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::Illegal(TransitionError::Moved { state: "gone", .. })
        ),
        "{error}"
    );
    release_until_removed(&other, "first").await;
    assert_eq!(one.list().await.unwrap(), []);
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stale_resume_does_not_revert_a_new_priority() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (one, other) = (fixture.ledger(), fixture.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    one.ensure(request("mine", 4)).await.unwrap();
    let stale = one.get(&id("mine")).await.unwrap().unwrap();
    let mut urgent = request("mine", 4);
    urgent.priority = 3;
    one.ensure(urgent).await.unwrap();
    other.resume(&stale).await.unwrap();
    assert_eq!(one.get(&id("mine")).await.unwrap().unwrap().priority, 3);
}
