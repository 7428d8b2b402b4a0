//! What a transport makes of lost replies, silence, errors and crowds.

use std::collections::BTreeSet;
use std::time::Duration;

use ipu_core::{PartitionState, Topology};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, Removal, Retry, RetryOptions, Retrying, VipuController as _,
    ensure_absent, ensure_present, wait_active,
};
use vipu_sim::{Fault, FaultKind, Method};

use super::{Bench, Transport, id, label, over_both_transports, patience, request};

over_both_transports![
    a_lost_reply_may_have_happened_and_the_status_shows_it,
    a_lost_removal_is_seen_through,
    a_lost_reply_is_settled_by_the_helpers,
    silence_is_a_timeout_that_may_have_happened,
    a_late_answer_is_a_timeout_that_may_have_happened,
    an_error_of_the_controller_may_be_tried_again,
    retries_bridge_a_controller_that_fails_now_and_then,
    a_controller_that_is_not_there_cannot_be_reached,
    a_broken_connection_is_made_again,
    many_at_once_never_share_an_ipu,
];

async fn a_lost_reply_may_have_happened_and_the_status_shows_it(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let fault = Fault::new(FaultKind::DropReply).of(Method::CreatePartition);
    bench.simulator.faults().add(fault.times(1));
    let error = bench.create("p1", 4).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Soon, "{error}");
    assert!(error.may_have_happened(), "{error}");
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Active));
}

async fn a_lost_removal_is_seen_through(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.create("p1", 4).await.unwrap();
    let fault = Fault::new(FaultKind::DropReply).of(Method::RemovePartition);
    bench.simulator.faults().add(fault.times(1));
    ensure_absent(&*bench.controller, &id("p1"), Removal::Regular, &patience())
        .await
        .unwrap();
    assert_eq!(bench.names().await, [""; 0]);
}

async fn a_lost_reply_is_settled_by_the_helpers(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    for method in [
        Method::CreatePartition,
        Method::GetPartitionStatus,
        Method::ListPartitions,
    ] {
        let fault = Fault::new(FaultKind::DropReply).of(method);
        bench.simulator.faults().add(fault.times(1));
    }
    ensure_present(&*bench.controller, &request("p1", 16), &patience())
        .await
        .unwrap();
    let fault = Fault::new(FaultKind::Refuse).of(Method::GetPartitionStatus);
    bench.simulator.faults().add(fault.times(2));
    wait_active(&*bench.controller, &id("p1"), &patience())
        .await
        .unwrap();
    assert_eq!(bench.names().await, ["p1"]);
}

fn impatient() -> ConnectOptions {
    ConnectOptions::default().with_deadline(Duration::from_millis(100))
}

async fn silence_is_a_timeout_that_may_have_happened(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.simulator.faults().add(Fault::new(FaultKind::Hang));
    let controller = bench.again(&impatient());
    let error = controller.create_partition(request("p1", 4)).await.unwrap_err();
    assert_eq!(
        (error.label(), error.retry()),
        ("timeout", Retry::Soon),
        "{error}"
    );
    assert!(error.may_have_happened());
}

async fn a_late_answer_is_a_timeout_that_may_have_happened(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let late = FaultKind::Latency { millis: 60_000 };
    bench.simulator.faults().add(Fault::new(late));
    let controller = bench.again(&impatient());
    let error = controller.create_partition(request("p1", 4)).await.unwrap_err();
    assert_eq!(error.label(), "timeout", "{error}");
    assert!(error.may_have_happened());
}

async fn an_error_of_the_controller_may_be_tried_again(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let fault = Fault::new(FaultKind::Error { rate: 1.0, seed: 0 });
    bench.simulator.faults().add(fault.times(1));
    let error = bench.create("p1", 4).await.unwrap_err();
    assert_eq!(
        (error.label(), error.retry()),
        ("unreachable", Retry::Soon),
        "{error}"
    );
    bench.create("p1", 4).await.unwrap();
}

async fn retries_bridge_a_controller_that_fails_now_and_then(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let often = FaultKind::Error { rate: 0.4, seed: 7 };
    bench.simulator.faults().add(Fault::new(often));
    for method in [
        Method::CreatePartition,
        Method::RemovePartition,
        Method::ResetPartition,
    ] {
        let fault = Fault::new(FaultKind::DropReply).of(method);
        bench.simulator.faults().add(fault.times(3));
    }
    let mut options = RetryOptions::default();
    // More than the sequence of chances ever takes in a row.
    options.attempts = 30;
    options.first_pause = Duration::from_micros(1);
    options.longest_pause = Duration::from_millis(1);
    let controller = Retrying::new(bench.controller.clone(), options);
    for round in 0..8 {
        let name = format!("p{round}");
        assert_eq!(
            controller.create_partition(request(&name, 16)).await,
            Ok(id(&name))
        );
        assert_eq!(controller.reset_partition(&id(&name)).await, Ok(()));
        assert_eq!(controller.remove_partition(&id(&name), false).await, Ok(()));
    }
    bench.simulator.faults().clear();
    assert_eq!(bench.names().await, [""; 0]);
}

async fn a_controller_that_is_not_there_cannot_be_reached(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod4()).await;
    let endpoint: ControllerEndpoint = super::endpoint(&bench.simulator);
    bench.simulator.shutdown().await;
    let controller = transport.connect(&endpoint, &ConnectOptions::default());
    let error = controller.version().await.unwrap_err();
    assert_eq!(
        (error.label(), error.retry()),
        ("unreachable", Retry::Soon),
        "{error}"
    );
    assert!(error.to_string().contains(endpoint.name().as_str()), "{error}");
}

async fn a_broken_connection_is_made_again(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod4()).await;
    bench.create("p1", 4).await.unwrap();
    let refuse = Fault::new(FaultKind::Refuse).of(Method::GetPartitionStatus);
    bench.simulator.faults().add(refuse.times(1));
    let error = bench.state("p1").await.unwrap_err();
    assert_eq!(error.retry(), Retry::Soon, "{error}");
    assert_eq!(bench.state("p1").await, Ok(PartitionState::Active));
}

async fn many_at_once_never_share_an_ipu(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod64()).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..64 {
        let controller = bench.controller.clone();
        calls.spawn(async move { controller.create_partition(request(&format!("p{n}"), 1)).await });
    }
    while let Some(answer) = calls.join_next().await {
        answer.unwrap().unwrap();
    }
    let listed = bench.controller.list_partitions(None).await.unwrap();
    let places: BTreeSet<_> = listed.iter().flat_map(|partition| &partition.ipus).collect();
    assert_eq!((listed.len(), places.len()), (64, 64));
    assert_eq!(label(bench.create("one-more", 1).await), "no_capacity");
}
