//! Placement within the IPUs that a request names, at a controller whose hardware is known.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::allocator::capacity::inventory_capacity::{InventoryCapacity, addresses};
use crate::allocator::capacity::machines::{MachinesError, first_names};
use crate::hardware::inventory::{Block, Inventory};
use crate::hardware::partition::{IpuPlace, PartitionSpec};
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{AgentId, CordonOwner, PartitionId};
use crate::placement::{FirstFit, Impossible, Pinned, Placement, PlacementRequest, place};
use crate::reason::{Reason, ReasonCode};

/// Number of holders and machines that a message names.
const MAX_NAMES: usize = 4;

impl InventoryCapacity {
    /// Places a partition on exactly `places` if their number is its size, else on a block among them that
    /// the policy of the placement mode chooses.
    pub(super) fn place_within(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Result<Block, Reason> {
        let inventory = &self.inventory;
        let ipus = addresses(inventory.topology(), spec, places)?;
        let request = request_for(spec);
        let placement = if places.len() <= spec.size.get() as usize {
            let pinned = Pinned::new(ipus.iter().copied())
                .map_err(|error| Reason::new(ReasonCode::UnknownIpus, format!("{error}")))?;
            place(inventory, &request, &pinned)
        } else {
            place(&restricted(inventory, &ipus), &request, self.policy())
        };
        match placement {
            Placement::Fits(block) => Ok(block),
            Placement::Impossible(_) if !is_possible(inventory.topology(), spec, &ipus) => {
                let (size, count) = (spec.size, places.len());
                let message =
                    format!("cannot fit {size} IPUs: the {count} requested IPUs form no such partition");
                Err(Reason::new(ReasonCode::TooLarge, message).with("size", size.get()))
            }
            Placement::Impossible(why) => {
                Err(busy_reason(inventory, spec, &ipus).unwrap_or_else(|| why.into()))
            }
        }
    }

    /// Returns the holders that would have to end for a partition to fit within `places`.
    pub(super) fn blockers_in(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Vec<PartitionId> {
        let inventory = &self.inventory;
        let Ok(ipus) = addresses(inventory.topology(), spec, places) else {
            return Vec::new();
        };
        let restricted = restricted(inventory, &ipus);
        let blockers = restricted.blockers_for(spec.size, spec.allocation.as_ref());
        blockers.map_or_else(Vec::new, |blockers| blockers.holders)
    }

    /// Returns the IPUs of `machines` in the controller's numbering, if a partition of `spec` can lie on
    /// them.
    pub(super) fn ipus_of_machines(
        &self,
        machines: &[AgentId],
        spec: &PartitionSpec,
    ) -> Result<Vec<IpuPlace>, MachinesError> {
        let topology = self.inventory.topology();
        let mut ipus = Vec::new();
        for machine in machines {
            let Some(own) = topology.agent_ipus(machine) else {
                return Err(MachinesError::unknown(
                    machine,
                    topology.agents().map(|(agent, _)| agent),
                ));
            };
            ipus.extend(own);
        }
        if topology.clusters().len() > 1 && spec.allocation.is_none() {
            return Err(MachinesError::AllocationRequired);
        }
        if let Some(id) = &spec.allocation {
            let allocation = topology.allocation(id);
            let is_outside = |machine: &&AgentId| {
                allocation.is_some_and(|allocation| !allocation.agents.contains(*machine))
            };
            if let Some(machine) = machines.iter().find(is_outside) {
                return Err(MachinesError::OutsideAllocation {
                    machine: machine.clone(),
                    allocation: id.clone(),
                });
            }
        }
        ipus.sort_unstable();
        if !is_possible(topology, spec, &ipus) {
            return Err(MachinesError::NoPartition {
                machines: machines.len(),
                size: spec.size,
            });
        }
        let places = ipus.iter().filter_map(|at| topology.place(*at));
        Ok(places.map(|(_, place)| place).collect())
    }
}

fn request_for(spec: &PartitionSpec) -> PlacementRequest {
    PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone())
}

/// Returns a copy of `inventory` in which only `ipus` take partitions.
fn restricted(inventory: &Inventory, ipus: &[IpuAddress]) -> Inventory {
    let inside: BTreeSet<IpuAddress> = ipus.iter().copied().collect();
    let topology = inventory.topology().clone();
    let all = topology
        .agents()
        .filter_map(|(agent, _)| topology.agent_ipus(agent));
    let outside = all.flatten().filter(|at| !inside.contains(at));
    let mut restricted = inventory.clone();
    // Every address is one of this topology, so the call cannot fail.
    let _ = restricted.cordon(&CordonOwner::conflict(), outside);
    restricted
}

/// Returns whether a partition of `spec` would fit within `ipus` if all of them were free.
fn is_possible(topology: &Topology, spec: &PartitionSpec, ipus: &[IpuAddress]) -> bool {
    let empty = restricted(&Inventory::new(topology), ipus);
    let placement = place(&empty, &request_for(spec), &FirstFit);
    // A placement reports an unknown allocation.
    matches!(
        placement,
        Placement::Fits(_) | Placement::Impossible(Impossible::UnknownAllocation { .. })
    )
}

/// Returns the reason that names who has the IPUs, by machine; none if all of them are free.
fn busy_reason(inventory: &Inventory, spec: &PartitionSpec, ipus: &[IpuAddress]) -> Option<Reason> {
    let mut held: Vec<(&PartitionId, Vec<&str>)> = Vec::new();
    let (mut cordoned, mut free) = (0_u32, 0_u32);
    for at in ipus {
        let machine = inventory.topology().agent_at(*at).map(AgentId::as_str);
        if let Some((holder, _)) = inventory.holder_at(*at) {
            let index = held.iter().position(|(id, _)| *id == holder).unwrap_or_else(|| {
                held.push((holder, Vec::new()));
                held.len() - 1
            });
            let machines = &mut held[index].1;
            machines.extend(machine.filter(|machine| !machines.contains(machine)));
        } else if inventory.cordoned_by(*at).next().is_some() {
            cordoned += 1;
        } else {
            free += 1;
        }
    }
    if held.is_empty() && cordoned == 0 {
        return None;
    }
    let mut causes: Vec<String> = held
        .iter()
        .take(MAX_NAMES)
        .map(|(holder, machines)| format!("{holder} holds IPUs of {}", first_names(machines, MAX_NAMES)))
        .collect();
    if held.len() > MAX_NAMES {
        causes.push(format!("{} more partitions hold some", held.len() - MAX_NAMES));
    }
    if cordoned > 0 {
        causes.push(format!("{cordoned} are cordoned"));
    }
    let message = format!(
        "cannot fit {} IPUs on the {} requested IPUs: {}",
        spec.size,
        ipus.len(),
        causes.join(", ")
    );
    let reason = Reason::new(ReasonCode::PinnedIpusBusy, message).with("size", spec.size.get());
    Some(reason.with("free", free))
}
