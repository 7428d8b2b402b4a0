//! Capacity of a controller whose hardware is known: an [`Inventory`], with placement anywhere or within the
//! IPUs that a request names.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::allocator::capacity::machines::{MachinesError, first_names};
use crate::allocator::capacity::{Capacity, CordonTarget, IpuCounts};
use crate::hardware::inventory::{Block, Inventory};
use crate::hardware::partition::{IpuPlace, PartitionSpec};
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{AgentId, ClusterId, CordonOwner, PartitionId};
use crate::placement::{FirstFit, Impossible, Pinned, PlacementMode, PlacementRequest, place};
use crate::reason::{Reason, ReasonCode};
use crate::units::IpuCount;

/// Number of machines that a message about an unknown one names.
const MAX_NAMED_MACHINES: usize = 16;

/// Number of holders, and of machines of each, that a message names.
const MAX_NAMED_HOLDERS: usize = 4;

/// An inventory as the ledger uses it. The policy of the placement mode makes all placements, hypothetical
/// ones too, so that answers and placements agree.
#[derive(Clone, Debug)]
pub struct InventoryCapacity {
    inventory: Inventory,
    placement: PlacementMode,
}

impl InventoryCapacity {
    /// Creates the capacity of `inventory` with explicit placement by first fit.
    #[must_use]
    pub fn new(inventory: Inventory) -> Self {
        Self {
            inventory,
            placement: PlacementMode::default(),
        }
    }

    /// Returns the capacity with this placement mode.
    #[must_use]
    pub fn with_placement(self, placement: PlacementMode) -> Self {
        Self { placement, ..self }
    }

    /// Places a partition on exactly `places` if their number is its size, else on a block among them that
    /// the policy of the placement mode chooses.
    fn place_within(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Result<Block, Reason> {
        let inventory = &self.inventory;
        let ipus = addresses(inventory.topology(), spec, places)?;
        let request = request_for(spec);
        let placement = if places.len() <= spec.size.get() as usize {
            let pinned = Pinned::new(ipus.iter().copied())
                .map_err(|error| Reason::new(ReasonCode::UnknownIpus, format!("{error}")))?;
            place(inventory, &request, &pinned)
        } else {
            place(&restricted(inventory, &ipus), &request, self.placement.policy())
        };
        match placement {
            Ok(block) => Ok(block),
            Err(_) if !is_possible(inventory.topology(), spec, &ipus) => {
                let (size, count) = (spec.size, places.len());
                let message =
                    format!("cannot fit {size} IPUs: the {count} requested IPUs form no such partition");
                Err(Reason::new(ReasonCode::TooLarge, message).with("size", size.get()))
            }
            Err(why) => Err(busy_reason(inventory, spec, &ipus).unwrap_or_else(|| why.into())),
        }
    }
}

impl Capacity for InventoryCapacity {
    fn boxed_clone(&self) -> Box<dyn Capacity> {
        Box::new(self.clone())
    }

    fn inventory(&self) -> Option<&Inventory> {
        Some(&self.inventory)
    }

    fn free(&self) -> u32 {
        self.inventory.free()
    }

    fn largest_block(&self) -> u32 {
        self.inventory.largest_block().map_or(0, IpuCount::get)
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.inventory.block_of(id).is_some()
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        let topology = self.inventory.topology();
        let block = if places.is_empty() {
            place(&self.inventory, &request_for(spec), self.placement.policy())?
        } else {
            self.place_within(spec, places)?
        };
        // With several clusters and no allocation the controller chooses: a create call names IPUs by their
        // numbers within the cluster of the allocation.
        let is_chosen_here = places.len() > spec.size.get() as usize;
        let reserved = if topology.clusters().len() > 1 && spec.allocation.is_none() && !is_chosen_here {
            places.to_vec()
        } else {
            places_of(topology, &block)
        };
        match self.inventory.occupy(id.clone(), block) {
            Ok(()) => Ok(reserved),
            Err(error) => Err(Reason::new(ReasonCode::Conflict, format!("{error}"))),
        }
    }

    fn release(&mut self, id: &PartitionId) {
        // A missing block is not an error: the ledger releases every id that might have one.
        let _ = self.inventory.vacate(id);
    }

    fn withhold(&mut self, places: &[IpuPlace]) {
        let topology = self.inventory.topology();
        let clusters = topology.clusters().iter();
        let ipus: Vec<IpuAddress> = clusters
            .flat_map(|cluster| {
                places
                    .iter()
                    .filter_map(|place| topology.address(&cluster.id, *place))
            })
            .collect();
        // Every address is one of this topology, so the call cannot fail.
        let _ = self.inventory.cordon(&CordonOwner::conflict(), ipus);
    }

    fn cordon(&mut self, owner: &CordonOwner, target: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        let unknown = || {
            let agents = self.inventory.topology().agents();
            let names: Vec<_> = agents
                .take(MAX_NAMED_MACHINES)
                .map(|(agent, _)| agent.as_str())
                .collect();
            let more = if names.len() == MAX_NAMED_MACHINES {
                ", …"
            } else {
                ""
            };
            let message = format!(
                "there is no {target}; the machines are {}{more}",
                names.join(", ")
            );
            Reason::new(ReasonCode::UnknownIpus, message)
        };
        let ipus = cordoned_ipus(self.inventory.topology(), target).ok_or_else(unknown)?;
        match self.inventory.cordon(owner, ipus) {
            Ok(holders) => Ok(holders.into_iter().collect()),
            Err(error) => Err(Reason::new(ReasonCode::UnknownIpus, format!("{error}"))),
        }
    }

