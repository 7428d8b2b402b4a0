//! The controller conformance suite, over both transports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipu_testkit::transport_suite;
use ipu_vipu_client::{ConnectOptions, VipuController};

use super::Transport;

/// Returns a function that connects over `transport`.
fn connect(transport: Transport) -> impl Fn(SocketAddr, Duration) -> Arc<dyn VipuController> {
    move |address, deadline| {
        let endpoint = address.try_into().unwrap();
        transport.connect(&endpoint, &ConnectOptions::default().with_deadline(deadline))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_passes_the_suite_over_grpc() {
    println!("{}", transport_suite(connect(Transport::Grpc)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_passes_the_suite_over_rest() {
    println!("{}", transport_suite(connect(Transport::Rest)).await);
}
