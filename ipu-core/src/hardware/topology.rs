//! Hardware topology: clusters of link domains of machines of four IPUs, and the allocations that partitions
//! draw from. Immutable; holders are recorded in the inventory.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::hardware::partition::IpuPlace;
use crate::ids::{AgentId, AllocationId, ClusterId};

mod discovery;
mod error;
mod parse;
mod validate;

pub use discovery::{AgentAttributes, DiscoveredTopology};
pub use error::TopologyError;

/// Address of one IPU in a [`Topology`], in the order of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// Link domains joined by GW-links. No partition spans two clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// Its id at the controller.
    pub id: ClusterId,
    /// Its link domains; the index is the number of the link domain in the cluster.
    pub link_domains: Vec<LinkDomain>,
}

/// Up to 16 machines joined by IPU-Links: one rack of an IPU-POD64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct LinkDomain {
    /// The agent of each machine, in the order of their IPUs; none where a slot is empty.
    pub machines: Vec<Option<AgentId>>,
}

/// A named set of agents inside one cluster. A partition draws all its IPUs from one allocation; allocations
/// may share agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allocation {
    /// Its id at the controller.
    pub id: AllocationId,
    /// The cluster of its agents.
    pub cluster: ClusterId,
    /// Its agents.
    pub agents: BTreeSet<AgentId>,
}

/// The hardware that one controller (real or simulated) manages.
///
/// Created from a preset (`"pod16"`), from compact text (`"2x16,1x4"`), from the agents that a controller
/// lists ([`Topology::from_agents`]) or from its serialised form:
///
/// ```json
/// {"clusters": [{"id": "cl1", "linkDomains": [["a1", "a2"], ["a3", null, "a4"]]}],
///  "allocations": [{"id": "left", "cluster": "cl1", "agents": ["a1", "a2"]}]}
/// ```
///
/// Without `allocations` each cluster has one of the same id with all its agents. This is a reading of the
/// public record: an allocation option that takes the same names replaced the cluster option of the tools.
///
/// Cloning is cheap: clones share the data.
///
/// ```
/// use ipu_core::hardware::Topology;
///
/// let topology: Topology = "2x16".parse()?;
/// assert_eq!((topology.link_domains(), topology.ipus()), (2, 128));
/// assert_eq!(Topology::pod64().ipus(), 64);
/// # Ok::<(), ipu_core::hardware::TopologyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "validate::Raw", into = "validate::Raw")]
pub struct Topology {
    parts: Arc<TopologyParts>,
}

/// The data of a topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TopologyParts {
    clusters: Vec<Cluster>,
    allocations: Vec<Allocation>,
    /// Index of each allocation.
    allocation_numbers: BTreeMap<AllocationId, usize>,
    /// Indices of each two allocations that share agents, the smaller one first.
    sharing_allocations: BTreeSet<(usize, usize)>,
    /// For each link domain: index of its cluster, and its number in the cluster.
    homes: Vec<(usize, u32)>,
    /// For each link domain: the IPUs that exist, bit i for IPU i.
    present: Vec<u64>,
    /// Position of the machine of each agent: link domain and slot.
    machines: BTreeMap<AgentId, (u32, u8)>,
}

impl Topology {
    /// IPUs of one machine (IPU-M2000, Bow-2000).
    pub const MACHINE_IPUS: u32 = 4;
    /// Maximum number of machines of a link domain: the 16 of an IPU-POD64.
    pub const LINK_DOMAIN_MACHINES: usize = 16;
    /// Maximum number of link domains: four times the 1,024 of the largest documented system, which an index
    /// of two levels of 64-bit words addresses.
    pub const MAX_LINK_DOMAINS: usize = 4096;

    /// Returns the clusters, in order of their link domains' addresses.
    #[must_use]
    pub fn clusters(&self) -> &[Cluster] {
        &self.parts.clusters
    }

    /// Returns the allocations, in the given order.
    #[must_use]
    pub fn allocations(&self) -> &[Allocation] {
        &self.parts.allocations
    }

    /// Returns the allocation `id`.
    #[must_use]
    pub fn allocation(&self, id: &AllocationId) -> Option<&Allocation> {
        self.parts.allocations.get(self.allocation_number(id)?)
    }

