//! Placement, job life-cycle and ledger rules for Graphcore IPUs.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod check;
mod digest;
mod exit;
mod ids;
mod inventory;
mod ipuof;
mod job;
mod observation;
mod partition;
mod placement;
mod plan;
mod reason;
mod rules;
mod topology;
mod units;

pub use check::{BrokenInventory, BrokenPlan, check_inventory, check_plan};
pub use exit::{Exit, ExitCodeSet, ExitCodeSetError};
pub use ids::{
    AgentId, AllocationId, ClusterId, ControllerName, ExclusionOwner, JobKey, JobName, JobUid, NameError,
    Namespace, Owner, PartitionId,
};
pub use inventory::{
    Block, BlockError, Blockers, FreeIndex, Inventory, InventoryError, Misfit, Observed, UnknownAllocation,
    View,
};
pub use ipuof::{GcdConfig, IpuofConfig, IpuofDevice, IpuofEnv, MpiEnv, hostfile};
pub use job::limits::{Limits, Origin};
pub use job::parse::Parsed;
pub use job::raw::{
    EnvVar, IntOrString, RawInteractive, RawJob, RawLauncher, RawMetadata, RawRestartPolicy,
    RawRollingUpdate, RawSpec, RawStrategy, RawWorkers,
};
pub use job::violation::{Violation, Warning};
pub use job::{CleanPodPolicy, JobSpec, RestartPolicy, Shape};
pub use observation::{InstanceFacts, Observation, PartitionFacts, ProcessFacts, ProcessPhase};
pub use partition::{IpuPlace, Partition, PartitionSpec, PartitionState};
pub use placement::{
    BestFit, FirstFit, IllegalChoice, Impossible, Pinned, Placement, PlacementPolicy, PlacementRequest, place,
};
pub use plan::{Culprit, Effect, FirstFailure, InstanceStatus, JobPhase, JobStatus, Outcome, Plan, plan};
pub use reason::Reason;
pub use topology::{
    AgentAttributes, Allocation, Cluster, Discovered, IpuAddress, LinkDomain, Topology, TopologyError,
};
pub use units::{IpuCount, IpuCountError, Timestamp};
