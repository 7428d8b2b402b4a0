//! Each face answers, asynchronously where the controller does.

use std::time::Duration;

use ipu_core::Topology;
use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use ipu_vipu_client::wire::version_service_client::VersionServiceClient;
use ipu_vipu_client::wire::{
    CreatePartitionRequest, GetPartitionIpuofConfigRequest, GetPartitionStatusRequest,
    ListIpuAttributesRequest, ListPartitionsRequest, PartitionOperationState, PartitionReadyState,
    PartitionRequirements, PartitionStatus, RemovePartitionRequest, ResetPartitionRequest, VersionRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status};
use vipu_sim::Simulator;

async fn channel(simulator: &Simulator) -> Channel {
    Channel::from_shared(format!("http://{}", simulator.addr()))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn create(id: &str, size: u32) -> CreatePartitionRequest {
    let requirements = PartitionRequirements {
        id: id.to_owned(),
        size,
        ..Default::default()
    };
    CreatePartitionRequest {
        requirements: Some(requirements),
        ..Default::default()
    }
}

async fn status(client: &mut UserServiceClient<Channel>, id: &str) -> Result<PartitionStatus, Status> {
    let request = GetPartitionStatusRequest {
        partition_id: id.to_owned(),
    };
    Ok(client
        .get_partition_status(request)
        .await?
        .into_inner()
        .status
        .unwrap())
}

#[tokio::test]
async fn a_partition_lives_its_life_over_grpc() {
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let mut client = UserServiceClient::new(channel(&simulator).await);
    let made = client
        .create_partition(create("p1", 4))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.partition_id, "p1");
    let active = status(&mut client, "p1").await.unwrap();
    assert_eq!(active.ready_state(), PartitionReadyState::PsActive);
    assert_eq!(active.operation_state(), PartitionOperationState::PosIdle);
    let listed = client
        .list_partitions(ListPartitionsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .partitions;
    assert_eq!(listed.len(), 1);
    let spec = listed[0].spec.clone().unwrap();
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
async fn an_operation_that_takes_time_is_seen_under_way() {
    let simulator = Simulator::builder(Topology::pod4())
        .delay(Duration::from_secs(3600))
        .start()
        .await
        .unwrap();
    let mut client = UserServiceClient::new(channel(&simulator).await);
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
    let taken = client.create_partition(create("p1", 1)).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn version_and_attributes_are_told() {
    let simulator = Simulator::builder(Topology::pod4())
        .version("1.17.0")
        .start()
        .await
        .unwrap();
    let channel = channel(&simulator).await;
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
