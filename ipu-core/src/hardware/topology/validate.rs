//! Validation of clusters and allocations.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Allocation, Cluster, Topology, TopologyError, TopologyParts};
use crate::ids::AllocationId;

/// The serialised form of a [`Topology`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Raw {
    clusters: Vec<Cluster>,
    #[serde(default)]
    allocations: Option<Vec<Allocation>>,
}

impl Topology {
    /// Creates a topology of these clusters. Without `allocations` each cluster gets one of its own id and
    /// all its agents.
    ///
    /// # Errors
    ///
    /// [`TopologyError`] for the first broken rule.
    pub fn new(clusters: Vec<Cluster>, allocations: Option<Vec<Allocation>>) -> Result<Self, TopologyError> {
        let mut parts = TopologyParts::default();
        for cluster in clusters {
            parts.add_cluster(cluster)?;
        }
        if parts.machines.is_empty() {
            return Err(TopologyError::NoMachines);
        }
        let allocations = match allocations {
            Some(allocations) => allocations,
            None => parts.default_allocations()?,
        };
        for allocation in allocations {
            parts.add_allocation(allocation)?;
        }
        Ok(Self {
            parts: Arc::new(parts),
        })
    }
}

impl TopologyParts {
    fn add_cluster(&mut self, cluster: Cluster) -> Result<(), TopologyError> {
        if self.clusters.iter().any(|other| other.id == cluster.id) {
            return Err(TopologyError::DuplicateCluster { cluster: cluster.id });
        }
        for (number, domain) in (0..).zip(&cluster.link_domains) {
            let index = self.homes.len();
            if index >= Topology::MAX_LINK_DOMAINS {
                return Err(TopologyError::TooManyLinkDomains);
            }
            if domain.machines.len() > Topology::LINK_DOMAIN_MACHINES {
                return Err(TopologyError::TooManyMachines {
                    cluster: cluster.id,
                    link_domain: number,
                    machines: domain.machines.len(),
                });
            }
            let mut present = 0;
            for (slot, agent) in (0_u8..).zip(&domain.machines) {
                let Some(agent) = agent else { continue };
                present |= 0b1111 << (4 * slot);
                let at = (u32::try_from(index).unwrap_or(u32::MAX), slot);
                if self.machines.insert(agent.clone(), at).is_some() {
                    return Err(TopologyError::DuplicateAgent { agent: agent.clone() });
                }
            }
            self.homes.push((self.clusters.len(), number));
            self.present.push(present);
        }
        self.clusters.push(cluster);
        Ok(())
    }

    fn default_allocations(&self) -> Result<Vec<Allocation>, TopologyError> {
        let mut allocations = Vec::new();
        for cluster in &self.clusters {
            let agents: BTreeSet<_> = cluster
                .link_domains
                .iter()
                .flat_map(|domain| domain.machines.iter().flatten().cloned())
                .collect();
            if agents.is_empty() {
                continue;
            }
            let id = AllocationId::new(cluster.id.as_str()).map_err(TopologyError::Name)?;
            allocations.push(Allocation {
                id,
                cluster: cluster.id.clone(),
                agents,
            });
        }
        Ok(allocations)
    }

    fn add_allocation(&mut self, allocation: Allocation) -> Result<(), TopologyError> {
        if self.allocation_numbers.contains_key(&allocation.id) {
            return Err(TopologyError::DuplicateAllocation {
                allocation: allocation.id,
            });
        }
        let Some(cluster) = self
            .clusters
            .iter()
            .position(|cluster| cluster.id == allocation.cluster)
        else {
            return Err(TopologyError::UnknownCluster {
                allocation: allocation.id,
                cluster: allocation.cluster,
            });
        };
        if allocation.agents.is_empty() {
            return Err(TopologyError::EmptyAllocation {
                allocation: allocation.id,
            });
        }
        for agent in &allocation.agents {
            let home = self
                .machines
                .get(agent)
                .and_then(|(domain, _)| self.homes.get(*domain as usize));
            if home.is_none_or(|(home, _)| *home != cluster) {
                return Err(TopologyError::ForeignAgent {
                    agent: agent.clone(),
                    allocation: allocation.id,
                    cluster: allocation.cluster,
                });
            }
        }
        let number = self.allocations.len();
        let shares = |other: &Allocation| !other.agents.is_disjoint(&allocation.agents);
        let sharing = (0..).zip(&self.allocations).filter(|(_, other)| shares(other));
        self.sharing_allocations
            .extend(sharing.map(|(other, _)| (other, number)));
        self.allocation_numbers.insert(allocation.id.clone(), number);
        self.allocations.push(allocation);
        Ok(())
    }
}

impl TryFrom<Raw> for Topology {
    type Error = TopologyError;

    fn try_from(raw: Raw) -> Result<Self, TopologyError> {
        Self::new(raw.clusters, raw.allocations)
    }
}

impl From<Topology> for Raw {
    fn from(topology: Topology) -> Self {
        Self {
            clusters: topology.parts.clusters.clone(),
            allocations: Some(topology.parts.allocations.clone()),
        }
    }
}
