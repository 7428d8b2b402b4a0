//! The three-way diff against a controller, with and without knowledge of the owners.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Claim, Operation, PartitionFacts, Topology};
use ipu_ledger::{
    Change, Entry, EntryState, Ledger, LedgerStore, Liveness, MemoryStore, OwnerLiveness, Released, Request,
    Timestamp,
};
use ipu_testkit::{FakeController, Fault};
use ipu_vipu_client::ControllerPool;

use crate::setup::{
    Fixture, advance, all_dead, all_live, id, is_quarantined, name, owner, request, state_of, unknown,
};

fn fixture() -> Fixture {
    Fixture::new(&Topology::pod16(), 1)
}

/// Loses the ledger: returns the same controller with a new one.
fn with_lost_ledger(fixture: &Fixture) -> Fixture {
    let mut fresh = Fixture::new(&Topology::pod16(), 2);
    fresh.controller = fixture.controller.clone();
    fresh
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_on_unknown_liveness() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 16), &mut |_| {}).await.unwrap();
    ledger.ensure(request("b", 4)).await.unwrap();
    let report = ledger.repair(&unknown).await.unwrap();
    assert!(
        report.actions.iter().all(|action| action.label() == "note"),
        "{report:?}"
    );
    assert_eq!(
        (state_of(&ledger, "a").await, state_of(&ledger, "b").await),
        ("active", "waiting")
    );
}

#[tokio::test(start_paused = true)]
async fn repair_removes_queued_requests_and_partitions_of_dead_owners() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 16), &mut |_| {}).await.unwrap();
    ledger.ensure(request("b", 4)).await.unwrap();
    let report = ledger.repair(&all_dead).await.unwrap();
    let mut labels: Vec<_> = report.actions.iter().map(ipu_core::Action::label).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["drop", "release"]);
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_kept_for_its_grace_period_and_reclaimed_if_its_owner_is_alive() {
    let mut fixture = fixture();
    fixture.options.orphan_grace = Duration::from_secs(60);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.repair(&all_dead).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "orphaned");
    ledger.repair(&all_live).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "active");
    ledger.repair(&all_dead).await.unwrap();
    advance(61).await;
    ledger.repair(&all_dead).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_its_controller_has_lost_is_not_reclaimed_as_active() {
    let mut fixture = fixture();
    fixture.options.orphan_grace = Duration::from_secs(60);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.repair(&all_dead).await.unwrap();
    fixture.controller.lose_partitions();
    advance(1).await;
    ledger.repair(&all_live).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "failed");
}

