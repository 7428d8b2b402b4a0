//! Result of a repair of the ledger.

use ipu_core::{ControllerName, PartitionId};
use serde::{Deserialize, Serialize};

/// Response of `POST /v1/repair`.
///
/// ```
/// use ipu_proxy_client::RepairDocument;
///
/// let repair: RepairDocument = serde_json::from_str(
///     r#"{"done":[{"action":"adopt","id":"training"}],"unfinished":[],
///         "unavailable":[{"controller":"pod2:8090",
///                         "reason":"controller pod2:8090 is unavailable: the last call failed"}],
///         "quarantined":0}"#,
/// )?;
/// assert_eq!(repair.done[0].action, "adopt");
/// // Repeat the repair when pod2 answers.
/// assert!(!repair.is_settled());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RepairDocument {
    /// Actions of the repair.
    pub done: Vec<RepairAction>,
    /// Unfinished operations; the proxy retries them.
    pub unfinished: Vec<UnfinishedRepair>,
    /// Unavailable controllers; their partitions were kept.
    pub unavailable: Vec<UnavailableController>,
    /// Number of quarantined partitions: they exist without a known owner.
    pub quarantined: u32,
}

impl RepairDocument {
    /// Returns whether no operation is left unfinished.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.unfinished.is_empty() && self.unavailable.is_empty()
    }
}

/// An action of a repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RepairAction {
    /// Name of the action: `adopt`, `confirm`, `drop`, `note`, `quarantine`, `release`, `relocated`.
    pub action: String,
    /// Partition id.
    pub id: PartitionId,
}

impl RepairAction {
    /// Creates the document.
    #[must_use]
    pub fn new(action: &str, id: PartitionId) -> Self {
        Self {
            action: action.to_owned(),
            id,
        }
    }
}

/// An unfinished operation on a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnfinishedRepair {
    /// Partition id.
    pub id: PartitionId,
    /// Reason that the operation is unfinished.
    pub reason: String,
}

impl UnfinishedRepair {
    /// Creates the document.
    #[must_use]
    pub const fn new(id: PartitionId, reason: String) -> Self {
        Self { id, reason }
    }
}

/// An unavailable controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnavailableController {
    /// Name of the controller.
    pub controller: ControllerName,
    /// Error of the last call.
    pub reason: String,
}

impl UnavailableController {
    /// Creates the document.
    #[must_use]
    pub const fn new(controller: ControllerName, reason: String) -> Self {
        Self { controller, reason }
    }
}
