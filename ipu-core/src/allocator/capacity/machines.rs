//! Requests for a partition that lies on given machines.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::allocator::capacity::{ControllerView, Hardware, ServiceState};
use crate::hardware::partition::{IpuPlace, PartitionSpec};
use crate::hardware::topology::Topology;
use crate::ids::{AgentId, AllocationId, ControllerName};
use crate::reason::Reason;
use crate::units::IpuCount;

use serde::{Deserialize, Serialize};

/// Number of names that a message lists.
const MAX_NAMES: usize = 16;

/// Formats `a, b and 3 more`, with up to `most` names.
pub(crate) fn first_names(names: &[&str], most: usize) -> String {
    let first = names[..most.min(names.len())].join(", ");
    match names.len().saturating_sub(most) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The reason that no partition can be pinned to the given machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachinesError {
    /// No machine is given.
    #[error("must name at least one machine")]
    Empty,
    /// Too many machines are given.
    #[error(
        "must name at most {} machines, and names {count}",
        PlacementConstraint::MAX_MACHINES
    )]
    TooMany {
        /// Number of machines.
        count: usize,
    },
    /// A machine is given twice.
    #[error("must name each machine once, and {machine} occurs twice")]
    Repeated {
        /// The machine.
        machine: AgentId,
    },
    /// The requested controller is not configured.
    #[error("must belong to the requested controller, and {controller} is not configured")]
    NoSuchController {
        /// The requested controller.
        controller: ControllerName,
    },
    /// A machine does not exist.
    #[error("must exist, and no controller has a machine {machine}")]
    Unknown {
        /// The machine.
        machine: AgentId,
        /// Machines that exist, as text; empty if no controller reports any.
        existing: String,
    },
    /// Several controllers have machines of these names.
    #[error("must belong to one controller, and {} all have such machines", join(.controllers))]
    Ambiguous {
        /// The controllers.
        controllers: Vec<ControllerName>,
    },
    /// The machines belong to several controllers.
    #[error(
        "must belong to one controller, and {first} is of {first_controller}, which does not have {second}"
    )]
    SeveralControllers {
        /// The first machine.
        first: AgentId,
        /// Its controller.
        first_controller: ControllerName,
        /// A machine of another controller.
        second: AgentId,
    },
    /// The controller has several clusters, and numbers its IPUs by cluster.
    #[error("must be used with an allocation at a controller with several clusters")]
    AllocationRequired,
    /// A machine is not in the requested allocation.
    #[error("must be in allocation {allocation}, and {machine} is not")]
    OutsideAllocation {
        /// The machine.
        machine: AgentId,
        /// The requested allocation.
        allocation: AllocationId,
    },
    /// No partition of the size can lie on the machines, even if all their IPUs are free.
    #[error(
        "must be neighbours, the first one at a multiple of the size, so that a partition of {size} IPUs can lie \
         on them"
    )]
    NoPartition {
        /// Number of machines.
        machines: usize,
        /// The size.
        size: IpuCount,
    },
    /// The hardware of the controller is not known.
    #[error("must not be used with a controller that does not report its hardware")]
    HardwareUnknown,
    /// A controller that may have the machines cannot be queried.
    #[error("controller {controller} cannot be queried for its machines: {}", reason.message)]
    Unavailable {
        /// The controller.
        controller: ControllerName,
        /// The reason.
        reason: Reason,
    },
}

impl MachinesError {
    pub(crate) fn unknown<'a>(machine: &AgentId, existing: impl Iterator<Item = &'a AgentId>) -> Self {
        let mut existing: Vec<&str> = existing.map(AgentId::as_str).collect();
        existing.sort_unstable();
        Self::Unknown {
            machine: machine.clone(),
            existing: first_names(&existing, MAX_NAMES),
        }
    }

    /// Returns the fix.
    #[must_use]
    pub fn fix(&self) -> String {
        match self {
            Self::Empty => "name the machines, or leave the field out".to_string(),
            Self::TooMany { .. } => "name fewer machines".to_string(),
            Self::Repeated { .. } => "name it once".to_string(),
            Self::NoSuchController { .. } => {
                "use a controller of the list, or leave `controller` out".to_string()
            }
            Self::Unknown { existing, .. } if existing.is_empty() => {
                "leave the field out: no controller reports its machines".to_string()
            }
            Self::Unknown { existing, .. } => format!("use machines that exist: {existing}"),
            Self::Ambiguous { .. } => "set `controller` to one of them".to_string(),
            Self::SeveralControllers { .. } => {
                "name machines of one controller, or request a partition of each controller".to_string()
            }
            Self::AllocationRequired => "set `allocation`".to_string(),
            Self::OutsideAllocation { .. } => {
                "name machines of that allocation, or leave `allocation` out".to_string()
            }
            Self::NoPartition { machines, size } => no_partition_fix(*machines, *size),
            Self::HardwareUnknown => "leave the field out".to_string(),
            Self::Unavailable { .. } => "repeat the request when the controller answers".to_string(),
        }
    }
}

