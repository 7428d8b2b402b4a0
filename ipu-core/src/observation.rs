//! Everything that a decision about a job may look at, `now` included.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit_status::Exit;
use crate::ids::ControllerName;
use crate::plan::JobStatus;
use crate::reason::Reason;
use crate::units::Timestamp;

/// What is known of a job at one moment. It may already be out of date when it is read: effects are safe to repeat,
/// and the next pass observes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observation {
    /// The version of this form: [`Observation::FORMAT`].
    pub format: u32,
    /// When these facts were gathered.
    pub now: Timestamp,
    /// When the job was submitted.
    pub submitted: Timestamp,
    /// Whether the job's deletion was asked for.
    #[serde(default)]
    pub deleted: bool,
    /// Whether whoever observes is told of changes of the partitions, and so need not look again soon. V-IPU itself tells
    /// nobody.
    #[serde(rename = "told", default)]
    pub partition_watch_connected: bool,
    /// How far apart the times of two ends must be to tell which came first. Zero where one clock wrote all of them; a
    /// second where whole seconds are all that is known.
    #[serde(
        rename = "blur",
        default,
        with = "crate::units::millis",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub timestamp_resolution: Duration,
    /// What the previous pass recorded; the default before the first. Verdicts stand here before anything that they
    /// condemn is stopped, so that losing the effects of a pass, or repeating them, changes nothing.
    #[serde(default)]
    pub status: JobStatus,
    /// The instances that have anything, in order of their index. Absent ones have nothing.
    #[serde(default)]
    pub instances: Vec<InstanceFacts>,
}

impl Observation {
    /// The version of the form that this build writes and reads.
    pub const FORMAT: u32 = 1;

    /// A job that has just been submitted and has nothing yet.
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

/// What exists of one instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceFacts {
    /// Which instance, from 0.
    pub index: u32,
    /// Its partition.
    #[serde(default)]
    pub partition: PartitionFacts,
    /// Its launcher, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<ProcessFacts>,
    /// Its workers that exist, in order of their index.
    #[serde(default)]
    pub workers: Vec<ProcessFacts>,
    /// Processes that are not there and may have been, in any order: whoever observes knew them, told none of them to stop, and does not
    /// know how they ended; or cannot know whether they were there before he looked, because what they need was ready by
    /// then. A worker that is gone after all workers of its attempt ran, and a launcher that ran, need not be here: the record tells.
    #[serde(rename = "gone", default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingProcess>,
}

impl InstanceFacts {
    /// Instance `index` with nothing.
    #[must_use]
    pub const fn empty(index: u32) -> Self {
        Self {
            index,
            partition: PartitionFacts::Absent,
            launcher: None,
            workers: Vec::new(),
            missing: Vec::new(),
        }
    }
}

/// A process that is not there and may have been: somebody took it away, by force perhaps. It may have run, and it may run still where
/// nobody can look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingProcess {
    /// Which worker of its instance, from 0; none if it is the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The attempt that it was started for.
    pub attempt: u32,
}

/// What the ledger and the controller know of an instance's partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
#[non_exhaustive]
pub enum PartitionFacts {
    /// Neither asked for nor there.
    #[default]
    Absent,
    /// In the line.
    Waiting {
        /// Why.
        reason: Reason,
        /// The attempt that asked for it.
        #[serde(default)]
        attempt: u32,
    },
    /// Asked for, being made or being reset.
    Pending {
        /// The attempt that it is made ready for.
        attempt: u32,
    },
    /// Ready, and fresh for this attempt.
    Active {
        /// The attempt that it was made or reset for.
        attempt: u32,
        /// Since when.
        since: Timestamp,
        /// The controller that holds it.
        controller: ControllerName,
    },
    /// In error.
    Failed {
        /// The attempt that it was made or reset for.
        attempt: u32,
        /// What the controller says.
        errors: Vec<String>,
    },
    /// Being given back.
    Releasing,
}

/// What is known of one process: a worker or a launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessFacts {
    /// The worker's number within its instance, from 0; 0 for a launcher.
    #[serde(default)]
    pub index: u32,
    /// The attempt that it was started for.
    pub attempt: u32,
    /// How far it is.
    #[serde(flatten)]
    pub phase: ProcessPhase,
}

/// How far a process is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "phase")]
#[non_exhaustive]
pub enum ProcessPhase {
    /// Created, not yet running and ready (being scheduled, its image being pulled).
    Starting {
        /// Since when it could have started; image pulls do not count.
        since: Timestamp,
        /// What it waits for, if that is known, such as `Unschedulable: 0/3 nodes are available`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        cause: String,
    },
    /// Running and ready.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// Told to stop; not gone yet.
    Stopping,
    /// Ended.
    Exited {
        /// How.
        exit: Exit,
        /// When.
        at: Timestamp,
        /// The end of its output, at most 2 KiB.
        #[serde(default)]
        last_lines: String,
        /// What is known of the cause besides, such as `OOMKilled`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        cause: String,
    },
    /// Gone without an exit code: evicted, deleted by hand, its host lost.
    Lost {
        /// Since when.
        at: Timestamp,
        /// What is known of the cause.
        cause: String,
    },
}

impl ProcessPhase {
    /// The cause of an end for want of memory, as Kubernetes writes it: it is never the consequence of another's failure.
    pub const OUT_OF_MEMORY: &'static str = "OOMKilled";

    /// Whether the process may still be using the partition.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        match self {
            Self::Starting { .. } | Self::Running { .. } | Self::Stopping => true,
            Self::Exited { .. } | Self::Lost { .. } => false,
        }
    }
}
