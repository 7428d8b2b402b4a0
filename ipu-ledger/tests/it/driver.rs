//! Results that the driver derives from replies and from their absence.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{EntryState, IpuCount, PartitionFacts, Topology, TransitionError};
use ipu_ledger::{
    EnsureOutcome, Ledger, LedgerError, LedgerOptions, MemoryStore, OnNoCapacity, Pending, Released,
};
use ipu_testkit::{CallKind, FakeController, Fault};
use ipu_vipu_client::ControllerPool;
use tokio::time::Instant;

use crate::setup::{Fixture, TestLedger, advance, id, name, options, owner, request, state_of};

fn fixture() -> Fixture {
    Fixture::new(&Topology::pod16(), 1)
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_neither_creates_a_second_partition_nor_resets_the_first() {
    let fixture = fixture();
    fixture.controller.script([Some(Fault::LostReply)]);
    let grant = fixture
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    assert_eq!(grant.id, id("a"));
    assert_eq!(
        fixture
            .controller
            .calls()
            .iter()
            .filter(|call| !call.starts_with("create"))
            .count(),
        0
    );
    assert_eq!(fixture.controller.ids(), [id("a")]);
}

/// TwoControllers controllers of four IPUs each, and ledgers on them that share a store.
struct TwoControllers {
    first: FakeController,
    second: FakeController,
    store: MemoryStore,
    options: LedgerOptions,
}

impl TwoControllers {
    fn new() -> Self {
        let pod = Topology::pod4();
        let mut options = options(&pod);
        options.topologies.insert(name("first"), pod.clone());
        options.topologies.insert(name("second"), pod.clone());
        Self {
            first: FakeController::new(&pod, 1),
            second: FakeController::new(&pod, 2),
            store: MemoryStore::new(),
            options,
        }
    }

    fn ledger(&self) -> TestLedger {
        let pool = ControllerPool::new([
            (name("first"), Arc::new(self.first.clone())),
            (name("second"), Arc::new(self.second.clone())),
        ]);
        Ledger::new(pool, self.store.clone(), self.options.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicated_create_call_that_finds_its_own_capacity_taken_has_created_the_partition() {
    let controllers = TwoControllers::new();
    controllers.first.check_capacity_first();
    controllers.first.script([Some(Fault::Duplicate)]);
    let grant = controllers
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    assert_eq!(grant.controller, name("first"));
    controllers.first.mark_in_use(&id("a"));
    assert_eq!(controllers.second.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_driver_does_not_create_a_partition_that_was_placed_at_another_controller_since() {
    let controllers = TwoControllers::new();
    controllers
        .first
        .inject(CallKind::Create, Fault::Slow(Duration::from_secs(1)));
    controllers
        .second
        .inject(CallKind::Create, Fault::Slow(Duration::from_secs(3)));
    let one = controllers.ledger();
    let first_request = tokio::spawn(async move { one.ensure_active(request("a", 4), &mut |_| {}).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Another client takes the capacity while the call is in flight, and another driver takes the intent
    // over.
    controllers.first.create_foreign("slurm_1", 4);
    controllers
        .first
        .inject(CallKind::Status, Fault::Slow(Duration::from_secs(2)));
    let other = controllers.ledger();
    let slow = tokio::spawn(async move { other.ensure(request("a", 4)).await });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    controllers.first.lose_partitions();
    slow.await.unwrap().unwrap();
    assert_eq!(first_request.await.unwrap().unwrap().controller, name("second"));
    assert_eq!(
        (controllers.first.ids(), controllers.second.ids()),
        (vec![], vec![id("a")])
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_create_call_that_may_still_be_in_flight() {
    let fixture = fixture();
    fixture
        .controller
        .script([Some(Fault::Late(Duration::from_secs(15)))]);
    let first = fixture.ledger();
    let crashed = tokio::time::timeout(Duration::from_millis(5), first.ensure(request("a", 4)));
    assert!(crashed.await.is_err(), "the driver dies before the reply");

    let ledger = fixture.ledger();
    let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    assert!(matches!(released, Released::InProgress { .. }), "{released:?}");
    assert_eq!(state_of(&ledger, "a").await, "releasing");
    advance(20).await;
    assert_eq!(
        fixture.controller.ids(),
        [id("a")],
        "the create call arrived late"
    );
    advance(60).await;
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::Removed
    );
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_refuses_listed_capacity_is_not_called_repeatedly() {
    let fixture = fixture();
    fixture.controller.hide_partitions();
    let ledger = fixture.ledger();
    let EnsureOutcome::Waiting(waiting) = ledger.ensure(request("a", 4)).await.unwrap() else {
        panic!("there is no capacity");
    };
    assert_eq!(waiting.reason.code, "ControllerRefused");
    assert!(
        waiting.reason.message.contains("cordoned"),
        "{}",
        waiting.reason.message
    );
    for _ in 0..10 {
        assert!(matches!(
            ledger.ensure(request("a", 4)).await.unwrap(),
            EnsureOutcome::Waiting(_)
        ));
    }
    let calls = fixture.controller.calls().len();
    assert_eq!(calls, 1, "the controller is called again only after a change");
    advance(31).await;
    ledger.ensure(request("a", 4)).await.unwrap();
    assert_eq!(fixture.controller.calls().len(), 2, "or after a timeout");
    let entry = ledger.get(&id("a")).await.unwrap().unwrap();
    assert_eq!((entry.ticket, entry.controller), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_based_on_an_old_listing_does_not_delay_the_request() {
    let mut granted = 0;
    for seed in 0..8 {
        let fixture = Fixture::new(&Topology::pod16(), seed);
        let ledger = fixture.ledger();
        // The controller is listed here, and this listing is recent enough for the next request.
        ledger.query(&request("a", 4).spec).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // For example IPUs that another partition used for a moment.
        fixture.controller.inject(CallKind::Create, Fault::Refused);
        match ledger.ensure(request("a", 4)).await {
            Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(Pending::Creating)) => granted += 1,
            // The fault has a second error variant.
            Err(LedgerError::Refused { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(granted > 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_durable_while_the_controller_is_down() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.start_outage();
    let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    assert!(matches!(released, Released::InProgress { .. }));
    fixture.controller.end_outage();
    advance(60).await;
    let report = fixture.ledger().repair(&crate::setup::unknown).await.unwrap();
    assert!(report.is_settled(), "{report:?}");
    assert_eq!(fixture.controller.ids(), []);
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn a_partition_in_error_is_reported_and_reset_for_the_next_attempt_only() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
    fixture.controller.break_partition(&id("a"));
    let facts = ledger.observe(&id("a")).await.unwrap();
    let errors = vec![String::from("link down")];
    assert_eq!(
        facts,
        PartitionFacts::Failed {
            attempt: 0,
            errors: errors.clone()
        }
    );
    assert_eq!(
        ledger.ensure(request("a", 4)).await.unwrap(),
        EnsureOutcome::Pending(Pending::Failed { errors })
    );
    let mut next = request("a", 4);
    next.attempt = 1;
    assert_eq!(
        ledger
            .ensure_active(next.clone(), &mut |_| {})
            .await
            .unwrap()
            .attempt,
        1
    );
    fixture.controller.mark_in_use(&id("a"));

    next.attempt = 0;
    let stale = ledger.ensure(next).await.unwrap_err();
    assert!(matches!(
        stale,
        LedgerError::Illegal(TransitionError::StaleAttempt {
            asked: 0,
            recorded: 1,
            ..
        })
    ));
}

#[tokio::test(start_paused = true)]
async fn the_ipus_of_a_partition_that_its_controller_lost_are_not_allocated_again() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 8), &mut |_| {}).await.unwrap();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    let places = ledger.get(&id("a")).await.unwrap().unwrap().places;
    assert_eq!(places.len(), 8, "repair records the IPUs");
    fixture.controller.lose_partitions();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "failed");

    ledger.ensure_active(request("b", 8), &mut |_| {}).await.unwrap();
    let b = ledger.get(&id("b")).await.unwrap().unwrap();
    assert!(
        b.places.iter().all(|place| !places.contains(place)),
        "a's workers may still run there"
    );
    let mut again = request("a", 8);
    again.attempt = 1;
    ledger.ensure_active(again, &mut |_| {}).await.unwrap();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    assert_eq!(ledger.get(&id("a")).await.unwrap().unwrap().places, places);
}

#[tokio::test(start_paused = true)]
async fn a_new_ledger_returns_existing_partitions_to_their_owners_after_a_reset() {
    let fixture = fixture();
    fixture
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    fixture.controller.mark_in_use(&id("a"));
    let mut fresh = Fixture::new(&Topology::pod16(), 2);
    fresh.controller = fixture.controller.clone();
    fresh
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    fixture.controller.mark_in_use(&id("a"));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_foreign_partition_uses_is_an_error() {
    let fixture = fixture();
    fixture.controller.create_foreign(id("a").as_str(), 2);
    let error = fixture.ledger().ensure(request("a", 4)).await.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::Illegal(TransitionError::Foreign { found: 2, .. })
        ),
        "{error}"
    );
    assert_eq!(fixture.ledger().list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_request_of_another_owner_is_refused_with_the_name_of_the_owner() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let mut intruder = request("b", 4);
    intruder.id = id("a");
    let error = ledger.ensure(intruder).await.unwrap_err();
    assert!(error.to_string().contains("belongs to Test ns/a"), "{error}");
    assert!(ledger.release(&id("a"), &owner("b"), None).await.is_err());
    let other = ledger.ensure(request("a", 8)).await.unwrap_err();
    assert!(
        matches!(other, LedgerError::Illegal(TransitionError::OtherSpec { .. })),
        "{other}"
    );
}

#[tokio::test(start_paused = true)]
async fn queued_requests_start_in_order_and_report_their_position() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger
        .ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for name in ["second", "third", "fourth"] {
        let own = fixture.ledger();
        tasks.push(tokio::spawn(async move {
            let mut positions = Vec::new();
            let mut on_wait = |waiting: &ipu_ledger::QueueStatus| positions.push(waiting.position);
            own.ensure_active(request(name, 16), &mut on_wait).await.unwrap();
            let at = start.elapsed();
            advance(10).await;
            own.release(&id(name), &owner(name), None).await.unwrap();
            (at, positions)
        }));
        advance(1).await;
    }
    ledger.release(&id("first"), &owner("first"), None).await.unwrap();
    let mut last = Duration::ZERO;
    for (number, task) in tasks.into_iter().enumerate() {
        let (at, positions) = task.await.unwrap();
        assert!(at > last, "{number} overtook");
        last = at;
        let expected: Vec<_> = (1..=u32::try_from(number).unwrap() + 1).rev().collect();
        assert_eq!(
            positions.into_iter().fold(Vec::new(), without_repetition),
            expected
        );
    }
}

fn without_repetition(mut list: Vec<u32>, next: u32) -> Vec<u32> {
    if list.last() != Some(&next) {
        list.push(next);
    }
    list
}

#[tokio::test(start_paused = true)]
async fn a_dead_request_in_the_queue_does_not_block_it() {
    let mut fixture = fixture();
    let ledger = fixture.ledger();
    ledger
        .ensure_active(request("holder", 16), &mut |_| {})
        .await
        .unwrap();
    ledger.ensure(request("dead", 16)).await.unwrap();
    fixture.options.liveness = Some(std::sync::Arc::new(|entry: &ipu_ledger::Entry| {
        if entry.id == id("dead") {
            ipu_ledger::OwnerLiveness::Dead
        } else {
            ipu_ledger::OwnerLiveness::Live
        }
    }));
    let live = fixture.ledger();
    let EnsureOutcome::Waiting(waiting) = live.ensure(request("live", 16)).await.unwrap() else {
        panic!("it is full");
    };
    assert_eq!(waiting.position, 1);
    assert_eq!(state_of(&ledger, "dead").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_that_does_not_wait_is_not_recorded() {
    let fixture = fixture();
    let mut large = request("a", 32);
    large.on_no_capacity = OnNoCapacity::Reject;
    let error = fixture
        .ledger()
        .ensure_active(large, &mut |_| {})
        .await
        .unwrap_err();
    let LedgerError::DoesNotFit { waiting, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(waiting.reason.code, "TooLarge");
    assert_eq!(fixture.ledger().list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_is_removed_without_a_controller() {
    let fixture = fixture();
    fixture.controller.start_outage();
    let ledger = fixture.ledger();
    let EnsureOutcome::Waiting(waiting) = ledger.ensure(request("a", 4)).await.unwrap() else {
        panic!("no controller replies");
    };
    assert_eq!(waiting.reason.code, "ControllerUnavailable");
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::Dequeued
    );
}

#[tokio::test(start_paused = true)]
async fn a_query_counts_the_partitions_that_fit_beside_all_holders() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let spec = |size: u32| ipu_ledger::PartitionSpec::of_size(IpuCount::try_from(size).unwrap());
    let mut fits = Vec::new();
    for size in [1, 2, 4, 8, 16] {
        let (_, capacity) = ledger.query(&spec(size)).await.unwrap().remove(0);
        fits.push(capacity.unwrap().fit_count);
    }
    assert_eq!(fits, [12, 6, 3, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_explicit_reset_makes_the_partition_fresh_again() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
    assert_eq!(
        ledger.reset(&id("a"), &owner("a"), 0).await.unwrap(),
        EnsureOutcome::Pending(Pending::Resetting)
    );
    assert!(matches!(
        ledger.get(&id("a")).await.unwrap().unwrap().state,
        EntryState::Intent { .. }
    ));
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
}
