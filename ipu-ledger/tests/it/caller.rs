//! Requests whose clients disconnect before they are recorded.

use std::time::Duration;

use ipu_core::{Topology, TransitionError};
use ipu_ledger::{Caller, Expiry, LedgerError};

use crate::setup::{Fixture, id, owner, request, state_of};

fn expiry(caller: &Caller) -> Expiry {
    Expiry {
        not_after: None,
        caller: Some(caller.clone()),
    }
}

fn is_too_late<T: std::fmt::Debug>(answer: &Result<T, LedgerError>) -> bool {
    matches!(answer, Err(LedgerError::Illegal(TransitionError::TooLate { .. })))
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_disconnects_before_it_is_recorded_has_no_effect() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = fixture.ledger();
    let (guard, caller) = Caller::new();
    drop(guard);
    let disconnected = expiry(&caller);
    assert!(is_too_late(
        &ledger.ensure_until(request("a", 4), &disconnected).await
    ));
    assert!(ledger.get(&id("a")).await.unwrap().is_none());

    let (_guard, caller) = Caller::new();
    let connected = expiry(&caller);
    ledger.ensure_until(request("a", 4), &connected).await.unwrap();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let resets = fixture.controller.calls().len();
    let reset = ledger.reset_until(&id("a"), &owner("a"), 0, &disconnected).await;
    let released = ledger
        .release_until(&id("a"), &owner("a"), None, &disconnected)
        .await;
    assert!(is_too_late(&reset) && is_too_late(&released));
    assert_eq!(state_of(&ledger, "a").await, "active");
    assert_eq!(fixture.controller.calls().len(), resets);
    ledger
        .release_until(&id("a"), &owner("a"), None, &connected)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_disconnects_stops_waiting_for_the_partition_lock() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.controller.set_operation_time(Duration::from_secs(20));
    let ledger = fixture.ledger();
    let (guard, caller) = Caller::new();
    let caller_expiry = expiry(&caller);
    let mut on_wait = |_: &_| {};
    let first = ledger.ensure_active(request("a", 4), &mut on_wait);
    let started = tokio::time::Instant::now();
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (id, owner) = (id("a"), owner("a"));
        let waits = ledger.release_until(&id, &owner, None, &caller_expiry);
        let gives_up = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(guard);
        };
        let (released, ()) = tokio::join!(waits, gives_up);
        assert!(is_too_late(&released), "{released:?}");
        started.elapsed()
    };
    let (active, after) = tokio::join!(first, second);
    active.unwrap();
    assert_eq!(after, Duration::from_secs(2));
}
