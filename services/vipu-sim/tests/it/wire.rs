//! The bytes of the published gRPC interface.

use ipu_core::hardware::Topology;
use vipu_sim::Simulator;

use crate::support::http;

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
