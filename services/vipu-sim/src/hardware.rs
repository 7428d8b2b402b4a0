//! What the simulated controller manages: a [`Topology`] that an administrator may change, and the health of each IPU.

use std::collections::BTreeSet;

use ipu_core::{AgentId, Allocation, ClusterId, IpuAddress, IpuPlace, Topology};
use serde::{Deserialize, Serialize};

/// Topology and health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Hardware {
    pub(crate) topology: Topology,
    /// The IPUs that are not healthy.
    #[serde(default)]
    pub(crate) bad: BTreeSet<IpuAddress>,
}

impl Hardware {
    /// Healthy hardware.
    pub(crate) const fn new(topology: Topology) -> Self {
        Self {
            topology,
            bad: BTreeSet::new(),
        }
    }

    /// Whether the IPU exists and is healthy.
    pub(crate) fn is_good(&self, at: IpuAddress) -> bool {
        self.topology.contains(at) && !self.bad.contains(&at)
    }

    /// The number of a link domain in its own cluster, which is the number that the API speaks of.
    pub(crate) fn number_in_cluster(&self, link_domain: u32) -> u32 {
        self.topology.home(link_domain).map_or(0, |(_, number)| number)
    }

    /// The IPU that the API calls `ipu` of the link domain `number` of a cluster.
    pub(crate) fn find(&self, cluster: &ClusterId, number: u32, ipu: u32) -> Option<IpuAddress> {
        self.topology.address(
            cluster,
            IpuPlace {
                link_domain: number,
                ipu,
            },
        )
    }

    /// Whether an IPU belongs to an allocation.
    pub(crate) fn is_in(&self, at: IpuAddress, allocation: &Allocation) -> bool {
        self.topology
            .agent_at(at)
            .is_some_and(|agent| allocation.agents.contains(agent))
    }

    /// The IPU of an agent with this hardware id.
    pub(crate) fn ipu_of_agent(&self, agent: &AgentId, hardware: u32) -> Option<IpuAddress> {
        let ipus = self.topology.agent_ipus(agent)?;
        ipus.into_iter().find(|at| hardware_id(*at) == hardware)
    }

    /// An IPU in words that a person can follow: agent, hardware id and place.
    pub(crate) fn describe(&self, at: IpuAddress) -> String {
        let number = self.number_in_cluster(at.link_domain);
        match self.topology.agent_at(at) {
            Some(agent) => {
                let id = hardware_id(at);
                format!(
                    "IPU {id} of agent {agent} (IPU {} of link domain {number})",
                    at.ipu
                )
            }
            None => format!("IPU {} of link domain {number}", at.ipu),
        }
    }
}

/// The number of an IPU in its machine as the hardware counts: the first one in link order has number 3, the last one 0
/// (public listings of devices show this order).
pub(crate) fn hardware_id(at: IpuAddress) -> u32 {
    3 - u32::from(at.ipu % 4)
}
