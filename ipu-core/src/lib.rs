//! Placement, job lifecycle and ledger rules for Graphcore IPUs.
//!
//! All functions are pure: none reads a clock, calls a controller or depends on a particular scheduler.
//! Adapters observe the environment, call these functions, and apply the results.
//!
//! # The life of a job, in order
//!
//! 1. A user writes a [`RawJob`]. [`RawJob::parse`] returns a [`JobSpec`] with warnings, or all
//!    [`Violation`]s at once. A job that parses can run.
//! 2. An adapter gathers an [`Observation`]: the observed state of the job, including the time.
//! 3. [`plan()`] returns a [`Plan`]: [`Effect`]s in order, the [`JobStatus`] to record, a [`Reason`] for
//!    every decision, and the time of the next reconciliation. [`check_plan`] verifies its invariants
//!    independently.
//! 4. The first effect requests a partition for each instance. Its id is derived from the job
//!    ([`JobKey::partition_id`]), so that a repeated request finds the existing partition. The ledger's
//!    transitions decide which requests start. They explain why the others wait, and which requests or
//!    partitions block them.
//! 5. The controller chooses the IPUs, or [`place`] does by a [`PlacementPolicy`] on an [`Inventory`] of a
//!    [`Topology`].
//! 6. Workers start, each with the variables of an [`IpuofEnv`]; a launcher finds them through a
//!    [`hostfile`].
//! 7. When an attempt ends, the rules determine the first failure, the time of a restart if there is one, and
//!    the cleanup.
//! 8. At the end processes stop, partitions are released, and the finalizer is removed, in this order.
//!
//! ```
//! use ipu_core::{Effect, Limits, Observation, RawJob, Timestamp, plan};
//!
//! let raw: RawJob = serde_json::from_str(
//!     r#"{"metadata": {"name": "mnist", "uid": "1"}, "spec": {"ipusPerJobInstance": "4"}}"#,
//! )?;
//! let job = raw.parse(&Limits::default()).expect("it can run").spec;
//!
//! let first = plan(&job, &Observation::for_new_job(Timestamp::from_millis(0)));
//! assert!(matches!(&first.effects[..], [Effect::EnsurePartition { instance: 0, .. }]));
//! assert_eq!(first.reasons[0].code, "PreparingPartition");
//! # Ok::<(), serde_json::Error>(())
//! ```
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod allocator;
mod capacity;
mod check;
mod digest;
mod error_chain;
mod exit_status;
mod ids;
mod inventory;
mod ipuof;
mod job;
mod job_status;
mod observation;
mod partition;
mod placement;
mod plan;
mod reason;
mod rules;
mod topology;
mod units;

pub use allocator::calls::{Answer, Call, CallKind, CallTimes, InFlight, OperationKey, Reply, calls};
pub use allocator::cordon::Cordon;
pub use allocator::entry::{Asked, Entry, Phase, Preemption, Refusal, RemovalRefusal};
pub use allocator::error::RequestError;
pub use allocator::namespaces::NamespaceRules;
pub use allocator::policy::Policy;
pub use allocator::queue::{Blocker, QueueStatus, evaluate_queue, not_confirmed};
pub use allocator::quota::{Quota, QuotaSubject, Quotas};
pub use allocator::request::{OnNoCapacity, Request};
pub use allocator::state::{Change, State};
pub use allocator::step::{
    Claim, CordonEffect, Ended, Event, Outcome, OwnerLiveness, Owners, Release, Step, lost_partition_error,
    step,
};
pub use allocator::usage::{HoldEnd, UsageRecord};
pub use allocator::views::dry_run::DryRun;
pub use allocator::views::free_capacity::{CapacityBySize, FreeCapacity, SizeFit};
pub use allocator::views::stats::Stats;
pub use capacity::{
    Capacity, ControllerView, CordonTarget, Hardware, InventoryCapacity, IpuCounts, Listing, MachinesError,
    PlacementConstraint, SelectionOrder, ServiceState, Unbounded,
};
pub use check::{BrokenInventory, BrokenPlan, check_inventory, check_plan};
pub use error_chain::ErrorChain;
pub use exit_status::{Exit, ExitCodeSet, ExitCodeSetError};
pub use ids::{
    AccountName, AgentId, AllocationId, ClusterId, ControllerName, CordonId, CordonOwner, JobKey, JobName,
    JobUid, NameError, Namespace, Owner, PartitionId,
};
pub use inventory::{
    Block, BlockError, Blockers, FreeIndex, Inventory, InventoryError, InventoryView, ListedInventory,
    ListingConflict, UnknownAllocation,
};
pub use ipuof::{GcdConfig, IpuofConfig, IpuofDevice, IpuofEnv, MpiEnv, hostfile};
pub use job::limits::Limits;
pub use job::parse::ParsedJob;
pub use job::raw::{
    EnvVar, IntOrString, RawInteractive, RawJob, RawLauncher, RawMetadata, RawRestartPolicy, RawSpec,
    RawWorkers,
};
pub use job::violation::{Violation, Warning};
pub use job::{CleanPodPolicy, JobKind, JobSpec, RestartPolicy};
pub use job_status::{
    FailedComponent, FirstFailure, InstanceOutcome, InstanceStatus, JobPhase, JobStatus, Preempted,
};
pub use observation::{
    InstanceFacts, MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase,
};
pub use partition::{IpuPlace, Partition, PartitionSpec, PartitionState, SpecError};
pub use placement::{
    BestFit, FirstFit, IllegalChoice, Impossible, Pinned, Placement, PlacementMode, PlacementModeError,
    PlacementPolicy, PlacementRequest, SharedPolicy, place,
};
pub use plan::{Effect, Plan, plan};
pub use reason::Reason;
pub use topology::{
    AgentAttributes, Allocation, Cluster, DiscoveredTopology, IpuAddress, LinkDomain, Topology, TopologyError,
};
pub use units::{BootTime, IpuCount, IpuCountError, Timestamp};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
