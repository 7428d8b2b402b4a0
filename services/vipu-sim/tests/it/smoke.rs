//! Each API responds, asynchronously where the controller does.

use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use ipu_vipu_client::wire::version_service_client::VersionServiceClient;
use ipu_vipu_client::wire::{
    GetPartitionIpuofConfigRequest, ListIpuAttributesRequest, ListPartitionsRequest, PartitionOperationState,
    PartitionReadyState, RemovePartitionRequest, ResetPartitionRequest, VersionRequest,
};
use tonic::Code;
use vipu_sim::Simulator;

use crate::support::{channel, create, http, status};

#[tokio::test]
async fn a_partition_is_created_reset_and_removed_over_grpc() {
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let mut client = UserServiceClient::new(channel(simulator.addr()).await);
    let created = client
        .create_partition(create("p1", 4))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(created.partition_id, "p1");
    let active = status(&mut client, "p1").await.unwrap();
    assert_eq!(active.ready_state(), PartitionReadyState::PsActive);
    assert_eq!(active.operation_state(), PartitionOperationState::PosIdle);
    let partitions = client
        .list_partitions(ListPartitionsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .partitions;
    assert_eq!(partitions.len(), 1);
    let spec = partitions[0].spec.clone().unwrap();
    assert_eq!((spec.num_gcds, spec.num_replicas, spec.ipus.len()), (1, 1, 4));
    let config = GetPartitionIpuofConfigRequest {
        partition_id: "p1".to_owned(),
        gcd_id: None,
    };
    let config = client
        .get_partition_ipuof_config(config)
        .await
        .unwrap()
        .into_inner()
        .ipuof_config
        .unwrap();
    assert_eq!(config.gcd_configs[0].attributes["GCD Id"], "0");
    let reset = ResetPartitionRequest {
        partition_id: "p1".to_owned(),
        relocatable: false,
    };
    client.reset_partition(reset).await.unwrap();
    let remove = RemovePartitionRequest {
        partition_id: "p1".to_owned(),
        force: false,
    };
    client.remove_partition(remove).await.unwrap();
    assert_eq!(
        status(&mut client, "p1").await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(simulator.state().unwrap().free, 16);
}

#[tokio::test]
async fn an_asynchronous_operation_is_reported_in_progress() {
    let simulator = Simulator::builder(Topology::pod4())
        .delay(Duration::from_secs(3600))
        .start()
        .await
        .unwrap();
    let mut client = UserServiceClient::new(channel(simulator.addr()).await);
    client.create_partition(create("p1", 4)).await.unwrap();
    let pending = status(&mut client, "p1").await.unwrap();
    assert_eq!(pending.ready_state(), PartitionReadyState::PsPending);
    assert_eq!(pending.operation_state(), PartitionOperationState::PosCreating);
    let full = client.create_partition(create("p2", 1)).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(
        full.message().contains("0 free, largest block 0"),
        "{}",
        full.message()
    );
    let duplicate = client.create_partition(create("p1", 1)).await.unwrap_err();
    assert_eq!(duplicate.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn version_and_attributes_are_reported() {
    let simulator = Simulator::builder(Topology::pod4())
        .version("1.17.0")
        .start()
        .await
        .unwrap();
    let channel = channel(simulator.addr()).await;
    let version = VersionServiceClient::new(channel.clone())
        .get_version(VersionRequest {})
        .await
        .unwrap();
    assert_eq!(version.into_inner().version, "1.17.0");
    let mut client = UserServiceClient::new(channel);
    let entries = client
        .list_ipu_attributes(ListIpuAttributesRequest::default())
        .await
        .unwrap()
        .into_inner()
        .entries;
    assert_eq!(entries.len(), 1);
    let first = &entries[0].ipu_attributes[&3].attributes;
    assert_eq!((first["ipu"].as_str(), first["health"].as_str()), ("0", "ok"));
}

/// Sends the bytes of a client generated from the published interface, without our own client.
#[tokio::test]
async fn the_published_path_and_bytes_are_accepted() {
    let simulator = Simulator::builder(Topology::pod4()).start().await.unwrap();
    let http = http().http2_prior_knowledge().build().unwrap();
    // A frame of 8 bytes: field 2 (requirements) of 6 bytes, with 1: "p1" and 2: 4.
    let message = [0, 0, 0, 0, 8, 0x12, 6, 0x0a, 2, b'p', b'1', 0x10, 4];
    let url = format!("http://{}/virmgrpc.UserService/CreatePartition", simulator.addr());
    let request = http
        .post(url)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let reply = request.body(message.to_vec()).send().await.unwrap();
    assert_eq!(reply.version(), http::Version::HTTP_2);
    assert_eq!(reply.headers()["content-type"], "application/grpc");
    assert_eq!(
        reply.bytes().await.unwrap(),
        [0, 0, 0, 0, 4, 0x0a, 2, b'p', b'1'].as_slice()
    );
    assert_eq!(simulator.state().unwrap().partitions[0].size, 4);
}
