//! Whoever goes on with what others asked for asks for nothing himself, however late he comes.

use std::time::Duration;

use ipu_core::{Topology, TransitionError};
use ipu_ledger::{EntryState, LedgerError, Released};

use crate::setup::{Bench, TestLedger, id, owner, request};

/// Longer than a release waits for its controller.
const SLOW_CALL: Duration = Duration::from_secs(60);

async fn until_gone(ledger: &TestLedger, name: &str) {
    while let Released::InProgress { .. } = ledger.release(&id(name), &owner(name), None).await.unwrap() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_since_is_not_made_again() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(SLOW_CALL);
    let (one, other) = (bench.ledger(), bench.ledger());
    one.ensure(request("mine", 4)).await.unwrap();
    let seen = one.get(&id("mine")).await.unwrap().unwrap();
    assert!(
        matches!(seen.state, EntryState::Intent { .. }),
        "{:?}",
        seen.state
    );
    other.resume(&seen).await.unwrap();
    until_gone(&one, "mine").await;
    for ledger in [&one, &other] {
        ledger.resume(&seen).await.unwrap();
        assert_eq!(ledger.list().await.unwrap(), []);
    }
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_again_is_not_given_back_by_whoever_saw_it_go() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(SLOW_CALL);
    let (one, other) = (bench.ledger(), bench.ledger());
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    one.release(&id("mine"), &owner("mine"), None).await.unwrap();
    let seen = one.get(&id("mine")).await.unwrap().unwrap();
    assert!(
        matches!(seen.state, EntryState::Releasing { .. }),
        "{:?}",
        seen.state
    );
    while one.get(&id("mine")).await.unwrap().is_some() {
        other.resume(&seen).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    one.ensure_active(request("mine", 4), &mut |_| {}).await.unwrap();
    other.resume(&seen).await.unwrap();
    let entry = one.get(&id("mine")).await.unwrap().unwrap();
    assert_eq!(entry.state, EntryState::Active);
    assert_eq!(bench.controller.ids(), [id("mine")]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_what_another_gives_back_is_told_and_leaves_nothing() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(SLOW_CALL);
    let (one, other) = (bench.ledger(), bench.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let waits = async { one.ensure_active(request("second", 16), &mut |_| {}).await };
    let story = async {
        while other.get(&id("second")).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        until_gone(&other, "second").await;
    };
    let (told, ()) = tokio::join!(waits, story);
    let error = told.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::Illegal(TransitionError::Moved { state: "gone", .. })
        ),
        "{error}"
    );
    until_gone(&other, "first").await;
    assert_eq!(one.list().await.unwrap(), []);
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_on_with_what_he_saw_before_takes_no_new_priority_back() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (one, other) = (bench.ledger(), bench.ledger());
    one.ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    one.ensure(request("mine", 4)).await.unwrap();
    let seen = one.get(&id("mine")).await.unwrap().unwrap();
    let mut urgent = request("mine", 4);
    urgent.priority = 3;
    one.ensure(urgent).await.unwrap();
    other.resume(&seen).await.unwrap();
    assert_eq!(one.get(&id("mine")).await.unwrap().unwrap().priority, 3);
}
