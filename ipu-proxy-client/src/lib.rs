//! The partition API of `vipu-proxy`: everything that it takes and answers, as types.
//!
//! The proxy uses the same types, so that both sides agree on every name. Requests ([`PutPartition`], [`ResetPartition`],
//! [`Heartbeat`], [`Exclude`], [`PlanQuestion`], [`SizeQuestion`]) are parsed strictly: a field that is not known is
//! an error. Answers are read leniently, because a newer proxy may say more. What is wrong is a [`ProblemDocument`].
//!
//! ```
//! use ipu_proxy_client::{HoldState, OwnerDocument, PutPartition};
//!
//! let mut wanted = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
//! wanted.max_runtime_seconds = Some(3600);
//! assert!(HoldState::Active.holds());
//! ```

mod documents;

pub use documents::{
    BlockerDocument, ChangeDocument, ControllerDocument, ControllerList, ControllerReason, ControllerStatus,
    DeletedDocument, Exclude, ExcludedDocument, ExclusionDocument, ExclusionList, Fit, Heartbeat, HoldState,
    LeaseDocument, Lifted, OwnerDocument, PartitionDocument, PartitionList, PlanAnswer, PlanQuestion,
    Planned, ProblemDocument, PutPartition, RecordDocument, RecordList, ResetPartition, SizeQuestion, Stats,
    Usage, WaitingDocument, WaitingList,
};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
