//! A job as people write it: every field optional, nothing checked. The names are those of the IPUJob, but nothing here
//! knows Kubernetes: Slurm, a bare host and a stranger's scheduler fill in the same form.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A job as people write it. [`RawJob::parse`] makes a `JobSpec` of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawJob {
    /// Which job.
    pub metadata: RawMetadata,
    /// What it asks for.
    pub spec: RawSpec,
}

/// Which job: the parts of its key, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawMetadata {
    /// Where the name is unique; `default` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The beginning of a name that whoever runs the job completes: see [`RawMetadata::assign`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// What tells the job from an earlier one of its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl RawMetadata {
    /// Completes what is absent: a name of `generateName` and `suffix`, and the uid. What is present stays.
    pub fn assign(&mut self, uid: &str, suffix: &str) {
        if let (None, Some(prefix)) = (&self.name, &self.generate_name) {
            self.name = Some(format!("{prefix}{suffix}"));
        }
        self.uid.get_or_insert_with(|| uid.to_string());
    }
}

/// What a job asks for, as written. Meaning, rules and defaults: `docs/ipujob.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawSpec {
    /// How many instances, one partition each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_instances: Option<IntOrString>,
    /// IPUs of one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipus_per_job_instance: Option<IntOrString>,
    /// Workers of one instance, one GCD each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers_per_job_instance: Option<IntOrString>,
    /// `workersPerJobInstance`, as the sample of seed 000 §6.6 misspells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_per_job_instance: Option<IntOrString>,
    /// Model replicas in each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_replicas_per_worker: Option<IntOrString>,
    /// Alpha form (seed 001 §6.5): model replicas of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_replicas: Option<IntOrString>,
    /// Alpha form (seed 001 §6.5): IPUs of one model replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipus_per_model_replica: Option<IntOrString>,
    /// What is removed when the job has finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// A session for people instead of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<RawInteractive>,
    /// The process that starts the work on the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<RawLauncher>,
    /// When the job is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RawRestartPolicy>,
    /// The workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<RawWorkers>,
    /// Whether to hold nothing for now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// How long a finished job keeps what its clean-up policy leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<IntOrString>,
    /// How long the job may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<IntOrString>,
    /// How long a partition waits for its workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_deadline_seconds: Option<IntOrString>,
    /// Larger is served earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<IntOrString>,
    /// Who is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Whether a scheduler may end the job for a more urgent one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// Whether Poplar may pick devices of any aligned size inside the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurable: Option<bool>,
    /// The V-IPU allocation to draw from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
}

/// A session for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawInteractive {
    /// How many seconds it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<IntOrString>,
}

/// The process that starts the work on the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawLauncher {
    /// The command and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Variables of the launcher's environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// The network interface for MPI between the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_interface: Option<String>,
}

/// A variable of a process's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

/// When the job is tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawRestartPolicy {
    /// `Always`, `OnFailure`, `Never` or `ExitCode`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The most restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_limit: Option<IntOrString>,
    /// The exit codes that are worth another try: `128-255,42`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<IntOrString>,
    /// The pause before the first restart; it doubles with each further one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_seconds: Option<IntOrString>,
}

/// The workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawWorkers {
    /// Workers of one instance, unless `workersPerJobInstance` says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<IntOrString>,
    /// How workers would be replaced by new ones: accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<RawStrategy>,
}

/// How workers would be replaced by new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawStrategy {
    /// `Recreate` or `RollingUpdate`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Numbers of a rolling update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RawRollingUpdate>,
}

/// Numbers of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawRollingUpdate {
    /// A count or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// A count or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// A value that people write as a number or as a text: the CRD 1.2.0 wants some numbers as strings.
///
/// Whatever else a scalar can be (a fraction, a truth value) is kept as its text, so that the rule of the field is what
/// refuses it, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum IntOrString {
    /// A whole number.
    Int(i64),
    /// Anything else, as text.
    String(String),
}

impl IntOrString {
    /// The whole number, if it is one; a text counts with its blanks removed.
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

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IntOrStringVisitor)
    }
}

struct IntOrStringVisitor;

impl Visitor<'_> for IntOrStringVisitor {
    type Value = IntOrString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number or a text")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<IntOrString, E> {
        Ok(IntOrString::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<IntOrString, E> {
        Ok(i64::try_from(value).map_or_else(|_| IntOrString::String(value.to_string()), IntOrString::Int))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<IntOrString, E> {
        Ok(IntOrString::String(value.to_string()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<IntOrString, E> {
        Ok(IntOrString::String(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<IntOrString, E> {
        Ok(IntOrString::String(text.into()))
    }
}
