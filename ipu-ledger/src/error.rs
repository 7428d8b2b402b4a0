//! What can go wrong at the ledger.

use std::sync::Arc;

use ipu_core::{ControllerName, PartitionId, QueueStatus, TransitionError};
use ipu_vipu_client::VipuError;

use crate::store::StoreError;

/// Why the ledger did not do what it was asked to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The rules forbid it.
    #[error(transparent)]
    Illegal(#[from] TransitionError),
    /// The store failed. Several callers may get the same error: they shared a write.
    #[error("the ledger's store failed")]
    Store(#[source] Arc<StoreError>),
    /// The controller never makes such a partition.
    #[error("controller {controller} does not make partition {id}")]
    Refused {
        /// Which.
        id: PartitionId,
        /// Who refused.
        controller: ControllerName,
        /// In its words.
        #[source]
        source: Box<VipuError>,
    },
    /// It does not fit now, and was not to wait.
    #[error("partition {id} does not fit now: {}", waiting.reason.message)]
    DoesNotFit {
        /// Which.
        id: PartitionId,
        /// Why.
        waiting: Box<QueueStatus>,
    },
    /// The partition is in error: reset it for a new attempt, or release it.
    #[error("partition {id} is in error: {}", errors.join("; "))]
    PartitionFailed {
        /// Which.
        id: PartitionId,
        /// What the controller says.
        errors: Vec<String>,
    },
    /// Nobody records who held what.
    #[error("no log of usage is configured")]
    NoUsageLog,
    /// The controller that has the partition is not configured any more.
    #[error("partition {id} is at controller {controller}, which is not configured")]
    UnknownController {
        /// Which.
        id: PartitionId,
        /// Where it is.
        controller: ControllerName,
    },
}

impl From<Arc<StoreError>> for LedgerError {
    fn from(error: Arc<StoreError>) -> Self {
        Self::Store(error)
    }
}
