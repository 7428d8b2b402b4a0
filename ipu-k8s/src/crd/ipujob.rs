//! The wire form of an IPUJob: what is stored, field by field. Rules are not here but in the core.

use std::collections::BTreeMap;

use ipu_core::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An IPUJob (custom resource 1.2.0, the alpha form of seed 001 §6.5, and optional fields of ours).
///
/// Field meanings, rules and defaults: `docs/ipujob.md`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpuJob {
    /// [`IpuJob::API_VERSION`].
    pub api_version: String,
    /// [`IpuJob::KIND`].
    pub kind: String,
    /// Which one.
    pub metadata: ObjectMeta,
    /// What it asks for.
    pub spec: IpuJobSpec,
    /// What is recorded of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

impl IpuJob {
    /// The group and version of the resource.
    pub const API_VERSION: &'static str = "graphcore.ai/v1alpha1";
    /// The kind of the resource.
    pub const KIND: &'static str = "IPUJob";
    /// What keeps a job until everything that it held is given back (seed 000 §6.6).
    pub const FINALIZER: &'static str = "ipu.finalizers.graphcore.ai";
    /// The label of its Kubernetes Pods that has its uid as the value.
    pub const UID_LABEL: &'static str = "graphcore.ai/ipujob-uid";
    /// The value of `spec.managedBy` that means our operator, as its absence does.
    pub const OPERATOR: &'static str = "graphcore.ai/ipu-operator";

    /// Who else looks after the job, if somebody does: then our operator leaves it alone. An empty text is nobody.
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

    /// The manager that a `spec.managedBy` names, if it is not our operator.
    pub(crate) fn other_manager_in(manager: Option<&str>) -> Option<&str> {
        manager.filter(|manager| !manager.is_empty() && *manager != Self::OPERATOR)
    }

    /// Whether the job keeps off the host's network where the installation would put it there. It cannot ask for it where
    /// the installation does not.
    #[must_use]
    pub fn declines_host_network(&self) -> bool {
        let workers = self.spec.workers.as_ref();
        workers.is_some_and(|workers| workers.host_network == Some(false))
    }
}

/// The part of Kubernetes' ObjectMeta that a job needs; the rest is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The beginning of a name that is completed when the job is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What tells it from an earlier object of the same name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Everything else.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What an IPUJob asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpuJobSpec {
    /// How many instances, one partition each.
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
    /// What is removed when the job has finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// A session for people instead of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Interactive>,
    /// The process that starts the work on the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// When the job is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// The workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// Whether to hold nothing for now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Who looks after the job: [`IpuJob::other_manager`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interactive {
    /// How many seconds it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<IntOrString>,
}

/// The process that starts the work on the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Launcher {
    /// The command and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Variables of its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<LauncherEnv>,
    /// The network interface for MPI between the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_interface: Option<String>,
}

/// A variable of the launcher's environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LauncherEnv {
    /// Its name.
    pub name: String,
    /// Its value; empty if absent, unless [`LauncherEnv::value_from`] says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where Kubernetes finds its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Value>,
}

/// When the job is tried again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartPolicy {
    /// `Always`, `OnFailure`, `Never` or `ExitCode`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The most restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_limit: Option<IntOrString>,
    /// The exit codes that are worth another try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<IntOrString>,
    /// The pause before the first restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_seconds: Option<IntOrString>,
}

/// The workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    /// Workers of one instance, unless `workersPerJobInstance` says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<IntOrString>,
    /// Whether the processes are on the host's network: [`IpuJob::declines_host_network`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Accepted and ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// What a worker runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// How workers would be replaced by new ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `Recreate` or `RollingUpdate`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Numbers of a rolling update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Numbers of a rolling update.
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

/// A Kubernetes Pod template, kept whole: what Kubernetes knows of it changes with every release of Kubernetes, and
/// nothing of it may be lost. [`IpuJob::host_view`] reads the few fields that matter outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Value);
