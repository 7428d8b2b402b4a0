//! What a controller refuses, and the error that says so.

use ipu_core::{AgentId, AllocationId, Topology};
use ipu_vipu_client::wire::user_service_client::UserServiceClient;
use ipu_vipu_client::{CreatePartition, Retry, wire};
use tonic::Code;
use tonic::transport::Endpoint;

use super::{Bench, Transport, id, label, over_both_transports, place, request};

over_both_transports![
    an_unknown_partition_is_not_found_everywhere,
    an_id_that_is_taken_is_refused_whatever_is_asked_for,
    what_does_not_fit_now_has_no_room,
    gcds_and_replicas_that_do_not_divide_are_refused,
    ipus_that_do_not_exist_or_do_not_match_are_refused,
    an_unknown_allocation_or_agent_is_refused_and_is_no_missing_partition,
    a_gcd_that_does_not_exist_is_refused,
    a_refused_creation_leaves_nothing,
];

async fn an_unknown_partition_is_not_found_everywhere(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.create("other", 4).await.unwrap();
    let (controller, p1) = (&bench.controller, id("p1"));
    let errors = [
        controller.partition_status(&p1).await.err(),
        controller.ipuof_config(&p1, None).await.err(),
        controller.ipuof_config(&p1, Some(0)).await.err(),
        controller.reset_partition(&p1).await.err(),
        controller.remove_partition(&p1, false).await.err(),
        controller.remove_partition(&p1, true).await.err(),
    ];
    for error in errors {
        let error = error.unwrap();
        assert_eq!(error, ipu_vipu_client::VipuError::NotFound { id: p1.clone() });
        assert_eq!((error.retry(), error.may_have_happened()), (Retry::Never, false));
    }
}

async fn an_id_that_is_taken_is_refused_whatever_is_asked_for(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.create("p1", 16).await.unwrap();
    for size in [16, 1] {
        let error = bench.create("p1", size).await.unwrap_err();
        assert_eq!(error, ipu_vipu_client::VipuError::AlreadyExists { id: id("p1") });
    }
}

async fn what_does_not_fit_now_has_no_room(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    assert_eq!(label(bench.create("big", 32).await), "no_capacity");
    bench.create("p1", 8).await.unwrap();
    let error = bench.create("p2", 16).await.unwrap_err();
    assert_eq!(error.label(), "no_capacity");
    assert_eq!(
        (error.retry(), error.may_have_happened()),
        (Retry::AfterChange, false)
    );
    bench.create("p3", 8).await.unwrap();
    assert_eq!(label(bench.create("p4", 1).await), "no_capacity");
}

/// Our own types cannot ask for such sizes: the bare messages can.
#[tokio::test]
async fn sizes_that_are_no_powers_of_two_are_refused() {
    let bench = Bench::quick(Transport::Grpc, Topology::pod16()).await;
    let address = format!("http://{}", bench.simulator.addr());
    let channel = Endpoint::from_shared(address.clone()).unwrap().connect_lazy();
    let mut client = UserServiceClient::new(channel);
    let rest = super::plain_http();
    for size in [0, 3, 6, 12] {
        let wanted = wire::CreatePartitionRequest {
            requirements: Some(wire::PartitionRequirements {
                id: "p1".into(),
                size,
                ..wire::PartitionRequirements::default()
            }),
            ..wire::CreatePartitionRequest::default()
        };
        let answer = rest
            .post(format!("{address}/v1/partitions"))
            .json(&wanted)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), 400, "{size}");
        let error: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(error["code"], 3, "{error}");
        let status = client.create_partition(wanted).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{size}");
    }
    assert_eq!(bench.names().await, [""; 0]);
}

async fn gcds_and_replicas_that_do_not_divide_are_refused(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    for (gcds, replicas) in [(3, 3), (8, 8), (2, 1)] {
        let mut wanted = request("p1", 4);
        wanted.spec.gcds = gcds;
        wanted.spec.replicas = replicas;
        let error = bench.controller.create_partition(wanted).await.unwrap_err();
        assert_eq!(error.label(), "refused", "{gcds} {replicas} {error}");
        assert_eq!((error.retry(), error.may_have_happened()), (Retry::Never, false));
    }
}

async fn ipus_that_do_not_exist_or_do_not_match_are_refused(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let wishes = [
        vec![place(0, 16), place(0, 17)],
        vec![place(1, 0), place(1, 1)],
        vec![place(0, 0)],
        vec![place(0, 0), place(0, 0)],
    ];
    for ipus in wishes {
        let wanted = CreatePartition {
            ipus: ipus.clone(),
            ..request("p1", 2)
        };
        let error = bench.controller.create_partition(wanted).await.unwrap_err();
        assert_eq!(error.label(), "refused", "{ipus:?} {error}");
    }
}

async fn an_unknown_allocation_or_agent_is_refused_and_is_no_missing_partition(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    let nowhere = AllocationId::new("no/where?&=%20").unwrap();
    let mut wanted = request("p1", 4);
    wanted.spec.allocation = Some(nowhere.clone());
    assert_eq!(label(bench.controller.create_partition(wanted).await), "refused");
    assert_eq!(
        label(bench.controller.list_partitions(Some(nowhere)).await),
        "refused"
    );
    let nobody = AgentId::new("nobody&x").unwrap();
    assert_eq!(label(bench.controller.ipu_attributes(&[nobody]).await), "refused");
}

async fn a_gcd_that_does_not_exist_is_refused(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod16()).await;
    bench.create("p1", 4).await.unwrap();
    assert_eq!(
        label(bench.controller.ipuof_config(&id("p1"), Some(1)).await),
        "refused"
    );
}

async fn a_refused_creation_leaves_nothing(transport: Transport) {
    let bench = Bench::quick(transport, Topology::pod4()).await;
    assert_eq!(label(bench.create("p1", 8).await), "no_capacity");
    assert_eq!(label(bench.state("p1").await), "not_found");
    assert_eq!(bench.names().await, [""; 0]);
    bench.create("p1", 4).await.unwrap();
}
