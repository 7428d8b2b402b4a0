//! An end-to-end smoke test: a request over the wire to a simulator and back.

use std::sync::Arc;

use ipu_core::{ControllerName, Topology};
use ipu_ledger::{
    EnsureOutcome, Ledger, LedgerOptions, LedgerStore, MemoryStore, OnNoCapacity, Owner, OwnerLiveness,
    PartitionSpec, Released, Request, SqliteStore,
};
use ipu_vipu_client::{ConnectOptions, ControllerEndpoint, ControllerPool, GrpcController, VipuController};
use vipu_sim::Simulator;

fn connect(simulator: &Simulator) -> ControllerPool<GrpcController> {
    let endpoint: ControllerEndpoint = simulator.addr().to_string().parse().unwrap();
    let controller = GrpcController::connect(&endpoint, &ConnectOptions::default()).unwrap();
    ControllerPool::single(
        ControllerName::new(simulator.addr().to_string()).unwrap(),
        Arc::new(controller),
    )
}

fn owner(name: &str) -> Owner {
    Owner {
        kind: "Test".into(),
        job: ipu_core::JobKey::new("ns", name, "1").unwrap(),
    }
}

fn request(name: &str, size: u32) -> Request {
    Request::of_instance(owner(name), 0, PartitionSpec::of_size(size.try_into().unwrap()))
}

async fn request_and_release<S: LedgerStore>(store: S) {
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let pool = connect(&simulator);
    let ledger = Ledger::new(pool.clone(), store, LedgerOptions::default());
    let grant = ledger
        .ensure_active(request("big", 16), &mut |waiting| panic!("{waiting:?}"))
        .await
        .unwrap();
    assert_eq!(grant.attempt, 0);

    let EnsureOutcome::Waiting(waiting) = ledger.ensure(request("small", 4)).await.unwrap() else {
        panic!("the request cannot fit");
    };
    assert_eq!(waiting.position, 1);
    assert_eq!(waiting.reason.code, "NotEnoughFree");
    assert_eq!(waiting.blockers[0].owner, Some(owner("big")));
    let mut refuse = request("other", 4);
    refuse.on_no_capacity = OnNoCapacity::Reject;
    assert!(matches!(
        ledger.ensure(refuse).await.unwrap(),
        EnsureOutcome::Refused(_)
    ));

    let big = request("big", 16);
    assert_eq!(
        ledger.release(&big.id, &big.owner, None).await.unwrap(),
        Released::Removed
    );
    assert_eq!(
        ledger.release(&big.id, &big.owner, None).await.unwrap(),
        Released::NotFound
    );
    let small = ledger
        .ensure_active(request("small", 4), &mut |_| {})
        .await
        .unwrap();
    let mut again = request("small", 4);
    again.attempt = 1;
    let grant = ledger.ensure_active(again, &mut |_| {}).await.unwrap();
    assert_eq!((grant.id.clone(), grant.attempt), (small.id, 1));

    let report = ledger
        .repair(&|_: &ipu_ledger::Entry| OwnerLiveness::Dead)
        .await
        .unwrap();
    assert!(report.is_settled(), "{report:?}");
    assert!(ledger.list().await.unwrap().is_empty());
    let controller = pool.members().remove(0).controller;
    assert!(controller.list_partitions(None).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_created_reset_and_released_over_memory() {
    request_and_release(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_created_reset_and_released_over_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    request_and_release(SqliteStore::open(directory.path().join("deep/er/ledger.db")).unwrap()).await;
}
