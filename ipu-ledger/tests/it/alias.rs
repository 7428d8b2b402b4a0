//! One controller under two names.

use std::convert::Infallible;
use std::sync::Arc;

use ipu_core::{PartitionId, Topology};
use ipu_ledger::{Cordon, CordonTarget, EnsureOutcome, Ledger, MemoryStore, PartitionSpec, Request};
use ipu_testkit::{BlockChoice, FakeController};
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};

use crate::setup::{TestLedger, advance, all_live, name, options, owner, request, state_of};

/// Returns a ledger over a Pod16 that is listed ledger_with_two_names.
fn ledger_with_two_names() -> TestLedger {
    listed_twice(&FakeController::new(&Topology::pod16(), 1), MemoryStore::new())
}

fn listed_twice(controller: &FakeController, store: MemoryStore) -> TestLedger {
    let topology = Topology::pod16();
    let pool = ControllerPool::new([
        (name("first"), Arc::new(controller.clone())),
        (name("second"), Arc::new(controller.clone())),
    ]);
    let mut options = options(&topology);
    for controller in ["first", "second"] {
        options.topologies.insert(name(controller), topology.clone());
    }
    Ledger::new(pool, store, options)
}

/// A request with an explicit id.
fn named(id: &str, size: u32) -> Request {
    Request::with_id(
        id.parse().unwrap(),
        owner(id),
        PartitionSpec::of_size(size.try_into().unwrap()),
    )
}

fn at(mut request: Request, controller: &str) -> Request {
    request.pin.controller = Some(name(controller));
    request
}

/// Asserts that the controller has no capacity for 16 IPUs under either name, and that 8 further IPUs do not
/// overlap those of `half`.
async fn assert_no_overlap(ledger: &TestLedger, half: &Request) {
    for controller in ["first", "second"] {
        let all = ledger
            .ensure(at(named(controller, 16), controller))
            .await
            .unwrap();
        assert!(matches!(all, EnsureOutcome::Waiting(_)), "{controller}: {all:?}");
        let all = named(controller, 16);
        ledger.release(&all.id, &all.owner, None).await.unwrap();
    }
    let other = named("other", 8);
    ledger.ensure_active(other.clone(), &mut |_| {}).await.unwrap();
    let entries = ledger.list().await.unwrap();
    let places = |id: &PartitionId| {
        entries
            .iter()
            .find(|entry| entry.id == *id)
            .unwrap()
            .places
            .clone()
    };
    let (one, other) = (places(&half.id), places(&other.id));
    assert!(
        one.iter().all(|place| !other.contains(place)),
        "{one:?} {other:?}"
    );
}

async fn error_of(ledger: &TestLedger, controller: &str) -> Option<String> {
    let spec = PartitionSpec::of_size(1.try_into().unwrap());
    let capacities = ledger.query(&spec).await.unwrap();
    let mut found = capacities
        .into_iter()
        .filter(|(other, _)| *other == name(controller));
    found.next().unwrap().1.err().map(|reason| reason.to_string())
}

