//! Placement, job life-cycle and ledger rules for Graphcore IPUs.
//!
//! Everything here is a function of values: nothing reads a clock, calls a controller or knows which scheduler it serves.
//! That is what adapters are for; they observe, ask, and apply what is answered.
//!
//! # The life of a job, in order
//!
//! 1. Somebody writes a [`RawJob`]. [`RawJob::parse`] makes a [`JobSpec`] of it, with warnings, or answers every
//!    [`Violation`] at once. What is parsed can run.
//! 2. An adapter gathers an [`Observation`]: what is true of the job now, the time included.
//! 3. [`plan()`] answers a [`Plan`]: [`Effect`]s in order, the [`JobStatus`] to record, a [`Reason`] for everything that is
//!    done or not done, and when to look again. [`check_plan`] re-derives what must hold of it.
//! 4. The first effect is to see to a partition for each instance. Its id follows from the job ([`JobKey::partition_id`]),
//!    so that whoever asks again finds what exists. The ledger's moves say who gets it, and who waits, why, behind whom.
//! 5. Where it goes is up to the controller, or to [`place`] by a [`PlacementPolicy`] on an [`Inventory`] of a [`Topology`].
//! 6. Workers start, each with the variables of an [`IpuofEnv`]; a launcher finds them by a [`hostfile`].
//! 7. When an attempt ends, the rules judge what failed first, whether and when there is another, and what is cleaned up.
//! 8. At the end processes are gone, partitions are released, and the job is let go of, in this order.
//!
//! ```
//! use ipu_core::{Effect, Limits, Observation, RawJob, Timestamp, plan};
//!
//! let raw: RawJob = serde_json::from_str(
//!     r#"{"metadata": {"name": "mnist", "uid": "1"}, "spec": {"ipusPerJobInstance": "4"}}"#,
//! )?;
//! let job = raw.parse(&Limits::default()).expect("it can run").spec;
//!
//! let first = plan(&job, &Observation::of_new_job(Timestamp::from_millis(0)));
//! assert!(matches!(&first.effects[..], [Effect::EnsurePartition { instance: 0, .. }]));
//! assert_eq!(first.reasons[0].code, "PreparingPartition");
//! # Ok::<(), serde_json::Error>(())
//! ```
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod check;
mod digest;
mod exit_status;
mod ids;
mod inventory;
mod ipuof;
mod job;
mod ledger;
mod observation;
mod partition;
mod placement;
mod plan;
mod reason;
mod rules;
mod topology;
mod units;

pub use check::{BrokenInventory, BrokenPlan, check_inventory, check_plan};
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
pub use job::limits::{JobOrigin, Limits};
pub use job::parse::ParsedJob;
pub use job::raw::{
    EnvVar, IntOrString, RawInteractive, RawJob, RawLauncher, RawMetadata, RawRestartPolicy,
    RawRollingUpdate, RawSpec, RawStrategy, RawWorkers,
};
pub use job::violation::{Violation, Warning};
pub use job::{CleanPodPolicy, JobKind, JobSpec, RestartPolicy};
pub use ledger::LedgerState;
pub use ledger::capacity::{
    Capacity, ControllerView, ControllersSnapshot, Listing, SelectionOrder, ServiceState, Unbounded,
};
pub use ledger::capacity_snapshot::PlacementConflict;
pub use ledger::change::{Change, ChangeKey, FormatError, check_format};
pub use ledger::cordon::{Cordon, CordonEffect, CordonTarget};
pub use ledger::diff::{Action, Claim, OwnerLiveness, Owners, lost};
pub use ledger::dry_run::DryRun;
pub use ledger::entry::{
    ControllerRejection, Entry, EntryState, OnNoCapacity, Operation, PlacedBy, PlacementConstraint, Request,
};
pub use ledger::inventory_capacity::InventoryCapacity;
pub use ledger::location::Location;
pub use ledger::namespaces::NamespaceRules;
pub use ledger::queue::{Blocker, FreeCapacity, QueueDecision, QueuePolicy, QueueStatus};
pub use ledger::quota::{Quota, QuotaSubject, Quotas};
pub use ledger::repeated_create::RepeatedCreate;
pub use ledger::stats::{IpuCounts, Stats};
pub use ledger::transition_error::TransitionError;
pub use ledger::transitions::{Admission, CallWindow, Release, Transition};
pub use ledger::usage::{HoldEnd, UsageRecord};
pub use observation::{
    InstanceFacts, MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase,
};
pub use partition::{IpuPlace, Partition, PartitionSpec, PartitionState, SpecError};
pub use placement::{
    BestFit, FirstFit, IllegalChoice, Impossible, Pinned, Placement, PlacementPolicy, PlacementRequest, place,
};
pub use plan::{
    Effect, FailedComponent, FirstFailure, InstanceOutcome, InstanceStatus, JobPhase, JobStatus, Plan, plan,
};
pub use reason::Reason;
pub use topology::{
    AgentAttributes, Allocation, Cluster, DiscoveredTopology, IpuAddress, LinkDomain, Topology, TopologyError,
};
pub use units::{IpuCount, IpuCountError, Timestamp};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
