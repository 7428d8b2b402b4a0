//! A partition as the V-IPU controller describes it: its properties, and one combined state.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{AllocationId, ClusterId, PartitionId};
use crate::units::IpuCount;

/// Properties of a partition, used for requests and for comparison with existing partitions.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::hardware::PartitionSpec;
///
/// let mut spec = PartitionSpec::of_size(IpuCount::try_from(4)?);
/// spec.gcds = 8;
/// let error = spec.check().expect_err("more GCDs than IPUs");
/// assert_eq!(error.field(), "gcds");
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PartitionSpec {
    /// Number of IPUs.
    pub size: IpuCount,
    /// Graph compilation domains: one Poplar process each. Divides `size`.
    #[serde(default = "one")]
    pub gcds: u32,
    /// Model replicas over all GCDs; at least `gcds`. PopRun refuses a partition whose number differs.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Set if Poplar may use devices of any aligned size inside the partition.
    #[serde(default)]
    pub reconfigurable: bool,
    /// The allocation to draw from; none lets the controller choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
}

const fn one() -> u32 {
    1
}

impl From<IpuCount> for PartitionSpec {
    fn from(size: IpuCount) -> Self {
        Self::of_size(size)
    }
}

impl PartitionSpec {
    /// Creates the properties of a partition of `size` IPUs with one GCD and one replica, of any allocation.
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

    /// Checks that a controller can create it, as far as its numbers show.
    ///
    /// # Errors
    ///
    /// [`SpecError`] for the first broken rule.
    pub fn check(&self) -> Result<(), SpecError> {
        let (size, gcds, replicas) = (self.size, self.gcds, self.replicas);
        if gcds == 0 || !size.get().is_multiple_of(gcds) {
            return Err(SpecError::Gcds { gcds, size });
        }
        if replicas < gcds || replicas > size.get() {
            return Err(SpecError::Replicas { replicas, gcds, size });
        }
        if self.reconfigurable && size > IpuCount::LINK_DOMAIN {
            return Err(SpecError::Reconfigurable { size });
        }
        Ok(())
    }
}

/// The reason that no controller creates a partition of these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The GCDs do not divide the IPUs.
    #[error("must be at least 1 and divide the {size} IPUs")]
    Gcds {
        /// The requested GCDs.
        gcds: u32,
        /// The number of IPUs.
        size: IpuCount,
    },
    /// Too few or too many replicas.
    #[error("must be from {gcds}, one of each GCD, to {size}, one of each IPU")]
    Replicas {
        /// The requested replicas.
        replicas: u32,
        /// The number of GCDs.
        gcds: u32,
        /// The number of IPUs.
        size: IpuCount,
    },
    /// A reconfigurable partition of several link domains.
    #[error("a reconfigurable partition lies in one link domain of 64 IPUs, and this one has {size}")]
    Reconfigurable {
        /// The requested size.
        size: IpuCount,
    },
}

impl SpecError {
    /// Returns the field that breaks the rule.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Gcds { .. } => "gcds",
            Self::Replicas { .. } => "replicas",
            Self::Reconfigurable { .. } => "reconfigurable",
        }
    }

    /// Returns the requested value.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Self::Gcds { gcds, .. } => gcds.to_string(),
            Self::Replicas { replicas, .. } => replicas.to_string(),
            Self::Reconfigurable { .. } => true.to_string(),
        }
    }

    /// Returns the fix.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Gcds { .. } => String::from("use 1, 2, 4 or another power of two up to the size"),
            Self::Replicas { gcds, .. } => format!("leave it out, or use {gcds}"),
            Self::Reconfigurable { .. } => String::from("leave it out, or ask for at most 64 IPUs"),
        }
    }
}

/// One IPU of a partition in the controller's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IpuPlace {
    /// The link domain in its cluster, from 0.
    pub link_domain: u32,
    /// The IPU in its link domain, 0 to 63.
    pub ipu: u32,
}

/// The state of a partition: the controller's ready state and operation state, combined into one state by the
/// operations that they allow.
///
/// Source: `PartitionReadyState` and `PartitionOperationState` of the V-IPU user API.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum PartitionState {
    /// Being created; becomes active or failed.
    Creating,
    /// Ready for use.
    Active,
    /// Being reset; becomes active or failed.
    Resetting,
    /// Being removed; the controller no longer lists it afterwards.
    Removing,
    /// In error; the controller may still be trying to repair it.
    Failed {
        /// The controller's errors.
        errors: Vec<String>,
    },
}

impl PartitionState {
    /// Returns whether an operation of the controller is under way, which ends by itself.
    #[cfg(feature = "allocator")]
    pub(crate) const fn is_in_progress(&self) -> bool {
        matches!(self, Self::Creating | Self::Resetting | Self::Removing)
    }

    /// Returns the label shown in tables: `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING`, `ERROR`.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Partition {
    /// Its id at the controller.
    pub id: PartitionId,
    /// Its properties.
    pub spec: PartitionSpec,
    /// Its cluster, if the controller reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    /// Its IPUs, in routing order; empty if the controller does not report them.
    #[serde(default)]
    pub ipus: Vec<IpuPlace>,
    /// Its state.
    pub state: PartitionState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_partition_spec_is_rejected_by_field_with_a_fix() {
        let of = |size: u32, gcds, replicas, reconfigurable| PartitionSpec {
            gcds,
            replicas,
            reconfigurable,
            ..PartitionSpec::of_size(IpuCount::try_from(size).unwrap())
        };
        assert_eq!(of(16, 2, 4, true).check(), Ok(()));
        assert_eq!(of(64, 4, 64, true).check(), Ok(()));
        let power = "use 1, 2, 4 or another power of two up to the size";
        for (spec, value, fix) in [
            (of(16, 0, 1, false), "gcds 0", power),
            (of(16, 3, 3, false), "gcds 3", power),
            (of(16, 4, 2, false), "replicas 2", "leave it out, or use 4"),
            (of(16, 4, 17, false), "replicas 17", "leave it out, or use 4"),
            (
                of(128, 1, 1, true),
                "reconfigurable true",
                "leave it out, or ask for at most 64 IPUs",
            ),
        ] {
            let error = spec.check().unwrap_err();
            let found = format!("{} {}", error.field(), error.value());
            assert_eq!((&*found, &*error.fix()), (value, fix));
        }
    }
}
