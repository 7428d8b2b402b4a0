//! Controller queries: lists, status, IPU attributes, and a state summary.

use ipu_core::{AgentId, Timestamp};
use ipu_vipu_client::wire::list_ipu_attributes_reply::{Attributes, Entry};
use ipu_vipu_client::wire::{Partition, PartitionOperationState, PartitionReadyState, PartitionStatus};
use serde::Serialize;

use super::lifecycle::MAX_AUTO_RESETS;
use super::{Phase, SimPartition, SimState};
use crate::error::SimError;
use crate::hardware::hardware_id;

/// IPUoF server version that the simulated machines report.
pub(crate) const IPUOF_SERVER_VERSION: &str = "1.18.0-sim";

impl Phase {
    /// Returns the ready state and the operation state of the API.
    pub(super) const fn states(&self) -> (PartitionReadyState, PartitionOperationState) {
        match self {
            Self::Creating { .. } => (
                PartitionReadyState::PsPending,
                PartitionOperationState::PosCreating,
            ),
            Self::Active => (PartitionReadyState::PsActive, PartitionOperationState::PosIdle),
            Self::Resetting { .. } => (
                PartitionReadyState::PsPending,
                PartitionOperationState::PosResetting,
            ),
            Self::Removing { .. } => (
                PartitionReadyState::PsRemoved,
                PartitionOperationState::PosRemoving,
            ),
            Self::Failed { .. } => (PartitionReadyState::PsError, PartitionOperationState::PosFailed),
        }
    }

    /// Returns the display label: `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING`, `ERROR`.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Creating { .. } => "CREATING",
            Self::Active => "ACTIVE",
            Self::Resetting { .. } => "RESETTING",
            Self::Removing { .. } => "REMOVING",
            Self::Failed { .. } => "ERROR",
        }
    }

    pub(crate) fn errors(&self) -> &[String] {
        match self {
            Self::Failed { errors, .. } => errors,
            Self::Creating { .. } | Self::Active | Self::Resetting { .. } | Self::Removing { .. } => &[],
        }
    }
}

impl SimState {
    /// Returns the partitions of one allocation, or of all if `allocation` is empty, ordered by id.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no such allocation.
    pub(crate) fn list(&self, allocation: &str) -> Result<Vec<Partition>, SimError> {
        let all = self.hardware.topology.allocations();
        if !allocation.is_empty() && !all.iter().any(|existing| existing.id.as_str() == allocation) {
            return Err(SimError::invalid(
                "allocation_id",
                format!("{allocation:?}"),
                "unknown allocation",
            ));
        }
        let is_listed =
            |partition: &&SimPartition| allocation.is_empty() || partition.spec.allocation_id == allocation;
        let partitions = self
            .partitions
            .iter()
            .filter(|(_, partition)| is_listed(partition));
        let ready_state = |partition: &SimPartition| partition.phase.states().0.into();
        Ok(partitions
            .map(|(id, partition)| Partition {
                id: id.to_string(),
                spec: Some(partition.spec.clone()),
                ready_state: ready_state(partition),
                ipuof_server_version: IPUOF_SERVER_VERSION.to_owned(),
            })
            .collect())
    }

    /// Returns the status of a partition.
    ///
    /// # Errors
    ///
    /// `NotFound` if the partition does not exist.
    pub(crate) fn status(&self, id: &str) -> Result<PartitionStatus, SimError> {
        let partition = self.partition(id)?;
        let (ready_state, operation_state) = partition.phase.states();
        Ok(PartitionStatus {
            partition_id: id.to_owned(),
            ready_state: ready_state.into(),
            operation_state: operation_state.into(),
            errors: partition.phase.errors().to_vec(),
            max_auto_reset_retries: match partition.auto_reset {
                super::AutoReset::On => MAX_AUTO_RESETS,
                super::AutoReset::Off => 0,
            },
            auto_reset_retry_count: partition.auto_resets,
            last_auto_reset_time: partition.last_auto_reset.map(timestamp),
        })
    }

    /// Returns the stored partition.
    pub(super) fn partition(&self, id: &str) -> Result<&SimPartition, SimError> {
        let existing = self.existing_id(id)?;
        self.partitions
            .get(&existing)
            .ok_or_else(|| SimError::no_partition(id))
    }

