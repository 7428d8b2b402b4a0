//! The simulated hardware: a [`Topology`] that an administrator can change, and the health of each IPU.

use std::collections::BTreeSet;

use ipu_core::hardware::{Allocation, IpuAddress, IpuPlace, Topology};
use ipu_core::{AgentId, ClusterId};
use serde::{Deserialize, Serialize};

/// Topology and IPU health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Hardware {
    pub(crate) topology: Topology,
    /// Unhealthy IPUs.
    #[serde(default)]
    pub(crate) bad: BTreeSet<IpuAddress>,
}

impl Hardware {
    /// Creates healthy hardware.
    pub(crate) const fn new(topology: Topology) -> Self {
        Self {
            topology,
            bad: BTreeSet::new(),
        }
    }

    /// Returns whether the IPU exists and is healthy.
    pub(crate) fn is_good(&self, address: IpuAddress) -> bool {
        self.topology.contains(address) && !self.bad.contains(&address)
    }

    /// Returns the index of a link domain within its cluster, as used by the API.
    pub(crate) fn number_in_cluster(&self, link_domain: u32) -> u32 {
        self.topology
            .cluster_of(link_domain)
            .map_or(0, |(_, number)| number)
    }

    /// Resolves an IPU from the API's coordinates: cluster, link domain index and IPU index.
    pub(crate) fn find(&self, cluster: &ClusterId, number: u32, ipu: u32) -> Option<IpuAddress> {
        self.topology.address(
            cluster,
            IpuPlace {
                link_domain: number,
                ipu,
            },
        )
    }

    /// Returns whether an IPU belongs to an allocation.
    pub(crate) fn is_in(&self, address: IpuAddress, allocation: &Allocation) -> bool {
        self.topology
            .agent_at(address)
            .is_some_and(|agent| allocation.agents.contains(agent))
    }

    /// Returns the IPU of an agent with this hardware id.
    pub(crate) fn ipu_of_agent(&self, agent: &AgentId, hardware: u32) -> Option<IpuAddress> {
        let ipus = self.topology.agent_ipus(agent)?;
        ipus.into_iter().find(|address| hardware_id(*address) == hardware)
    }

    /// Describes an IPU for messages: agent, hardware id and position.
    pub(crate) fn describe(&self, address: IpuAddress) -> String {
        let number = self.number_in_cluster(address.link_domain);
        match self.topology.agent_at(address) {
            Some(agent) => {
                let id = hardware_id(address);
                format!(
                    "IPU {id} of agent {agent} (IPU {} of link domain {number})",
                    address.ipu
                )
            }
            None => format!("IPU {} of link domain {number}", address.ipu),
        }
    }
}

/// Returns the hardware id of an IPU in its machine. The first IPU in link order has id 3, the last has id
/// 0, as in public device listings.
pub(crate) fn hardware_id(address: IpuAddress) -> u32 {
    3 - u32::from(address.ipu % 4)
}
