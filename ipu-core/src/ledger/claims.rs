//! Observed owners: their liveness, and the partitions that they claim.

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::entry::Request;

/// Liveness of the owner of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OwnerLiveness {
    /// Alive.
    Live,
    /// Certainly dead, and no process of it uses the partition.
    Dead,
    /// Not known. Never a reason to release anything.
    #[default]
    Unknown,
}

/// A live owner's own record of the partition that it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The request, with the attempt that uses the partition now.
    pub request: Request,
    /// The controller that has it, if the owner recorded it. If the ledger was lost while a controller did
    /// not respond, the partition may have been created a second time elsewhere. Only this field identifies
    /// the one in use.
    pub controller: Option<ControllerName>,
}

impl Claim {
    /// Creates a claim to the partition of `request` at `controller`.
    #[must_use]
    pub const fn at(request: Request, controller: ControllerName) -> Self {
        Self {
            request,
            controller: Some(controller),
        }
    }
}

impl From<Request> for Claim {
    /// Creates a claim without a controller.
    fn from(request: Request) -> Self {
        Self {
            request,
            controller: None,
        }
    }
}

/// The observed state of the owners.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// Liveness of the owner of each entry; a missing one is unknown.
    pub liveness: BTreeMap<PartitionId, OwnerLiveness>,
    /// Partitions that live owners were granted according to their own records.
    pub claims: BTreeMap<PartitionId, Claim>,
}
