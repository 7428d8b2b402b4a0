//! The errors of the ledger.

use std::sync::Arc;

use ipu_core::{ControllerName, MachinesError, PartitionId, QueueStatus, TransitionError};
use ipu_vipu_client::VipuError;

use crate::store::StoreError;

/// The error of a ledger operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The transition is not allowed.
    #[error(transparent)]
    Illegal(#[from] TransitionError),
    /// The store failed. Several callers may get one error, because they shared a write.
    #[error("the ledger's store failed")]
    Store(#[source] Arc<StoreError>),
    /// The controller refuses to create such a partition.
    #[error("controller {controller} refused to create partition {id}")]
    Refused {
        /// The partition.
        id: PartitionId,
        /// The controller that refused.
        controller: ControllerName,
        /// The controller's error.
        #[source]
        source: Box<VipuError>,
    },
    /// The partition does not fit now, and the request does not wait.
    #[error("partition {id} does not fit now: {}", waiting.reason.message)]
    DoesNotFit {
        /// The partition.
        id: PartitionId,
        /// The reason.
        waiting: Box<QueueStatus>,
    },
    /// The partition is in error: reset it for a new attempt, or release it.
    #[error("partition {id} is in error: {}", errors.join("; "))]
    PartitionFailed {
        /// The partition.
        id: PartitionId,
        /// The errors that the controller reports.
        errors: Vec<String>,
    },
    /// The partition is not active, so that it has no IPUoF configuration.
    #[error("partition {id} is {state}, not active")]
    NotActive {
        /// The partition.
        id: PartitionId,
        /// Its state.
        state: &'static str,
    },
    /// No partition can be placed on the requested machines.
    #[error("no partition can be pinned to these machines")]
    Machines(#[from] MachinesError),
    /// The owner requested the partition without these machines before, or it lies elsewhere.
    #[error("partition {id} was requested with other machines before, or lies on others; release it first")]
    OtherMachines {
        /// The partition.
        id: PartitionId,
    },
    /// A call to the controller of a partition failed.
    #[error("controller {controller} did not {operation} of partition {id}")]
    ControllerCall {
        /// The partition.
        id: PartitionId,
        /// The controller that has it.
        controller: ControllerName,
        /// The operation, as a verb with its object.
        operation: &'static str,
        /// The error of the call.
        #[source]
        source: Arc<VipuError>,
    },
    /// No usage log is configured.
    #[error("no usage log is configured")]
    NoUsageLog,
    /// The controller of the partition is no longer configured.
    #[error("partition {id} is at controller {controller}, which is not configured")]
    UnknownController {
        /// The partition.
        id: PartitionId,
        /// The controller that has it.
        controller: ControllerName,
    },
}

impl From<Arc<StoreError>> for LedgerError {
    fn from(error: Arc<StoreError>) -> Self {
        Self::Store(error)
    }
}
