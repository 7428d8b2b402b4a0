//! The life of a partition, and of a queued request.

use std::sync::Arc;
use std::time::Duration;

use ipu_allocator::{Allocator, EnsureOutcome, MemoryStore, Options, ReleaseOutcome};
use ipu_core::allocator::{Phase, Release};
use ipu_core::hardware::Topology;
use ipu_vipu_client::{ConnectOptions, ControllerEndpoint, ControllerPool, GrpcController, VipuController};
use tokio::time::Instant;
use vipu_sim::Simulator;

use crate::bed::{request, soon};

/// An allocator with one simulated IPU-POD.
struct Bed {
    allocator: Allocator,
    simulator: Simulator,
}

async fn bed() -> Bed {
    let topology: Topology = "pod16".parse().unwrap();
    let simulator = Simulator::builder(topology)
        .delay(Duration::from_millis(2))
        .start()
        .await
        .unwrap();
    let endpoint: ControllerEndpoint = simulator.addr().try_into().unwrap();
    let connect = |endpoint: &ControllerEndpoint| {
        GrpcController::connect(endpoint, &ConnectOptions::default())
            .map(|one| Arc::new(one) as Arc<dyn VipuController>)
    };
    let pool = ControllerPool::connect(&[endpoint], connect).unwrap();
    let allocator = Allocator::start(Options::default(), Arc::new(MemoryStore::default()), pool);
    allocator.leading().wait_for(|leading| *leading).await.unwrap();
    Bed { allocator, simulator }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_created_reset_and_released() {
    let bed = bed().await;
    let mut request = request("one", 4);
    let EnsureOutcome::Entry(entry) = bed.allocator.ensure(request.clone(), soon()).await.unwrap() else {
        panic!("rejected");
    };
    assert_eq!(entry.phase, Phase::Active);
    assert_eq!(entry.places.len(), 4);
    request.attempt = 1;
    let EnsureOutcome::Entry(entry) = bed.allocator.ensure(request.clone(), soon()).await.unwrap() else {
        panic!("rejected");
    };
    assert_eq!((&entry.phase, entry.attempt), (&Phase::Active, 1));
    let release = Release::of(&request);
    assert_eq!(
        bed.allocator.release(release, soon()).await.unwrap(),
        ReleaseOutcome::Gone
    );
    let view = bed.allocator.fresh_view().await.unwrap();
    assert_eq!(view.stats().available, 16);
    bed.simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_request_starts_once_the_holder_has_released() {
    let bed = bed().await;
    let (first, second) = (request("first", 16), request("second", 16));
    bed.allocator.ensure(first.clone(), soon()).await.unwrap();
    let EnsureOutcome::Entry(queued) = bed
        .allocator
        .ensure(second.clone(), Instant::now())
        .await
        .unwrap()
    else {
        panic!("rejected");
    };
    assert!(matches!(queued.phase, Phase::Queued));
    let view = bed.allocator.view().await.unwrap();
    assert_eq!(view.queue()[&second.id].blockers[0].id, first.id);
    let allocator = bed.allocator.clone();
    let waiting = tokio::spawn(async move { allocator.ensure(second, soon()).await });
    let release = Release::of(&first);
    bed.allocator.release(release, soon()).await.unwrap();
    let EnsureOutcome::Entry(started) = waiting.await.unwrap().unwrap() else {
        panic!("rejected");
    };
    assert_eq!(started.phase, Phase::Active);
    bed.simulator.shutdown().await;
}
