//! Controllers that hang or are slow: how long others wait for them.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::Topology;
use ipu_ledger::{EnsureOutcome, Ledger, MemoryStore, OnNoCapacity, PartitionSpec};
use ipu_testkit::{CallKind, FakeController, Fault};
use ipu_vipu_client::ControllerPool;
use tokio::time::Instant;

use crate::setup::{TestLedger, advance, all_dead, all_live, name, options, request, state_of};

/// Two controllers of 16 IPUs in this order, and a ledger over them.
struct Two {
    first: FakeController,
    second: FakeController,
    ledger: TestLedger,
}

impl Two {
    fn new() -> Self {
        let topology = Topology::pod16();
        let first = FakeController::new(&topology, 1);
        let second = FakeController::new(&topology, 2);
        let mut options = options(&topology);
        for controller in ["first", "second"] {
            options.topologies.insert(name(controller), topology.clone());
        }
        let pool = ControllerPool::new([
            (name("first"), Arc::new(first.clone())),
            (name("second"), Arc::new(second.clone())),
        ]);
        let ledger = Ledger::new(pool, MemoryStore::new(), options);
        Self {
            first,
            second,
            ledger,
        }
    }

    fn first_is_slow_by(&self, by: Duration, times: u32) {
        for _ in 0..times {
            self.first.inject(CallKind::List, Fault::Slow(by));
        }
    }

    async fn lists(&self) -> u64 {
        let injected = self.first.injected();
        let of_lists = injected.iter().filter(|((_, call), _)| *call == "list");
        of_lists.map(|(_, count)| count).sum()
    }
}

/// How long `work` takes, and what it comes to.
async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let began = Instant::now();
    let outcome = work.await;
    (began.elapsed(), outcome)
}

const HANGS: Duration = Duration::from_secs(600);
const A_MOMENT: Duration = Duration::from_millis(200);
const SHORT_TIMEOUT: Duration = Duration::from_millis(1_200);

#[tokio::test(start_paused = true)]
async fn a_request_waits_a_second_for_a_controller_that_hangs_and_goes_to_the_next_one() {
    let two = Two::new();
    two.first_is_slow_by(HANGS, 100);
    let (took, answer) = timed(two.ledger.ensure(request("a", 4))).await;
    assert!(
        matches!(answer, Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(_))),
        "{answer:?}"
    );
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    // As long as it is silent, nobody else waits for it at all.
    for job in ["b", "c"] {
        let (took, answer) = timed(two.ledger.ensure(request(job, 4))).await;
        assert!(
            matches!(answer, Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(_))),
            "{answer:?}"
        );
        assert!(took < A_MOMENT, "{took:?}");
    }
    assert_eq!(two.lists().await, 1, "one question at a time");
    assert_eq!(two.second.ids().len(), 3);
    // However long it goes on: never more than that second, and soon nothing.
    for number in 0..60 {
        let spec = PartitionSpec::of_size(1.try_into().unwrap());
        let (took, rooms) = timed(two.ledger.query(&spec)).await;
        assert!(took < SHORT_TIMEOUT, "{number}: {took:?}");
        let rooms = rooms.unwrap();
        assert!(rooms.iter().any(|(_, room)| room.is_ok()), "{rooms:?}");
        advance(2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_fit_elsewhere_is_told_which_controller_is_silent() {
    let two = Two::new();
    two.ledger
        .ensure_active(pinned("held", "second", 16), &mut |_| {})
        .await
        .unwrap();
    advance(1).await;
    two.first_is_slow_by(HANGS, 100);
    let mut refuse = request("a", 4);
    refuse.line = OnNoCapacity::Reject;
    let (took, answer) = timed(two.ledger.ensure(refuse)).await;
    let EnsureOutcome::Refused(waiting) = answer.unwrap() else {
        panic!("there is no room");
    };
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    let words = &waiting.reason.message;
    assert!(
        words.contains("first has been silent for more than 1s"),
        "{words}"
    );
}

fn pinned(job: &str, controller: &str, size: u32) -> ipu_ledger::Request {
    let mut request = request(job, size);
    request.pin.controller = Some(name(controller));
    request
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_slow_is_silent_at_first_and_then_used_by_what_it_last_listed() {
    let two = Two::new();
    two.first_is_slow_by(Duration::from_secs(3), 100);
    let (took, answer) = timed(two.ledger.ensure(pinned("a", "first", 4))).await;
    assert!(matches!(answer, Ok(EnsureOutcome::Waiting(_))), "{answer:?}");
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    advance(3).await;
    for _ in 0..10 {
        let (took, stats) = timed(two.ledger.stats()).await;
        assert!(took < A_MOMENT, "{took:?}");
        assert_eq!(stats.unwrap().ipus, 32);
        advance(1).await;
    }
    two.ledger
        .ensure_active(pinned("a", "first", 4), &mut |_| {})
        .await
        .unwrap();
    // Repair takes its time, and sees what is there now.
    let report = two.ledger.repair(&all_live).await.unwrap();
    assert!(report.silent.is_empty(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_waits_for_any_more_is_answered_all_the_same() {
    let two = Two::new();
    two.first_is_slow_by(Duration::from_secs(3), 1);
    let asking = tokio::spawn({
        let ledger = two.ledger.clone();
        async move { ledger.stats().await }
    });
    tokio::task::yield_now().await;
    asking.abort();
    advance(2).await;
    // It is silent still: asked three seconds ago by somebody who is gone.
    let (took, stats) = timed(two.ledger.stats()).await;
    assert!(took < A_MOMENT, "{took:?}");
    assert_eq!(stats.unwrap().unknown, [name("first")]);
    advance(2).await;
    assert_eq!(two.ledger.stats().await.unwrap().ipus, 32);
}

#[tokio::test(start_paused = true)]
async fn repair_is_not_kept_by_everything_that_a_controller_which_hangs_has_to_give_back() {
    let two = Two::new();
    let jobs: Vec<String> = (0..12).map(|number| format!("job{number}")).collect();
    for job in &jobs {
        let pinned = pinned(job, "first", 1);
        two.ledger.ensure_active(pinned, &mut |_| {}).await.unwrap();
    }
    for _ in 0..1_000 {
        for kind in [CallKind::List, CallKind::Status, CallKind::Remove] {
            two.first.inject(kind, Fault::Slow(HANGS));
        }
    }
    let (took, report) = timed(two.ledger.repair(&all_dead)).await;
    let report = report.unwrap();
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(report.later.len(), jobs.len(), "{report:?}");
    assert!(report.later[0].1.contains("controller first"), "{report:?}");
    // That they are given back is recorded.
    assert_eq!(state_of(&two.ledger, "job0").await, "releasing");
}
