//! Capacity of a controller whose hardware is known: an [`Inventory`].

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::ids::{ClusterId, CordonOwner, PartitionId};
use crate::inventory::{Block, Inventory};
use crate::ledger::capacity::Capacity;
use crate::ledger::cordon::CordonTarget;
use crate::ledger::stats::IpuCounts;
use crate::partition::{IpuPlace, PartitionSpec};
use crate::placement::{FirstFit, Pinned, Placement, PlacementPolicy, PlacementRequest, place};
use crate::reason::Reason;
use crate::topology::{IpuAddress, Topology};
use crate::units::IpuCount;

/// An inventory as the ledger uses it. Hypothetical placements use first fit: the lowest free block.
#[derive(Clone, Debug)]
pub struct InventoryCapacity(Inventory);

impl InventoryCapacity {
    /// Creates the capacity of `inventory`.
    #[must_use]
    pub const fn new(inventory: Inventory) -> Self {
        Self(inventory)
    }
}

impl Capacity for InventoryCapacity {
    fn fork(&self) -> Box<dyn Capacity> {
        Box::new(self.clone())
    }

    fn free(&self) -> u32 {
        self.0.free()
    }

    fn largest_block(&self) -> u32 {
        self.0.largest_block().map_or(0, IpuCount::get)
    }

    fn has(&self, id: &PartitionId) -> bool {
        self.0.block_of(id).is_some()
    }

    fn reserve(
        &mut self,
        id: &PartitionId,
        spec: &PartitionSpec,
        places: &[IpuPlace],
    ) -> Result<Vec<IpuPlace>, Reason> {
        let topology = self.0.topology();
        let request = PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone());
        let pinned;
        let policy: &dyn PlacementPolicy = if places.is_empty() {
            &FirstFit
        } else {
            let ipus = addresses(topology, spec, places)?;
            pinned = Pinned::new(ipus).map_err(|error| Reason::new("UnknownIpus", format!("{error}")))?;
            &pinned
        };
        let block = match place(&self.0, &request, policy) {
            Placement::Fits(block) => block,
            Placement::Impossible(why) => return Err(why.into()),
        };
        // With several clusters the controller chooses: a create call names IPUs by their numbers within one
        // cluster.
        let reserved = if topology.clusters().len() > 1 {
            places.to_vec()
        } else {
            places_of(topology, &block)
        };
        match self.0.occupy(id.clone(), block) {
            Ok(()) => Ok(reserved),
            Err(error) => Err(Reason::new("Conflict", format!("{error}"))),
        }
    }

    fn release(&mut self, id: &PartitionId) {
        // A missing block is no error: the ledger releases every id that might have one.
        let _ = self.0.vacate(id);
    }

    fn withhold(&mut self, places: &[IpuPlace]) {
        let topology = self.0.topology();
        let clusters = topology.clusters().iter();
        let ipus: Vec<IpuAddress> = clusters
            .flat_map(|cluster| {
                places
                    .iter()
                    .filter_map(|place| topology.address(&cluster.id, *place))
            })
            .collect();
        // Every address is one of this topology, so the call cannot fail.
        let _ = self.0.cordon(&CordonOwner::conflict(), ipus);
    }

    fn cordon(&mut self, owner: &CordonOwner, target: &CordonTarget) -> Result<Vec<PartitionId>, Reason> {
        let unknown = || {
            let agents = self.0.topology().agents();
            let names: Vec<_> = agents.take(MAX_NAMES).map(|(agent, _)| agent.as_str()).collect();
            let more = if names.len() == MAX_NAMES { ", …" } else { "" };
            let message = format!(
                "there is no {target}; the machines are {}{more}",
                names.join(", ")
            );
            Reason::new("UnknownIpus", message)
        };
        let ipus = cordoned_ipus(self.0.topology(), target).ok_or_else(unknown)?;
        match self.0.cordon(owner, ipus) {
            Ok(holders) => Ok(holders.into_iter().collect()),
            Err(error) => Err(Reason::new("UnknownIpus", format!("{error}"))),
        }
    }

    fn has_several_clusters(&self) -> bool {
        self.0.topology().clusters().len() > 1
    }

    fn counts(&self) -> Option<IpuCounts> {
        let (mut unhealthy, mut cordoned) = (BTreeSet::new(), BTreeSet::new());
        for (owner, at) in self.0.cordons() {
            if self.0.holder_at(at).is_some() {
                continue;
            }
            if *owner == CordonOwner::health() {
                unhealthy.insert(at);
            } else {
                cordoned.insert(at);
            }
        }
        let count = |all: usize| u32::try_from(all).unwrap_or(u32::MAX);
        let mut counts = IpuCounts::new(self.0.topology().ipus(), self.0.free());
        counts.unhealthy = count(unhealthy.len());
        counts.cordoned = count(cordoned.difference(&unhealthy).count());
        Some(counts)
    }

    fn fit_count(&self, spec: &PartitionSpec) -> u32 {
        self.0.fit_count(spec.size, spec.allocation.as_ref())
    }

    fn blockers(&self, spec: &PartitionSpec) -> Vec<PartitionId> {
        self.0
            .blockers_for(spec.size, spec.allocation.as_ref())
            .map_or_else(Vec::new, |blockers| blockers.holders)
    }
}

/// Number of machines that a message names.
const MAX_NAMES: usize = 16;

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
    let refused = |message| Reason::new("UnknownIpus", message);
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
fn cordoned_ipus(topology: &Topology, target: &CordonTarget) -> Option<Vec<IpuAddress>> {
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
