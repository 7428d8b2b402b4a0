//! A job as submitted: every field optional, nothing validated. The names are those of the IPUJob, but
//! nothing here depends on Kubernetes: Slurm, a bare host and third-party schedulers use the same form.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

/// A job as submitted. [`RawJob::parse`] converts it to a `JobSpec`.
///
/// Its JSON has the keys `metadata` and `spec` of an IPUJob and no other: `ipu-k8s` reads whole manifests.
/// The keys are in camel case, and unknown ones are errors. A program that makes up the identity of a job
/// calls [`RawMetadata::assign`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawJob {
    /// Identity of the job.
    pub metadata: RawMetadata,
    /// Desired state of the job.
    pub spec: RawSpec,
}

/// Identity of a job as submitted: the parts of its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawMetadata {
    /// Namespace of the job; `default` if absent.
    pub namespace: Option<String>,
    /// The name.
    pub name: Option<String>,
    /// Prefix of a name that the program which runs the job completes: see [`RawMetadata::assign`].
    pub generate_name: Option<String>,
    /// Unique id of the job among jobs of the same name.
    pub uid: Option<String>,
}

impl RawMetadata {
    /// Completes absent fields: the name from `generateName` and `suffix`, and the uid. Present fields are
    /// kept.
    pub fn assign(&mut self, uid: &str, suffix: &str) {
        if let (None, Some(prefix)) = (&self.name, &self.generate_name) {
            self.name = Some(format!("{prefix}{suffix}"));
        }
        self.uid.get_or_insert_with(|| uid.to_string());
    }
}

/// Specification of a job as submitted. The documentation of the [IPUJob] has the
/// meaning, rules and default of each field; all are optional.
///
/// [IPUJob]: https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/ipujob.md
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawSpec {
    /// Number of instances, one partition each.
    pub job_instances: Option<IntOrString>,
    /// IPUs of one instance.
    pub ipus_per_job_instance: Option<IntOrString>,
    /// Workers of one instance, one GCD each.
    pub workers_per_job_instance: Option<IntOrString>,
    /// `workersPerJobInstance`, as the sample of the V-IPU guide §6.6 misspells it.
    pub worker_per_job_instance: Option<IntOrString>,
    /// Model replicas in each worker.
    pub model_replicas_per_worker: Option<IntOrString>,
    /// Alpha form (alpha guide §6.5): model replicas of the job.
    pub model_replicas: Option<IntOrString>,
    /// Alpha form (alpha guide §6.5): IPUs of one model replica.
    pub ipus_per_model_replica: Option<IntOrString>,
    /// Cleanup policy of a finished job.
    pub clean_pod_policy: Option<String>,
    /// An interactive session instead of a command.
    pub interactive: Option<RawInteractive>,
    /// The process that starts the work on the workers.
    pub launcher: Option<RawLauncher>,
    /// Restart policy.
    pub restart_policy: Option<RawRestartPolicy>,
    /// The workers.
    pub workers: Option<RawWorkers>,
    /// Set to suspend the job, so that it holds nothing.
    pub suspend: Option<bool>,
    /// Time in seconds for which a finished job keeps the resources that its cleanup policy leaves.
    pub ttl_seconds_after_finished: Option<IntOrString>,
    /// Maximum run time in seconds.
    pub active_deadline_seconds: Option<IntOrString>,
    /// Time in seconds for which a partition waits for its workers.
    pub start_deadline_seconds: Option<IntOrString>,
    /// Queue priority; higher starts first.
    pub priority: Option<IntOrString>,
    /// The account that is charged.
    pub account: Option<String>,
    /// Set if a job of higher priority may preempt the job.
    pub preemptible: Option<bool>,
    /// Set if Poplar may use devices of any aligned size inside the partition.
    pub reconfigurable: Option<bool>,
    /// The V-IPU allocation to draw from.
    pub allocation: Option<String>,
}

/// An interactive session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawInteractive {
    /// Time to live in seconds.
    pub ttl: Option<IntOrString>,
}

/// The process that starts the work on the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawLauncher {
    /// The command and its arguments.
    pub command: Option<Vec<String>>,
    /// Variables of the launcher's environment.
    pub env: Vec<EnvVar>,
    /// The network interface for MPI between the workers.
    pub tcp_interface: Option<String>,
}

/// A variable of a process's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

/// Restart policy as submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawRestartPolicy {
    /// `Always`, `OnFailure`, `Never` or `ExitCode`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Maximum number of restarts.
    pub back_off_limit: Option<IntOrString>,
    /// The retryable exit codes: `128-255,42`.
    pub exit_codes: Option<IntOrString>,
    /// Delay in seconds before the first restart; it doubles with each further one.
    pub back_off_seconds: Option<IntOrString>,
}

/// The workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawWorkers {
    /// Workers of one instance, unless `workersPerJobInstance` is set.
    pub replicas: Option<IntOrString>,
}

/// A value given as a number or as text: the CRD 1.2.0 defines some numbers as strings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a whole number, or one in quotes")]
pub enum IntOrString {
    /// A whole number.
    Int(i64),
    /// A text, which the rule of the field parses.
    String(String),
}

impl IntOrString {
    /// Returns the whole number, if it is one; surrounding blanks of a text are ignored.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::String(text) => text.trim().parse().ok(),
        }
    }
}

impl From<i64> for IntOrString {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for IntOrString {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::String(text) => write!(f, "{text:?}"),
        }
    }
}
