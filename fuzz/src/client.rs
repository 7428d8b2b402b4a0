//! Controller responses over gRPC, as the client parses them.

use std::convert::Infallible;
use std::future::{Future, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use ipu_core::hardware::{Partition, PartitionSpec};
use ipu_core::{AgentId, IpuCount, PartitionId};
use ipu_vipu_client::{ConnectOptions, CreatePartition, GrpcController, VipuController as _, VipuError};
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;

use crate::error_messages::check_error;

/// All methods of a controller.
pub(crate) const METHODS: [&str; 8] = [
    "virmgrpc.VersionService/GetVersion",
    "virmgrpc.UserService/ListPartitions",
    "virmgrpc.UserService/CreatePartition",
    "virmgrpc.UserService/GetPartitionStatus",
    "virmgrpc.UserService/GetPartitionIpuofConfig",
    "virmgrpc.UserService/ResetPartition",
    "virmgrpc.UserService/RemovePartition",
    "virmgrpc.UserService/ListIPUAttributes",
];

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("create a runtime");
}

/// Input: one byte that selects the method by its index, and the message of the response.
///
/// # Panics
///
/// If a response is about another partition, a partition counts as missing, or an error message is empty or
/// too long.
pub fn grpc_reply(bytes: &[u8]) {
    let Some((selector, message)) = bytes.split_first() else {
        return;
    };
    let id = PartitionId::new("p1").expect("a valid id");
    let controller = client_of(framed(message));
    let method = usize::from(*selector) % METHODS.len();
    let result = run(async {
        match method {
            0 => controller
                .version()
                .await
                .map(|version| assert!(!version.is_empty())),
            1 => controller
                .list_partitions(None)
                .await
                .map(|listed| listed.iter().for_each(check_partition)),
            2 => {
                let spec = PartitionSpec::of_size(IpuCount::ONE);
                let request = CreatePartition {
                    id: id.clone(),
                    spec,
                    ipus: Vec::new(),
                };
                let created = controller.create_partition(request).await;
                created.map(|created| assert_eq!(created, id))
            }
            3 => {
                let status = controller.partition_status(&id).await;
                status.map(|status| assert_eq!(status.id, id))
            }
            4 => controller.ipuof_config(&id, Some(0)).await.map(|config| {
                for gcd in &config.gcds {
                    assert!(gcd.devices.is_sorted_by_key(|device| device.device_id));
                }
            }),
            5 => controller.reset_partition(&id).await,
            6 => controller.remove_partition(&id, false).await,
            _ => {
                let agent = AgentId::new("a1").expect("a valid id");
                controller.ipu_attributes(&[agent]).await.map(drop)
            }
        }
    });
    if let Err(error) = result {
        assert!(!matches!(error, VipuError::NotFound { .. }), "{error}");
        // The client truncates controller messages.
        check_error(&error, 500);
        assert!(!error.label().is_empty());
    }
}

/// Lists the partitions in the framed gRPC message `reply`.
pub(crate) fn listed(reply: Bytes) -> Result<Vec<Partition>, VipuError> {
    let controller = client_of(reply);
    let listed = run(controller.list_partitions(None))?;
    listed.iter().for_each(check_partition);
    Ok(listed)
}

/// Prefixes a message with its compression flag and length.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("the message length fits");
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

/// Returns a client whose controller answers every call with `reply`.
fn client_of(reply: Bytes) -> GrpcController {
    let answer = move |_: Request<Body>| {
        let trailers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )]);
        let body = Full::new(reply.clone()).with_trailers(ready(Some(Ok(trailers))));
        let response = Response::builder().header("content-type", "application/grpc");
        ready(Ok::<_, Infallible>(
            response.body(Body::new(body)).expect("a valid response"),
        ))
    };
    let endpoint = "pod1:8090".parse().expect("a valid address");
    GrpcController::in_process(&endpoint, tower::service_fn(answer), &ConnectOptions::default())
        .expect("there are no credentials")
}

fn run<T>(call: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(call))
}

fn check_partition(partition: &Partition) {
    assert!(partition.spec.gcds >= 1 && partition.spec.replicas >= 1);
    assert!(
        partition.ipus.len() <= partition.spec.size.get() as usize,
        "IPUs beyond the partition size would appear free"
    );
    crate::decide::assert_round_trip(partition);
}
