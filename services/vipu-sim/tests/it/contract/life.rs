//! The life of a partition: made, active, reset, removed.

use std::time::Duration;

use ipu_core::{AllocationId, IpuCount, PartitionSpec, PartitionState, Topology};
use ipu_vipu_client::{CreatePartition, Removal, ensure_absent, ensure_present, wait_active};
use vipu_sim::Simulator;

use super::{Bench, Transport, id, label, over_both_transports, patience, place, request};

over_both_transports![
    a_new_partition_is_being_made_and_not_yet_active,
    a_partition_becomes_active_and_is_listed_as_it_was_asked_for,
    everything_that_a_partition_is_made_of_comes_back,
    explicit_ipus_are_taken_as_they_are,
    explicit_ipus_may_be_whole_link_domains,
    a_reset_partition_becomes_active_again,
    a_reset_is_seen_under_way,
    a_removed_partition_is_unknown,
    a_partition_that_is_being_removed_is_still_known,
    what_is_removed_is_free_again,
    the_longest_id_is_an_id,
    a_partition_that_is_there_is_not_made_twice,
];

async fn a_new_partition_is_being_made_and_not_yet_active(transport: Transport) {
    let bench = Bench::slow(transport, Topology::pod16()).await;
    assert_eq!(bench.create("p1", 4).await, Ok(id("p1")));
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Creating));
    let listed = bench.controller.list_partitions(None).await.unwrap();
    assert_eq!(listed[0].state, PartitionState::Creating);
}

async fn a_partition_becomes_active_and_is_listed_as_it_was_asked_for(transport: Transport) {
    let delay = Duration::from_millis(20);
    let bench = Bench::start(transport, Simulator::builder(Topology::pod16()).delay(delay)).await;
    bench.create("p1", 4).await.unwrap();
    let status = wait_active(&*bench.controller, &id("p1"), &patience())
        .await
        .unwrap();
    assert_eq!(status.state, PartitionState::Active);
    assert_eq!((status.auto_resets, status.last_auto_reset), (0, None));

    let listed = bench.controller.list_partitions(None).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0].id, &listed[0].state),
        (&id("p1"), &PartitionState::Active)
    );
    let found = PartitionSpec {
        allocation: None,
        ..listed[0].spec.clone()
    };
    assert_eq!(found, request("p1", 4).spec);
    assert_eq!(listed[0].ipus.len(), 4);
    assert!(listed[0].cluster.is_some() && listed[0].spec.allocation.is_some());
}

async fn everything_that_a_partition_is_made_of_comes_back(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod64()).await;
    let allocation: AllocationId = Topology::pod64().allocations()[0].id.clone();
    let spec = PartitionSpec {
        size: IpuCount::try_from(32).unwrap(),
        gcds: 4,
        replicas: 8,
        reconfigurable: true,
        allocation: Some(allocation),
    };
    let asked = CreatePartition {
        spec: spec.clone(),
        ..request("p1", 1)
    };
    bench.controller.create_partition(asked).await.unwrap();
    let listed = bench.controller.list_partitions(None).await.unwrap();
    assert_eq!(listed[0].spec, spec);
}

async fn explicit_ipus_are_taken_as_they_are(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let places = vec![place(0, 9), place(0, 8)];
    let asked = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 2)
    };
    bench.controller.create_partition(asked).await.unwrap();
    let listed = bench.controller.list_partitions(None).await.unwrap();
    assert_eq!(listed[0].ipus, places);

    let overlapping = CreatePartition {
        ipus: (8..12).map(|ipu| place(0, ipu)).collect(),
        ..request("p2", 4)
    };
    assert_eq!(
        label(bench.controller.create_partition(overlapping).await),
        "no_capacity"
    );
    assert_eq!(bench.names().await, ["p1"]);
}

