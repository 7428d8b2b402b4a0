//! The status of an IPUJob: for its users (V-IPU guide §6.6), and the state that the operator keeps between
//! two reconciles. [`IpuJobStatus::to_job_status`] returns exactly the recorded state. The fields up to
//! `conditions` are those of the custom resource 1.2.0.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use ipu_core::job::{
    Exit, FailedComponent, FirstFailure, InstanceOutcome, InstanceStatus, JobPhase, JobStatus, Preempted,
};
use ipu_core::{Reason, ReasonCode, Timestamp};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Observed status of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct IpuJobStatus {
    /// Phase of the job, even if it has no launcher: Pending, Running, Restarting, Suspended, Completed,
    /// Failed or Terminating.
    #[schemars(extend("default" = "Pending"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher_status: Option<String>,
    /// Instances whose partition is active and whose workers exist.
    pub current_replicas: u32,
    /// Requested instances.
    pub desired_replicas: u32,
    /// Instances whose workers are all ready, as their readiness probes report.
    pub ready_replicas: u32,
    /// The state of the job as a sentence, and the exact reason if it waits.
    pub last_message: String,
    /// True if every instance has its partition for the attempt restartCount.
    #[serde(rename = "iPUPartitionCreated")]
    pub ipu_partition_created: bool,
    /// Restarts so far, after success and after failure.
    pub restart_count: u32,
    /// When the operator first reconciled the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// When the status was last written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reconcile_time: Option<Time>,
    /// Number of worker Pods in each state.
    pub workers_status: WorkersStatus,
    /// Current and past phases: one entry for each phase that the job has reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The metadata.generation that this status is based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Phase of the job for programs: equal to launcherStatus, and absent until the operator has reconciled
    /// the job.
    #[schemars(schema_with = "text")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    /// The label selector of the job's workers, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The instances, in order of their index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceReport>,
    /// First failure of the last failed attempt; it is kept after the clean-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<FailureReport>,
    /// The last failed attempts, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptReport>,
    /// Seconds that the job spent in each part of its start. They add up to the total start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_seconds: Option<PhaseSeconds>,
    /// Restarts that count against restartPolicy.backOffLimit.
    pub restarts_after_failure: u32,
    /// When the first process of the job ran; activeDeadlineSeconds counts from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_run_time: Option<Time>,
    /// Number of attempts that requests of higher priority preempted.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemption_count: u32,
    /// The latest preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<PreemptionReport>,
    /// Why the job finished.
    #[schemars(schema_with = "reason")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<Reason>,
    /// The exit code of the job, once it has finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// IPUs that the job holds, even when it has finished.
    pub ipus_held: u32,
}

/// Number of worker Pods in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct WorkersStatus {
    /// Pending or running.
    #[serde(skip_serializing_if = "is_zero")]
    pub active: u32,
    /// Exited with code 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: u32,
    /// Failed in any other way.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u32,
}

impl WorkersStatus {
    /// Creates counts.
    #[must_use]
    pub const fn new(active: u32, succeeded: u32, failed: u32) -> Self {
        Self {
            active,
            succeeded,
            failed,
        }
    }
}

/// A current or past phase of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Condition {
    /// Pending, Running, Restarting, Suspended, Completed, Failed or Terminating.
    #[serde(rename = "type")]
    pub kind: String,
    /// True for the current phase, False for past phases.
    pub status: String,
    /// IPUJob and the type.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// When the message last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Report about one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct InstanceReport {
    /// Index of the instance, from 0.
    pub index: u32,
    /// State of the instance: Waiting, Preparing, Starting, Running, Stopping, BackingOff, Suspended,
    /// Releasing, Succeeded, SessionOver or Failed.
    pub state: String,
    /// Reason why it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The id of its partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The V-IPU controller of the partition, host:port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// The node label of that controller, key=value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_label: Option<String>,
    /// The names of its workers that exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<String>,
    /// Current or next attempt, from 0.
    pub attempt: u32,
    /// When the next attempt may start, while it backs off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_time: Option<Time>,
    /// The exit code of an instance that failed for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Time since which all workers of this attempt were observed running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_time: Option<Time>,
    /// Time since which the launcher of this attempt was observed running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_time: Option<Time>,
    /// The workers of this attempt that exited with code 0, by their index within the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<u32>,
    /// Number of consecutive releases of its partition because its processes could not start.
    #[serde(rename = "givenBack", skip_serializing_if = "is_zero")]
    pub unused_releases: u32,
    /// Reason of the last such release, while givenBack is not 0.
    #[schemars(schema_with = "reason")]
    #[serde(rename = "givenBackBecause", skip_serializing_if = "Option::is_none")]
    pub unused_release_reason: Option<Reason>,
}

