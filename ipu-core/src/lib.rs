//! Placement, job life cycle and allocation of Graphcore IPUs, as pure functions: none reads a clock, calls a
//! controller, or depends on a scheduler.
//!
//! ```
//! use ipu_core::hardware::{Inventory, Topology};
//! use ipu_core::placement::{BestFit, PlacementRequest, place};
//! use ipu_core::{IpuCount, PartitionId};
//!
//! let mut inventory = Inventory::new(&Topology::pod64());
//! let request = PlacementRequest::of_size(IpuCount::try_from(16)?);
//! let block = place(&inventory, &request, &BestFit)?;
//! inventory.occupy(PartitionId::new("p-mnist-0")?, block)?;
//! assert_eq!(inventory.free(), 48);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | question |
//! |---|---|
//! | [`hardware`] | which IPUs exist, and who holds them? |
//! | [`placement`] | which IPUs get a partition? |
//! | `job` | given a job and its observed state, what is done next? |
//! | `allocator` | which requests start, which wait, and for what? |
//! | [`render`] | how do the processes of a job find their IPUs? |
//!
//! Adapters observe, call these functions, and apply the results. The guide of `ipu-allocator` writes [a
//! placement policy](https://docs.rs/ipu-allocator/latest/ipu_allocator/guide/policy/) and [a
//! scheduler](https://docs.rs/ipu-allocator/latest/ipu_allocator/guide/scheduler/) step by step.
//!
//! Ids, units and the [`Reason`] of every decision are used by all modules and lie here.
//!
//! # Features
//!
//! - `job` (default): the module `job`.
//! - `allocator` (default): the module `allocator`.
//! - `schema`: `schemars::JsonSchema` of each type that has a JSON form.
//!
//! The crate needs Rust 1.90 or later. A later minimum is a new minor version.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "allocator")]
pub mod allocator;
mod digest;
mod error_chain;
pub mod hardware;
mod ids;
#[cfg(feature = "job")]
pub mod job;
pub mod placement;
mod reason;
pub mod render;
mod units;

pub use error_chain::ErrorChain;
pub use ids::{
    AccountName, AgentId, AllocationId, ClusterId, ControllerName, CordonId, CordonOwner, JobKey, JobName,
    JobUid, NameError, Namespace, Owner, PartitionId,
};
pub use reason::{Reason, ReasonCode};
pub use units::{BootTime, IpuCount, IpuCountError, Timestamp};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
