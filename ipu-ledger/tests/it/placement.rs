//! The placement policy of a ledger: a broken one delays requests and harms nothing, and a demand to release
//! a partition reaches its owner.

use ipu_core::{Block, InventoryView, PlacementMode, PlacementPolicy, PlacementRequest, Topology};
use ipu_ledger::{EnsureOutcome, QueueStatus};
use ipu_testkit::TestPolicy;

use crate::setup::{Fixture, TestLedger, id, owner, request};

/// Always does the same.
enum BrokenPolicy {
    Panics,
    Declines,
    ChoosesTheFirstIpu,
}

impl PlacementPolicy for BrokenPolicy {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn choose(&self, _: &InventoryView<'_>, _: &PlacementRequest) -> Option<Block> {
        match self {
            Self::Panics => panic!("the policy of the test panics"),
            Self::Declines => None,
            Self::ChoosesTheFirstIpu => Block::within(0, 0, 1.try_into().ok()?).ok(),
        }
    }
}

async fn waiting_status(ledger: &TestLedger, name: &str, size: u32) -> QueueStatus {
    match ledger.ensure(request(name, size)).await.unwrap() {
        EnsureOutcome::Waiting(status) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_policy_does_not_place_waits_and_names_the_policy() {
    for (policy, code) in [
        (BrokenPolicy::Declines, "Declined"),
        (BrokenPolicy::Panics, "Declined"),
        (BrokenPolicy::ChoosesTheFirstIpu, "Illegal"),
    ] {
        let mut fixture = Fixture::new(&Topology::pod16(), 1);
        fixture.options.placement = PlacementMode::explicit(policy);
        let ledger = fixture.ledger();
        let status = waiting_status(&ledger, "a", 4).await;
        assert_eq!(status.reason.code, code, "{}", status.reason);
        assert!(
            status.reason.message.contains("the policy broken"),
            "{}",
            status.reason
        );
        assert_eq!(fixture.controller.ids(), []);
        // The rest of the ledger works.
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
        assert_eq!(ledger.list().await.unwrap(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_partition_on_held_ipus_is_refused() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.options.placement = PlacementMode::explicit(BrokenPolicy::ChoosesTheFirstIpu);
    let ledger = fixture.ledger();
    ledger.ensure_active(request("a", 1), &mut |_| {}).await.unwrap();
    let status = waiting_status(&ledger, "b", 1).await;
    assert_eq!(status.reason.code, "Illegal", "{}", status.reason);
    assert_eq!(fixture.controller.ids(), [id("a")]);
}

#[tokio::test(start_paused = true)]
async fn a_single_controller_can_have_a_policy_of_its_own() {
    let mut fixture = Fixture::new(&Topology::pod128(), 1);
    let spread = PlacementMode::explicit(TestPolicy::Spread);
    fixture
        .options
        .placements
        .insert(crate::setup::name("fake"), spread);
    let ledger = fixture.ledger();
    let mut link_domains = Vec::new();
    for name in ["a", "b"] {
        let grant = ledger.ensure_active(request(name, 4), &mut |_| {}).await.unwrap();
        link_domains.push(grant.places[0].link_domain);
    }
    assert_eq!(link_domains, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_demand_reaches_the_owner_and_ends_when_the_request_leaves_the_queue() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.options.queue.preemption = true;
    let ledger = fixture.ledger();
    let mut spare = request("spare", 16);
    spare.preemptible = true;
    ledger.ensure_active(spare, &mut |_| {}).await.unwrap();
    let mut changes = ledger.changes();
    let mut urgent = request("urgent", 16);
    urgent.priority = 5;
    ledger.ensure(urgent.clone()).await.unwrap();

    let demand = ledger.preemption_of(&id("spare")).await.unwrap().unwrap();
    assert_eq!((demand.by, demand.priority), (id("urgent"), 5));
    let changed = changes.recv().await.unwrap();
    assert_eq!(changed.id, id("spare"), "the owner gets an event");
    // A second poll demands nothing more.
    ledger.ensure(urgent).await.unwrap();
    assert_eq!(ledger.preemption_count(), 1);
    ledger
        .release(&id("urgent"), &owner("urgent"), None)
        .await
        .unwrap();
    assert_eq!(ledger.preemption_of(&id("spare")).await.unwrap(), None);
    let entry = ledger.get(&id("spare")).await.unwrap().unwrap();
    assert_eq!(entry.preemption, None);
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_preemption_ends_the_demands() {
    let mut fixture = Fixture::new(&Topology::pod16(), 1);
    fixture.options.queue.preemption = true;
    let ledger = fixture.ledger();
    let mut spare = request("spare", 16);
    spare.preemptible = true;
    ledger.ensure_active(spare, &mut |_| {}).await.unwrap();
    let mut urgent = request("urgent", 16);
    urgent.priority = 5;
    ledger.ensure(urgent).await.unwrap();
    assert!(ledger.preemption_of(&id("spare")).await.unwrap().is_some());

    fixture.options.queue.preemption = false;
    let restarted = fixture.ledger();
    restarted.repair(&crate::setup::all_live).await.unwrap();
    assert!(restarted.preemption_of(&id("spare")).await.unwrap().is_some());
    restarted.end_disabled_preemption().await.unwrap();
    assert_eq!(restarted.preemption_of(&id("spare")).await.unwrap(), None);
}
