//! Several drivers at one partition, calls that arrive late, and clocks that are set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::Topology;
use ipu_ledger::{EnsureOutcome, Entry, Liveness, OwnerLiveness, Pending, Released, Request, Timestamp};
use ipu_testkit::{BlockChoice, Fault};

use crate::setup::{Fixture, TestLedger, advance, all_dead, id, owner, request, state_of, unknown};

fn fixture() -> Fixture {
    Fixture::new(&Topology::pod16(), 1)
}

fn disturbed(fixture: &Fixture) -> Vec<String> {
    fixture.controller.disturbed()
}

/// Returns a ledger that granted `a`, whose workers have ended, and the request of its next attempt.
async fn used_once(fixture: &Fixture) -> (TestLedger, Request) {
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
    fixture.controller.mark_unused(&id("a"));
    let mut next = request("a", 4);
    next.attempt = 1;
    (ledger, next)
}

#[tokio::test(start_paused = true)]
async fn a_repair_does_not_reset_a_partition_that_its_owner_reset_first() {
    let fixture = fixture();
    let (ledger, next) = used_once(&fixture).await;
    fixture
        .controller
        .script([None, Some(Fault::Slow(Duration::from_secs(3)))]);
    let other = fixture.ledger();
    let repair = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(3)).await;
        other.repair(&unknown).await.unwrap()
    });
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
    repair.await.unwrap();
    advance(10).await;
    assert_eq!(disturbed(&fixture), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_reset_that_arrives_late_does_not_disturb_workers() {
    let fixture = fixture();
    let (ledger, next) = used_once(&fixture).await;
    fixture
        .controller
        .script([Some(Fault::Late(Duration::from_secs(15)))]);
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
    advance(40).await;
    assert_eq!(disturbed(&fixture), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_backs_off_while_an_earlier_create_is_not_settled() {
    let fixture = fixture();
    fixture
        .controller
        .script([Some(Fault::Late(Duration::from_secs(3600)))]);
    fixture.controller.hide_partitions();
    let ledger = fixture.ledger();
    let mut on_wait = |_: &ipu_ledger::QueueStatus| {};
    let wait = ledger.ensure_active(request("a", 4), &mut on_wait);
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(
        state_of(&ledger, "a").await,
        "waiting",
        "the request is queued again"
    );
    let calls = fixture.controller.calls().len();
    assert!(calls <= 10, "{calls} calls in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_smaller_request_does_not_take_the_block_reserved_for_a_larger_one_ahead() {
    let fixture = fixture();
    fixture.controller.choose(BlockChoice::Lowest);
    let ledger = fixture.ledger();
    for (name, size) in [("one", 8), ("two", 4), ("three", 4)] {
        ledger
            .ensure_active(request(name, size), &mut |_| {})
            .await
            .unwrap();
    }
    ledger.ensure(request("large", 8)).await.unwrap();
    ledger.ensure(request("small", 4)).await.unwrap();
    for name in ["one", "three"] {
        ledger.release(&id(name), &owner(name), None).await.unwrap();
    }
    ledger
        .ensure_active(request("small", 4), &mut |_| {})
        .await
        .unwrap();
    let answer = ledger.ensure(request("large", 8)).await.unwrap();
    assert!(
        matches!(answer, EnsureOutcome::Pending(Pending::Creating)),
        "{answer:?}"
    );
}

/// Judges the owner dead, and lets it request its next attempt before the repair acts on the judgement.
struct ReturningOwner(TestLedger);

#[async_trait]
impl Liveness for ReturningOwner {
    async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
        let mut next = request("a", 4);
        next.attempt = 1;
        next.holder = "another process".into();
        self.0.ensure_active(next, &mut |_| {}).await.unwrap();
        OwnerLiveness::Dead
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_returns_before_the_repair_acts_keeps_its_partition() {
    let fixture = fixture();
    let (ledger, _) = used_once(&fixture).await;
    let report = ledger.repair(&ReturningOwner(fixture.ledger())).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "active", "{report:?}");
    ledger.repair(&all_dead).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_gets_its_own_reset_even_while_the_clock_stands_still() {
    let mut fixture = fixture();
    fixture.options.clock = Arc::new(|| Timestamp::from_millis(1_000_000));
    let ledger = fixture.ledger();
    let mut request = request("a", 4);
    for attempt in 0..4 {
        request.attempt = attempt;
        ledger.ensure_active(request.clone(), &mut |_| {}).await.unwrap();
        fixture.controller.mark_in_use(&id("a"));
        fixture.controller.mark_unused(&id("a"));
    }
    for _ in 0..2 {
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
        ledger.ensure_active(request.clone(), &mut |_| {}).await.unwrap();
        fixture.controller.mark_in_use(&id("a"));
        fixture.controller.mark_unused(&id("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_a_clock_that_was_set_back() {
    let mut fixture = fixture();
    let back = Arc::new(AtomicU64::new(0));
    let (clock, clock_back) = (Arc::clone(&fixture.options.clock), Arc::clone(&back));
    fixture.options.clock = Arc::new(move || {
        let hour = Duration::from_secs(36_000 - clock_back.load(Ordering::SeqCst));
        Timestamp::from_millis(0).plus(hour + clock().since(Timestamp::from_millis(0)))
    });
    fixture
        .controller
        .script([Some(Fault::Late(Duration::from_secs(1)))]);
    let crashed = fixture.ledger();
    let ensure = tokio::time::timeout(Duration::from_millis(5), crashed.ensure(request("a", 4)));
    let _ = ensure.await;
    let ledger = fixture.ledger();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    back.store(3600, Ordering::SeqCst);
    for _ in 0..4 {
        advance(35).await;
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::NotFound
    );
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_forward_loses_no_partition_of_a_late_create_call() {
    let mut fixture = fixture();
    let ahead = Arc::new(AtomicU64::new(0));
    let (clock, clock_ahead) = (Arc::clone(&fixture.options.clock), Arc::clone(&ahead));
    fixture.options.clock =
        Arc::new(move || clock().plus(Duration::from_secs(clock_ahead.load(Ordering::SeqCst))));
    fixture
        .controller
        .script([Some(Fault::Late(Duration::from_secs(10)))]);
    let ledger = fixture.ledger();
    let ensure = tokio::time::timeout(Duration::from_millis(5), ledger.ensure(request("a", 4)));
    let _ = ensure.await;
    ahead.store(3600, Ordering::SeqCst);
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    advance(15).await;
    // The call has arrived, and the ledger still has the entry.
    for _ in 0..4 {
        advance(35).await;
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert_eq!(fixture.controller.ids(), []);
}
