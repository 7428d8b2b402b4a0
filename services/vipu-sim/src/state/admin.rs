//! Administrator changes: agents, allocations, health and delays. Resources in use by a partition cannot be
//! removed.

use std::collections::BTreeSet;

use ipu_core::hardware::{Allocation, Cluster, IpuAddress, LinkDomain, Topology};
use ipu_core::{AgentId, AllocationId, ClusterId, PartitionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Settings, SimState};
use crate::error::SimError;

/// A machine to add to the IPU-POD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NewAgent {
    pub(crate) id: AgentId,
    /// Cluster, which is created if missing.
    pub(crate) cluster: ClusterId,
    /// Link domain in the cluster; at most one more than exist.
    #[serde(default)]
    pub(crate) link_domain: u32,
    /// Slot in the link domain, 0 to 15; the first empty slot if absent.
    #[serde(default)]
    pub(crate) slot: Option<usize>,
    /// Allocations that it joins.
    #[serde(default)]
    pub(crate) allocations: Vec<AllocationId>,
}

/// Health of one IPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Health {
    Ok,
    Bad,
}

impl SimState {
    /// Adds a machine to the IPU-POD.
    pub(crate) fn add_agent(&mut self, new: NewAgent, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let topology = &self.hardware.topology;
        if topology.agent_ipus(&new.id).is_some() {
            return Err(SimError::AlreadyExists {
                kind: "agent",
                id: new.id.into(),
            });
        }
        let mut clusters = topology.clusters().to_vec();
        let mut allocations = topology.allocations().to_vec();
        let cluster_index = clusters
            .iter()
            .position(|cluster| cluster.id == new.cluster)
            .unwrap_or(clusters.len());
        if cluster_index == clusters.len() {
            clusters.push(Cluster {
                id: new.cluster.clone(),
                link_domains: Vec::new(),
            });
        }
        let domains = &mut clusters[cluster_index].link_domains;
        let domain_index = new.link_domain as usize;
        if domain_index > domains.len() {
            let rule = format!(
                "the next new link domain of cluster {} is {}",
                new.cluster,
                domains.len()
            );
            return Err(SimError::invalid("linkDomain", new.link_domain, rule));
        }
        if domain_index == domains.len() {
            // A new domain before others would renumber them.
            if cluster_index + 1 != clusters.len() {
                let rule = "only the last cluster accepts a new link domain";
                return Err(SimError::invalid("linkDomain", new.link_domain, rule));
            }
            clusters[cluster_index].link_domains.push(LinkDomain::default());
        }
        let machines = &mut clusters[cluster_index].link_domains[domain_index].machines;
        let free = machines
            .iter()
            .position(Option::is_none)
            .unwrap_or(machines.len());
        let slot = new.slot.unwrap_or(free);
        if slot >= Topology::LINK_DOMAIN_MACHINES {
            return Err(SimError::invalid(
                "slot",
                slot,
                "a link domain has the slots 0 to 15",
            ));
        }
        machines.resize(machines.len().max(slot + 1), None);
        if let Some(other) = &machines[slot] {
            return Err(SimError::invalid(
                "slot",
                slot,
                format!("in use by agent {other}"),
            ));
        }
        machines[slot] = Some(new.id.clone());
        for id in new.allocations {
            match allocations.iter_mut().find(|allocation| allocation.id == id) {
                Some(allocation) => drop(allocation.agents.insert(new.id.clone())),
                None => allocations.push(Allocation {
                    id,
                    cluster: new.cluster.clone(),
                    agents: BTreeSet::from([new.id.clone()]),
                }),
            }
        }
        self.rebuild(clusters, allocations)
    }

