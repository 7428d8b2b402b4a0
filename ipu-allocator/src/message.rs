//! Messages to the loop, and their answers.

use std::sync::Arc;

use ipu_core::allocator::{Entry, Event, Listing, Outcome, Owners, Policy, RepairAction};
use ipu_core::{ControllerName, PartitionId, Reason};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::AllocatorError;

/// The result of one listing.
pub(crate) type ListingResult = Result<Arc<Listing>, Reason>;

/// Actions of a comparison, by name and partition.
pub(crate) type Actions = Vec<(RepairAction, PartitionId)>;

/// The sender of an answer.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, AllocatorError>>;

/// A message to the loop.
pub(crate) enum Message {
    /// A command of a client; it is dropped if the client no longer waits.
    Command(Event, Answer<Done>),
    /// Record, controllers and owners are to be compared; the owners were judged from this time on.
    Compare(Owners, Instant, Answer<Actions>),
    /// A controller was listed; the listing was requested at this time.
    Listed(ControllerName, ListingResult, Instant),
    /// The status of a partition is to be queried; the answer is sent when it is known.
    Verify(PartitionId, oneshot::Sender<()>),
    /// The policy has changed.
    SetPolicy(Arc<Policy>),
    /// Answered after the batch, when all earlier messages have been handled.
    Barrier(oneshot::Sender<()>),
    /// The loop ends.
    Stop,
}

/// The result of a command, after its commit.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// The entry of the command's partition: its newest state if it is still the same request, else its state
    /// right after the command. None if no entry is left.
    pub(crate) entry: Option<Arc<Entry>>,
}
