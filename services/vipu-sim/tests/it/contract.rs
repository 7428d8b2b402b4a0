//! What the simulator is over gRPC and over REST: a controller by the conformance suite of all controllers, and what it does
//! beyond that.

mod extensions;
mod security;
mod suite;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{IpuAddress, IpuCount, PartitionId, PartitionSpec, Topology};
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

/// How the suite speaks to a controller.
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

/// A controller under test with the simulator behind it.
struct Bench {
    simulator: Simulator,
    controller: Arc<dyn VipuController>,
    transport: Transport,
}

impl Bench {
    /// A Pod whose operations take no time.
    async fn quick(transport: Transport, topology: Topology) -> Self {
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

    /// The same controller, reached with other options.
    fn again(&self, options: &ConnectOptions) -> Arc<dyn VipuController> {
        self.transport.connect(&endpoint(&self.simulator), options)
    }
}

/// From now on the operations of the simulator at `address` take `delay`.
async fn set_delay(address: SocketAddr, delay: Duration) {
    let millis = u64::try_from(delay.as_millis()).unwrap();
    let settings = serde_json::json!({
        "createMs": millis, "resetMs": millis, "removeMs": millis, "autoResetMs": millis.max(60_000),
    });
    let url = format!("http://{address}/sim/settings");
    let answer = plain_http().put(url).json(&settings).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
}

/// From now on the IPU at `at` is `health`.
async fn set_health(address: SocketAddr, topology: &Topology, at: IpuAddress, health: &str) {
    let agent = topology.agent_at(at).unwrap();
    // The hardware counts from the other end of the machine.
    let url = format!("http://{address}/sim/ipus/{agent}/{}", 3 - at.ipu % 4);
    let body = serde_json::json!({ "health": health });
    let answer = plain_http().post(url).json(&body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
}

/// A client for what the trait does not offer.
fn plain_http() -> reqwest::Client {
    // It insists on a provider of cryptography, even for connections in the clear; a second one is refused and is fine.
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
