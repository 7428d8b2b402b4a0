//! Shared test helpers.

use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use ipu_vipu_client::wire::{
    CreatePartitionRequest, GetPartitionStatusRequest, PartitionRequirements, PartitionStatus,
};
use tonic::Status;
use tonic::transport::Channel;
use vipu_sim::Simulator;

pub(crate) type Client = UserServiceClient<Channel>;

pub(crate) async fn channel(address: impl std::fmt::Display) -> Channel {
    Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

pub(crate) async fn client(simulator: &Simulator) -> Client {
    UserServiceClient::new(channel(simulator.addr()).await)
}

pub(crate) fn create(id: &str, size: u32) -> CreatePartitionRequest {
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

pub(crate) async fn status(client: &mut Client, id: &str) -> Result<PartitionStatus, Status> {
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

/// Returns a builder of HTTP clients, after installing the crypto provider that reqwest requires.
pub(crate) fn http() -> reqwest::ClientBuilder {
    // Fails for every test but the first, which has installed the same provider.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
}
