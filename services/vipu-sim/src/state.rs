//! The simulated controller as a pure state machine: the state at a time is a function of the stored state
//! and that time. Nothing here reads a clock, a file or the network.
//!
//! ```text
//! create → (PENDING, CREATING) → (ACTIVE, IDLE) ⇄ reset (PENDING, RESETTING)
//! any    → remove (REMOVED, REMOVING) → deleted
//! a bad IPU → (ERROR, FAILED) → automatic resets → (PENDING, RESETTING) → …
//! ```

mod admin;
mod create;
mod ipuof;
mod lifecycle;
mod placement;
mod queries;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::hardware::{IpuAddress, Topology};
use ipu_core::{ClusterId, PartitionId, Timestamp};
use ipu_vipu_client::wire;
use serde::{Deserialize, Serialize};

pub(crate) use admin::{Health, NewAgent};
pub(crate) use lifecycle::{Force, Relocation};
pub use queries::{PartitionView, PodState};

use crate::hardware::Hardware;

/// Format version that this build reads and writes.
pub(crate) const FORMAT: u32 = 1;

/// Durations of operations in milliseconds. Stored with the state, so that all processes that serve it
/// agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) create_ms: u64,
    pub(crate) reset_ms: u64,
    pub(crate) remove_ms: u64,
    /// Time from a failure to the first automatic reset, and between attempts.
    pub(crate) auto_reset_ms: u64,
}

impl Settings {
    /// Sets every duration to `delay`; automatic resets wait at least [`AUTO_RESET_MS`].
    pub(crate) fn all(delay: Duration) -> Self {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Self {
            create_ms: ms,
            reset_ms: ms,
            remove_ms: ms,
            auto_reset_ms: ms.max(AUTO_RESET_MS),
        }
    }
}

/// Long enough for a person to see the error before the repair.
const AUTO_RESET_MS: u64 = 1_000;

/// The phase of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, tag = "phase")]
pub(crate) enum Phase {
    #[serde(rename_all = "camelCase")]
    Creating {
        done_at: Timestamp,
    },
    Active,
    #[serde(rename_all = "camelCase")]
    Resetting {
        done_at: Timestamp,
    },
    #[serde(rename_all = "camelCase")]
    Removing {
        done_at: Timestamp,
    },
    #[serde(rename_all = "camelCase")]
    Failed {
        errors: Vec<String>,
        next_attempt: Option<Timestamp>,
    },
}

/// A stored partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SimPartition {
    /// The specification in the API's form, with IPUs in routing order.
    pub(crate) spec: wire::PartitionSpec,
    pub(crate) phase: Phase,
    pub(crate) auto_reset: AutoReset,
    pub(crate) relocatable: bool,
    pub(crate) auto_resets: u32,
    pub(crate) last_auto_reset: Option<Timestamp>,
}

/// The automatic reset mode of a failed partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AutoReset {
    On,
    Off,
}

/// The complete state of the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SimState {
    pub(crate) format: u32,
    /// The initial topology, to detect a file of another IPU-POD.
    pub(crate) origin: Topology,
    pub(crate) hardware: Hardware,
    pub(crate) settings: Settings,
    /// Time up to which all due events are applied.
    pub(crate) now: Timestamp,
    pub(crate) partitions: BTreeMap<PartitionId, SimPartition>,
}

impl SimState {
    /// Creates a state without partitions.
    pub(crate) fn new(topology: Topology, settings: Settings) -> Self {
        Self {
            format: FORMAT,
            origin: topology.clone(),
            hardware: Hardware::new(topology),
            settings,
            now: Timestamp::from_millis(0),
            partitions: BTreeMap::new(),
        }
    }

    /// Returns the addresses of a partition's IPUs, in routing order.
    pub(crate) fn ipu_addresses(&self, spec: &wire::PartitionSpec) -> Vec<IpuAddress> {
        let Ok(cluster) = ClusterId::new(spec.cluster_id.as_str()) else {
            return Vec::new();
        };
        let resolve = |ipu: &wire::PartitionIpu| {
            self.hardware
                .find(&cluster, ipu.ipulink_domain_topology_id, ipu.topology_id)
        };
        spec.ipus.iter().filter_map(resolve).collect()
    }

    /// Returns the partition that holds an IPU.
    pub(crate) fn holder(&self, address: IpuAddress) -> Option<&PartitionId> {
        self.partitions
            .iter()
            .find(|(_, partition)| self.ipu_addresses(&partition.spec).contains(&address))
            .map(|(id, _)| id)
    }
}
