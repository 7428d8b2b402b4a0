//! A simulated V-IPU controller: the gRPC user API and an equivalent REST API on one port, for tests,
//! demonstrations and machines without IPUs.
//!
//! [`Simulator`] serves on a port of this process, and [`SimulatorService`] works without a connection. The
//! binary `vipu-sim` serves from the command line. The simulator chapter of the user guide lists the
//! documented and the assumed behaviour.

mod api;
mod ascii_map;
mod error;
mod faults;
mod grpc;
mod hardware;
mod rest;
mod server;
mod service;
mod simulator;
mod state;
mod store;

pub use ipu_serve::{ClientCertificates, TlsError, TlsFiles};

pub use error::SimError;
pub use faults::{Fault, FaultKind, Faults, Method};
pub use server::BrokenConnection;
pub use service::SimulatorService;
pub use simulator::{Simulator, SimulatorBuilder, StartError};
pub use state::{PartitionView, PodState};
pub use store::StoreError;

/// Compiles and runs the README examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
