//! Controllers that hang or are slow, and the time that other requests wait for them.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::Topology;
use ipu_ledger::{EnsureOutcome, Ledger, MemoryStore, OnNoCapacity, PartitionSpec};
use ipu_testkit::{CallKind, FakeController, Fault};
use ipu_vipu_client::ControllerPool;
use tokio::time::Instant;

use crate::setup::{TestLedger, advance, all_dead, all_live, name, options, request, state_of};

/// TwoControllers controllers of 16 IPUs in this order, and a ledger over them.
struct TwoControllers {
    first: FakeController,
    second: FakeController,
    ledger: TestLedger,
}

impl TwoControllers {
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

/// Returns the duration of `work`, and its outcome.
async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let started = Instant::now();
    let outcome = work.await;
    (started.elapsed(), outcome)
}

const HANG: Duration = Duration::from_secs(600);
const NO_WAIT: Duration = Duration::from_millis(200);
const SHORT_TIMEOUT: Duration = Duration::from_millis(1_200);

#[tokio::test(start_paused = true)]
async fn a_request_waits_one_second_for_a_hanging_controller_and_then_uses_the_next_one() {
    let controllers = TwoControllers::new();
    controllers.first_is_slow_by(HANG, 100);
    let (took, answer) = timed(controllers.ledger.ensure(request("a", 4))).await;
    assert!(
        matches!(answer, Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(_))),
        "{answer:?}"
    );
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    // While the controller is silent, no other request waits for it.
    for job in ["b", "c"] {
        let (took, answer) = timed(controllers.ledger.ensure(request(job, 4))).await;
        assert!(
            matches!(answer, Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(_))),
            "{answer:?}"
        );
        assert!(took < NO_WAIT, "{took:?}");
    }
    assert_eq!(controllers.lists().await, 1, "one request at a time");
    assert_eq!(controllers.second.ids().len(), 3);
    // The wait is never longer than that second, and soon zero.
    for number in 0..60 {
        let spec = PartitionSpec::of_size(1.try_into().unwrap());
        let (took, capacities) = timed(controllers.ledger.query(&spec)).await;
        assert!(took < SHORT_TIMEOUT, "{number}: {took:?}");
        let capacities = capacities.unwrap();
        assert!(
            capacities.iter().any(|(_, capacity)| capacity.is_ok()),
            "{capacities:?}"
        );
        advance(2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fits_nowhere_else_names_the_unavailable_controller() {
    let controllers = TwoControllers::new();
    controllers
        .ledger
        .ensure_active(pinned("held", "second", 16), &mut |_| {})
        .await
        .unwrap();
    advance(1).await;
    controllers.first_is_slow_by(HANG, 100);
    let mut refuse = request("a", 4);
    refuse.on_no_capacity = OnNoCapacity::Reject;
    let (took, answer) = timed(controllers.ledger.ensure(refuse)).await;
    let EnsureOutcome::Refused(waiting) = answer.unwrap() else {
        panic!("there is no capacity");
    };
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    let message = &waiting.reason.message;
    assert!(message.contains("first has not replied within 1s"), "{message}");
}

fn pinned(job: &str, controller: &str, size: u32) -> ipu_ledger::Request {
    let mut request = request(job, size);
    request.pin.controller = Some(name(controller));
    request
}

#[tokio::test(start_paused = true)]
async fn a_slow_controller_is_unavailable_at_first_and_then_used_with_its_latest_listing() {
    let controllers = TwoControllers::new();
    controllers.first_is_slow_by(Duration::from_secs(3), 100);
    let (took, answer) = timed(controllers.ledger.ensure(pinned("a", "first", 4))).await;
    assert!(matches!(answer, Ok(EnsureOutcome::Waiting(_))), "{answer:?}");
    assert!(took < SHORT_TIMEOUT, "{took:?}");
    advance(3).await;
    for _ in 0..10 {
        let (took, stats) = timed(controllers.ledger.stats()).await;
        assert!(took < NO_WAIT, "{took:?}");
        assert_eq!(stats.unwrap().ipus, 32);
        advance(1).await;
    }
    controllers
        .ledger
        .ensure_active(pinned("a", "first", 4), &mut |_| {})
        .await
        .unwrap();
    // Repair uses the full deadline, and gets the current listing.
    let report = controllers.ledger.repair(&all_live).await.unwrap();
    assert!(report.unavailable.is_empty(), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_listing_request_completes_although_its_caller_was_dropped() {
    let controllers = TwoControllers::new();
    controllers.first_is_slow_by(Duration::from_secs(3), 1);
    let caller = tokio::spawn({
        let ledger = controllers.ledger.clone();
        async move { ledger.stats().await }
    });
    tokio::task::yield_now().await;
    caller.abort();
    advance(2).await;
    // The controller is still silent: its request started three seconds ago, and the caller was dropped.
    let (took, stats) = timed(controllers.ledger.stats()).await;
    assert!(took < NO_WAIT, "{took:?}");
    assert_eq!(stats.unwrap().unknown, [name("first")]);
    advance(2).await;
    assert_eq!(controllers.ledger.stats().await.unwrap().ipus, 32);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_controller_with_many_releases_does_not_delay_repair() {
    let controllers = TwoControllers::new();
    let jobs: Vec<String> = (0..12).map(|number| format!("job{number}")).collect();
    for job in &jobs {
        let pinned = pinned(job, "first", 1);
        controllers
            .ledger
            .ensure_active(pinned, &mut |_| {})
            .await
            .unwrap();
    }
    for _ in 0..1_000 {
        for kind in [CallKind::List, CallKind::Status, CallKind::Remove] {
            controllers.first.inject(kind, Fault::Slow(HANG));
        }
    }
    let (took, report) = timed(controllers.ledger.repair(&all_dead)).await;
    let report = report.unwrap();
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(report.deferred.len(), jobs.len(), "{report:?}");
    assert!(report.deferred[0].1.contains("controller first"), "{report:?}");
    // The release is recorded.
    assert_eq!(state_of(&controllers.ledger, "job0").await, "releasing");
}