    /// Returns the index of the allocation `id`.
    pub(crate) fn allocation_number(&self, id: &AllocationId) -> Option<usize> {
        self.parts.allocation_numbers.get(id).copied()
    }

    /// Returns whether two existing allocations have agents in common.
    #[must_use]
    pub fn share_agents(&self, one: &AllocationId, other: &AllocationId) -> bool {
        let numbers = self.allocation_number(one).zip(self.allocation_number(other));
        numbers.is_some_and(|(one, other)| {
            let sharing = &self.parts.sharing_allocations;
            one == other || sharing.contains(&(one.min(other), one.max(other)))
        })
    }

    /// Returns the number of link domains, whose addresses are `0..link_domains()`.
    #[must_use]
    pub fn link_domains(&self) -> u32 {
        u32::try_from(self.parts.homes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of machines.
    #[must_use]
    pub fn machines(&self) -> u32 {
        u32::try_from(self.parts.machines.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of IPUs.
    #[must_use]
    pub fn ipus(&self) -> u32 {
        self.machines() * Self::MACHINE_IPUS
    }

    /// Returns the existing IPUs of a link domain, bit i for IPU i; 0 if the link domain does not exist.
    #[must_use]
    pub fn ipu_mask(&self, link_domain: u32) -> u64 {
        self.parts.present.get(link_domain as usize).copied().unwrap_or(0)
    }

    /// Returns the cluster of a link domain, and its number there.
    #[must_use]
    pub fn cluster_of(&self, link_domain: u32) -> Option<(&Cluster, u32)> {
        let (cluster, number) = self.parts.homes.get(link_domain as usize)?;
        Some((self.parts.clusters.get(*cluster)?, *number))
    }

    /// Converts a place in the controller's numbering in `cluster` to an address; none if there is no such
    /// IPU.
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

    /// Converts an address to the controller's numbering: the cluster, and the place in it.
    #[must_use]
    pub fn place(&self, address: IpuAddress) -> Option<(&ClusterId, IpuPlace)> {
        let (cluster, number) = self.cluster_of(address.link_domain)?;
        let place = IpuPlace {
            link_domain: number,
            ipu: u32::from(address.ipu),
        };
        self.contains(address).then_some((&cluster.id, place))
    }

    /// Returns whether there is an IPU at `address`.
    #[must_use]
    pub fn contains(&self, address: IpuAddress) -> bool {
        address.ipu < 64 && self.ipu_mask(address.link_domain) >> address.ipu & 1 == 1
    }

    /// Returns the agent of the machine with the IPU at `address`.
    ///
    /// ```
    /// use ipu_core::hardware::{IpuAddress, Topology};
    ///
    /// let topology = Topology::pod16();
    /// let agent = topology.agent_at(IpuAddress { link_domain: 0, ipu: 5 }).expect("the topology has the IPU");
    /// assert_eq!(topology.agent_ipus(agent).expect("the topology has the machine")[1].ipu, 5);
    /// ```
    #[must_use]
    pub fn agent_at(&self, address: IpuAddress) -> Option<&AgentId> {
        let (cluster, number) = self.cluster_of(address.link_domain)?;
        let domain = cluster.link_domains.get(number as usize)?;
        domain.machines.get(usize::from(address.ipu / 4))?.as_ref()
    }

    /// Iterates over the agents of a link domain in the order of their IPUs.
    #[cfg(feature = "allocator")]
    pub(crate) fn link_domain_agents(&self, link_domain: u32) -> impl Iterator<Item = &AgentId> {
        let home = self.cluster_of(link_domain);
        let domain = home.and_then(|(cluster, number)| cluster.link_domains.get(number as usize));
        domain
            .into_iter()
            .flat_map(|domain| domain.machines.iter().flatten())
    }

    /// Returns the IPUs of one machine; none if there is no such agent.
    #[must_use]
    pub fn agent_ipus(&self, agent: &AgentId) -> Option<[IpuAddress; 4]> {
        let (link_domain, slot) = *self.parts.machines.get(agent)?;
        Some([0, 1, 2, 3].map(|i| IpuAddress {
            link_domain,
            ipu: 4 * slot + i,
        }))
    }

    /// Iterates over the agents with the first IPU of their machines.
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

    /// Returns the IPUs of an allocation: a mask for each of its link domains, in order.
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
