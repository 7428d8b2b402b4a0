//! proptest strategies: topologies, inventory operations, partition requests, owners, jobs and observations.
//!
//! Random values are always legal hardware with a possible history: only public functions of `ipu-core`
//! produce them. Values shrink towards one link domain with little in it. Manifests and observations are the
//! exception: they include impossible ones, because users write them and adapters report them.

mod identity;
mod inventory;
mod job;
mod observation;
mod topology;

pub use identity::{similar_owners, similar_specs};
pub use inventory::{InventoryChange, Operation, PlacementCase, operations, placement_cases};
pub(crate) use inventory::{Scope, request_scopes, tractable_size};
pub use job::{any_manifests, job_dsl, jobs, plausible_manifests, raw_jobs};
pub use observation::{
    consistent_observations, exits, instance_facts, observations, partition_facts, process_facts, statuses,
};
pub(crate) use topology::vast_topologies;
pub use topology::{topologies, wide_topologies};
