//! The simulated controller as a pure state machine: the state at a time is a function of what was stored and of that
//! time. Nothing here reads a clock, a file or the network.
//!
//! ```text
//! create → (PENDING, CREATING) → (ACTIVE, IDLE) ⇄ reset (PENDING, RESETTING)
//! any    → remove (REMOVED, REMOVING) → gone
//! a bad IPU → (ERROR, FAILED) → automatic resets → (PENDING, RESETTING) → …
//! ```

mod admin;
mod create;
mod ipuof;
mod lifecycle;
mod placement;
mod queries;
mod validate;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{ClusterId, IpuAddress, PartitionId, Timestamp, Topology};
use ipu_vipu_client::wire;
use serde::{Deserialize, Serialize};

pub(crate) use admin::{Health, NewAgent};
pub(crate) use lifecycle::{Force, Relocation};
pub use queries::{PartitionView, PodState};

use crate::hardware::Hardware;

/// The version of the stored form that this build writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// How long operations take, in milliseconds. Stored with the state, so that every process that serves it agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) create_ms: u64,
    pub(crate) reset_ms: u64,
    pub(crate) remove_ms: u64,
    /// From a failure to the first automatic reset, and from one attempt to the next.
    pub(crate) auto_reset_ms: u64,
}

impl Settings {
    /// Every operation takes `delay`.
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

/// Long enough that a person who watches sees the error before it is repaired.
const AUTO_RESET_MS: u64 = 1_000;

/// What a partition is doing.
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

/// One partition as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SimPartition {
    /// In the API's own form, IPUs in routing order.
    pub(crate) spec: wire::PartitionSpec,
    pub(crate) phase: Phase,
    pub(crate) auto_reset: AutoReset,
    pub(crate) relocatable: bool,
    pub(crate) auto_resets: u32,
    pub(crate) last_auto_reset: Option<Timestamp>,
}

/// Whether the controller repairs a failed partition by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AutoReset {
    On,
    Off,
}

/// All that the controller knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SimState {
    pub(crate) format: u32,
    /// What the Pod was started with, to notice a file of another one.
    pub(crate) origin: Topology,
    pub(crate) hardware: Hardware,
    pub(crate) settings: Settings,
    /// Up to when everything that falls due has happened.
    pub(crate) now: Timestamp,
    pub(crate) partitions: BTreeMap<PartitionId, SimPartition>,
}

impl SimState {
    /// A Pod without partitions.
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

    /// Where the IPUs of a partition are, in routing order.
    pub(crate) fn places(&self, spec: &wire::PartitionSpec) -> Vec<IpuAddress> {
        let Ok(cluster) = ClusterId::new(spec.cluster_id.as_str()) else {
            return Vec::new();
        };
        let place = |ipu: &wire::PartitionIpu| {
            self.hardware
                .find(&cluster, ipu.ipulink_domain_topology_id, ipu.topology_id)
        };
        spec.ipus.iter().filter_map(place).collect()
    }

    /// Which partition holds an IPU.
    pub(crate) fn holder(&self, at: IpuAddress) -> Option<&PartitionId> {
        self.partitions
            .iter()
            .find(|(_, held)| self.places(&held.spec).contains(&at))
            .map(|(id, _)| id)
    }
}
