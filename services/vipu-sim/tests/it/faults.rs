//! Injected faults over both APIs; shutdown does not wait for hanging calls.

use ipu_core::hardware::Topology;
use ipu_vipu_client::wire::ListPartitionsRequest;
use tonic::Code;
use vipu_sim::{Fault, FaultKind, Method, Simulator};

use crate::support::{client, create, http};

#[tokio::test]
async fn a_dropped_reply_leaves_the_partition_created() {
    let simulator = Simulator::builder(Topology::pod4()).start().await.unwrap();
    let mut client = client(&simulator).await;
    simulator.faults().add(
        Fault::new(FaultKind::DropReply)
            .for_method(Method::CreatePartition)
            .times(1),
    );
    client.create_partition(create("p1", 1)).await.unwrap_err();
    assert_eq!(
        simulator.state().unwrap().partitions.len(),
        1,
        "the partition was created despite the lost reply"
    );
    let retried = client.create_partition(create("p1", 1)).await.unwrap_err();
    assert_eq!(retried.code(), Code::AlreadyExists);
    let url = format!("http://{}/v1/partitions", simulator.addr());
    simulator.faults().add(Fault::new(FaultKind::DropReply).times(1));
    let body = r#"{"requirements": {"id": "p2", "size": 1}}"#;
    http()
        .build()
        .unwrap()
        .post(url)
        .body(body)
        .send()
        .await
        .unwrap_err();
    assert_eq!(simulator.state().unwrap().partitions.len(), 2);
}

#[tokio::test]
async fn a_refused_or_failed_call_has_no_effect() {
    let simulator = Simulator::builder(Topology::pod4()).start().await.unwrap();
    let mut client = client(&simulator).await;
    for kind in [FaultKind::Refuse, FaultKind::Error { rate: 1.0, seed: 0 }] {
        simulator
            .faults()
            .set(vec![Fault::new(kind).for_method(Method::CreatePartition)]);
        client.create_partition(create("p1", 1)).await.unwrap_err();
        client
            .list_partitions(ListPartitionsRequest::default())
            .await
            .unwrap();
    }
    simulator
        .faults()
        .set(vec![Fault::new(FaultKind::Error { rate: 1.0, seed: 0 })]);
    let failed = client.create_partition(create("p1", 1)).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let url = format!("http://{}/v1/partitions", simulator.addr());
    let http = http().build().unwrap();
    assert_eq!(http.get(&url).send().await.unwrap().status(), 503);
    simulator.faults().set(vec![Fault::new(FaultKind::Refuse)]);
    http.get(&url).send().await.unwrap_err();
    simulator.faults().clear();
    client.create_partition(create("p1", 1)).await.unwrap();
    assert_eq!(simulator.state().unwrap().partitions.len(), 1);
}

#[tokio::test]
async fn a_call_that_hangs_ends_with_the_simulator() {
    let simulator = Simulator::builder(Topology::pod4()).start().await.unwrap();
    let mut hanging = client(&simulator).await;
    simulator.faults().add(
        Fault::new(FaultKind::Hang)
            .for_method(Method::ListPartitions)
            .times(1),
    );
    let call = tokio::spawn(async move { hanging.list_partitions(ListPartitionsRequest::default()).await });
    // The fault is consumed when the call has arrived.
    while !simulator.faults().list().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!call.is_finished());
    drop(simulator);
    call.await.unwrap().unwrap_err();
}