async fn explicit_ipus_may_be_whole_link_domains(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod256()).await;
    let places: Vec<_> = [2, 1]
        .into_iter()
        .flat_map(|domain| (0..64).map(move |ipu| place(domain, ipu)))
        .collect();
    let asked = CreatePartition {
        ipus: places.clone(),
        ..request("p1", 128)
    };
    bench.controller.create_partition(asked).await.unwrap();
    let listed = bench.controller.list_partitions(None).await.unwrap();
    assert_eq!(listed[0].ipus, places);
}

async fn a_reset_partition_becomes_active_again(transport: Transport) {
    let delay = Duration::from_millis(20);
    let bench = Bench::start(transport, Simulator::builder(Topology::pod16()).delay(delay)).await;
    bench.create("p1", 4).await.unwrap();
    wait_active(&*bench.controller, &id("p1"), &patience())
        .await
        .unwrap();
    let before = bench.controller.list_partitions(None).await.unwrap();
    bench.controller.reset_partition(&id("p1")).await.unwrap();
    wait_active(&*bench.controller, &id("p1"), &patience())
        .await
        .unwrap();
    assert_eq!(bench.controller.list_partitions(None).await, Ok(before));
}

async fn a_reset_is_seen_under_way(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.create("p1", 4).await.unwrap();
    bench.operations_take(Duration::from_secs(3600)).await;
    bench.controller.reset_partition(&id("p1")).await.unwrap();
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Resetting));
    assert_eq!(
        label(bench.controller.reset_partition(&id("p1")).await),
        "refused"
    );
    bench.controller.remove_partition(&id("p1"), true).await.unwrap();
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Removing));
}

async fn a_removed_partition_is_unknown(transport: Transport) {
    let delay = Duration::from_millis(20);
    let bench = Bench::start(transport, Simulator::builder(Topology::pod16()).delay(delay)).await;
    bench.create("p1", 4).await.unwrap();
    // A gentle remove is refused while the partition is being created.
    wait_active(&*bench.controller, &id("p1"), &patience())
        .await
        .unwrap();
    for _ in 0..2 {
        ensure_absent(&*bench.controller, &id("p1"), Removal::Regular, &patience())
            .await
            .unwrap();
        assert_eq!(label(bench.state("p1").await), "not_found");
        assert_eq!(bench.names().await, [""; 0]);
    }
}

async fn a_partition_that_is_being_removed_is_still_known(transport: Transport) {
    let bench = Bench::slow(transport, Topology::pod16()).await;
    bench.create("p1", 16).await.unwrap();
    bench.controller.remove_partition(&id("p1"), true).await.unwrap();
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Removing));
    // Its IPUs and its id are not free before it is gone.
    assert_eq!(label(bench.create("p2", 1).await), "no_capacity");
    assert_eq!(label(bench.create("p1", 1).await), "already_exists");
}

async fn what_is_removed_is_free_again(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    for name in ["p1", "p1", "p2"] {
        bench.create(name, 16).await.unwrap();
        bench.controller.remove_partition(&id(name), false).await.unwrap();
    }
}

async fn the_longest_id_is_an_id(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod4()).await;
    let names = [
        "x".repeat(50),
        format!("a-b_C.{}", "9".repeat(44)),
        ".a".to_owned(),
    ];
    for name in &names {
        bench.create(name, 1).await.unwrap();
        assert_eq!(bench.state(name).await, Ok(PartitionState::Active));
        bench.controller.reset_partition(&id(name)).await.unwrap();
        assert_eq!(
            bench
                .controller
                .ipuof_config(&id(name), Some(0))
                .await
                .map(|_| ()),
            Ok(())
        );
        bench.controller.remove_partition(&id(name), true).await.unwrap();
    }
}

async fn a_partition_that_is_there_is_not_made_twice(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    for _ in 0..2 {
        ensure_present(&*bench.controller, &request("p1", 4), &patience())
            .await
            .unwrap();
    }
    assert_eq!(bench.names().await, ["p1"]);
    let other = ensure_present(&*bench.controller, &request("p1", 8), &patience()).await;
    assert_eq!(label(other), "already_exists");
}
