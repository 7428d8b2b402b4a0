//! The recorded status of a job: its phase, its instances, its first failure.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::job::exit::Exit;
use crate::reason::Reason;
use crate::units::Timestamp;

/// The status of a job between two reconciliations: all state that a decision needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JobStatus {
    /// The phase of the job.
    pub phase: JobPhase,
    /// The instances, in order of their index.
    pub instances: Vec<InstanceStatus>,
    /// Instances whose partition is active and whose workers exist (the documented column CURRENT).
    pub current_instances: u32,
    /// Requested instances.
    pub desired_instances: u32,
    /// Restarts so far, after success and after failure.
    pub restarts: u32,
    /// Restarts that count against the back-off limit.
    pub restarts_after_failure: u32,
    /// When the first process of the job ran; none while the job is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When the job finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The first failure of the last attempt that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<FirstFailure>,
    /// Number of attempts that requests of higher priority preempted.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// The latest preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<Preempted>,
    /// The reason for the end of the job, once finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<Reason>,
    /// The exit code of the job, once finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// IPUs that the job holds, even after it has finished.
    pub ipus_held: u32,
    /// A human-readable sentence. It begins with a documented text (V-IPU guide §6.7): `Successfully
    /// reconciled IPUJob`, `partition not ready yet!` once for each instance without one, or `All instances
    /// done`.
    pub message: String,
}

impl JobStatus {
    /// Returns the status of instance `index`, if it is recorded.
    #[must_use]
    pub fn instance(&self, index: u32) -> Option<&InstanceStatus> {
        self.instances.iter().find(|instance| instance.index == index)
    }
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobPhase {
    /// Waiting for partitions or for its processes to be ready.
    #[default]
    Pending,
    /// All instances run. While some run, an instance whose workers exist and start counts as running, unless
    /// its launcher waits for them (V-IPU guide §6.7).
    Running,
    /// Between two attempts.
    Restarting,
    /// Suspended: the job holds nothing.
    Suspended,
    /// Finished successfully.
    Completed,
    /// Finished with a failure.
    Failed,
    /// Being deleted.
    Terminating,
}

impl JobPhase {
    /// Returns whether the job has finished; only what its clean-up policy retains may still run.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

/// The recorded status of one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InstanceStatus {
    /// Instance index, from 0.
    pub index: u32,
    /// The current or next attempt, from 0.
    pub attempt: u32,
    /// When the next attempt may start, during a back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// The final outcome, once no further attempt follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<InstanceOutcome>,
    /// When all workers of this attempt were first observed running; none until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Timestamp>,
    /// When the launcher of this attempt was first observed running. A launcher that is missing afterwards
    /// was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launched: Option<Timestamp>,
    /// The workers of this attempt that ended with code 0, in order. This attempt does not start them again,
    /// even if their records are deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<u32>,
    /// The number of consecutive releases of a partition on which no process could start: workers or a
    /// launcher missed the start deadline, or the partition was created in error. Unless 0, the instance
    /// holds nothing before `retry_at`.
    #[serde(rename = "givenBack", skip_serializing_if = "is_zero")]
    pub unused_releases: u32,
    /// The reason for the last such release, while `unused_releases` is not 0.
    #[serde(rename = "givenBackBecause", skip_serializing_if = "Option::is_none")]
    pub unused_release_reason: Option<Reason>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl InstanceStatus {
    /// Returns the status of a new instance.
    #[must_use]
    pub fn new(index: u32) -> Self {
        Self {
            index,
            ..Self::default()
        }
    }

    /// Clears the unused releases, because the instance runs or is not meant to run.
    pub(crate) fn clear_unused_releases(&mut self) {
        self.unused_releases = 0;
        self.unused_release_reason = None;
    }

    /// Closes the attempt: its processes may be stopped, and the next attempt starts without progress.
    pub(crate) fn close_attempt(&mut self) {
        *self = Self {
            index: self.index,
            attempt: self.attempt.saturating_add(1),
            ..Self::default()
        };
    }
}

/// The final outcome of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum InstanceOutcome {
    /// Every process that does the job's work ended with code 0.
    Succeeded,
    /// The time of the interactive session was over: a success that holds nothing.
    SessionOver,
    /// A failure with the exit code of its process. Without an exit code it is [`InstanceOutcome::LOST`] or,
    /// for a job that exceeded its deadline, 124.
    Failed(u8),
}

impl InstanceOutcome {
    /// The exit code of a process without one and of a partition in error, as Kubernetes reports it for a
    /// lost container.
    pub const LOST: u8 = 137;
}

/// A preempted attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preempted {
    /// Instance index.
    pub instance: u32,
    /// The preempted attempt.
    pub attempt: u32,
    /// The time at which the attempt was closed.
    pub at: Timestamp,
    /// The reason, which names the request of higher priority.
    pub reason: Reason,
}

/// The first failure of an attempt, without the cascade that followed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FirstFailure {
    /// Instance index.
    pub instance: u32,
    /// The component of the instance that failed.
    #[serde(flatten)]
    pub component: FailedComponent,
    /// The attempt that failed.
    pub attempt: u32,
    /// The exit of the process; none for a lost process without exit code and for a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// The time of the failure.
    pub at: Timestamp,
    /// The known cause.
    pub cause: String,
    /// The end of the output of the process, at most 2 KiB.
    #[serde(default)]
    pub last_lines: String,
}

/// The component of an instance that failed, in order of precedence for failures at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "culprit")]
pub enum FailedComponent {
    /// The partition.
    Partition,
    /// A worker.
    Worker {
        /// Worker index within the instance.
        worker: u32,
    },
    /// The launcher.
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
            self.component, self.instance, self.cause
        )
    }
}
