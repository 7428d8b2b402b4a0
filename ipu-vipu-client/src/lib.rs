//! Client of the Graphcore V-IPU controller's user API.
//!
//! ```
//! # #[cfg(not(feature = "grpc"))]
//! # fn main() {}
//! # #[cfg(feature = "grpc")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ipu_core::hardware::{PartitionSpec, PartitionState, Topology};
//! use ipu_core::{IpuCount, PartitionId};
//! use ipu_vipu_client::{ConnectOptions, CreatePartition, GrpcController, VipuController as _};
//! use tokio::time::{Duration, sleep};
//! use vipu_sim::Simulator;
//!
//! // A simulated controller; yours has an address such as pod001:8090.
//! let simulator = Simulator::builder(Topology::pod16()).start().await?;
//! let controller = GrpcController::connect(&simulator.addr().try_into()?, &ConnectOptions::default())?;
//!
//! let id = PartitionId::new("training")?;
//! let spec = PartitionSpec::of_size(IpuCount::try_from(4)?);
//! controller.create_partition(CreatePartition { id: id.clone(), spec, ipus: Vec::new() }).await?;
//! while controller.partition_status(&id).await?.state != PartitionState::Active {
//!     sleep(Duration::from_millis(50)).await;
//! }
//! let config = controller.ipuof_config(&id, Some(0)).await?;
//! // One device for each IPU, and one for all of them.
//! assert_eq!(config.gcds[0].devices.len(), 4 + 1);
//!
//! controller.remove_partition(&id, false).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Lifecycle of a partition at a controller:
//!
//! 1. [`ControllerEndpoint`] is the address of the controller; [`parse_controllers`] parses a list of them.
//! 2. `GrpcController::connect` (feature `grpc`) or `RestController::connect` (feature `rest`) prepares a
//!    client with the deadlines, certificates and credentials of [`ConnectOptions`]. Nothing is sent yet.
//! 3. [`VipuController::create_partition`] starts to create a partition. If the reply is lost, repeat the
//!    call: [`VipuError::AlreadyExists`] then means that an earlier call created it.
//! 4. Poll [`VipuController::partition_status`] until the partition is active;
//!    [`VipuController::ipuof_config`] returns how to reach its devices.
//! 5. [`VipuController::remove_partition`] starts to remove the partition. It is gone when its status is
//!    [`VipuError::NotFound`].
//!
//! `ipu-allocator` does all of this, for several jobs and across crashes.
//!
//! [`send_before`] ensures that a call is not sent after a deadline, even if the process was suspended.
//!
//! A [`ControllerPool`] contains several controllers and their health ([`CircuitBreaker`]). Every failure is
//! a [`VipuError`], which shows whether a retry can help, and whether the operation may have been done
//! despite the error. For another way to reach a controller, write [a
//! transport](https://docs.rs/ipu-allocator/latest/ipu_allocator/guide/transport/).
//!
//! # Features
//!
//! - `grpc` (default): the transport of real controllers.
//! - `json`: `JsonController`, a controller behind any transport that carries JSON; no HTTP client.
//! - `rest`: such a transport over HTTP, as `vipu-sim` and gateways serve it.
//! - `server`: the server side of the wire services. `wire`: their messages.
//! - `mock`: `MockVipuController`.
//!
//! Without features the crate has the trait and its types, and depends neither on protobuf nor on an HTTP
//! client.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod boot_time;
mod controller;
#[cfg(any(feature = "grpc", feature = "rest"))]
mod credentials_dir;
mod endpoint;
mod error;
#[cfg(any(feature = "grpc", feature = "rest"))]
mod gated_body;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "json")]
mod json;
#[cfg(any(feature = "grpc", feature = "rest"))]
mod limits;
mod options;
#[cfg(any(feature = "grpc", feature = "json"))]
mod partition_state;
mod pool;
#[cfg(any(feature = "grpc", feature = "json"))]
mod reply;
#[cfg(any(feature = "grpc", feature = "json"))]
mod request;
#[cfg(feature = "rest")]
mod rest;
mod send_before;
#[cfg(any(feature = "grpc", feature = "rest"))]
mod send_gate;
#[cfg(any(feature = "grpc", feature = "json"))]
mod status_code;
#[cfg(any(feature = "grpc", feature = "rest"))]
mod tls;
#[cfg(feature = "grpc")]
mod transport;
#[cfg(feature = "wire")]
pub mod wire;

pub use boot_time::boot_time;
#[cfg(feature = "mock")]
pub use controller::MockVipuController;
pub use controller::{
    AgentIpus, CreatePartition, GcdConfig, IpuofConfig, IpuofDevice, PartitionStatus, VipuController,
};
#[cfg(any(feature = "grpc", feature = "rest"))]
pub use credentials_dir::{ControllerSecrets, SecretsError};
pub use endpoint::{
    ControllerEndpoint, ControllerListError, DEFAULT_PORT, EndpointError, NodeLabel, parse_controllers,
};
pub use error::{Retry, VipuError};
#[cfg(feature = "grpc")]
pub use grpc::GrpcController;
#[cfg(feature = "json")]
pub use json::{JsonController, JsonReply, JsonRequest, JsonTransport};
pub use options::{
    ACCESS_KEY_HEADER, ClientIdentity, ConnectError, ConnectOptions, Credentials, TlsOptions, USER_ID_HEADER,
};
pub use pool::{CircuitBreaker, ControllerPool, Member, MemberState};
#[cfg(feature = "rest")]
pub use rest::{HttpTransport, RestController};
pub use send_before::{send_before, send_deadline};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