fn no_partition_fix(machines: usize, size: IpuCount) -> String {
    let ipus = machines.saturating_mul(Topology::MACHINE_IPUS as usize);
    let largest = ipus.checked_ilog2().map_or(0, |order| 1_usize << order);
    if largest < size.get() as usize {
        format!("request at most {largest} IPUs, or name more machines")
    } else {
        "name other machines, or request fewer IPUs".to_string()
    }
}

fn join(names: &[ControllerName]) -> String {
    let names: Vec<&str> = names.iter().map(ControllerName::as_str).collect();
    names.join(", ")
}

/// Placement required by a request. The default leaves everything open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PlacementConstraint {
    /// The only acceptable controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerName>,
    /// The IPUs that the partition may use: exactly these, in routing order, if their number is the size,
    /// and a block among them if there are more. Empty allows every IPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipus: Vec<IpuPlace>,
}

impl PlacementConstraint {
    /// Maximum number of machines that a request can name: those of 1,024 IPUs. The ledger records each IPU.
    pub const MAX_MACHINES: usize = 256;

    /// Returns whether nothing is pinned.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.controller.is_none() && self.ipus.is_empty()
    }
}

impl Hardware {
    /// Returns the constraint of a partition of `spec` that lies on `machines`, of `controller` if one is
    /// given. The partition may use every IPU of the machines.
    ///
    /// # Errors
    ///
    /// [`MachinesError`].
    pub fn pin_to_machines(
        &self,
        machines: &[AgentId],
        controller: Option<&ControllerName>,
        spec: &PartitionSpec,
    ) -> Result<PlacementConstraint, MachinesError> {
        check_names(machines)?;
        let is_candidate = |view: &&ControllerView| match controller {
            Some(name) => view.name == *name,
            None => view.service == ServiceState::Open,
        };
        let candidates: Vec<&ControllerView> = self.controllers.iter().filter(is_candidate).collect();
        if let ([], Some(controller)) = (&candidates[..], controller) {
            return Err(MachinesError::NoSuchController {
                controller: controller.clone(),
            });
        }
        let view = choose_controller(machines, &candidates)?;
        let listing = view
            .listing
            .as_ref()
            .map_err(|reason| MachinesError::Unavailable {
                controller: view.name.clone(),
                reason: reason.clone(),
            })?;
        Ok(PlacementConstraint {
            controller: Some(view.name.clone()),
            ipus: listing.capacity().places_on(machines, spec)?,
        })
    }
}

fn check_names(machines: &[AgentId]) -> Result<(), MachinesError> {
    if machines.is_empty() {
        return Err(MachinesError::Empty);
    }
    let count = machines.len();
    if count > PlacementConstraint::MAX_MACHINES {
        return Err(MachinesError::TooMany { count });
    }
    let mut sorted: Vec<&AgentId> = machines.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(MachinesError::Repeated {
            machine: pair[0].clone(),
        }),
        None => Ok(()),
    }
}

/// Returns the only one of `candidates` that has all `machines`. If there is none, but one that cannot be
/// queried, returns that.
fn choose_controller<'v>(
    machines: &[AgentId],
    candidates: &[&'v ControllerView],
) -> Result<&'v ControllerView, MachinesError> {
    let reported = |view: &&'v ControllerView| {
        let listing = view.listing.as_ref().ok()?;
        let machines: BTreeSet<AgentId> = listing.capacity().machines().into_iter().collect();
        Some((*view, machines))
    };
    let reported: Vec<(&ControllerView, BTreeSet<AgentId>)> =
        candidates.iter().filter_map(reported).collect();
    let has_all = |(_, own): &&(&ControllerView, BTreeSet<AgentId>)| {
        machines.iter().all(|machine| own.contains(machine))
    };
    let complete: Vec<&'v ControllerView> = reported.iter().filter(has_all).map(|(view, _)| *view).collect();
    match complete[..] {
        [only] => return Ok(only),
        [] => {}
        _ => {
            return Err(MachinesError::Ambiguous {
                controllers: complete.iter().map(|view| view.name.clone()).collect(),
            });
        }
    }
    if let Some(view) = candidates.iter().find(|view| view.listing.is_err()) {
        return Ok(view);
    }
    let mut first: Option<(&AgentId, &'v ControllerView, &BTreeSet<AgentId>)> = None;
    for machine in machines {
        let Some((view, own)) = reported.iter().find(|(_, own)| own.contains(machine)) else {
            let existing = reported.iter().flat_map(|(_, own)| own);
            return Err(MachinesError::unknown(machine, existing));
        };
        first.get_or_insert((machine, view, own));
    }
    let (first, view, own) = first.ok_or(MachinesError::Empty)?;
    match machines.iter().find(|machine| !own.contains(*machine)) {
        Some(second) => Err(MachinesError::SeveralControllers {
            first: first.clone(),
            first_controller: view.name.clone(),
            second: second.clone(),
        }),
        None => Ok(view),
    }
}
