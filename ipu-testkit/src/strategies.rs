//! proptest strategies: random topologies, what is done to inventories, requests for partitions, ledgers, jobs, observations.
//!
//! What is random is always legal hardware and always possible history: everything is reached by public functions of
//! `ipu-core`. Values shrink towards one link domain with little in it. Manifests and observations are the exception:
//! people write, and adapters report, what is impossible.

mod inventory;
mod job;
mod ledger;
mod observation;
mod topology;

pub use inventory::{InventoryChange, Operation, PlacementCase, operations, situations};
pub(crate) use inventory::{Scope, requested, tryable};
pub use job::{any_manifests, job_dsl, jobs, plausible_manifests, raw_jobs};
pub use ledger::{LedgerCase, LedgerController, ledgers};
pub use observation::{
    consistent_observations, exits, instance_facts, observations, partition_facts, process_facts, statuses,
};
pub(crate) use topology::vast_topologies;
pub use topology::{topologies, wide_topologies};
