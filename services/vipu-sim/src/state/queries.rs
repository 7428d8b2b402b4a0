//! What the controller tells: lists, status, IPU attributes, and the whole state for people and tests.

use ipu_core::{AgentId, Timestamp};
use ipu_vipu_client::wire::list_ipu_attributes_reply::{Attributes, Entry};
use ipu_vipu_client::wire::{Partition, PartitionOperationState, PartitionReadyState, PartitionStatus};
use serde::Serialize;

use super::lifecycle::MAX_AUTO_RESETS;
use super::{Phase, SimPartition, SimState};
use crate::error::SimError;
use crate::hardware::hardware_id;

/// The version of the IPUoF servers that the simulated machines report.
pub(crate) const IPUOF_SERVER_VERSION: &str = "1.18.0-sim";

impl Phase {
    /// The two states in which the API tells it.
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

    /// The word that people read: `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING`, `ERROR`.
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
    /// The partitions of one allocation, or of all if `allocation` is empty, in order of id.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no such allocation.
    pub(crate) fn list(&self, allocation: &str) -> Result<Vec<Partition>, SimError> {
        let all = self.hardware.topology.allocations();
        if !allocation.is_empty() && !all.iter().any(|of| of.id.as_str() == allocation) {
            return Err(SimError::invalid(
                "allocation_id",
                format!("{allocation:?}"),
                "no such allocation",
            ));
        }
        let listed = |held: &&SimPartition| allocation.is_empty() || held.spec.allocation_id == allocation;
        let partitions = self.partitions.iter().filter(|(_, held)| listed(held));
        let tell = |held: &SimPartition| held.phase.states().0.into();
        Ok(partitions
            .map(|(id, held)| Partition {
                id: id.to_string(),
                spec: Some(held.spec.clone()),
                ready_state: tell(held),
                ipuof_server_version: IPUOF_SERVER_VERSION.to_owned(),
            })
            .collect())
    }

    /// How a partition is.
    ///
    /// # Errors
    ///
    /// `NotFound` if it is gone or never was.
    pub(crate) fn status(&self, id: &str) -> Result<PartitionStatus, SimError> {
        let held = self.held(id)?;
        let (ready_state, operation_state) = held.phase.states();
        Ok(PartitionStatus {
            partition_id: id.to_owned(),
            ready_state: ready_state.into(),
            operation_state: operation_state.into(),
            errors: held.phase.errors().to_vec(),
            max_auto_reset_retries: match held.auto_reset {
                super::AutoReset::On => MAX_AUTO_RESETS,
                super::AutoReset::Off => 0,
            },
            auto_reset_retry_count: held.auto_resets,
            last_auto_reset_time: held.last_auto_reset.map(timestamp),
        })
    }

    /// The stored partition.
    pub(super) fn held(&self, id: &str) -> Result<&SimPartition, SimError> {
        let known = self.known(id)?;
        self.partitions
            .get(&known)
            .ok_or_else(|| SimError::no_partition(id))
    }

    /// What is told of each IPU, by agent; of all agents if none is named.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is no such agent.
    pub(crate) fn attributes(&self, agents: &[String]) -> Result<Vec<Entry>, SimError> {
        let topology = &self.hardware.topology;
        let known =
            |name: &String| AgentId::new(name.as_str()).is_ok_and(|id| topology.agent_ipus(&id).is_some());
        if let Some(unknown) = agents.iter().find(|name| !known(name)) {
            return Err(SimError::invalid(
                "agents",
                format!("{unknown:?}"),
                "no such agent",
            ));
        }
        let mut placed: Vec<_> = topology.agents().collect();
        placed.sort_unstable_by_key(|(_, at)| *at);
        let asked = |agent: &AgentId| agents.is_empty() || agents.iter().any(|name| name == agent.as_str());
        let entries = placed.into_iter().filter(|(agent, _)| asked(agent));
        Ok(entries.map(|(agent, _)| self.attributes_of(agent)).collect())
    }

    fn attributes_of(&self, agent: &AgentId) -> Entry {
        let topology = &self.hardware.topology;
        let allocations = topology
            .allocations()
            .iter()
            .filter(|of| of.agents.contains(agent));
        let allocations: Vec<&str> = allocations.map(|of| of.id.as_str()).collect();
        let ipus = topology.agent_ipus(agent).into_iter().flatten();
        let ipu_attributes = ipus.map(|at| {
            let (cluster, number) = topology
                .home(at.link_domain)
                .map_or(("", 0), |(cluster, number)| (cluster.id.as_str(), number));
            let health = if self.hardware.is_good(at) { "ok" } else { "bad" };
            let attributes = [
                ("cluster", cluster.to_owned()),
                ("linkDomain", number.to_string()),
                ("ipu", at.ipu.to_string()),
                ("health", health.to_owned()),
                ("allocation", allocations.join(",")),
            ];
            let attributes = attributes
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
            (hardware_id(at), Attributes { attributes })
        });
        Entry {
            agent: agent.to_string(),
            ipu_attributes: ipu_attributes.collect(),
        }
    }

    /// The whole Pod in brief.
    pub(crate) fn pod(&self) -> PodState {
        let inventory = self.inventory();
        let domains = 0..self.hardware.topology.link_domains();
        let free: u32 = domains
            .map(|domain| inventory.free_mask(domain).count_ones())
            .sum();
        let partitions = self.partitions.iter().map(|(id, held)| PartitionView {
            id: id.to_string(),
            size: held.spec.ipus.len(),
            gcds: held.spec.num_gcds,
            allocation: held.spec.allocation_id.clone(),
            state: held.phase.label().to_owned(),
            errors: held.phase.errors().to_vec(),
            auto_resets: held.auto_resets,
            ipus: self
                .places(&held.spec)
                .into_iter()
                .map(|at| (at.link_domain, at.ipu))
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
                .map(|at| (at.link_domain, at.ipu))
                .collect(),
            partitions: partitions.collect(),
        }
    }
}

/// The whole Pod in brief: what `GET /sim/state` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PodState {
    /// The topology as text.
    pub topology: String,
    /// How many IPUs there are.
    pub ipus: u32,
    /// How many are healthy and in no partition.
    pub free: u32,
    /// The IPUs that are not healthy, by link domain (over all clusters) and number in it.
    pub bad: Vec<(u32, u8)>,
    /// The partitions, in order of id.
    pub partitions: Vec<PartitionView>,
}

/// One partition of a [`PodState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PartitionView {
    /// Its id.
    pub id: String,
    /// How many IPUs it has.
    pub size: usize,
    /// How many graph compilation domains it has.
    pub gcds: u32,
    /// The allocation that it draws from.
    pub allocation: String,
    /// `CREATING`, `ACTIVE`, `RESETTING`, `REMOVING` or `ERROR`.
    pub state: String,
    /// What is wrong with it.
    pub errors: Vec<String>,
    /// How often the controller has tried to repair it since it failed.
    pub auto_resets: u32,
    /// Its IPUs in routing order, by link domain (over all clusters) and number in it.
    pub ipus: Vec<(u32, u8)>,
}

/// A time in the API's form.
fn timestamp(at: Timestamp) -> pbjson_types::Timestamp {
    let millis = at.as_millis();
    pbjson_types::Timestamp {
        seconds: i64::try_from(millis / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap_or(0),
    }
}
