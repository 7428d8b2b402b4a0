//! What hardware there is: clusters of link domains of machines of four IPUs, and the allocations that partitions draw
//! from. Fixed once made; who holds what is the inventory's business.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, AllocationId, ClusterId};
use crate::partition::IpuPlace;

mod discovery;
mod error;
mod parse;
mod validate;

pub use discovery::{AgentAttributes, DiscoveredTopology};
pub use error::TopologyError;

/// One IPU by its address in a [`Topology`]; ordered as the hardware is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IpuAddress {
    /// The link domain, counted from 0 over all clusters in their order.
    pub link_domain: u32,
    /// The IPU in its link domain, 0 to 63. Machine m of the link domain has the IPUs 4m to 4m+3.
    pub ipu: u8,
}

impl core::fmt::Display for IpuAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "IPU {} of link domain {}", self.ipu, self.link_domain)
    }
}

/// Link domains that GW-links join. No partition leaves its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// Its id at the controller.
    pub id: ClusterId,
    /// Its link domains; their number in the cluster is their place in this list.
    pub link_domains: Vec<LinkDomain>,
}

/// Up to 16 machines whose IPUs IPU-Links join: one rack of a Pod64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkDomain {
    /// The agent of each machine, in the order of their IPUs; none where a place is empty.
    pub machines: Vec<Option<AgentId>>,
}

/// A named set of agents inside one cluster. A partition draws all its IPUs from one allocation; allocations may share
/// agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allocation {
    /// Its id at the controller.
    pub id: AllocationId,
    /// The cluster that it lies in.
    pub cluster: ClusterId,
    /// Its agents.
    pub agents: BTreeSet<AgentId>,
}

/// The hardware that one controller (or a simulated one) manages.
///
/// Made from a preset (`"pod16"`), from compact text (`"2x16,1x4"`), from what a controller lists
/// ([`Topology::from_agents`]) or from its serialised form:
///
/// ```json
/// {"clusters": [{"id": "cl1", "linkDomains": [["a1", "a2"], ["a3", null, "a4"]]}],
///  "allocations": [{"id": "left", "cluster": "cl1", "agents": ["a1", "a2"]}]}
/// ```
///
/// Without `allocations` each cluster comes with one of the same id that has all its agents (a reading of the public
/// record: the cluster option of the tools gave way to an allocation option that takes the same names).
///
/// A clone is the same topology once more, not a copy of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "validate::Raw", into = "validate::Raw")]
pub struct Topology {
    parts: Arc<TopologyParts>,
}

/// What a topology is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TopologyParts {
    clusters: Vec<Cluster>,
    allocations: Vec<Allocation>,
    /// The allocations by their place in the list.
    allocation_numbers: BTreeMap<AllocationId, usize>,
    /// For each link domain: its cluster and its number in it.
    homes: Vec<(usize, u32)>,
    /// For each link domain: the IPUs that exist, bit i for IPU i.
    present: Vec<u64>,
    /// Where the machine of each agent is: link domain, place in it.
    machines: BTreeMap<AgentId, (u32, u8)>,
}

impl Topology {
    /// IPUs of one machine (IPU-M2000, Bow-2000).
    pub const MACHINE_IPUS: u32 = 4;
    /// The most machines that one link domain joins: the 16 of a Pod64.
    pub const LINK_DOMAIN_MACHINES: usize = 16;
    /// The most link domains: four times the 1,024 of the largest documented system, and what an index of two levels
    /// of 64-bit words addresses.
    pub const MAX_LINK_DOMAINS: usize = 4096;

    /// The clusters, in order of their link domains' addresses.
    #[must_use]
    pub fn clusters(&self) -> &[Cluster] {
        &self.parts.clusters
    }

    /// The allocations, in the order in which they were given.
    #[must_use]
    pub fn allocations(&self) -> &[Allocation] {
        &self.parts.allocations
    }

    /// The allocation `id`.
    #[must_use]
    pub fn allocation(&self, id: &AllocationId) -> Option<&Allocation> {
        self.parts.allocations.get(self.allocation_number(id)?)
    }

    /// The place of the allocation `id` in the list.
    pub(crate) fn allocation_number(&self, id: &AllocationId) -> Option<usize> {
        self.parts.allocation_numbers.get(id).copied()
    }