    fn is_delegated(&self) -> bool {
        matches!(self.placement, PlacementMode::Delegated)
    }

    fn counts(&self) -> Option<IpuCounts> {
        let (mut unhealthy, mut cordoned) = (BTreeSet::new(), BTreeSet::new());
        for (owner, at) in self.inventory.cordons() {
            if self.inventory.holder_at(at).is_some() {
                continue;
            }
            if *owner == CordonOwner::health() {
                unhealthy.insert(at);
            } else {
                cordoned.insert(at);
            }
        }
        let count = |all: usize| u32::try_from(all).unwrap_or(u32::MAX);
        let mut counts = IpuCounts::new(self.inventory.topology().ipus(), self.inventory.free());
        counts.unhealthy = count(unhealthy.len());
        counts.cordoned = count(cordoned.difference(&unhealthy).count());
        Some(counts)
    }

    fn fit_count(&self, spec: &PartitionSpec) -> u32 {
        let available = self.inventory.fit_count(spec.size, spec.allocation.as_ref());
        // A policy may decline free blocks, so only its own placements count.
        let mut capacity = self.clone();
        let placed = (0..available).take_while(|index| {
            let id = PartitionId::hypothetical(usize::try_from(*index).unwrap_or(usize::MAX));
            capacity.reserve(&id, spec, &[]).is_ok()
        });
        u32::try_from(placed.count()).unwrap_or(u32::MAX)
    }

    fn blockers(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Vec<PartitionId> {
        let (size, allocation) = (spec.size, spec.allocation.as_ref());
        let blockers = if places.is_empty() {
            self.inventory.blockers_for(size, allocation)
        } else {
            let ipus = addresses(self.inventory.topology(), spec, places).ok();
            ipus.and_then(|ipus| restricted(&self.inventory, &ipus).blockers_for(size, allocation))
        };
        blockers.map_or_else(Vec::new, |blockers| blockers.holders)
    }

    fn machines(&self) -> Vec<AgentId> {
        let agents = self.inventory.topology().agents();
        agents.map(|(agent, _)| agent.clone()).collect()
    }

    fn places_on(&self, machines: &[AgentId], spec: &PartitionSpec) -> Result<Vec<IpuPlace>, MachinesError> {
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

/// Returns the addresses of `places` in the cluster of the allocation, else in the only cluster that has all
/// of them.
fn addresses(
    topology: &Topology,
    spec: &PartitionSpec,
    places: &[IpuPlace],
) -> Result<Vec<IpuAddress>, Reason> {
    let all_in = |cluster: &ClusterId| -> Option<Vec<IpuAddress>> {
        places
            .iter()
            .map(|place| topology.address(cluster, *place))
            .collect()
    };
    let refused = |message| Reason::new(ReasonCode::UnknownIpus, message);
    let unknown = || {
        let count = places.len();
        refused(format!("some of the {count} requested IPUs do not exist"))
    };
    if let Some(allocation) = spec.allocation.as_ref().and_then(|id| topology.allocation(id)) {
        return all_in(&allocation.cluster).ok_or_else(unknown);
    }
    let mut found = topology
        .clusters()
        .iter()
        .filter_map(|cluster| all_in(&cluster.id));
    let first = found.next().ok_or_else(unknown)?;
    if found.next().is_some() {
        return Err(refused(String::from(
            "several clusters have IPUs of these numbers; name the allocation",
        )));
    }
    Ok(first)
}

/// Returns the IPUs of the cordoned hardware; none if there is no such hardware.
pub(crate) fn cordoned_ipus(topology: &Topology, target: &CordonTarget) -> Option<Vec<IpuAddress>> {
    match target {
        CordonTarget::Controller => {
            let machines = topology
                .agents()
                .filter_map(|(agent, _)| topology.agent_ipus(agent));
            Some(machines.flatten().collect())
        }
        CordonTarget::Machine(agent) => Some(topology.agent_ipus(agent)?.to_vec()),
        CordonTarget::Ipu(agent, number) => {
            let ipus = topology.agent_ipus(agent)?;
            Some(Vec::from([*ipus.get(usize::try_from(*number).ok()?)?]))
        }
    }
}

/// Returns the IPUs of a block in the controller's numbering.
fn places_of(topology: &Topology, block: &Block) -> Vec<IpuPlace> {
    block
        .addresses()
        .filter_map(|address| topology.place(address).map(|(_, place)| place))
        .collect()
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
    matches!(placement, Ok(_) | Err(Impossible::UnknownAllocation { .. }))
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
        .take(MAX_NAMED_HOLDERS)
        .map(|(holder, machines)| {
            format!(
                "{holder} holds IPUs of {}",
                first_names(machines, MAX_NAMED_HOLDERS)
            )
        })
        .collect();
    if held.len() > MAX_NAMED_HOLDERS {
        causes.push(format!(
            "{} more partitions hold some",
            held.len() - MAX_NAMED_HOLDERS
        ));
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
