//! What the driver concludes from answers and from their absence.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{EntryState, IpuCount, PartitionFacts, Topology, TransitionError};
use ipu_ledger::{
    EnsureOutcome, Ledger, LedgerError, LedgerOptions, MemoryStore, OnNoCapacity, Pending, Released,
};
use ipu_testkit::{CallKind, FakeController, Fault};
use ipu_vipu_client::ControllerPool;
use tokio::time::Instant;

use crate::setup::{Bench, TestLedger, advance, id, name, options, owner, request, state_of};

fn bench() -> Bench {
    Bench::new(&Topology::pod16(), 1)
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_neither_makes_a_second_partition_nor_resets_the_first() {
    let bench = bench();
    bench.controller.script([Some(Fault::LostReply)]);
    let grant = bench
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    assert_eq!(grant.id, id("a"));
    assert_eq!(
        bench
            .controller
            .calls()
            .iter()
            .filter(|call| !call.starts_with("create"))
            .count(),
        0
    );
    assert_eq!(bench.controller.ids(), [id("a")]);
}

/// Two controllers of four IPUs each, and ledgers on them that share a store.
struct Two {
    first: FakeController,
    second: FakeController,
    store: MemoryStore,
    options: LedgerOptions,
}

impl Two {
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
async fn a_create_that_arrived_twice_and_found_its_own_room_taken_has_made_the_partition() {
    let two = Two::new();
    two.first.check_capacity_first();
    two.first.script([Some(Fault::Duplicate)]);
    let grant = two
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    assert_eq!(grant.controller, name("first"));
    two.first.use_it(&id("a"));
    assert_eq!(two.second.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn what_has_gone_to_another_controller_is_not_made_where_a_slow_driver_looked_before() {
    let two = Two::new();
    two.first
        .inject(CallKind::Create, Fault::Slow(Duration::from_secs(1)));
    two.second
        .inject(CallKind::Create, Fault::Slow(Duration::from_secs(3)));
    let one = two.ledger();
    let going = tokio::spawn(async move { one.ensure_active(request("a", 4), &mut |_| {}).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The room goes to somebody else while the call is on its way; another driver looks after the intent meanwhile.
    two.first.make_foreign("slurm_1", 4);
    two.first
        .inject(CallKind::Status, Fault::Slow(Duration::from_secs(2)));
    let other = two.ledger();
    let slow = tokio::spawn(async move { other.ensure(request("a", 4)).await });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    two.first.lose_partitions();
    slow.await.unwrap().unwrap();
    assert_eq!(going.await.unwrap().unwrap().controller, name("second"));
    assert_eq!((two.first.ids(), two.second.ids()), (vec![], vec![id("a")]));
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_create_that_may_still_be_under_way() {
    let bench = bench();
    bench
        .controller
        .script([Some(Fault::Late(Duration::from_secs(15)))]);
    let first = bench.ledger();
    let crashed = tokio::time::timeout(Duration::from_millis(5), first.ensure(request("a", 4)));
    assert!(
        crashed.await.is_err(),
        "the driver dies before it hears of the call"
    );

    let ledger = bench.ledger();
    let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    assert!(matches!(released, Released::InProgress { .. }), "{released:?}");
    assert_eq!(state_of(&ledger, "a").await, "releasing");
    advance(20).await;
    assert_eq!(bench.controller.ids(), [id("a")], "the create came after all");
    advance(60).await;
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::Gone
    );
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_has_no_room_although_it_seemed_so_is_not_asked_again_and_again() {
    let bench = bench();
    bench.controller.hide_partitions();
    let ledger = bench.ledger();
    let EnsureOutcome::Waiting(waiting) = ledger.ensure(request("a", 4)).await.unwrap() else {
        panic!("there is no room");
    };
    assert_eq!(waiting.reason.code, "ControllerRefused");
    assert!(
        waiting.reason.message.contains("excluded"),
        "{}",
        waiting.reason.message
    );
    for _ in 0..10 {
        assert!(matches!(
            ledger.ensure(request("a", 4)).await.unwrap(),
            EnsureOutcome::Waiting(_)
        ));
    }
    let asked = bench.controller.calls().len();
    assert_eq!(
        asked, 1,
        "only a change of the controller is a reason to ask again"
    );
    advance(31).await;
    ledger.ensure(request("a", 4)).await.unwrap();
    assert_eq!(bench.controller.calls().len(), 2, "or the passing of time");
    let entry = ledger.get(&id("a")).await.unwrap().unwrap();
    assert_eq!((entry.ticket, entry.controller), (1, None));
}

#[tokio::test(start_paused = true)]
async fn whoever_was_refused_by_an_old_list_is_not_kept_waiting_for_it() {
    let mut granted = 0;
    for seed in 0..8 {
        let bench = Bench::new(&Topology::pod16(), seed);
        let ledger = bench.ledger();
        // The controller is asked for its list here, and that is not too old for the next request.
        ledger.query(&request("a", 4).spec).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Such as IPUs that another's partition had for a moment.
        bench.controller.inject(CallKind::Create, Fault::Refused);
        match ledger.ensure(request("a", 4)).await {
            Ok(EnsureOutcome::Active(_) | EnsureOutcome::Pending(Pending::Creating)) => granted += 1,
            // The fault comes with other words, too.
            Err(LedgerError::Refused { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(granted > 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_is_durable_while_the_controller_is_down() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    bench.controller.go_down();
    let released = ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    assert!(matches!(released, Released::InProgress { .. }));
    bench.controller.come_up();
    advance(60).await;
    let report = bench.ledger().repair(&crate::setup::unknown).await.unwrap();
    assert!(report.is_settled(), "{report:?}");
    assert_eq!(bench.controller.ids(), []);
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn a_partition_in_error_is_shown_and_reset_for_the_next_attempt_only() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
    bench.controller.break_partition(&id("a"));
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
    bench.controller.use_it(&id("a"));

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
async fn what_a_controller_forgot_is_not_given_to_somebody_else() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 8), &mut |_| {}).await.unwrap();
    ledger.repair(&crate::setup::all_live).await.unwrap();
    let places = ledger.get(&id("a")).await.unwrap().unwrap().places;
    assert_eq!(places.len(), 8, "repair notes where it is");
    bench.controller.lose_partitions();
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
async fn a_ledger_that_was_lost_gives_partitions_back_to_their_owners_after_a_reset() {
    let bench = bench();
    bench
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    bench.controller.use_it(&id("a"));
    let mut fresh = Bench::new(&Topology::pod16(), 2);
    fresh.controller = bench.controller.clone();
    fresh
        .ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    bench.controller.use_it(&id("a"));
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_taken_by_something_else_is_a_named_collision() {
    let bench = bench();
    bench.controller.make_foreign(id("a").as_str(), 2);
    let error = bench.ledger().ensure(request("a", 4)).await.unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::Illegal(TransitionError::Foreign { found: 2, .. })
        ),
        "{error}"
    );
    assert_eq!(bench.ledger().list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn others_are_refused_by_name() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let mut thief = request("b", 4);
    thief.id = id("a");
    let error = ledger.ensure(thief).await.unwrap_err();
    assert!(error.to_string().contains("belongs to Test ns/a"), "{error}");
    assert!(ledger.release(&id("a"), &owner("b"), None).await.is_err());
    let other = ledger.ensure(request("a", 8)).await.unwrap_err();
    assert!(
        matches!(other, LedgerError::Illegal(TransitionError::OtherSpec { .. })),
        "{other}"
    );
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_order_and_told_why() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger
        .ensure_active(request("first", 16), &mut |_| {})
        .await
        .unwrap();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for name in ["second", "third", "fourth"] {
        let own = bench.ledger();
        tasks.push(tokio::spawn(async move {
            let mut positions = Vec::new();
            let mut hear = |waiting: &ipu_ledger::QueueStatus| positions.push(waiting.position);
            own.ensure_active(request(name, 16), &mut hear).await.unwrap();
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
async fn somebody_dead_in_the_line_does_not_block_it() {
    let mut bench = bench();
    let ledger = bench.ledger();
    ledger
        .ensure_active(request("holder", 16), &mut |_| {})
        .await
        .unwrap();
    ledger.ensure(request("dead", 16)).await.unwrap();
    bench.options.liveness = Some(std::sync::Arc::new(|entry: &ipu_ledger::Entry| {
        if entry.id == id("dead") {
            ipu_ledger::OwnerLiveness::Dead
        } else {
            ipu_ledger::OwnerLiveness::Live
        }
    }));
    let live = bench.ledger();
    let EnsureOutcome::Waiting(waiting) = live.ensure(request("live", 16)).await.unwrap() else {
        panic!("it is full");
    };
    assert_eq!(waiting.position, 1);
    assert_eq!(state_of(&ledger, "dead").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_want_to_wait_leaves_no_trace() {
    let bench = bench();
    let mut large = request("a", 32);
    large.line = OnNoCapacity::Reject;
    let error = bench
        .ledger()
        .ensure_active(large, &mut |_| {})
        .await
        .unwrap_err();
    let LedgerError::DoesNotFit { waiting, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(waiting.reason.code, "TooLarge");
    assert_eq!(bench.ledger().list().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn leaving_the_line_needs_no_controller() {
    let bench = bench();
    bench.controller.go_down();
    let ledger = bench.ledger();
    let EnsureOutcome::Waiting(waiting) = ledger.ensure(request("a", 4)).await.unwrap() else {
        panic!("nobody answers");
    };
    assert_eq!(waiting.reason.code, "ControllerUnavailable");
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::LeftLine
    );
}

#[tokio::test(start_paused = true)]
async fn a_query_counts_what_fits_beside_everybody_who_holds() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    let spec = |size: u32| ipu_ledger::PartitionSpec::of_size(IpuCount::try_from(size).unwrap());
    let mut fits = Vec::new();
    for size in [1, 2, 4, 8, 16] {
        let (_, room) = ledger.query(&spec(size)).await.unwrap().remove(0);
        fits.push(room.unwrap().fit_count);
    }
    assert_eq!(fits, [12, 6, 3, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_explicit_reset_makes_the_partition_fresh_again() {
    let bench = bench();
    let ledger = bench.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
    assert_eq!(
        ledger.reset(&id("a"), &owner("a"), 0).await.unwrap(),
        EnsureOutcome::Pending(Pending::Resetting)
    );
    assert!(matches!(
        ledger.get(&id("a")).await.unwrap().unwrap().state,
        EntryState::Intent { .. }
    ));
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    bench.controller.use_it(&id("a"));
}
