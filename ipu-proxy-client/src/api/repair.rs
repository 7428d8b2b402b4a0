//! What a comparison of ledger, controllers and owners mended.

use ipu_core::{Action, ControllerName, PartitionId};
use serde::{Deserialize, Serialize};

/// The answer of `POST /v1/repair`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RepairDocument {
    /// What was done.
    pub done: Vec<RepairAction>,
    /// What has to be gone on with later; the proxy does so by itself.
    pub later: Vec<RepairLater>,
    /// Controllers that could not be asked; what they hold was kept.
    pub silent: Vec<SilentController>,
    /// Partitions in quarantine afterwards: they exist, and nobody owns them.
    pub quarantined: u32,
}

impl RepairDocument {
    /// Whether nothing is left that a later repair would have to go on with.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.later.is_empty() && self.silent.is_empty()
    }
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RepairAction {
    /// What, in a word: `adopt`, `finish`, `orphan`, `reclaim`, `release`, `drop`, `quarantine`, `forget`, `lost`, `note`.
    pub action: String,
    /// To which partition.
    pub id: PartitionId,
}

impl From<&Action> for RepairAction {
    fn from(action: &Action) -> Self {
        Self {
            action: action.label().to_owned(),
            id: action.id().clone(),
        }
    }
}

/// A partition that has to be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RepairLater {
    /// Which.
    pub id: PartitionId,
    /// Why not now.
    pub why: String,
}

impl RepairLater {
    /// This one, for this reason.
    #[must_use]
    pub const fn new(id: PartitionId, why: String) -> Self {
        Self { id, why }
    }
}

/// A controller that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SilentController {
    /// Which.
    pub controller: ControllerName,
    /// What it said.
    pub why: String,
}

impl SilentController {
    /// This one, for this reason.
    #[must_use]
    pub const fn new(controller: ControllerName, why: String) -> Self {
        Self { controller, why }
    }
}
