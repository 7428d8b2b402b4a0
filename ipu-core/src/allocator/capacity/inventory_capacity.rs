//! Capacity of a controller whose hardware is known: an [`Inventory`].

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::allocator::capacity::machines::MachinesError;
use crate::allocator::capacity::{Capacity, CordonTarget, IpuCounts};
use crate::hardware::inventory::{Block, Inventory};
use crate::hardware::partition::{IpuPlace, PartitionSpec};
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{AgentId, ClusterId, CordonOwner, PartitionId};
use crate::placement::{Placement, PlacementMode, PlacementPolicy, PlacementRequest, place};
use crate::reason::{Reason, ReasonCode};
use crate::units::IpuCount;

/// An inventory as the ledger uses it. The policy of the placement mode makes all placements, hypothetical
/// ones too, so that answers and placements agree.
#[derive(Clone, Debug)]
pub struct InventoryCapacity {
    pub(super) inventory: Inventory,
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

    /// Returns the policy of the placement mode.
    pub(super) fn policy(&self) -> &dyn PlacementPolicy {
        self.placement.policy()
    }

    /// Returns the capacity with this placement mode.
    #[must_use]
    pub fn with_placement(self, placement: PlacementMode) -> Self {
        Self { placement, ..self }
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
            let request = PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone());
            match place(&self.inventory, &request, self.placement.policy()) {
                Placement::Fits(block) => block,
                Placement::Impossible(why) => return Err(why.into()),
            }
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
            let names: Vec<_> = agents.take(MAX_NAMES).map(|(agent, _)| agent.as_str()).collect();
            let more = if names.len() == MAX_NAMES { ", …" } else { "" };
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

    fn blockers(&self, spec: &PartitionSpec) -> Vec<PartitionId> {
        self.inventory
            .blockers_for(spec.size, spec.allocation.as_ref())
            .map_or_else(Vec::new, |blockers| blockers.holders)
    }

    fn blockers_on(&self, spec: &PartitionSpec, places: &[IpuPlace]) -> Vec<PartitionId> {
        if places.is_empty() {
            self.blockers(spec)
        } else {
            self.blockers_in(spec, places)
        }
    }

    fn machines(&self) -> Vec<AgentId> {
        let agents = self.inventory.topology().agents();
        agents.map(|(agent, _)| agent.clone()).collect()
    }

    fn places_on(&self, machines: &[AgentId], spec: &PartitionSpec) -> Result<Vec<IpuPlace>, MachinesError> {
        self.ipus_of_machines(machines, spec)
    }
}

/// Number of machines that a message names.
const MAX_NAMES: usize = 16;

/// Returns the addresses of `places` in the cluster of the allocation, else in the only cluster that has all
/// of them.
pub(super) fn addresses(
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
