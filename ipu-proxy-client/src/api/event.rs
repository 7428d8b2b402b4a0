//! Documents of the event stream.

use ipu_core::{PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::partition::{HoldState, PartitionDocument};

/// Part of the system that is not a partition, and whose change is an event of this name. The event has no
/// data: a client reads the document again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Queued requests: `GET /v1/waiting`.
    Queue,
    /// Cordons: `GET /v1/cordons`.
    Cordons,
    /// Controllers, with foreign partitions and the health of IPUs: `GET /v1/map`.
    Controllers,
}

impl Subject {
    /// All subjects.
    pub const ALL: [Self; 3] = [Self::Queue, Self::Cordons, Self::Controllers];

    /// Returns the name of the event.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Cordons => "cordons",
            Self::Controllers => "controllers",
        }
    }
}

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
