//! One controller under two names.

use std::convert::Infallible;
use std::sync::Arc;

use ipu_core::Topology;
use ipu_ledger::{Answer, Ledger, MemoryStore, PartitionSpec};
use ipu_testkit::FakeController;
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};

use crate::setup::{TestLedger, advance, all_live, name, options, request, state_of};

/// A Pod16 that stands twice in the list.
fn twice() -> TestLedger {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let pool = ControllerPool::new([
        (name("first"), Arc::new(controller.clone())),
        (name("second"), Arc::new(controller)),
    ]);
    let mut options = options(&topology);
    for controller in ["first", "second"] {
        options.topologies.insert(name(controller), topology.clone());
    }
    Ledger::new(pool, MemoryStore::new(), options)
}

async fn error_of(ledger: &TestLedger, controller: &str) -> Option<String> {
    let spec = PartitionSpec::of_size(1.try_into().unwrap());
    let rooms = ledger.query(&spec).await.unwrap();
    let mut found = rooms.into_iter().filter(|(other, _)| *other == name(controller));
    found.next().unwrap().1.err().map(|reason| reason.to_string())
}

#[tokio::test(start_paused = true)]
async fn the_ipus_of_a_controller_with_two_names_count_once_and_the_second_gets_nothing() {
    let ledger = twice();
    ledger
        .ensure_active(request("half", 8), &mut |_| {})
        .await
        .unwrap();
    advance(1).await;
    let stats = ledger.stats().await.unwrap();
    assert_eq!((stats.ipus, stats.available, stats.used), (16, 8, 8));
    assert_eq!(stats.unknown, [name("second")]);
    let same = ledger.same_controllers();
    assert_eq!(
        same.into_iter().collect::<Vec<_>>(),
        [(name("second"), name("first"))]
    );
    assert_eq!(error_of(&ledger, "first").await, None);
    let why = error_of(&ledger, "second").await.unwrap();
    assert!(
        why.contains("controller second is first under a second name: take one of them off the list"),
        "{why}"
    );
    let answer = ledger.ensure(request("all", 16)).await.unwrap();
    assert!(
        matches!(&answer, Answer::Waiting(waiting) if waiting.reason.message.contains("second is first")),
        "{answer:?}"
    );
    // Repair sees both names and takes nothing from the holder.
    let report = ledger.repair(&all_live).await.unwrap();
    assert_eq!((report.silent, report.quarantined), (vec![], 0));
    assert_eq!(state_of(&ledger, "half").await, "active");
    let half = request("half", 8);
    ledger.release(&half.id, &half.owner, None).await.unwrap();
    assert_eq!(ledger.list().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_shell_knows_to_be_the_same_counts_once_before_anything_is_made() {
    let ledger = twice();
    assert_eq!(ledger.stats().await.unwrap().available, 32);
    ledger.pool().set_same_as(&name("second"), Some(name("first")));
    assert_eq!(ledger.stats().await.unwrap().available, 16);
    assert!(error_of(&ledger, "second").await.is_some());
    ledger.pool().set_same_as(&name("second"), None);
    assert_eq!(ledger.stats().await.unwrap().available, 32);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_whose_machines_have_the_same_names_are_two() {
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
async fn a_second_name_gets_nothing_while_the_first_is_drained() {
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
    // An administrator lists the controller under another name. The controller restarts without its partitions.
    let connect = |_: &ControllerEndpoint| Ok::<_, Infallible>(controller.clone());
    ledger
        .pool()
        .replace(std::slice::from_ref(&second), connect)
        .unwrap();
    ledger
        .pool()
        .set_same_as(first.name(), Some(second.name().clone()));
    controller.lose_everything();
    advance(1).await;
    let answer = ledger.ensure(request("all", 16)).await.unwrap();
    assert!(matches!(answer, Answer::Waiting(_)), "{answer:?}");
    // The owner of the lost partition leaves.
    ledger.release(&half.id, &half.owner, None).await.unwrap();
    ledger.pool().forget(first.name());
    ledger
        .ensure_active(request("all", 16), &mut |_| {})
        .await
        .unwrap();
}