    /// Returns the attributes of each IPU by agent; of all agents if `agents` is empty.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no such agent.
    pub(crate) fn attributes(&self, agents: &[String]) -> Result<Vec<Entry>, SimError> {
        let topology = &self.hardware.topology;
        let exists =
            |name: &String| AgentId::new(name.as_str()).is_ok_and(|id| topology.agent_ipus(&id).is_some());
        if let Some(unknown) = agents.iter().find(|name| !exists(name)) {
            return Err(SimError::invalid(
                "agents",
                format!("{unknown:?}"),
                "unknown agent",
            ));
        }
        let mut sorted: Vec<_> = topology.agents().collect();
        sorted.sort_unstable_by_key(|(_, address)| *address);
        let is_requested =
            |agent: &AgentId| agents.is_empty() || agents.iter().any(|name| name == agent.as_str());
        let entries = sorted.into_iter().filter(|(agent, _)| is_requested(agent));
        Ok(entries.map(|(agent, _)| self.attributes_of(agent)).collect())
    }

    fn attributes_of(&self, agent: &AgentId) -> Entry {
        let topology = &self.hardware.topology;
        let allocations = topology
            .allocations()
            .iter()
            .filter(|allocation| allocation.agents.contains(agent));
        let allocations: Vec<&str> = allocations.map(|allocation| allocation.id.as_str()).collect();
        let ipus = topology.agent_ipus(agent).into_iter().flatten();
        let ipu_attributes = ipus.map(|address| {
            let (cluster, number) = topology
                .cluster_of(address.link_domain)
                .map_or(("", 0), |(cluster, number)| (cluster.id.as_str(), number));
            let health = if self.hardware.is_good(address) {
                "ok"
            } else {
                "bad"
            };
            let attributes = [
                ("cluster", cluster.to_owned()),
                ("linkDomain", number.to_string()),
                ("ipu", address.ipu.to_string()),
                ("health", health.to_owned()),
                ("allocation", allocations.join(",")),
            ];
            let attributes = attributes
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
            (hardware_id(address), Attributes { attributes })
        });
        Entry {
            agent: agent.to_string(),
            ipu_attributes: ipu_attributes.collect(),
        }
    }

    /// Returns a summary of the IPU-POD.
    pub(crate) fn pod(&self) -> PodState {
        let inventory = self.inventory();
        let domains = 0..self.hardware.topology.link_domains();
        let free: u32 = domains
            .map(|domain| inventory.free_mask(domain).count_ones())
            .sum();
        let partitions = self.partitions.iter().map(|(id, partition)| PartitionView {
            id: id.to_string(),
            size: partition.spec.ipus.len(),
            gcds: partition.spec.num_gcds,
            allocation: partition.spec.allocation_id.clone(),
            state: partition.phase.label().to_owned(),
            errors: partition.phase.errors().to_vec(),
            auto_resets: partition.auto_resets,
            ipus: self
                .ipu_addresses(&partition.spec)
                .into_iter()
                .map(|address| (address.link_domain, address.ipu))
                .collect(),
        });
        PodState {
            topology: self.hardware.topology.to_string(),
            ipus: self.hardware.topology.ipus(),
            free,
            bad: self
                .hardware
                .bad
                .iter()
                .map(|address| (address.link_domain, address.ipu))
                .collect(),
            partitions: partitions.collect(),
        }
    }
}

/// Summary of the IPU-POD: the response of `GET /sim/state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PodState {
    /// Topology as text.
    pub topology: String,
    /// Number of IPUs.
    pub ipus: u32,
    /// Number of healthy IPUs without a partition.
    pub free: u32,
    /// Unhealthy IPUs, by link domain (over all clusters) and number in it.
    pub bad: Vec<(u32, u8)>,
    /// Partitions, ordered by id.
    pub partitions: Vec<PartitionView>,
}

/// A partition of a [`PodState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PartitionView {
    /// Partition id.
    pub id: String,
    /// Number of IPUs.
    pub size: usize,
    /// Number of graph compilation domains.
    pub gcds: u32,
    /// Allocation that provides its IPUs.
    pub allocation: String,
    /// `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING` or `ERROR`.
    pub state: String,
    /// Current errors.
    pub errors: Vec<String>,
    /// Automatic resets since it failed.
    pub auto_resets: u32,
    /// IPUs in routing order, by link domain (over all clusters) and number in it.
    pub ipus: Vec<(u32, u8)>,
}

/// Converts a time to the API's form.
fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let millis = time.as_millis();
    prost_types::Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or(0),
    }
}