    /// How many link domains there are, the addresses of which are `0..link_domains()`.
    #[must_use]
    pub fn link_domains(&self) -> u32 {
        u32::try_from(self.parts.homes.len()).unwrap_or(u32::MAX)
    }

    /// How many machines there are.
    #[must_use]
    pub fn machines(&self) -> u32 {
        u32::try_from(self.parts.machines.len()).unwrap_or(u32::MAX)
    }

    /// How many IPUs there are.
    #[must_use]
    pub fn ipus(&self) -> u32 {
        self.machines() * Self::MACHINE_IPUS
    }

    /// The IPUs of a link domain that exist, bit i for IPU i; 0 for a link domain that does not exist.
    #[must_use]
    pub fn ipu_mask(&self, link_domain: u32) -> u64 {
        self.parts.present.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// The cluster of a link domain, and its number there.
    #[must_use]
    pub fn home(&self, link_domain: u32) -> Option<(&Cluster, u32)> {
        let (cluster, number) = self.parts.homes.get(link_domain as usize)?;
        Some((self.parts.clusters.get(*cluster)?, *number))
    }

    /// The address of the place that a controller names in `cluster`; none if there is no such IPU.
    #[must_use]
    pub fn address(&self, cluster: &ClusterId, place: IpuPlace) -> Option<IpuAddress> {
        let cluster = self
            .parts
            .clusters
            .iter()
            .position(|other| other.id == *cluster)?;
        let first = self.parts.homes.iter().position(|(home, _)| *home == cluster)?;
        let link_domain = u32::try_from(first).ok()?.checked_add(place.link_domain)?;
        let address = IpuAddress {
            link_domain,
            ipu: u8::try_from(place.ipu).ok()?,
        };
        let (home, _) = self.parts.homes.get(link_domain as usize)?;
        (*home == cluster && self.contains(address)).then_some(address)
    }

    /// The words in which a controller names the IPU at `address`: its cluster, and its place there.
    #[must_use]
    pub fn place(&self, address: IpuAddress) -> Option<(&ClusterId, IpuPlace)> {
        let (cluster, number) = self.home(address.link_domain)?;
        let place = IpuPlace {
            link_domain: number,
            ipu: u32::from(address.ipu),
        };
        self.contains(address).then_some((&cluster.id, place))
    }

    /// Whether there is an IPU at `address`.
    #[must_use]
    pub fn contains(&self, address: IpuAddress) -> bool {
        address.ipu < 64 && self.ipu_mask(address.link_domain) >> address.ipu & 1 == 1
    }

    /// The agent of the machine that the IPU at `address` is in.
    #[must_use]
    pub fn agent_at(&self, address: IpuAddress) -> Option<&AgentId> {
        let (cluster, number) = self.home(address.link_domain)?;
        let domain = cluster.link_domains.get(number as usize)?;
        domain.machines.get(usize::from(address.ipu / 4))?.as_ref()
    }

    /// The IPUs of one machine; none if there is no such agent.
    #[must_use]
    pub fn agent_ipus(&self, agent: &AgentId) -> Option<[IpuAddress; 4]> {
        let (link_domain, slot) = *self.parts.machines.get(agent)?;
        Some([0, 1, 2, 3].map(|i| IpuAddress {
            link_domain,
            ipu: 4 * slot + i,
        }))
    }

    /// The agents with the places of their machines.
    pub fn agents(&self) -> impl Iterator<Item = (&AgentId, IpuAddress)> {
        self.parts.machines.iter().map(|(agent, (link_domain, slot))| {
            (
                agent,
                IpuAddress {
                    link_domain: *link_domain,
                    ipu: 4 * slot,
                },
            )
        })
    }

    /// The IPUs of an allocation: for each link domain that it touches, in order, a mask.
    pub(crate) fn masks(&self, allocation: &Allocation) -> BTreeMap<u32, u64> {
        let mut masks = BTreeMap::new();
        for agent in &allocation.agents {
            if let Some((domain, slot)) = self.parts.machines.get(agent) {
                *masks.entry(*domain).or_insert(0) |= 0b1111_u64 << (4 * slot);
            }
        }
        masks
    }
}
