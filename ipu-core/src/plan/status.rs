//! What is remembered and told of a job: its phase, its instances, its first failure.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::exit_status::Exit;
use crate::reason::Reason;
use crate::units::Timestamp;

/// What is recorded of a job between two passes: everything that a decision needs to remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JobStatus {
    /// How far the job is.
    pub phase: JobPhase,
    /// The instances, in order of their index.
    pub instances: Vec<InstanceStatus>,
    /// Instances whose partition is active and whose workers exist (the documented column CURRENT).
    pub current_instances: u32,
    /// Instances asked for.
    pub desired_instances: u32,
    /// Restarts so far, after success and after failure.
    pub restarts: u32,
    /// Restarts that count against the back-off limit.
    pub restarts_after_failure: u32,
    /// When the first process of the job ran; forgotten while the job is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When the job finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The first failure of the last attempt that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<FirstFailure>,
    /// Why the job finished, once it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<Reason>,
    /// The exit code of the job, once finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// IPUs that the job holds, also when it has finished.
    pub ipus_held: u32,
    /// One sentence for people; begins with a documented text (seed 000 §6.7): `Successfully reconciled IPUJob`,
    /// `partition not ready yet!` once for each instance that waits for one, or `All instances done`.
    pub message: String,
}

impl JobStatus {
    /// What is remembered of instance `index`, if anything.
    #[must_use]
    pub fn instance(&self, index: u32) -> Option<&InstanceStatus> {
        self.instances.iter().find(|instance| instance.index == index)
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JobPhase {
    /// Waiting for partitions or for its processes to be ready.
    #[default]
    Pending,
    /// All instances run. While some do, so does one whose workers are there and start, unless a launcher waits for them (seed 000 §6.7).
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
    pub outcome: Option<InstanceOutcome>,
    /// Since when all workers of this attempt were seen to run; none until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Timestamp>,
    /// Since when the launcher of this attempt was seen to run. If it is gone after that, it was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launched: Option<Timestamp>,
    /// The workers of this attempt that ended with code 0, in order. They are not started again in it, also when their
    /// records are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<u32>,
    /// How often in a row its partition was given back because nothing could run on it: workers or a launcher that did
    /// not start in time, or a partition that came up in error. While this is not 0, it holds nothing before `retry_at`.
    #[serde(rename = "givenBack", skip_serializing_if = "is_zero")]
    pub unused_releases: u32,
    /// Why its partition was given back the last time, while `given_back` is not 0.
    #[serde(rename = "givenBackBecause", skip_serializing_if = "Option::is_none")]
    pub unused_release_reason: Option<Reason>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl InstanceStatus {
    /// An instance that has done nothing yet.
    #[must_use]
    pub fn new(index: u32) -> Self {
        Self {
            index,
            ..Self::default()
        }
    }

    /// Something runs, or nothing is to: that nothing could is over.
    pub(crate) fn clear_unused_releases(&mut self) {
        self.unused_releases = 0;
        self.unused_release_reason = None;
    }

    /// The same instance with its attempt closed: what belongs to it may be stopped, and the next one has done nothing.
    pub(crate) fn close_attempt(&mut self) {
        *self = Self {
            index: self.index,
            attempt: self.attempt.saturating_add(1),
            ..Self::default()
        };
    }
}

/// How an instance ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum InstanceOutcome {
    /// Every process that does the job's work ended with code 0.
    Succeeded,
    /// An interactive session's time was over: it ended well, and holds nothing any more.
    SessionOver,
    /// Something failed; the exit code that is judged, or the one that stands for what has none:
    /// [`Outcome::LOST`] or, for a job that ran for too long, 124.
    Failed(u8),
}

impl InstanceOutcome {
    /// The exit code that stands for a process without one, and for a partition in error: what Kubernetes reports for
    /// a container that vanished.
    pub const LOST: u8 = 137;
}

/// What failed first, not the cascade that followed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FirstFailure {
    /// Which instance.
    pub instance: u32,
    /// What of the instance.
    #[serde(flatten)]
    pub culprit: FailedComponent,
    /// Of which attempt.
    pub attempt: u32,
    /// How it ended; none if it was lost without an exit code, and for a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// When.
    pub at: Timestamp,
    /// What is known of the cause.
    pub cause: String,
    /// The end of its output, at most 2 KiB.
    #[serde(default)]
    pub last_lines: String,
}

/// What of an instance failed. In the order in which failures at the same time are blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "culprit")]
#[non_exhaustive]
pub enum FailedComponent {
    /// Its partition.
    Partition,
    /// One of its workers.
    Worker {
        /// Which worker of the instance.
        worker: u32,
    },
    /// Its launcher.
    Launcher,
}

impl fmt::Display for FailedComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition => f.write_str("partition"),
            Self::Worker { worker } => write!(f, "worker {worker}"),
            Self::Launcher => f.write_str("launcher"),
        }
    }
}

impl fmt::Display for FirstFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of instance {} failed: {}",
            self.culprit, self.instance, self.cause
        )
    }
}
