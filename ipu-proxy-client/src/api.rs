//! The documents of the API, by subject.

mod allocation;
mod capacity;
mod controller;
mod cordon;
mod event;
mod ipuof;
mod map;
mod owner;
mod partition;
mod problem;
mod ready;
mod repair;
mod request;
mod usage;

pub use allocation::{AllocationPartitions, UnrecordedPartition};
pub use capacity::{
    CapacityQuery, ControllerReason, DryRunRequest, DryRunResponse, DryRunResult, Fit, Stats, Usage,
};
pub use controller::{ControllerDocument, ControllerList, ControllerStatus, FitDocument, MachineDocument};
pub use cordon::{CordonDocument, CordonList, CordonRequest, CordonedDocument, UncordonedDocument};
pub use event::{ChangeDocument, Subject};
pub use ipuof::{IpuofConfigDocument, IpuofFileDocument};
pub use map::{
    ControllerHealth, ControllerMapDocument, LinkDomainDocument, MachineMapDocument, MapDocument,
    QuotaDocument, RunDocument,
};
pub use owner::OwnerDocument;
pub use partition::{
    BlockerDocument, DeletedDocument, HoldState, PartitionDocument, PartitionList, PreemptionDocument,
    WaitingDocument, WaitingList,
};
pub use problem::ProblemDocument;
pub use ready::{Readiness, ReadyDocument};
pub use repair::{RepairAction, RepairDocument, UnavailableController, UnfinishedRepair};
pub use request::{Heartbeat, LeaseDocument, PutPartition, ResetPartition};
pub use usage::{RecordDocument, RecordList};
