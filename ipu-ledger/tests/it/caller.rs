//! Requests whose clients go away before they are recorded.

use std::time::Duration;

use ipu_core::{Topology, TransitionError};
use ipu_ledger::{Caller, Expiry, LedgerError};

use crate::setup::{Bench, id, owner, request, state_of};

fn of(caller: &Caller) -> Expiry {
    Expiry {
        not_after: None,
        caller: Some(caller.clone()),
    }
}

fn is_too_late<T: std::fmt::Debug>(answer: &Result<T, LedgerError>) -> bool {
    matches!(answer, Err(LedgerError::Illegal(TransitionError::TooLate { .. })))
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_goes_away_before_it_is_recorded_has_no_effect() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = bench.ledger();
    let (guard, caller) = Caller::new();
    drop(guard);
    let gone = of(&caller);
    assert!(is_too_late(&ledger.ensure_until(request("a", 4), &gone).await));
    assert!(ledger.get(&id("a")).await.unwrap().is_none());

    let (_guard, caller) = Caller::new();
    let waits = of(&caller);
    ledger.ensure_until(request("a", 4), &waits).await.unwrap();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let resets = bench.controller.calls().len();
    let reset = ledger.reset_until(&id("a"), &owner("a"), 0, &gone).await;
    let released = ledger.release_until(&id("a"), &owner("a"), None, &gone).await;
    assert!(is_too_late(&reset) && is_too_late(&released));
    assert_eq!(state_of(&ledger, "a").await, "active");
    assert_eq!(bench.controller.calls().len(), resets);
    ledger
        .release_until(&id("a"), &owner("a"), None, &waits)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_client_goes_away_leaves_the_queue_for_the_partition() {
    let bench = Bench::new(&Topology::pod16(), 1);
    bench.controller.operation(Duration::from_secs(20));
    let ledger = bench.ledger();
    let (guard, caller) = Caller::new();
    let expiry = of(&caller);
    let mut on_wait = |_: &_| {};
    let first = ledger.ensure_active(request("a", 4), &mut on_wait);
    let began = tokio::time::Instant::now();
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (id, owner) = (id("a"), owner("a"));
        let waits = ledger.release_until(&id, &owner, None, &expiry);
        let gives_up = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(guard);
        };
        let (released, ()) = tokio::join!(waits, gives_up);
        assert!(is_too_late(&released), "{released:?}");
        began.elapsed()
    };
    let (active, after) = tokio::join!(first, second);
    active.unwrap();
    assert_eq!(after, Duration::from_secs(2));
}