/// First failure of an attempt, without the failures that it caused. It is kept after the clean-up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct FailureReport {
    /// Index of the instance.
    pub instance: u32,
    /// Number of the attempt.
    pub attempt: u32,
    /// Index of the worker within the instance; absent if the launcher or the partition failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// Name of the failed Pod or partition.
    pub name: String,
    /// Worker, Launcher or Partition.
    pub kind: String,
    /// The node of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Known cause of the failure.
    pub reason: String,
    /// Time of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The end of its log, at most 2 KiB.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// A failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct AttemptReport {
    /// Index of the instance.
    pub instance: u32,
    /// Number of the attempt.
    pub attempt: u32,
    /// Name of the Pod or partition that failed first.
    pub name: String,
    /// Known cause of the failure.
    pub reason: String,
    /// Time of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A preempted attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct PreemptionReport {
    /// Index of the instance.
    pub instance: u32,
    /// Number of the preempted attempt.
    pub attempt: u32,
    /// When the attempt was stopped.
    pub time: Option<Time>,
    /// The reason, which names the preempting request.
    #[schemars(schema_with = "reason")]
    pub reason: Option<Reason>,
}

impl PreemptionReport {
    fn remembered(&self) -> Preempted {
        let reason = self.reason.clone();
        Preempted {
            instance: self.instance,
            attempt: self.attempt,
            at: self.time.map(|time| time.0).unwrap_or_default(),
            reason: reason
                .unwrap_or_else(|| Reason::new(ReasonCode::Preempted, "another request preempted it")),
        }
    }
}

impl From<&Preempted> for PreemptionReport {
    fn from(preempted: &Preempted) -> Self {
        Self {
            instance: preempted.instance,
            attempt: preempted.attempt,
            time: Some(Time(preempted.at)),
            reason: Some(preempted.reason.clone()),
        }
    }
}

/// Seconds that the job spent in each part of its start. They add up to the time from the job's creation to
/// its running phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct PhaseSeconds {
    /// In the queue, until its last partition was granted.
    pub queue: f64,
    /// Until its last partition was ready.
    pub partition: f64,
    /// Until its last worker was scheduled to a node.
    pub schedule: f64,
    /// Until all processes ran.
    pub start: f64,
}

impl PhaseSeconds {
    /// Creates the durations, in seconds.
    #[must_use]
    pub const fn new(queue: f64, partition: f64, schedule: f64, start: f64) -> Self {
        Self {
            queue,
            partition,
            schedule,
            start,
        }
    }
}

/// A timestamp in the format of Kubernetes, with millisecond precision.
///
/// ```
/// use ipu_k8s::crd::Time;
///
/// let started: Time = "2026-03-22T11:10:31.5+01:00".parse()?;
/// assert_eq!(started.to_string(), "2026-03-22T10:10:31.500Z");
/// assert!("1969-12-31T23:59:59Z".parse::<Time>().is_err());
/// # Ok::<(), ipu_k8s::crd::TimeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_millisecond(millis) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{:.3}", jiff::Timestamp::MAX),
        }
    }
}

/// Error of a text that is not a [`Time`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a timestamp since 1970 such as 2026-03-22T10:10:31Z")]
pub struct TimeError {
    /// Text that was given.
    pub text: String,
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.parse::<jiff::Timestamp>().ok();
        let millis = parsed.and_then(|time| u64::try_from(time.as_millisecond()).ok());
        let millis = millis.ok_or_else(|| TimeError {
            text: text.to_owned(),
        })?;
        Ok(Self(Timestamp::from_millis(millis)))
    }
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

/// Returns the schema of a type of the core that is written as a string.
fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string"})
}

/// Returns the schema of a [`Reason`].
pub(super) fn reason(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "properties": {
        "code": {"type": "string", "description": "A stable code, such as NotEnoughFree."},
        "numbers": {
            "type": "object",
            "additionalProperties": {"type": "integer", "format": "int64"},
            "description": "The numbers in the sentence, by name.",
        },
        "message": {"type": "string", "description": "One sentence."},
    }})
}

impl IpuJobStatus {
    /// Maximum number of past attempts that are kept.
    pub const MAX_ATTEMPTS: usize = 10;

    /// Returns the recorded state for the next reconcile: the inverse of [`IpuJobStatus::record`].
    #[must_use]
    pub fn to_job_status(&self) -> JobStatus {
        JobStatus {
            phase: self.phase.unwrap_or_default(),
            instances: self.instances.iter().map(InstanceReport::remembered).collect(),
            current_instances: self.current_replicas,
            desired_instances: self.desired_replicas,
            restarts: self.restart_count,
            restarts_after_failure: self.restarts_after_failure,
            preemptions: self.preemption_count,
            last_preemption: self.last_preemption.as_ref().map(PreemptionReport::remembered),
            started: self.first_run_time.map(|time| time.0),
            finished: self.completion_time.map(|time| time.0),
            first_failure: self.first_failure.as_ref().map(FailureReport::remembered),
            conclusion: self.conclusion.clone(),
            exit_code: self.exit_code,
            ipus_held: self.ipus_held,
            message: self.last_message.clone(),
        }
    }

