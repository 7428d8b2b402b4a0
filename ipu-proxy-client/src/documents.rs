//! Everything that goes over the wire, by subject.

mod controller;
mod event;
mod exclusion;
mod number;
mod owner;
mod partition;
mod problem;
mod repair;
mod request;
mod usage;

pub use controller::{ControllerDocument, ControllerList, ControllerStatus};
pub use event::ChangeDocument;
pub use exclusion::{Exclude, ExcludedDocument, ExclusionDocument, ExclusionList, Lifted};
pub use number::{ControllerReason, Fit, PlanAnswer, PlanQuestion, Planned, SizeQuestion, Stats, Usage};
pub use owner::OwnerDocument;
pub use partition::{
    BlockerDocument, DeletedDocument, HoldState, PartitionDocument, PartitionList, WaitingDocument,
    WaitingList,
};
pub use problem::ProblemDocument;
pub use repair::{RepairAction, RepairDocument, RepairLater, SilentController};
pub use request::{Heartbeat, LeaseDocument, PutPartition, ResetPartition};
pub use usage::{RecordDocument, RecordList};
