//! The crash-safe allocator of IPU partitions: one task owns the state, makes it durable, and calls the V-IPU
//! controllers.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use ipu_allocator::{Allocator, EnsureOutcome, MemoryStore, Options};
//! use ipu_core::allocator::{Phase, Release, Request};
//! use ipu_core::hardware::{PartitionSpec, Topology};
//! use ipu_core::{IpuCount, JobKey, Owner};
//! use ipu_vipu_client::{ConnectOptions, ControllerPool, GrpcController};
//! use tokio::time::Instant;
//! use vipu_sim::Simulator;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // A simulated controller; yours has an address such as pod001:8090.
//! let simulator = Simulator::builder(Topology::pod16()).start().await?;
//! let endpoint = simulator.addr().try_into()?;
//! let controller = GrpcController::connect(&endpoint, &ConnectOptions::default())?;
//! let pool = ControllerPool::single("pod16".parse()?, Arc::new(controller));
//! let allocator = Allocator::start(Options::default(), Arc::new(MemoryStore::default()), pool);
//! allocator.leading().wait_for(|leading| *leading).await?;
//!
//! let owner = Owner::new("Example", JobKey::new("default", "mnist", "1")?);
//! let request = Request::of_instance(owner, 0, PartitionSpec::of_size(IpuCount::try_from(4)?));
//! let until = Instant::now() + Duration::from_secs(60);
//! let EnsureOutcome::Entry(entry) = allocator.ensure(request.clone(), until).await? else {
//!     unreachable!("the request may be queued");
//! };
//! assert_eq!(entry.phase, Phase::Active);
//! allocator.release(Release::of(&request), until).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - No partition has two owners, at whatever point a process dies: a change is durable before the controller
//!   is called, and a process that was replaced can neither write nor act.
//! - No partition is lost: every entry that is being created, reset or removed yields its call again after a
//!   restart, and an entry is dropped only when no call for it can take effect any more.
//! - A queued request reports its reason, the requests ahead of it, and an expected start if declared run
//!   times imply one.
//!
//! # Use
//!
//! [`Allocator::start`] returns a cheap handle. [`Allocator::ensure`] requests a partition and waits for it,
//! [`Allocator::release`] releases it, [`Allocator::view`] returns the published state for every other
//! question, and [`Allocator::changes`] publishes every durable change. A [`Liveness`] in the options reports
//! which owners are alive, so that partitions of dead ones are released. The decisions are pure functions in
//! [`ipu_core::allocator`].
//!
//! The [`guide`] writes a scheduler with its own policy, store and transport step by step.
//!
//! # Features
//!
//! - `sqlite` (default): [`SqliteStore`], the record in one file.
//! - `process` (default): the module `process`, identity and liveness of processes of this host, on Linux.
//! - `wasm`: `WasmPolicy`, a placement policy in a WebAssembly module.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod allocator;
mod clock;
mod comparison;
mod engine;
mod error;
mod guarded_policy;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod lease;
mod listings;
mod liveness;
mod message;
mod options;
#[cfg(all(feature = "process", target_os = "linux"))]
pub mod process;
mod runner;
mod shared;
mod store;
mod usage;
mod view;
#[cfg(feature = "wasm")]
mod wasm_policy;

pub use allocator::{Allocator, EnsureOutcome, ReleaseOutcome};
pub use clock::Clock;
pub use comparison::Comparison;
pub use error::AllocatorError;
pub use ipu_vipu_client::boot_time;
pub use lease::{Lease, LeaseError, LeaseLiveness};
pub use liveness::Liveness;
pub use options::Options;
pub use shared::EntryChange;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{MemoryStore, Record, Revision, Store, StoreError, StoreFill};
pub use usage::{InvalidUsagePosition, UsagePosition};
pub use view::View;
#[cfg(feature = "wasm")]
pub use wasm_policy::{WasmPolicy, WasmPolicyError};
