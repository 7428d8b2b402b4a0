//! Behaviour of the simulator and our transports beyond the conformance suite.

use ipu_core::hardware::Topology;
use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use ipu_vipu_client::{Retry, VipuController as _, wire};
use tonic::Code;
use tonic::transport::Endpoint;
use vipu_sim::Simulator;

use super::{Fixture, Transport, endpoint, id, over_both_transports, plain_http, request};

over_both_transports![
    the_version_is_the_configured_one,
    a_listing_has_cluster_and_allocation,
    devices_are_the_single_ipus_and_the_whole_gcd,
    attributes_have_all_keys,
    an_error_names_the_unreachable_controller,
];

async fn the_version_is_the_configured_one(transport: Transport) {
    let fixture = Fixture::start(transport, Simulator::builder(Topology::pod4()).version("1.17.0")).await;
    assert_eq!(fixture.controller.version().await, Ok("1.17.0".to_owned()));
}

async fn a_listing_has_cluster_and_allocation(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod16()).await;
    fixture
        .controller
        .create_partition(request("p1", 4))
        .await
        .unwrap();
    let partitions = fixture.controller.list_partitions(None).await.unwrap();
    assert!(partitions[0].cluster.is_some() && partitions[0].spec.allocation.is_some());
}

async fn devices_are_the_single_ipus_and_the_whole_gcd(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod16()).await;
    fixture
        .controller
        .create_partition(request("p1", 4))
        .await
        .unwrap();
    let config = fixture.controller.ipuof_config(&id("p1"), None).await.unwrap();
    assert_eq!(config.gcds[0].devices.len(), 4 + 1);
    assert!(!config.server_version.is_empty());
}

async fn attributes_have_all_keys(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod16()).await;
    let all = fixture.controller.ipu_attributes(&[]).await.unwrap();
    for attributes in all.iter().flat_map(|agent| agent.ipus.values()) {
        for key in ["cluster", "linkDomain", "ipu", "health", "allocation"] {
            assert!(attributes.contains_key(key), "{key} {attributes:?}");
        }
    }
}

async fn an_error_names_the_unreachable_controller(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    let endpoint = endpoint(&fixture.simulator);
    fixture.simulator.shutdown().await;
    // A new controller that was never connected.
    let controller = transport.connect(&endpoint, &ipu_vipu_client::ConnectOptions::default());
    let error = controller.version().await.unwrap_err();
    assert_eq!(
        (error.label(), error.retry()),
        ("unreachable", Retry::Soon),
        "{error}"
    );
    assert!(error.to_string().contains(endpoint.name().as_str()), "{error}");
}

/// Our own types cannot express such sizes; the raw messages can.
#[tokio::test]
async fn sizes_other_than_powers_of_two_are_refused() {
    let fixture = Fixture::without_delay(Transport::Grpc, Topology::pod16()).await;
    let address = format!("http://{}", fixture.simulator.addr());
    let channel = Endpoint::from_shared(address.clone()).unwrap().connect_lazy();
    let mut client = UserServiceClient::new(channel);
    let rest = plain_http();
    for size in [0, 3, 6, 12] {
        let request = wire::CreatePartitionRequest {
            requirements: Some(wire::PartitionRequirements {
                id: "p1".into(),
                size,
                ..wire::PartitionRequirements::default()
            }),
            ..wire::CreatePartitionRequest::default()
        };
        let response = rest
            .post(format!("{address}/v1/partitions"))
            .json(&request)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), 400, "{size}");
        let error: serde_json::Value = response.json().await.unwrap();
        assert_eq!(error["code"], 3, "{error}");
        let status = client.create_partition(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{size}");
    }
    assert_eq!(fixture.controller.list_partitions(None).await, Ok(Vec::new()));
}
