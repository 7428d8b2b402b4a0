//! Controllers that refuse create calls with named IPUs: with the fallback, they choose the IPUs themselves.

use std::time::Duration;

use ipu_core::{Cordon, CordonTarget, PlacementMode, Topology};
use ipu_ledger::{EnsureOutcome, Pending, QueueStatus};
use ipu_testkit::{CallKind, Fault};
use tokio::time::Instant;

use crate::setup::{Fixture, TestLedger, advance, id, name, owner, request};

/// Returns a controller of 64 IPUs that refuses named ones, with the fallback.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new(&Topology::pod64(), 1);
    fixture.controller.refuse_ipus();
    fixture.controller.set_operation_time(Duration::from_millis(300));
    fixture.options.placement_fallback = true;
    fixture
}

/// Lets each of the next `count` create calls take longer than the one before.
fn slow_down(fixture: &Fixture, count: usize) {
    for number in 1..=count {
        let later = Duration::from_millis(50 * number as u64);
        fixture.controller.inject(CallKind::Create, Fault::Slow(later));
    }
}

/// Requests `count` partitions of one IPU at the same time, and waits until all are active. Returns the time
/// that the slowest one took.
async fn burst(ledger: &TestLedger, prefix: &str, count: usize) -> Duration {
    let started = Instant::now();
    let requests = (0..count).map(|number| {
        let (ledger, request) = (ledger.clone(), request(&format!("{prefix}{number}"), 1));
        tokio::spawn(async move { ledger.ensure_active(request, &mut |_| {}).await })
    });
    for task in requests.collect::<Vec<_>>() {
        task.await.unwrap().unwrap();
    }
    started.elapsed()
}

async fn cordon_first_machine(ledger: &TestLedger) {
    let target = CordonTarget::Machine("a1".parse().unwrap());
    let cordon = Cordon::new(
        "fan".parse().unwrap(),
        name("fake"),
        target,
        "admin".parse().unwrap(),
        "a fan is broken",
    );
    ledger.cordon(cordon).await.unwrap();
}

async fn lift(ledger: &TestLedger) {
    let (id, owner) = ("fan".parse().unwrap(), "admin".parse().unwrap());
    ledger.uncordon(&id, &owner).await.unwrap();
}

async fn waiting_status(ledger: &TestLedger, name: &str) -> QueueStatus {
    match ledger.ensure(request(name, 4)).await.unwrap() {
        EnsureOutcome::Waiting(status) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_not_delayed_by_the_refusals_before_the_fallback() {
    for count in [1, 2, 8, 32] {
        let fixture = fixture();
        let ledger = fixture.ledger();
        slow_down(&fixture, count);
        // One create call and its fallback, and polls.
        let took = burst(&ledger, "first", count).await;
        assert!(took < Duration::from_secs(3), "{count} requests took {took:?}");
        let took = burst(&ledger, "second", count).await;
        assert!(
            took < Duration::from_secs(3),
            "{count} more requests took {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_in_delegated_mode_is_not_delayed_by_refused_ipus() {
    let mut fixture = fixture();
    fixture.options.placement_fallback = false;
    fixture.options.placement = PlacementMode::Delegated;
    let ledger = fixture.ledger();
    ledger
        .ensure_active(request("holder", 64), &mut |_| {})
        .await
        .unwrap();
    let waiting = {
        let ledger = ledger.clone();
        tokio::spawn(async move { burst(&ledger, "job", 16).await })
    };
    advance(1).await;
    ledger
        .release(&id("holder"), &owner("holder"), None)
        .await
        .unwrap();
    let took = waiting.await.unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_with_named_ipus_that_was_planned_before_the_fallback_is_not_repeated() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    // The answer of the second call arrives after the fallback.
    fixture
        .controller
        .inject(CallKind::Create, Fault::Slow(Duration::from_millis(100)));
    fixture
        .controller
        .inject(CallKind::Create, Fault::Slow(Duration::from_millis(900)));
    let took = burst(&ledger, "job", 2).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
    let calls = fixture.controller.calls();
    let creates = calls.iter().filter(|call| call.starts_with("create"));
    assert_eq!(
        creates.count(),
        4,
        "two refused calls, and two without IPUs: {calls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cordon_at_a_controller_that_refuses_ipus_is_the_reason_until_it_is_lifted() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    burst(&ledger, "first", 1).await;
    cordon_first_machine(&ledger).await;
    let status = waiting_status(&ledger, "a").await;
    assert_eq!(status.reason.code, "ControllerRefused", "{}", status.reason);
    for part in [
        "does not accept named IPUs",
        "cordon fan (machine a1) by admin: a fan is broken needs them; lift the cordon",
    ] {
        assert!(status.reason.message.contains(part), "{}", status.reason);
    }
    advance(1).await;
    lift(&ledger).await;
    let outcome = ledger.ensure(request("a", 4)).await.unwrap();
    assert!(
        matches!(outcome, EnsureOutcome::Pending(Pending::Creating)),
        "the refusal ends with the cordon: {outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_is_created_again_at_a_controller_that_refuses_ipus() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    burst(&ledger, "job", 1).await;
    fixture.controller.lose_partitions();
    advance(1).await;
    let mut next = request("job0", 1);
    next.attempt += 1;
    let granted = tokio::time::timeout(Duration::from_secs(3), ledger.ensure_active(next, &mut |_| {})).await;
    granted.expect("no refusal delays the partition").unwrap();
    assert_eq!(fixture.controller.ids(), [id("job0")]);
}

#[tokio::test(start_paused = true)]
async fn without_the_fallback_a_refusal_names_the_policy() {
    let mut fixture = fixture();
    fixture.options.placement_fallback = false;
    let ledger = fixture.ledger();
    let status = waiting_status(&ledger, "a").await;
    let part = "does not accept the IPUs that first-fit chose";
    assert!(status.reason.message.contains(part), "{}", status.reason);
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_processes_requeue_a_request_whose_named_ipus_one_of_them_has_seen_refused() {
    let fixture = fixture();
    let (informed, restarted) = (fixture.ledger(), fixture.ledger());
    burst(&informed, "first", 1).await;
    fixture.controller.inject(CallKind::Create, Fault::LostReply);
    restarted.ensure(request("a", 4)).await.unwrap();
    let started = Instant::now();
    loop {
        for ledger in [&informed, &restarted] {
            if let EnsureOutcome::Active(_) = ledger.ensure(request("a", 4)).await.unwrap() {
                return;
            }
            advance(1).await;
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(60), "each waits for the other");
    }
}