    /// Removes an unused machine from the IPU-POD; the other IPUs keep their numbers.
    pub(crate) fn remove_agent(&mut self, id: &str, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let agent = self.agent(id)?;
        let ipus = self.hardware.topology.agent_ipus(&agent).into_iter().flatten();
        let users: BTreeSet<_> = ipus.clone().filter_map(|ipu| self.holder(ipu)).collect();
        if let Some(user) = users.first() {
            let state = format!("used by partition {user}");
            return Err(SimError::Busy {
                kind: "agent",
                id: id.to_owned(),
                state,
                fix: "remove the partition first",
            });
        }
        let removed: BTreeSet<IpuAddress> = ipus.collect();
        let mut clusters = self.hardware.topology.clusters().to_vec();
        let slots = clusters.iter_mut().flat_map(|cluster| &mut cluster.link_domains);
        for slot in slots.flat_map(|domain| &mut domain.machines) {
            if slot.as_ref() == Some(&agent) {
                *slot = None;
            }
        }
        let mut allocations = self.hardware.topology.allocations().to_vec();
        for allocation in &mut allocations {
            allocation.agents.remove(&agent);
        }
        allocations.retain(|allocation| !allocation.agents.is_empty());
        self.rebuild(clusters, allocations)?;
        self.hardware.bad.retain(|ipu| !removed.contains(ipu));
        Ok(())
    }

    /// Creates an allocation of agents of one cluster.
    pub(crate) fn add_allocation(&mut self, new: Allocation, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        if self.hardware.topology.allocation(&new.id).is_some() {
            return Err(SimError::AlreadyExists {
                kind: "allocation",
                id: new.id.into(),
            });
        }
        let mut allocations = self.hardware.topology.allocations().to_vec();
        allocations.push(new);
        self.rebuild(self.hardware.topology.clusters().to_vec(), allocations)
    }

    /// Removes an allocation without partitions.
    pub(crate) fn remove_allocation(&mut self, id: &str, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let mut allocations = self.hardware.topology.allocations().to_vec();
        let before = allocations.len();
        allocations.retain(|allocation| allocation.id.as_str() != id);
        if allocations.len() == before {
            return Err(SimError::NotFound {
                kind: "allocation",
                id: id.to_owned(),
            });
        }
        let mut partitions = self.partitions.iter();
        if let Some((user, _)) = partitions.find(|(_, partition)| partition.spec.allocation_id == id) {
            let state = format!("used by partition {user}");
            return Err(SimError::Busy {
                kind: "allocation",
                id: id.to_owned(),
                state,
                fix: "remove the partition first",
            });
        }
        self.rebuild(self.hardware.topology.clusters().to_vec(), allocations)
    }

    /// Sets the health of an IPU, given by its hardware id. Active partitions on a bad IPU fail at once.
    pub(crate) fn set_health(
        &mut self,
        agent: &str,
        hardware: u32,
        health: Health,
        now: Timestamp,
    ) -> Result<(), SimError> {
        self.advance(now);
        let id = self.agent(agent)?;
        let ipu = self
            .hardware
            .ipu_of_agent(&id, hardware)
            .ok_or_else(|| SimError::NotFound {
                kind: "IPU",
                id: format!("{agent}/{hardware}"),
            })?;
        match health {
            Health::Ok => self.hardware.bad.remove(&ipu),
            Health::Bad => self.hardware.bad.insert(ipu),
        };
        self.fail_unhealthy_partitions();
        Ok(())
    }

    /// Makes the first IPU of a partition bad.
    pub(crate) fn break_partition(&mut self, id: &PartitionId, now: Timestamp) -> Result<(), SimError> {
        self.advance(now);
        let partition = self.partitions.get(id).ok_or_else(|| SimError::NotFound {
            kind: "partition",
            id: id.to_string(),
        })?;
        let first = self.ipu_addresses(&partition.spec).first().copied();
        self.hardware.bad.extend(first);
        self.fail_unhealthy_partitions();
        Ok(())
    }

    /// Changes the durations of later operations.
    pub(crate) fn set_settings(&mut self, settings: Settings, now: Timestamp) {
        self.advance(now);
        self.settings = settings;
    }

    fn agent(&self, id: &str) -> Result<AgentId, SimError> {
        let existing = AgentId::new(id)
            .ok()
            .filter(|id| self.hardware.topology.agent_ipus(id).is_some());
        existing.ok_or_else(|| SimError::NotFound {
            kind: "agent",
            id: id.to_owned(),
        })
    }

    fn rebuild(&mut self, clusters: Vec<Cluster>, allocations: Vec<Allocation>) -> Result<(), SimError> {
        let topology = Topology::new(clusters, Some(allocations))
            .map_err(|error| SimError::invalid("topology", "refused", error.to_string()))?;
        self.hardware.topology = topology;
        Ok(())
    }
}
