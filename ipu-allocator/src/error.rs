//! Errors of allocator operations.

use std::sync::Arc;

use ipu_core::allocator::{MachinesError, Refusal, RequestError};
use ipu_core::{ControllerName, PartitionId};
use ipu_vipu_client::VipuError;

use crate::store::StoreError;

/// The error of an allocator operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocatorError {
    /// The command is not allowed.
    #[error(transparent)]
    Refused(#[from] RequestError),
    /// The store failed, and nothing was recorded. Several callers may get one error, because they shared a
    /// write.
    #[error("the store of the allocator failed")]
    Store(#[source] Arc<StoreError>),
    /// Another process is active.
    #[error("this process stands by: another one has the record")]
    Standby,
    /// Record, controllers and owners have not been compared since the start.
    #[error("record, controllers and owners have not been compared yet")]
    Starting,
    /// The task of the allocator has ended: it was stopped, another process took over, or the store is
    /// unusable.
    #[error("the allocator has ended")]
    Ended,
    /// The controller refused a request that does not queue.
    #[error("controller {} refused partition {id}: {}", refusal.controller, refusal.message)]
    ControllerRefused {
        /// The partition.
        id: PartitionId,
        /// The refusal.
        refusal: Refusal,
    },
    /// The partition is not active, so that it has no IPUoF configuration.
    #[error("partition {id} is {phase}, not active")]
    NotActive {
        /// The partition.
        id: PartitionId,
        /// Its phase.
        phase: &'static str,
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
    /// The controller of the partition is no longer configured.
    #[error("partition {id} is at controller {controller}, which is not configured")]
    UnknownController {
        /// The partition.
        id: PartitionId,
        /// The controller that has it.
        controller: ControllerName,
    },
}

impl From<StoreError> for AllocatorError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}
