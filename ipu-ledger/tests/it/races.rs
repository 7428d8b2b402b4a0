//! Several drivers at one partition, calls that come late, and clocks that are put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::Topology;
use ipu_ledger::{EnsureOutcome, Entry, Liveness, OwnerLiveness, Pending, Released, Request, Timestamp};
use ipu_testkit::{BlockChoice, Fault};

use crate::setup::{Bench, TestLedger, advance, all_dead, id, owner, request, state_of, unknown};

fn bench() -> Bench {
    Bench::new(&Topology::pod16(), 1)
}

fn disturbed(bench: &Bench) -> Vec<String> {
    bench.controller.disturbed()
}

/// A ledger that granted `a`, whose workers have ended, and the request of its next attempt.
async fn used_once(bench: &Bench) -> (TestLedger, Request) {
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
    bench.controller.leave(&id("a"));
    let mut next = request("a", 4);
    next.attempt = 1;
    (ledger, next)
}

#[tokio::test(start_paused = true)]
async fn a_repair_does_not_reset_a_partition_under_the_workers_of_an_owner_who_was_quicker() {
    let bench = bench();
    let (ledger, next) = used_once(&bench).await;
    bench
        .controller
        .script([None, Some(Fault::Slow(Duration::from_secs(3)))]);
    let other = bench.ledger();
    let repair = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(3)).await;
        other.repair(&unknown).await.unwrap()
    });
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
    repair.await.unwrap();
    advance(10).await;
    assert_eq!(disturbed(&bench), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_reset_without_an_answer_that_comes_late_does_not_come_under_workers() {
    let bench = bench();
    let (ledger, next) = used_once(&bench).await;
    bench
        .controller
        .script([Some(Fault::Late(Duration::from_secs(15)))]);
    ledger.ensure_active(next, &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
    advance(40).await;
    assert_eq!(disturbed(&bench), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn whoever_was_refused_while_an_earlier_create_is_not_settled_asks_ever_less_often() {
    let bench = bench();
    bench
        .controller
        .script([Some(Fault::Late(Duration::from_secs(3600)))]);
    bench.controller.hide_partitions();
    let ledger = bench.ledger();
    let mut unheard = |_: &ipu_ledger::QueueStatus| {};
    let wait = ledger.ensure_active(request("a", 4), &mut unheard);
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(
        state_of(&ledger, "a").await,
        "waiting",
        "it went back to the line"
    );
    let calls = bench.controller.calls().len();
    assert!(calls <= 10, "{calls} calls in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_smaller_request_does_not_take_the_block_that_is_kept_for_a_larger_one_ahead() {
    let bench = bench();
    bench.controller.choose(BlockChoice::Lowest);
    let ledger = bench.ledger();
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

/// Judges the owner dead, and has him come back before anything follows from that.
struct BackAgain(TestLedger);

#[async_trait]
impl Liveness for BackAgain {
    async fn life_of(&self, _: &Entry) -> OwnerLiveness {
        let mut next = request("a", 4);
        next.attempt = 1;
        next.holder = "another process".into();
        self.0.ensure_active(next, &mut |_| {}).await.unwrap();
        OwnerLiveness::Dead
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_who_is_back_before_the_repair_acts_keeps_what_he_has() {
    let bench = bench();
    let (ledger, _) = used_once(&bench).await;
    let report = ledger.repair(&BackAgain(bench.ledger())).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "active", "{report:?}");
    ledger.repair(&all_dead).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_a_reset_of_its_own_also_while_the_clock_stands_still() {
    let mut bench = bench();
    bench.options.clock = Arc::new(|| Timestamp::from_millis(1_000_000));
    let ledger = bench.ledger();
    let mut request = request("a", 4);
    for attempt in 0..4 {
        request.attempt = attempt;
        ledger.ensure_active(request.clone(), &mut |_| {}).await.unwrap();
        bench.controller.use_it(&id("a"));
        bench.controller.leave(&id("a"));
    }
    for _ in 0..2 {
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
        ledger.ensure_active(request.clone(), &mut |_| {}).await.unwrap();
        bench.controller.use_it(&id("a"));
        bench.controller.leave(&id("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_a_clock_that_was_put_back() {
    let mut bench = bench();
    let back = Arc::new(AtomicU64::new(0));
    let (clock, put_back) = (Arc::clone(&bench.options.clock), Arc::clone(&back));
    bench.options.clock = Arc::new(move || {
        let hour = Duration::from_secs(36_000 - put_back.load(Ordering::SeqCst));
        Timestamp::from_millis(0).plus(hour + clock().since(Timestamp::from_millis(0)))
    });
    bench
        .controller
        .script([Some(Fault::Late(Duration::from_secs(1)))]);
    let crashed = bench.ledger();
    let ensure = tokio::time::timeout(Duration::from_millis(5), crashed.ensure(request("a", 4)));
    let _ = ensure.await;
    let ledger = bench.ledger();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    back.store(3600, Ordering::SeqCst);
    for _ in 0..4 {
        advance(35).await;
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::Nothing
    );
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_put_forward_forgets_no_partition_that_a_late_call_still_makes() {
    let mut bench = bench();
    let ahead = Arc::new(AtomicU64::new(0));
    let (clock, put_forward) = (Arc::clone(&bench.options.clock), Arc::clone(&ahead));
    bench.options.clock =
        Arc::new(move || clock().plus(Duration::from_secs(put_forward.load(Ordering::SeqCst))));
    bench
        .controller
        .script([Some(Fault::Late(Duration::from_secs(10)))]);
    let ledger = bench.ledger();
    let ensure = tokio::time::timeout(Duration::from_millis(5), ledger.ensure(request("a", 4)));
    let _ = ensure.await;
    ahead.store(3600, Ordering::SeqCst);
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    advance(15).await;
    // The call has arrived: the ledger still knows of it.
    for _ in 0..4 {
        advance(35).await;
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert_eq!(bench.controller.ids(), []);
}
