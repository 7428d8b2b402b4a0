//! Owners that are alive as long as they say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_core::Topology;
use ipu_ledger::{Lease, LeaseLiveness, LedgerError, OwnerLiveness, Timestamp, TransitionError};

use crate::setup::{Bench, TestLedger, advance, id, owner, request, state_of};

const MINUTE: Duration = Duration::from_secs(60);

fn judge(bench: &Bench) -> LeaseLiveness {
    LeaseLiveness::new(Arc::clone(&bench.options.clock))
}

async fn life(judge: &LeaseLiveness, ledger: &TestLedger) -> OwnerLiveness {
    judge.judge(&ledger.get(&id("a")).await.unwrap().unwrap())
}

/// A ledger that granted `a` under a lease of a minute.
async fn leased(bench: &Bench) -> TestLedger {
    let ledger = bench.ledger();
    let mut wanted = request("a", 4);
    wanted.holder = Lease::of(MINUTE, (bench.options.clock)()).to_string();
    ledger.ensure_active(wanted, &mut |_| {}).await.unwrap();
    ledger
}

#[test]
fn a_lease_is_read_as_it_was_written_and_nothing_else_is_one() {
    let lease = Lease::of(MINUTE, Timestamp::from_millis(1_700_000_000_123));
    assert_eq!(lease.to_string(), "lease:60:1700000060123");
    assert_eq!(lease.to_string().parse(), Ok(lease));
    assert_eq!(
        Lease::of(Duration::ZERO, Timestamp::from_millis(0))
            .length()
            .as_secs(),
        1
    );
    let longest = Lease::of(Duration::MAX, Timestamp::from_millis(0));
    assert_eq!(longest.length(), Lease::MAX_DURATION);
    assert_eq!(longest.to_string().parse(), Ok(longest));
    for text in [
        "",
        "lease:",
        "lease:60",
        "lease:0:5",
        "lease:604801:5",
        "lease:6:x",
        "lease:6:-1",
        "4711@12",
    ] {
        let error = text.parse::<Lease>().unwrap_err();
        assert!(error.to_string().contains("is not a lease"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_renews_his_lease_keeps_his_partition_and_whoever_stops_loses_it() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = leased(&bench).await;
    let judge = judge(&bench);
    for _ in 0..10 {
        advance(50).await;
        ledger.repair(&judge).await.unwrap();
        assert_eq!(state_of(&ledger, "a").await, "active");
        ledger.heartbeat(&id("a"), &owner("a"), MINUTE).await.unwrap();
    }
    ledger.repair(&judge).await.unwrap();
    for gap in [30, 29] {
        advance(gap).await;
        ledger.repair(&judge).await.unwrap();
        assert_eq!(state_of(&ledger, "a").await, "active");
    }
    advance(2).await;
    ledger.repair(&judge).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "gone");
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn nobody_dies_because_the_ledger_was_away() {
    let bench = Bench::new(&Topology::pod16(), 1);
    drop(leased(&bench).await);
    // Nobody could take a heartbeat for an hour.
    advance(3_600).await;
    let (ledger, judge) = (bench.ledger(), judge(&bench));
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Unknown);
    advance(59).await;
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Unknown);
    // Another process took one meanwhile.
    bench
        .ledger()
        .heartbeat(&id("a"), &owner("a"), MINUTE)
        .await
        .unwrap();
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
    advance(31).await;
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
    advance(30).await;
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Dead);
}

#[tokio::test(start_paused = true)]
async fn no_owner_dies_because_the_process_was_suspended() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = leased(&bench).await;
    let judge = judge(&bench);
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
    advance(20).await;
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
    // The heartbeats of an hour lie in the sockets of the process, which judges before it reads them.
    advance(3_600).await;
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Unknown);
    ledger.heartbeat(&id("a"), &owner("a"), MINUTE).await.unwrap();
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
}

#[tokio::test(start_paused = true)]
async fn nobody_dies_because_a_clock_was_set() {
    let mut bench = Bench::new(&Topology::pod16(), 1);
    let (clock, ahead) = (Arc::clone(&bench.options.clock), Arc::new(AtomicU64::new(0)));
    let offset = Arc::clone(&ahead);
    bench.options.clock = Arc::new(move || clock().plus(Duration::from_secs(offset.load(Ordering::Relaxed))));
    let ledger = leased(&bench).await;
    let judge = judge(&bench);
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
    ahead.store(86_400, Ordering::Relaxed);
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Unknown);
    ledger.heartbeat(&id("a"), &owner("a"), MINUTE).await.unwrap();
    assert_eq!(life(&judge, &ledger).await, OwnerLiveness::Live);
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_renews_and_only_what_can_be_kept() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = leased(&bench).await;
    let error = ledger.heartbeat(&id("a"), &owner("b"), MINUTE).await.unwrap_err();
    assert!(
        matches!(error, LedgerError::Illegal(TransitionError::NotTheOwner { .. })),
        "{error}"
    );
    ledger
        .ensure_active(request("plain", 4), &mut |_| {})
        .await
        .unwrap();
    let plain = ledger.get(&id("plain")).await.unwrap().unwrap();
    assert_eq!(judge(&bench).judge(&plain), OwnerLiveness::Unknown);
    bench.controller.go_down();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    for name in ["a", "nobody"] {
        let error = ledger
            .heartbeat(&id(name), &owner(name), MINUTE)
            .await
            .unwrap_err();
        assert!(
            matches!(error, LedgerError::Illegal(TransitionError::Moved { .. })),
            "{error}"
        );
    }
}