    /// Records the state that a plan returns, and keeps all other fields.
    pub fn record(&mut self, status: &JobStatus) {
        self.phase = Some(status.phase);
        self.launcher_status = Some(format!("{:?}", status.phase));
        let before = std::mem::take(&mut self.instances);
        for instance in &status.instances {
            let known = before.iter().find(|report| report.index == instance.index);
            let mut report = known.cloned().unwrap_or_default();
            report.remember(instance);
            self.instances.push(report);
        }
        self.current_replicas = status.current_instances;
        self.desired_replicas = status.desired_instances;
        self.restart_count = status.restarts;
        self.restarts_after_failure = status.restarts_after_failure;
        self.preemption_count = status.preemptions;
        self.last_preemption = status.last_preemption.as_ref().map(PreemptionReport::from);
        self.first_run_time = status.started.map(Time);
        self.completion_time = status.finished.map(Time);
        let failure = status.first_failure.as_ref().map(|failure| {
            let known = self.first_failure.take();
            let known = known.filter(|known| known.remembered() == *failure);
            known.unwrap_or_else(|| FailureReport::from_failure(failure))
        });
        self.first_failure = failure;
        self.conclusion.clone_from(&status.conclusion);
        self.exit_code = status.exit_code;
        self.ipus_held = status.ipus_held;
        self.last_message.clone_from(&status.message);
    }
}

impl InstanceReport {
    fn remembered(&self) -> InstanceStatus {
        let mut status = InstanceStatus::new(self.index);
        status.attempt = self.attempt;
        status.retry_at = self.retry_time.map(|time| time.0);
        status.outcome = match self.state.as_str() {
            SUCCEEDED => Some(InstanceOutcome::Succeeded),
            SESSION_OVER => Some(InstanceOutcome::SessionOver),
            FAILED => Some(InstanceOutcome::Failed(
                self.exit_code.unwrap_or(InstanceOutcome::LOST),
            )),
            _ => None,
        };
        status.running_since = self.running_time.map(|time| time.0);
        status.launched = self.launch_time.map(|time| time.0);
        status.done.clone_from(&self.done);
        status.unused_releases = self.unused_releases;
        status
            .unused_release_reason
            .clone_from(&self.unused_release_reason);
        status
    }

    /// Records the state of an instance. `state` is final exactly if the instance has ended for good.
    fn remember(&mut self, status: &InstanceStatus) {
        self.index = status.index;
        self.attempt = status.attempt;
        self.retry_time = status.retry_at.map(Time);
        self.exit_code = None;
        match status.outcome {
            Some(InstanceOutcome::Succeeded) => self.state = SUCCEEDED.to_owned(),
            Some(InstanceOutcome::SessionOver) => self.state = SESSION_OVER.to_owned(),
            Some(InstanceOutcome::Failed(code)) => {
                self.state = FAILED.to_owned();
                self.exit_code = Some(code);
            }
            // For an outcome that this version does not know, the safe assumption is that the instance has
            // failed.
            None if self.has_ended() => self.state = PREPARING.to_owned(),
            None => {}
        }
        self.running_time = status.running_since.map(Time);
        self.launch_time = status.launched.map(Time);
        self.done.clone_from(&status.done);
        self.unused_releases = status.unused_releases;
        self.unused_release_reason
            .clone_from(&status.unused_release_reason);
    }

    /// Returns whether the instance has ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), SUCCEEDED | SESSION_OVER | FAILED)
    }
}

const SUCCEEDED: &str = "Succeeded";
const SESSION_OVER: &str = "SessionOver";
const FAILED: &str = "Failed";
const PREPARING: &str = "Preparing";

impl FailureReport {
    /// Creates a report of a failure of the core; the name and the node are filled in later.
    #[must_use]
    pub fn from_failure(failure: &FirstFailure) -> Self {
        let mut report = Self {
            instance: failure.instance,
            attempt: failure.attempt,
            reason: failure.cause.clone(),
            time: Some(Time(failure.at)),
            log: failure.last_lines.clone(),
            ..Self::default()
        };
        report.kind = match failure.component {
            FailedComponent::Worker { worker } => {
                report.worker = Some(worker);
                "Worker"
            }
            FailedComponent::Launcher => "Launcher",
            _ => "Partition",
        }
        .to_owned();
        match failure.exit {
            Some(Exit::Signal(signal)) => {
                report.signal = Some(signal);
                report.exit_code = Some(Exit::Signal(signal).code());
            }
            Some(exit) => report.exit_code = Some(exit.code()),
            None => {}
        }
        report
    }

    fn remembered(&self) -> FirstFailure {
        FirstFailure {
            instance: self.instance,
            component: match (self.worker, self.kind.as_str()) {
                (Some(worker), _) => FailedComponent::Worker { worker },
                (None, "Launcher") => FailedComponent::Launcher,
                (None, _) => FailedComponent::Partition,
            },
            attempt: self.attempt,
            exit: match (self.signal, self.exit_code) {
                (Some(signal), _) => Some(Exit::Signal(signal)),
                (None, code) => code.map(Exit::Code),
            },
            at: self.time.map_or(Timestamp::default(), |time| time.0),
            cause: self.reason.clone(),
            last_lines: self.log.clone(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde requires"
)]
pub(super) const fn is_zero(number: &u32) -> bool {
    *number == 0
}
