//! A simulated V-IPU controller: the gRPC user API and a REST face of it on one port, for tests, demonstrations and
//! machines without IPUs.
//!
//! [`Simulator`] serves in this process, [`InProcess`] does so without a connection, [`SimulatorService`] both for one
//! Pod; the binary `vipu-sim` does the same from the command line. What it simulates, and which of it is documented and
//! which assumed, is in the user guide's chapter on the simulator.

mod admin;
mod api;
mod ascii_map;
mod error;
mod faults;
mod grpc;
mod hardware;
mod in_process;
mod rest;
mod server;
mod service;
mod simulator;
mod state;
mod store;

pub use ipu_serve::{ClientCertificates, TlsError, TlsFiles};

pub use error::SimError;
pub use faults::{Fault, FaultKind, Faults, Method};
pub use in_process::InProcess;
pub use server::BrokenConnection;
pub use service::SimulatorService;
pub use simulator::{Simulator, SimulatorBuilder, StartError};
pub use state::{PartitionView, PodState};
pub use store::StoreError;

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
