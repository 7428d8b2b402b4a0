//! A partition as the V-IPU controller describes it: what was asked for, and one collapsed state.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{AllocationId, ClusterId, PartitionId};
use crate::units::IpuCount;

/// What a partition is made of; the same facts for asking and for comparing with what exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionSpec {
    /// How many IPUs.
    pub size: IpuCount,
    /// Graph compilation domains: one Poplar process each. Divides `size`.
    #[serde(default = "one")]
    pub gcds: u32,
    /// Model replicas over all GCDs; at least `gcds`. PopRun refuses a partition whose number differs.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Whether Poplar may pick devices of any aligned size inside the partition.
    #[serde(default)]
    pub reconfigurable: bool,
    /// The allocation to draw from; none lets the controller choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
}

const fn one() -> u32 {
    1
}

impl PartitionSpec {
    /// A partition of `size` IPUs with one GCD and one replica, of any allocation.
    #[must_use]
    pub const fn of_size(size: IpuCount) -> Self {
        Self {
            size,
            gcds: 1,
            replicas: 1,
            reconfigurable: false,
            allocation: None,
        }
    }
}

/// One IPU of a partition, by its place in the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IpuPlace {
    /// The link domain in its cluster, from 0.
    pub link_domain: u32,
    /// The IPU in its link domain, 0 to 63.
    pub ipu: u32,
}

/// The state of a partition: the controller's ready state and operation state, collapsed to what one may do with it.
///
/// Source: `PartitionReadyState` and `PartitionOperationState` of the V-IPU user API.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
#[non_exhaustive]
pub enum PartitionState {
    /// Being made; becomes active or failed.
    Creating,
    /// Ready for use.
    Active,
    /// Being reset; becomes active or failed.
    Resetting,
    /// Being removed; becomes unknown to the controller.
    Removing,
    /// In error; the controller may still be trying to repair it by itself.
    Failed {
        /// What the controller says is wrong.
        errors: Vec<String>,
    },
}

impl PartitionState {
    /// The word that people read in tables: `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING`, `ERROR`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Active => "ACTIVE",
            Self::Resetting => "RESETTING",
            Self::Removing => "REMOVING",
            Self::Failed { .. } => "ERROR",
        }
    }
}

/// A partition that a controller lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Partition {
    /// Its id at the controller.
    pub id: PartitionId,
    /// What it is made of.
    pub spec: PartitionSpec,
    /// The cluster that it lies in, if the controller says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Where its IPUs are, in routing order; empty if the controller does not say.
    #[serde(default)]
    pub ipus: Vec<IpuPlace>,
    /// What one may do with it.
    pub state: PartitionState,
}