#[tokio::test(start_paused = true)]
async fn foreign_partitions_are_never_touched() {
    let fixture = fixture();
    fixture.controller.create_foreign("slurm_10675", 8);
    let ledger = fixture.ledger();
    let report = ledger.repair(&all_dead).await.unwrap();
    assert_eq!(report.actions, []);
    assert_eq!(fixture.controller.ids().len(), 1);
    let waiting = match ledger.ensure(request("a", 16)).await.unwrap() {
        ipu_ledger::EnsureOutcome::Waiting(waiting) => waiting,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (
            &waiting.blockers[0].id.to_string()[..],
            &waiting.blockers[0].owner
        ),
        ("slurm_10675", &None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_partition_without_an_owner_is_quarantined_and_removed_only_on_request() {
    let old = fixture();
    old.ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    let fixture = with_lost_ledger(&old);
    let ledger = fixture.ledger();
    for _ in 0..3 {
        let report = ledger.repair(&all_dead).await.unwrap();
        assert_eq!(report.quarantined, 1);
    }
    assert!(is_quarantined(&ledger.get(&id("a")).await.unwrap().unwrap()));
    assert!(
        ledger.release(&id("a"), &owner("b"), None).await.is_err(),
        "it is not b's"
    );
    assert_eq!(
        ledger.release_quarantined(&id("a")).await.unwrap(),
        Released::Removed
    );
    assert_eq!(fixture.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_partition_can_be_released_by_the_owner_of_its_id() {
    let old = fixture();
    old.ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    let ledger = with_lost_ledger(&old).ledger();
    ledger.repair(&unknown).await.unwrap();
    assert_eq!(
        ledger.release(&id("a"), &owner("a"), None).await.unwrap(),
        Released::Removed
    );
    assert_eq!(old.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_partition_is_reset_for_the_owner_that_requests_it() {
    let old = fixture();
    old.ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    old.controller.mark_in_use(&id("a"));
    let fixture = with_lost_ledger(&old);
    let ledger = fixture.ledger();
    ledger.repair(&unknown).await.unwrap();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.mark_in_use(&id("a"));
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_quarantined_partition_observes_the_reason_quarantined() {
    let old = fixture();
    old.ledger()
        .ensure_active(request("a", 4), &mut |_| {})
        .await
        .unwrap();
    let ledger = with_lost_ledger(&old).ledger();
    ledger.repair(&unknown).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "quarantined");
    // A plan then requests or releases the partition, and does not continue the previous workers.
    let facts = ledger.observe(&id("a")).await.unwrap();
    assert!(
        matches!(&facts, PartitionFacts::Waiting { reason, .. } if reason.code == "Quarantined"),
        "{facts:?}"
    );
}

struct Claims(Vec<Request>);

#[async_trait]
impl Liveness for Claims {
    async fn liveness_of(&self, _: &Entry) -> OwnerLiveness {
        OwnerLiveness::Live
    }

    async fn claims(&self) -> Vec<Claim> {
        self.0.iter().cloned().map(Claim::from).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_ledger_is_rebuilt_from_the_claims_of_live_owners() {
    let old = fixture();
    for name in ["a", "b"] {
        old.ledger()
            .ensure_active(request(name, 4), &mut |_| {})
            .await
            .unwrap();
    }
    let fixture = with_lost_ledger(&old);
    let ledger = fixture.ledger();
    let mut claim = request("a", 4);
    claim.attempt = 3;
    let report = ledger.repair(&Claims(vec![claim])).await.unwrap();
    assert_eq!(report.quarantined, 1, "{report:?}");
    let entry = ledger.get(&id("a")).await.unwrap().unwrap();
    assert_eq!(
        (entry.state.label(), entry.attempt, entry.places.len()),
        ("active", 3, 4)
    );
    assert_eq!(state_of(&ledger, "b").await, "quarantined");
}

#[tokio::test(start_paused = true)]
async fn operations_of_a_restored_ledger_do_not_disturb_the_workers_of_a_newer_attempt() {
    let fence = Timestamp::from_millis(1);
    for state in [
        EntryState::Active,
        EntryState::Orphaned,
        EntryState::Releasing { fence },
        EntryState::Intent {
            operation: Operation::Reset,
            fence,
        },
    ] {
        let fixture = fixture();
        let ledger = fixture.ledger();
        ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
        let mut old = ledger.get(&id("a")).await.unwrap().unwrap();
        old.state = state.clone();
        let mut newer = request("a", 4);
        newer.attempt = 1;
        ledger.ensure_active(newer.clone(), &mut |_| {}).await.unwrap();
        fixture.controller.mark_in_use(&id("a"));

        let now = fixture.store.load(None).await.unwrap().unwrap().revision;
        let restored = [Change::Put(Arc::new(old))];
        fixture.store.commit(&now, &restored).await.unwrap();
        ledger.repair(&Claims(vec![newer.clone()])).await.unwrap();
        let entry = ledger.get(&id("a")).await.unwrap().unwrap();
        assert_eq!((entry.state.label(), entry.attempt), ("active", 1), "{state:?}");
        ledger.ensure_active(newer, &mut |_| {}).await.unwrap();
        assert_eq!(fixture.controller.disturbed(), Vec::<String>::new(), "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_resumed_although_its_owner_still_claims_that_attempt() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.start_outage();
    ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    fixture.controller.end_outage();
    // Wait until unanswered calls are settled.
    advance(61).await;
    ledger.repair(&Claims(vec![request("a", 4)])).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "gone");
}

#[tokio::test(start_paused = true)]
async fn partitions_of_an_unavailable_controller_are_kept() {
    let fixture = fixture();
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    fixture.controller.start_outage();
    let report = ledger.repair(&all_live).await.unwrap();
    assert_eq!((report.actions, report.unavailable.len()), (Vec::new(), 1));
    assert_eq!(state_of(&ledger, "a").await, "active");
}

#[tokio::test(start_paused = true)]
async fn an_intent_whose_driver_died_is_finished_by_repair() {
    let fixture = fixture();
    fixture
        .controller
        .script([Some(Fault::Slow(Duration::from_secs(1)))]);
    let first = fixture.ledger();
    let crashed = tokio::time::timeout(Duration::from_millis(5), first.ensure(request("a", 4)));
    assert!(crashed.await.is_err());
    let ledger = fixture.ledger();
    assert_eq!(state_of(&ledger, "a").await, "intent");
    ledger.repair(&all_live).await.unwrap();
    assert_eq!(
        state_of(&ledger, "a").await,
        "intent",
        "its owner may still drive it"
    );
    advance(61).await;
    ledger.repair(&all_live).await.unwrap();
    assert_eq!(state_of(&ledger, "a").await, "active");
    fixture.controller.mark_in_use(&id("a"));
}

#[tokio::test(start_paused = true)]
async fn several_controllers_are_tried_in_order_and_each_keeps_its_partitions() {
    let topology = Topology::pod4();
    let (one, two) = (
        FakeController::new(&topology, 1),
        FakeController::new(&topology, 2),
    );
    let pool = ControllerPool::new([
        (name("one"), Arc::new(one.clone())),
        (name("two"), Arc::new(two.clone())),
    ]);
    let mut options = crate::setup::options(&topology);
    options.topologies.insert(name("one"), topology.clone());
    options.topologies.insert(name("two"), topology);
    let ledger = Ledger::new(pool, MemoryStore::new(), options);
    for name in ["a", "b"] {
        ledger.ensure_active(request(name, 4), &mut |_| {}).await.unwrap();
    }
    assert_eq!((one.ids(), two.ids()), (vec![id("a")], vec![id("b")]));
    let ipu_ledger::EnsureOutcome::Waiting(waiting) = ledger.ensure(request("c", 4)).await.unwrap() else {
        panic!("both are full");
    };
    assert!(
        waiting.reason.message.contains("one: ") && waiting.reason.message.contains("two: "),
        "{waiting:?}"
    );
    one.start_outage();
    ledger.release(&id("b"), &owner("b"), None).await.unwrap();
    ledger.ensure_active(request("c", 4), &mut |_| {}).await.unwrap();
    assert_eq!(two.ids(), [id("c")]);
}
