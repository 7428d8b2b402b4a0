//! Placement, job life-cycle and ledger rules for Graphcore IPUs.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod digest;
mod exit;
mod ids;
mod ipuof;
mod job;
mod observation;
mod partition;
mod plan;
mod reason;
mod units;

pub use exit::{Exit, ExitCodeSet, ExitCodeSetError};
pub use ids::{
    AgentId, AllocationId, ClusterId, ControllerName, JobKey, JobName, JobUid, NameError, Namespace, Owner,
    PartitionId,
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
pub use plan::{Effect, FirstFailure, InstanceStatus, JobPhase, JobStatus, Outcome, Plan};
pub use reason::Reason;
pub use units::{IpuCount, IpuCountError, Timestamp};
