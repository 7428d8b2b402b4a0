//! The simulator over gRPC and REST: the controller conformance suite, security, and extensions.

mod deadline;
mod extensions;
mod security;
mod suite;

use std::sync::Arc;

use ipu_core::hardware::{PartitionSpec, Topology};
use ipu_core::{IpuCount, PartitionId};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, CreatePartition, GrpcController, RestController, VipuController,
};
use vipu_sim::{Simulator, SimulatorBuilder};

/// Runs each case over each transport.
macro_rules! over_both_transports {
    ($($case:ident,)*) => {
        mod grpc {
            $(#[tokio::test]
            async fn $case() {
                super::$case(crate::contract::Transport::Grpc).await;
            })*
        }

        mod rest {
            $(#[tokio::test]
            async fn $case() {
                super::$case(crate::contract::Transport::Rest).await;
            })*
        }
    };
}
use over_both_transports;

/// Transport between the suite and a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Grpc,
    Rest,
}

impl Transport {
    fn connect(self, endpoint: &ControllerEndpoint, options: &ConnectOptions) -> Arc<dyn VipuController> {
        match self {
            Self::Grpc => Arc::new(GrpcController::connect(endpoint, options).unwrap()),
            Self::Rest => Arc::new(RestController::connect(endpoint, options).unwrap()),
        }
    }
}

/// A controller under test with its simulator.
struct Fixture {
    simulator: Simulator,
    controller: Arc<dyn VipuController>,
    transport: Transport,
}

impl Fixture {
    /// Starts a simulator whose operations take no time.
    async fn without_delay(transport: Transport, topology: Topology) -> Self {
        Self::start(transport, Simulator::builder(topology)).await
    }

    async fn start(transport: Transport, builder: SimulatorBuilder) -> Self {
        let simulator = builder.start().await.unwrap();
        let controller = transport.connect(&endpoint(&simulator), &ConnectOptions::default());
        Self {
            simulator,
            controller,
            transport,
        }
    }

    /// Connects to the same controller with other options.
    fn reconnect(&self, options: &ConnectOptions) -> Arc<dyn VipuController> {
        self.transport.connect(&endpoint(&self.simulator), options)
    }
}

/// Returns an HTTP client for calls outside the trait.
fn plain_http() -> reqwest::Client {
    // reqwest requires a process-wide crypto provider, even for plaintext connections; a second
    // installation fails harmlessly.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

fn endpoint(simulator: &Simulator) -> ControllerEndpoint {
    simulator.addr().try_into().unwrap()
}

fn id(name: &str) -> PartitionId {
    PartitionId::new(name).unwrap()
}

fn request(name: &str, size: u32) -> CreatePartition {
    CreatePartition {
        id: id(name),
        spec: PartitionSpec::of_size(IpuCount::try_from(size).unwrap()),
        ipus: Vec::new(),
    }
}
