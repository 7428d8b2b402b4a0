//! The map: every IPU of the controllers with its holder and cordons, as runs of equal IPUs.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::allocator::capacity::{Hardware, Listing, cordoned_ipus};
use crate::allocator::entry::Phase;
use crate::allocator::holders::{cordons_of, reserve_recorded};
use crate::allocator::state::State;
use crate::hardware::inventory::Inventory;
use crate::hardware::topology::{IpuAddress, Topology};
use crate::ids::{AgentId, ClusterId, ControllerName, CordonId, CordonOwner, PartitionId};

/// Hardware of one controller, with holders and cordons.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerMap {
    /// Name of the controller.
    pub name: ControllerName,
    /// Link domains in the order of the hardware. Empty if the controller was not listed, or does not report
    /// its hardware.
    pub link_domains: Vec<LinkDomainMap>,
    /// Partitions that hold IPUs of the controller, and are on none of `link_domains`.
    pub unplaced: BTreeSet<PartitionId>,
}

/// A link domain with its machines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkDomainMap {
    /// Cluster of the link domain.
    pub cluster: ClusterId,
    /// Number of the link domain in the cluster, from 0.
    pub number: u32,
    /// Machines in the order of their IPUs.
    pub machines: Vec<MachineMap>,
}

/// A machine with four IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineMap {
    /// Name of its agent.
    pub name: AgentId,
    /// Its IPUs, in order.
    pub runs: Vec<IpuRun>,
}

/// Consecutive IPUs of one machine with the same holder and cordons. IPUs without holder, cordons and fault
/// are free.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpuRun {
    /// Number of IPUs, 1 to 4.
    pub ipus: u32,
    /// Partition that holds the IPUs.
    pub holder: Option<PartitionId>,
    /// Phase of the holder; none if there is no holder, or if the ledger does not record it.
    pub phase: Option<Phase>,
    /// Cordons of the IPUs, by name.
    pub cordons: Vec<CordonId>,
    /// True if the controller reports the IPUs unhealthy.
    pub is_unhealthy: bool,
}

impl State {
    /// Returns the map of all controllers, in their order. A controller that is a second name of another one
    /// has no hardware of its own.
    #[must_use]
    pub fn map(&self, hardware: &Hardware) -> Vec<ControllerMap> {
        let map = |name: &ControllerName| {
            let listing = hardware.listing(name);
            match listing.and_then(|listing| listing.capacity().inventory().map(|_| listing)) {
                Some(listing) => self.map_of(hardware, name, listing),
                None => {
                    let held = self.entries().filter(|entry| entry.phase.holds());
                    let here = held.filter(|entry| entry.controller.as_ref() == Some(name));
                    let listed = listing
                        .into_iter()
                        .flat_map(|listing| listing.partitions().keys());
                    ControllerMap {
                        name: name.clone(),
                        link_domains: Vec::new(),
                        unplaced: here.map(|entry| &entry.id).chain(listed).cloned().collect(),
                    }
                }
            }
        };
        hardware.controllers.iter().map(|view| map(&view.name)).collect()
    }

    fn map_of(&self, hardware: &Hardware, name: &ControllerName, listing: &Listing) -> ControllerMap {
        let mut capacity = listing.capacity().boxed_clone();
        let mut unplaced: BTreeSet<PartitionId> =
            reserve_recorded(self, name, &mut *capacity).into_iter().collect();
        let Some(inventory) = capacity.inventory() else {
            return ControllerMap {
                name: name.clone(),
                link_domains: Vec::new(),
                unplaced,
            };
        };
        let listed = listing.partitions().keys();
        unplaced.extend(listed.filter(|id| inventory.block_of(id).is_none()).cloned());
        let topology = inventory.topology();
        let mut cordons: BTreeMap<IpuAddress, Vec<CordonId>> = BTreeMap::new();
        for cordon in cordons_of(self, hardware, name) {
            for at in cordoned_ipus(topology, &cordon.target).into_iter().flatten() {
                cordons.entry(at).or_default().push(cordon.id.clone());
            }
        }
        let run = |at: IpuAddress| {
            let holder = inventory.holder_at(at).map(|(id, _)| id.clone());
            let entry = holder.as_ref().and_then(|id| self.get(id));
            IpuRun {
                ipus: 1,
                phase: entry
                    .filter(|entry| entry.phase.holds())
                    .map(|entry| entry.phase.clone()),
                holder,
                cordons: cordons.get(&at).cloned().unwrap_or_default(),
                is_unhealthy: is_unhealthy(inventory, at),
            }
        };
        let domains = 0..topology.link_domains();
        ControllerMap {
            name: name.clone(),
            link_domains: domains
                .filter_map(|domain| domain_map(topology, domain, run))
                .collect(),
            unplaced,
        }
    }
}

fn is_unhealthy(inventory: &Inventory, at: IpuAddress) -> bool {
    let health = CordonOwner::health();
    inventory.cordoned_by(at).any(|owner| *owner == health)
}

fn domain_map(
    topology: &Topology,
    link_domain: u32,
    run_of: impl Fn(IpuAddress) -> IpuRun,
) -> Option<LinkDomainMap> {
    let (cluster, number) = topology.cluster_of(link_domain)?;
    let mut machines = Vec::new();
    for name in topology.link_domain_agents(link_domain) {
        let mut runs: Vec<IpuRun> = Vec::new();
        for at in topology.agent_ipus(name)? {
            let next = run_of(at);
            match runs.last_mut() {
                Some(last) if is_same_use(last, &next) => last.ipus += 1,
                _ => runs.push(next),
            }
        }
        machines.push(MachineMap {
            name: name.clone(),
            runs,
        });
    }
    Some(LinkDomainMap {
        cluster: cluster.id.clone(),
        number,
        machines,
    })
}

fn is_same_use(one: &IpuRun, other: &IpuRun) -> bool {
    one.holder == other.holder && one.cordons == other.cordons && one.is_unhealthy == other.is_unhealthy
}
