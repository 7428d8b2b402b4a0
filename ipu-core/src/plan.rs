//! From a job and what is observed of it to what is to be done: the only file where the rules meet.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::ids::PartitionId;
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::Timestamp;

/// What is to be done for a job now, what its status is, why, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[must_use]
pub struct Plan {
    /// To be applied in this order, stopping at the first that fails. Each is safe to repeat.
    pub effects: Vec<Effect>,
    /// To be recorded after the effects, in one write.
    pub status: JobStatus,
    /// Why these effects, and why not others. Never empty: a job that waits says exactly why.
    pub reasons: Vec<Reason>,
    /// Look again after this time at the latest, even if nothing is heard; none if only an event can change anything.
    #[serde(rename = "wakeMillis", with = "crate::units::millis::option", default)]
    pub wake: Option<Duration>,
}

/// One thing to do. It carries every choice, so that applying it decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "do")]
#[non_exhaustive]
pub enum Effect {
    /// See to it that the instance has its partition, fresh for `attempt`: made if absent, reset if it was used by an
    /// earlier attempt, put into the line if it does not fit, nothing if it is there.
    EnsurePartition {
        /// Which instance.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Its id.
        partition: PartitionId,
        /// What it is made of.
        spec: PartitionSpec,
    },
    /// Reset the partition, because it is in error or its last holder was not seen to end.
    ResetPartition {
        /// Which instance.
        instance: u32,
        /// The attempt that will use it.
        attempt: u32,
        /// Its id.
        partition: PartitionId,
    },
    /// Start a worker on the partition.
    StartWorker {
        /// Which instance.
        instance: u32,
        /// Which worker of the instance; also its GCD.
        worker: u32,
        /// For which attempt.
        attempt: u32,
        /// The partition that it uses.
        partition: PartitionId,
    },
    /// Start the launcher of an instance.
    StartLauncher {
        /// Which instance.
        instance: u32,
        /// For which attempt.
        attempt: u32,
        /// The partition that its workers use.
        partition: PartitionId,
    },
    /// End a worker and everything that it started, and forget it.
    StopWorker {
        /// Which instance.
        instance: u32,
        /// Which worker of the instance.
        worker: u32,
        /// Of which attempt.
        attempt: u32,
    },
    /// End the launcher of an instance and everything that it started, and forget it.
    StopLauncher {
        /// Which instance.
        instance: u32,
        /// Of which attempt.
        attempt: u32,
    },
    /// Give the partition back. Only planned once no process can be using it.
    ReleasePartition {
        /// Which instance.
        instance: u32,
        /// Its id.
        partition: PartitionId,
    },
    /// Let go of the deleted job: nothing of it is left. Always last.
    Finalize,
}

/// What is recorded of a job between two passes: everything that a decision needs to remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JobStatus {
    /// How far the job is.
    pub phase: JobPhase,
    /// The instances, in order of their index.
    pub instances: Vec<InstanceStatus>,
    /// Instances whose partition is active and whose processes exist.
    pub current_instances: u32,
    /// Instances asked for.
    pub desired_instances: u32,
    /// Restarts so far, after success and after failure.
    pub restarts: u32,
    /// Restarts that count against the back-off limit.
    pub restarts_after_failure: u32,
    /// When the first worker of the job ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When the job finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The first failure of the last attempt that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<FirstFailure>,
    /// The exit code of the job, once finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// IPUs that the job holds, also when it has finished.
    pub ipus_held: u32,
    /// One sentence for people.
    pub message: String,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JobPhase {
    /// Waiting for partitions or for its processes to be ready.
    #[default]
    Pending,
    /// All instances run.
    Running,
    /// Between two attempts.
    Restarting,
    /// Told to hold nothing.
    Suspended,
    /// Finished well.
    Completed,
    /// Finished badly.
    Failed,
    /// Being deleted.
    Terminating,
}

impl JobPhase {
    /// Whether the job runs nothing any more, except for what its clean-up policy leaves.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// What is remembered of one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InstanceStatus {
    /// Which instance.
    pub index: u32,
    /// The attempt that runs or is to run, from 0.
    pub attempt: u32,
    /// When the next attempt may start, while it backs off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// How the last attempt ended, once there will be no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// How an instance ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Outcome {
    /// Every process ended with code 0, or an interactive session's time was over.
    Succeeded,
    /// Something failed; the exit code that is judged.
    Failed(u8),
}

/// The process that failed first, not the cascade that followed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FirstFailure {
    /// Which instance.
    pub instance: u32,
    /// Which worker of the instance; none for the launcher.
    pub worker: Option<u32>,
    /// Of which attempt.
    pub attempt: u32,
    /// How it ended; none if it was lost without an exit code.
    pub exit: Option<Exit>,
    /// When.
    pub at: Timestamp,
    /// What is known of the cause.
    pub cause: String,
    /// The end of its output, at most 2 KiB.
    pub last_lines: String,
}
