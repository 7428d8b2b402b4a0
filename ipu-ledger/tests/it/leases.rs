//! Owners that are alive as long as they renew their lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_core::Topology;
use ipu_ledger::{Lease, LeaseLiveness, LedgerError, OwnerLiveness, Timestamp, TransitionError};

use crate::setup::{Fixture, TestLedger, advance, id, owner, request, state_of};

const MINUTE: Duration = Duration::from_secs(60);

fn judge(fixture: &Fixture) -> LeaseLiveness {
    LeaseLiveness::new(Arc::clone(&fixture.options.clock))
}

async fn liveness(judge: &LeaseLiveness, ledger: &TestLedger) -> OwnerLiveness {
    judge.judge(&ledger.get(&id("a")).await.unwrap().unwrap())
}

/// Returns a ledger that granted `a` under a lease of one minute.
async fn leased(fixture: &Fixture) -> TestLedger {
    let ledger = fixture.ledger();
    let mut wanted = request("a", 4);
    wanted.holder = Lease::of(MINUTE, (fixture.options.clock)()).to_string();
    ledger.ensure_active(wanted, &mut |_| {}).await.unwrap();
    ledger
}

#[test]
fn a_lease_round_trips_and_malformed_texts_are_refused() {
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
async fn an_owner_keeps_its_partition_until_it_stops_renewing_its_lease() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = leased(&fixture).await;
    let judge = judge(&fixture);
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
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_ledger_ends_no_owner() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    drop(leased(&fixture).await);
    // No process could record a heartbeat for an hour.
    advance(3_600).await;
    let (ledger, judge) = (fixture.ledger(), judge(&fixture));
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Unknown);
    advance(59).await;
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Unknown);
    // Another process recorded a heartbeat meanwhile.
    fixture
        .ledger()
        .heartbeat(&id("a"), &owner("a"), MINUTE)
        .await
        .unwrap();
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
    advance(31).await;
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
    advance(30).await;
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_suspension_of_the_process_ends_no_owner() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = leased(&fixture).await;
    let judge = judge(&fixture);
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
    advance(20).await;
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
    // The heartbeats of an hour are in the sockets of the process, which judges before it reads them.
    advance(3_600).await;
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Unknown);
    ledger.heartbeat(&id("a"), &owner("a"), MINUTE).await.unwrap();
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
}

#[tokio::test(start_paused = true)]
async fn a_clock_step_ends_no_owner() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    let (clock, ahead) = (Arc::clone(&fixture.options.clock), Arc::new(AtomicU64::new(0)));
    let offset = Arc::clone(&ahead);
    fixture.options.clock =
        Arc::new(move || clock().plus(Duration::from_secs(offset.load(Ordering::Relaxed))));
    let ledger = leased(&fixture).await;
    let judge = judge(&fixture);
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
    ahead.store(86_400, Ordering::Relaxed);
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Unknown);
    ledger.heartbeat(&id("a"), &owner("a"), MINUTE).await.unwrap();
    assert_eq!(liveness(&judge, &ledger).await, OwnerLiveness::Live);
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_renews_a_lease_and_only_of_a_held_partition() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = leased(&fixture).await;
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
    assert_eq!(judge(&fixture).judge(&plain), OwnerLiveness::Unknown);
    fixture.controller.start_outage();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    for name in ["a", "unknown"] {
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