#[tokio::test(start_paused = true)]
async fn the_ipus_of_a_controller_with_two_names_count_once_and_the_second_name_gets_no_partitions() {
    let ledger = ledger_with_two_names();
    ledger
        .ensure_active(request("half", 8), &mut |_| {})
        .await
        .unwrap();
    advance(1).await;
    let stats = ledger.stats().await.unwrap();
    assert_eq!((stats.ipus, stats.available, stats.used), (16, 8, 8));
    assert_eq!(stats.unknown, [name("second")]);
    let aliases = ledger.aliases().await.unwrap();
    assert_eq!(
        aliases.into_iter().collect::<Vec<_>>(),
        [(name("second"), name("first"))]
    );
    assert_eq!(error_of(&ledger, "first").await, None);
    let message = error_of(&ledger, "second").await.unwrap();
    assert!(
        message.contains("controller second is first under a second name: remove one of them from the list"),
        "{message}"
    );
    let answer = ledger.ensure(request("all", 16)).await.unwrap();
    assert!(
        matches!(&answer, EnsureOutcome::Waiting(waiting) if waiting.reason.message.contains("second is first")),
        "{answer:?}"
    );
    // Repair finds both names and releases nothing of the holder.
    let report = ledger.repair(&all_live).await.unwrap();
    assert_eq!((report.unavailable, report.quarantined), (vec![], 0));
    assert_eq!(state_of(&ledger, "half").await, "active");
    let half = request("half", 8);
    ledger.release(&half.id, &half.owner, None).await.unwrap();
    assert_eq!(ledger.list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_names_of_one_address_count_once_before_any_partition_exists() {
    let ledger = ledger_with_two_names();
    assert_eq!(ledger.stats().await.unwrap().available, 32);
    ledger.pool().set_same_as(&name("second"), Some(name("first")));
    assert_eq!(ledger.stats().await.unwrap().available, 16);
    assert!(error_of(&ledger, "second").await.is_some());
    ledger.pool().set_same_as(&name("second"), None);
    assert_eq!(ledger.stats().await.unwrap().available, 32);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_with_equal_machine_names_stay_distinct() {
    let topology = Topology::pod16();
    let pool = ControllerPool::new([
        (name("first"), Arc::new(FakeController::new(&topology, 1))),
        (name("second"), Arc::new(FakeController::new(&topology, 2))),
    ]);
    let mut options = options(&topology);
    for controller in ["first", "second"] {
        options.topologies.insert(name(controller), topology.clone());
    }
    let ledger: TestLedger = Ledger::new(pool, MemoryStore::new(), options);
    for job in ["a", "b"] {
        ledger.ensure_active(request(job, 16), &mut |_| {}).await.unwrap();
    }
    advance(1).await;
    let stats = ledger.stats().await.unwrap();
    assert_eq!((stats.ipus, stats.used, stats.unknown), (32, 32, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_second_name_allocates_no_ipus_of_a_holder_under_the_drained_name() {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let endpoint = |text: &str| text.parse::<ControllerEndpoint>().unwrap();
    let (first, second) = (endpoint("first:8090"), endpoint("second:8090"));
    let pool = ControllerPool::single(first.name().clone(), Arc::new(controller.clone()));
    let mut options = options(&topology);
    for endpoint in [&first, &second] {
        options
            .topologies
            .insert(endpoint.name().clone(), topology.clone());
    }
    let ledger: TestLedger = Ledger::new(pool, MemoryStore::new(), options);
    let half = request("half", 8);
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    // An administrator lists the controller under another name. The controller restarts without its
    // partitions.
    let connect = |_: &ControllerEndpoint| Ok::<_, Infallible>(controller.clone());
    ledger
        .pool()
        .replace(std::slice::from_ref(&second), connect)
        .unwrap();
    ledger
        .pool()
        .set_same_as(first.name(), Some(second.name().clone()));
    controller.lose_partitions();
    advance(1).await;
    let answer = ledger.ensure(request("all", 16)).await.unwrap();
    assert!(matches!(answer, EnsureOutcome::Waiting(_)), "{answer:?}");
    // The owner of the lost partition releases it.
    ledger.release(&half.id, &half.owner, None).await.unwrap();
    ledger.pool().forget(first.name());
    ledger
        .ensure_active(request("all", 16), &mut |_| {})
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_controller_with_two_names_that_restarts_empty_allocates_no_ipu_twice() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let ledger = listed_twice(&controller, MemoryStore::new());
    let half = named("half", 8);
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    advance(1).await;
    ledger.stats().await.unwrap();
    controller.lose_partitions();
    advance(1).await;
    assert_no_overlap(&ledger, &half).await;
}

#[tokio::test(start_paused = true)]
async fn a_holder_under_the_second_name_counts_once_its_controller_is_known_to_be_the_first() {
    let controller = FakeController::new(&Topology::pod16(), 1);
    let ledger = listed_twice(&controller, MemoryStore::new());
    let half = at(named("half", 8), "second");
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    advance(1).await;
    ledger.stats().await.unwrap();
    controller.lose_partitions();
    advance(1).await;
    assert_no_overlap(&ledger, &half).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_after_the_loss_reads_the_two_names_from_the_ledger() {
    let (controller, store) = (FakeController::new(&Topology::pod16(), 1), MemoryStore::new());
    let ledger = listed_twice(&controller, store.clone());
    let half = at(named("half", 8), "second");
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    advance(1).await;
    ledger.repair(&all_live).await.unwrap();
    let entries = ledger.list().await.unwrap();
    assert_eq!(entries[0].aliases.iter().collect::<Vec<_>>(), [&name("first")]);
    drop(ledger);
    controller.lose_partitions();
    advance(1).await;
    let ledger = listed_twice(&controller, store);
    assert_no_overlap(&ledger, &half).await;
}

#[tokio::test(start_paused = true)]
async fn a_pair_of_names_is_forgotten_once_the_controller_has_no_holders() {
    let ledger = ledger_with_two_names();
    let half = named("half", 8);
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    advance(1).await;
    assert_eq!(ledger.aliases().await.unwrap().len(), 1);
    ledger.release(&half.id, &half.owner, None).await.unwrap();
    advance(1).await;
    assert_eq!(ledger.aliases().await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_with_a_partition_of_one_id_stay_distinct() {
    let topology = Topology::pod16();
    let (one, other) = (
        FakeController::new(&topology, 1),
        FakeController::new(&topology, 2),
    );
    for controller in [&one, &other] {
        controller.choose(BlockChoice::Lowest);
    }
    let pool = ControllerPool::new([
        (name("first"), Arc::new(one.clone())),
        (name("second"), Arc::new(other.clone())),
    ]);
    let mut options = options(&topology);
    for controller in ["first", "second"] {
        options.topologies.insert(name(controller), topology.clone());
    }
    let ledger: TestLedger = Ledger::new(pool, MemoryStore::new(), options);
    let half = named("half", 8);
    ledger.ensure_active(half.clone(), &mut |_| {}).await.unwrap();
    other.create_foreign("half", 8);
    assert_eq!(one.ipus(&half.id), other.ipus(&half.id));
    other.create_foreign("slurm_1", 2);
    advance(1).await;
    assert_eq!(ledger.aliases().await.unwrap().len(), 0);
    ledger
        .ensure_active(named("small", 2), &mut |_| {})
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cordon_under_the_second_name_counts_under_the_first() {
    let ledger = ledger_with_two_names();
    ledger.pool().set_same_as(&name("second"), Some(name("first")));
    let cordon = Cordon::new(
        "fan".parse().unwrap(),
        name("second"),
        CordonTarget::Controller,
        "admin".parse().unwrap(),
        "a fan",
    );
    ledger.cordon(cordon).await.unwrap();
    let answer = ledger.ensure(request("one", 1)).await.unwrap();
    assert!(matches!(answer, EnsureOutcome::Waiting(_)), "{answer:?}");
}
