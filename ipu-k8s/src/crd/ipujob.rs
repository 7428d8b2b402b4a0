//! The wire form of an IPUJob: the stored fields. The rules are in the core.

use std::collections::BTreeMap;

use ipu_core::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An IPUJob (custom resource 1.2.0, the alpha form of seed 001 §6.5, and optional fields of this project).
///
/// Field meanings, rules and defaults: `docs/ipujob.md`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpuJob {
    /// [`IpuJob::API_VERSION`].
    pub api_version: String,
    /// [`IpuJob::KIND`].
    pub kind: String,
    /// Metadata of the object.
    pub metadata: ObjectMeta,
    /// Specification of the job.
    pub spec: IpuJobSpec,
    /// Observed status of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

impl IpuJob {
    /// The group and version of the resource.
    pub const API_VERSION: &'static str = "graphcore.ai/v1alpha1";
    /// The kind of the resource.
    pub const KIND: &'static str = "IPUJob";
    /// Finalizer that keeps a job until its resources are released (seed 000 §6.6).
    pub const FINALIZER: &'static str = "ipu.finalizers.graphcore.ai";
    /// Label of a job's pods whose value is the uid of the job.
    pub const UID_LABEL: &'static str = "graphcore.ai/ipujob-uid";
    /// Value of `spec.managedBy` for this project's operator, equivalent to its absence.
    pub const OPERATOR: &'static str = "graphcore.ai/ipu-operator";

    /// Returns the other controller that manages the job, which the operator then ignores. An empty text
    /// means none.
    ///
    /// ```
    /// use ipu_k8s::crd::IpuJob;
    ///
    /// let mut job = IpuJob::default();
    /// assert_eq!(job.other_manager(), None);
    /// job.spec.managed_by = Some(IpuJob::OPERATOR.into());
    /// assert_eq!(job.other_manager(), None);
    /// job.spec.managed_by = Some(String::new());
    /// assert_eq!(job.other_manager(), None);
    /// job.spec.managed_by = Some("kueue.x-k8s.io/multikueue".into());
    /// assert_eq!(job.other_manager(), Some("kueue.x-k8s.io/multikueue"));
    /// ```
    #[must_use]
    pub fn other_manager(&self) -> Option<&str> {
        Self::other_manager_in(self.spec.managed_by.as_deref())
    }

    /// Returns the manager in a `spec.managedBy`, if it is not this project's operator.
    pub(crate) fn other_manager_in(manager: Option<&str>) -> Option<&str> {
        manager.filter(|manager| !manager.is_empty() && *manager != Self::OPERATOR)
    }

    /// Returns whether the job declines the host network of the installation. A job cannot request the host
    /// network if the installation does not use it.
    #[must_use]
    pub fn declines_host_network(&self) -> bool {
        let workers = self.spec.workers.as_ref();
        workers.is_some_and(|workers| workers.host_network == Some(false))
    }
}

/// Fields of Kubernetes' ObjectMeta that a job needs; the others are preserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Prefix of a generated name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// Namespace of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Uid, which distinguishes it from an earlier object of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Specification of an IPUJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpuJobSpec {
    /// Number of instances, with one partition each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_instances: Option<IntOrString>,
    /// IPUs of one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipus_per_job_instance: Option<IntOrString>,
    /// Workers of one instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers_per_job_instance: Option<IntOrString>,
    /// Deprecated: `workersPerJobInstance`, as the sample of seed 000 §6.6 misspells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_per_job_instance: Option<IntOrString>,
    /// Model replicas in each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_replicas_per_worker: Option<IntOrString>,
    /// Deprecated: model replicas of the job (seed 001 §6.5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_replicas: Option<IntOrString>,
    /// Deprecated: IPUs of one model replica (seed 001 §6.5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipus_per_model_replica: Option<IntOrString>,
    /// Resources deleted when the job has finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// Interactive session instead of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Interactive>,
    /// Process that starts processes on the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// When the job is restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// The workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// True if the job is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Controller that manages the job: [`IpuJob::other_manager`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Seconds for which a finished job is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<IntOrString>,
    /// Maximum running time of the job in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<IntOrString>,
    /// Seconds within which the workers of a partition must be ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_deadline_seconds: Option<IntOrString>,
    /// Priority in the queue; larger values are served earlier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<IntOrString>,
    /// Account that is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// True if a job of higher priority may preempt the job. A preemptible job never preempts others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// True if Poplar may pick devices of any aligned size inside the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurable: Option<bool>,
    /// V-IPU allocation that provides the IPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
}

/// Interactive session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interactive {
    /// Duration in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<IntOrString>,
}

/// Process that starts processes on the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Launcher {
    /// Command and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Environment variables of the launcher.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<LauncherEnv>,
    /// Network interface for MPI between the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_interface: Option<String>,
}

/// Environment variable of the launcher.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LauncherEnv {
    /// Name of the variable.
    pub name: String,
    /// Value; empty if absent, unless [`LauncherEnv::value_from`] is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source from which Kubernetes gets the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Value>,
}

/// When the job is restarted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartPolicy {
    /// `Always`, `OnFailure`, `Never` or `ExitCode`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Maximum number of restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_limit: Option<IntOrString>,
    /// Exit codes after which the job is restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<IntOrString>,
    /// Back-off in seconds before the first restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_seconds: Option<IntOrString>,
}

/// The workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    /// Workers of one instance, unless `workersPerJobInstance` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<IntOrString>,
    /// True if the processes use the host network: [`IpuJob::declines_host_network`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Pod template of the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// Update strategy of the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `Recreate` or `RollingUpdate`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Parameters of a rolling update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Parameters of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// A count or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// A count or a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// A pod template, preserved as a whole: its fields change with every release of Kubernetes, and none may be
/// lost. [`IpuJob::host_view`] reads the few fields that matter outside of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Value);
