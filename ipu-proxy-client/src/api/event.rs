//! What the event stream tells.

use ipu_core::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::partition::{HoldState, PartitionDocument};

/// The data of an event `change`: what became of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChangeDocument {
    /// When the proxy saw it.
    pub at: Timestamp,
    /// Which partition.
    pub id: PartitionId,
    /// What it was; none if it is new.
    pub from: Option<HoldState>,
    /// What it is.
    pub to: HoldState,
    /// All of it; none if it is gone.
    pub partition: Option<PartitionDocument>,
}

impl ChangeDocument {
    /// A partition that is there now; [`from`](Self::from) is none.
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

    /// A partition that is gone.
    #[must_use]
    pub const fn gone(at: Timestamp, id: PartitionId) -> Self {
        Self {
            at,
            id,
            from: None,
            to: HoldState::Gone,
            partition: None,
        }
    }
}
