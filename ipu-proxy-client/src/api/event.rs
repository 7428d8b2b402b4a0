//! Documents of the event stream.

use ipu_core::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::partition::{HoldState, PartitionDocument};

/// Data of an event `change`: the new state of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChangeDocument {
    /// Time at which the proxy observed the change.
    pub at: Timestamp,
    /// Partition id.
    pub id: PartitionId,
    /// Previous state; none for a new partition.
    pub from: Option<HoldState>,
    /// New state.
    pub to: HoldState,
    /// The partition; none if it was deleted.
    pub partition: Option<PartitionDocument>,
}

impl ChangeDocument {
    /// Creates the change to an existing partition, with [`from`](Self::from) none.
    #[must_use]
    pub fn to(at: Timestamp, partition: PartitionDocument) -> Self {
        Self {
            at,
            id: partition.id.clone(),
            from: None,
            to: partition.state,
            partition: Some(partition),
        }
    }

    /// Creates the change to a deleted partition.
    #[must_use]
    pub const fn deleted(at: Timestamp, id: PartitionId) -> Self {
        Self {
            at,
            id,
            from: None,
            to: HoldState::Gone,
            partition: None,
        }
    }
}
