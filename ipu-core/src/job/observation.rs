//! The input of the planner: all observed facts about a job, including the current time.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::ControllerName;
use crate::job::exit::Exit;
use crate::job::status::JobStatus;
use crate::reason::Reason;
use crate::units::Timestamp;

/// The observed state of a job at one time. It may be stale: effects are idempotent, and the next
/// reconciliation observes the job again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observation {
    /// The format version: [`Observation::FORMAT`].
    pub format: u32,
    /// When these facts were gathered.
    pub now: Timestamp,
    /// When the job was submitted.
    pub submitted: Timestamp,
    /// Whether deletion of the job was requested.
    #[serde(default)]
    pub deleted: bool,
    /// Whether the observer receives events about partition changes, so that a long poll interval suffices.
    /// V-IPU itself sends no events.
    #[serde(rename = "told", default)]
    pub partition_watch_connected: bool,
    /// The resolution of end times: the order of two ends is known only if they differ by more. Zero if one
    /// clock wrote all of them; one second if they are recorded in whole seconds.
    #[serde(
        rename = "blur",
        default,
        with = "crate::units::millis",
        skip_serializing_if = "Duration::is_zero"
    )]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub timestamp_resolution: Duration,
    /// The status that the previous reconciliation recorded; the default before the first. A verdict is
    /// recorded here before the affected processes are stopped, so lost or repeated effects change nothing.
    #[serde(default)]
    pub status: JobStatus,
    /// The instances with processes or a partition, in order of their index.
    #[serde(default)]
    pub instances: Vec<InstanceFacts>,
}

impl Observation {
    /// The format version that this build reads and writes.
    pub const FORMAT: u32 = 1;

    /// Returns the observation of a newly submitted job without resources.
    #[must_use]
    pub fn for_new_job(now: Timestamp) -> Self {
        Self {
            format: Self::FORMAT,
            now,
            submitted: now,
            deleted: false,
            partition_watch_connected: false,
            timestamp_resolution: Duration::ZERO,
            status: JobStatus::default(),
            instances: Vec::new(),
        }
    }
}

/// The observed facts about one instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceFacts {
    /// Instance index, from 0.
    pub index: u32,
    /// The partition of the instance.
    #[serde(default)]
    pub partition: PartitionFacts,
    /// The launcher, if it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<ProcessFacts>,
    /// The existing workers, in order of their index.
    #[serde(default)]
    pub workers: Vec<ProcessFacts>,
    /// Processes that do not exist and may have existed, in any order. The observer knew them, did not stop
    /// them, and does not know their end. Or it cannot know whether they existed before it started, because
    /// their prerequisites were already met. The list may omit a launcher that ran, and a worker missing
    /// after all workers of its attempt ran: the planner derives both from the record.
    #[serde(rename = "gone", default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingProcess>,
    /// The demand of a queued request of higher priority that the instance releases its partition; none
    /// without a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Reason>,
}

impl InstanceFacts {
    /// Returns the facts of instance `index` without processes and partition.
    #[must_use]
    pub const fn empty(index: u32) -> Self {
        Self {
            index,
            partition: PartitionFacts::Absent,
            launcher: None,
            workers: Vec::new(),
            missing: Vec::new(),
            preempted: None,
        }
    }
}

/// A process that does not exist and may have existed, for example because it was force-deleted. It may have
/// run, and it may still run on an unreachable node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MissingProcess {
    /// Worker index within its instance, from 0; none for the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The attempt of the process.
    pub attempt: u32,
}

/// The state of an instance's partition according to the ledger and the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum PartitionFacts {
    /// Neither requested nor present.
    #[default]
    Absent,
    /// Queued.
    Waiting {
        /// The reason for waiting.
        reason: Reason,
        /// The attempt of the request.
        #[serde(default)]
        attempt: u32,
    },
    /// Requested, being created or being reset.
    Pending {
        /// The attempt that will use it.
        attempt: u32,
    },
    /// Active, and fresh for this attempt.
    Active {
        /// The attempt for which it was created or reset.
        attempt: u32,
        /// When it became active.
        since: Timestamp,
        /// The controller that holds it.
        controller: ControllerName,
    },
    /// In error.
    Failed {
        /// The attempt for which it was created or reset.
        attempt: u32,
        /// The errors that the controller reports.
        errors: Vec<String>,
    },
    /// Being released.
    Releasing,
}

/// The observed facts about one process: a worker or a launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessFacts {
    /// Worker index within its instance, from 0; 0 for a launcher.
    #[serde(default)]
    pub index: u32,
    /// The attempt of the process.
    pub attempt: u32,
    /// The phase of the process.
    #[serde(flatten)]
    pub phase: ProcessPhase,
}

/// The phase of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "phase")]
pub enum ProcessPhase {
    /// Created, not yet running and ready (being scheduled, its image being pulled).
    Starting {
        /// The time from which it could have started; image pulls do not count.
        since: Timestamp,
        /// The cause of the delay, if known, such as `Unschedulable: 0/3 nodes are available`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        cause: String,
    },
    /// Running and ready.
    Running {
        /// When it became ready.
        since: Timestamp,
    },
    /// Requested to stop; still exists.
    Stopping,
    /// Exited.
    Exited {
        /// The exit code or signal.
        exit: Exit,
        /// When it exited.
        at: Timestamp,
        /// The end of its output, at most 2 KiB.
        #[serde(default)]
        last_lines: String,
        /// Additional cause, such as `OOMKilled`; empty if unknown.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        cause: String,
    },
    /// Lost without an exit code: evicted, deleted manually, or its host failed.
    Lost {
        /// When it was lost.
        at: Timestamp,
        /// The known cause.
        cause: String,
    },
}

impl ProcessPhase {
    /// The cause of an out-of-memory kill, as Kubernetes reports it. It never follows from the failure of
    /// another process.
    pub const OUT_OF_MEMORY: &'static str = "OOMKilled";

    /// Returns whether the process may still use the partition.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        match self {
            Self::Starting { .. } | Self::Running { .. } | Self::Stopping => true,
            Self::Exited { .. } | Self::Lost { .. } => false,
        }
    }
}
