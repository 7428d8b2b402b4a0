//! The specification of an IPUJob: its fields with their meaning, kind and rules. The CRD, its reference page
//! and the check of manifests are derived from it. The texts of the rules are in [`rules`].
#![expect(
    unreachable_pub,
    reason = "`KubeSchema` copies the type with its visibility into a function"
)]

use ipu_core::job::IntOrString;
use ipu_core::{AccountName, AllocationId};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules::{self, MAX_COUNT};
use super::status::IpuJobStatus;

/// Specification of the job. Required.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "graphcore.ai",
    version = "v1alpha1",
    kind = "IPUJob",
    root = "IpuJob",
    namespaced,
    doc = "A job that uses IPUs: how many it needs, which processes use them, and how it ends.",
    status = "IpuJobStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "ipuj",
    category = "all",
    scale(
        spec_replicas_path = ".spec.jobInstances",
        status_replicas_path = ".status.currentReplicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "status", type_ = "string", json_path = ".status.launcherStatus"),
    printcolumn(name = "current", type_ = "integer", json_path = ".status.currentReplicas"),
    printcolumn(name = "desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "ready", type_ = "integer", json_path = ".status.readyReplicas", priority = 1),
    printcolumn(name = "LastMessage", type_ = "string", json_path = ".status.lastMessage"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = rules::fixed_partition(),
    validation = rules::fixed_processes(),
    validation = rules::fixed_manager(),
    validation = rules::name_is_label(),
    validation = rules::service_name(),
    validation = rules::new_names_fit(),
    validation = rules::more_names_fit()
)]
#[x_kube(
    validation = rules::has_size(),
    validation = rules::alpha_form_size(),
    validation = rules::workers_divide_ipus(),
    validation = rules::workers_are_countable(),
    validation = rules::reconfigurable_size(),
    validation = rules::launcher_command()
)]
#[serde(rename_all = "camelCase")]
pub struct IpuJobSpec {
    /// Instances of the job; each has its own partition, workers and, if configured, launcher. More than one
    /// is for inference. 0 holds no resources. `kubectl scale` changes this field.
    #[schemars(schema_with = "integer::<0, MAX_COUNT>", extend("default" = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_instances: Option<IntOrString>,
    /// IPUs of one instance: the size of its partition. A power of two; the installation may allow fewer than
    /// the most. Required except in the alpha form. Changes only while the job holds no IPUs: suspended, or
    /// finished and cleaned up.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::power_of_two("spec.ipusPerJobInstance"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipus_per_job_instance: Option<IntOrString>,
    /// Workers of one instance; each has its own GCD. Divides the IPUs of the instance. 1 if absent.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::count("spec.workersPerJobInstance"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_per_job_instance: Option<IntOrString>,
    /// Deprecated misspelling of workersPerJobInstance, which takes precedence if both are given.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::count("spec.workerPerJobInstance"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_per_job_instance: Option<IntOrString>,
    /// Model replicas in each worker; the partition is created for GCDs times this many. 1 if absent.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::count("spec.modelReplicasPerWorker"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_replicas_per_worker: Option<IntOrString>,
    /// Deprecated, the alpha form: model replicas of the job. With ipusPerModelReplica it requests one
    /// instance of their product; ignored if ipusPerJobInstance is given.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::count("spec.modelReplicas"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_replicas: Option<IntOrString>,
    /// Deprecated, the alpha form: IPUs of one model replica. See modelReplicas.
    #[schemars(schema_with = "number_or_text")]
    #[x_kube(validation = rules::count("spec.ipusPerModelReplica"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipus_per_model_replica: Option<IntOrString>,
    /// Resources deleted when the job has finished: None, Workers, or All. Only All releases the IPUs at
    /// once; it makes the restart policy act as Never. None if absent.
    #[schemars(extend("enum" = ["None", "Workers", "All"], "default" = "None"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<String>,
    /// An interactive session: the launcher runs no command, and the job ends after the ttl.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Interactive>,
    /// The process that starts processes on the workers, such as mpirun. Without a launcher the workers run
    /// their own command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// When the job is restarted. Never if absent.
    #[schemars(extend("default" = {"type": "Never", "backOffLimit": 3}))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// The processes that use the IPUs.
    #[schemars(required)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Workers>,
    /// Specifies whether the job is suspended: it has no processes, no partition and no queued request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// True for a headless Service with the name of the job, which resolves to its ready workers. It is
    /// created before the next worker, and deleted with the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headless_service: Option<bool>,
    /// The controller that manages the job. The operator ignores jobs with another value than
    /// graphcore.ai/ipu-operator. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Seconds for which a finished job is kept, with the resources that its clean-up policy leaves, IPUs
    /// included; then it is deleted. Kept until it is deleted if absent.
    #[schemars(schema_with = "integer::<0, MAX_INTEGER>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<IntOrString>,
    /// Maximum running time of the job in seconds, restarts included; then it fails. No limit if absent.
    #[schemars(schema_with = "integer::<1, MAX_INTEGER>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<IntOrString>,
    /// Seconds within which all workers of a partition must be ready, and after that the launcher; otherwise
    /// the partition is released and the job is queued again. 600 if absent.
    #[schemars(schema_with = "integer::<1, MAX_INTEGER>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline_seconds: Option<IntOrString>,
    /// Priority in the queue; larger values are served earlier. 0 if absent.
    #[schemars(schema_with = "integer::<MIN_INTEGER, MAX_INTEGER>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<IntOrString>,
    /// Account that is charged, for quotas: at most 63 printable characters without blanks, quotation marks
    /// and backslashes. The namespace if absent.
    #[schemars(length(min = 1, max = AccountName::MAX_LEN), regex(pattern = TOKEN_PATTERN))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// True if a job of higher priority may preempt the job. A preemptible job never preempts others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// Specifies whether Poplar may pick devices of any aligned size inside the partition. Not with more than
    /// 64 IPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurable: Option<bool>,
    /// The V-IPU allocation that provides the IPUs: at most 63 printable characters without blanks, quotation
    /// marks and backslashes. The controller chooses if absent.
    #[schemars(length(min = 1, max = AllocationId::MAX_REQUESTED_LEN), regex(pattern = TOKEN_PATTERN))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
}

/// Interactive session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["ttl"]))]
#[serde(rename_all = "camelCase", default)]
pub struct Interactive {
    /// Duration of the session in seconds, from the time the launcher runs.
    #[schemars(schema_with = "integer::<1, MAX_INTEGER>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<IntOrString>,
}

/// Process that starts processes on the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Launcher {
    /// Program and arguments, one item each. Required except for interactive jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Environment variables of the launcher.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<LauncherEnv>,
    /// Resources of the launcher and of its init container. If absent, 100m CPU and 256Mi memory are
    /// requested, with limits of 2 CPUs and 4Gi.
    #[schemars(schema_with = "any_object")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Value>,
    /// Interfaces or subnets for MPI between the workers, such as eth0 or 10.0.0.0/16; exported as
    /// OMPI_MCA_btl_tcp_if_include.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_interface: Option<String>,
}

/// Environment variable of the launcher.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["name"]))]
#[serde(rename_all = "camelCase", default)]
pub struct LauncherEnv {
    /// The name of the variable.
    pub name: String,
    /// The value; empty if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The source from which Kubernetes gets the value.
    #[schemars(schema_with = "any_object")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Value>,
}

/// When the job is restarted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["type"]))]
#[serde(rename_all = "camelCase", default)]
pub struct RestartPolicy {
    /// Never; OnFailure; Always, after success too; or ExitCode, after the codes of exitCodes.
    #[schemars(extend("enum" = ["Always", "OnFailure", "Never", "ExitCode"]))]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Maximum number of restarts after failure; those after success do not count.
    #[schemars(schema_with = "integer::<0, MAX_INTEGER>", extend("default" = 3))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_limit: Option<IntOrString>,
    /// Under ExitCode: the codes after which the job is restarted, such as 128-255,42. All others are
    /// permanent. Termination by signal n counts as 128 + n. 128-255 if absent.
    #[schemars(schema_with = "number_or_text", extend("pattern" = EXIT_CODES))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<IntOrString>,
    /// Back-off in seconds before the first restart; it doubles with each further one, up to six minutes. 10
    /// if absent.
    #[schemars(schema_with = "integer::<0, MAX_INTEGER>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off_seconds: Option<IntOrString>,
}

/// The workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Workers {
    /// Workers of one instance in older manifests. If workersPerJobInstance is given too and they differ, one
    /// of them must be 1 and the other takes precedence.
    #[schemars(schema_with = "integer::<1, MAX_INTEGER>", extend("default" = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<IntOrString>,
    /// Specifies whether workers and launcher use the network of their host. false disables it; true has no
    /// effect. As the operator is installed if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Deprecated and ignored: the workers of an attempt are replaced together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The Pod template of the workers. Its first container, or that of the annotation
    /// kubectl.kubernetes.io/default-container, is the worker; its volumes and mounts are also the
    /// launcher's.
    #[schemars(schema_with = "any_object")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// Update strategy of the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// Ignored.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Parameters of a rolling update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Ignored.
    #[schemars(schema_with = "number_or_text")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Ignored.
    #[schemars(schema_with = "number_or_text")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// A Pod template as the user wrote it: its fields change with every release of Kubernetes, and none may be
/// lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Value);

const MIN_INTEGER: i32 = i32::MIN;
const MAX_INTEGER: i32 = i32::MAX;

/// Printable ASCII without `"` and `\`.
pub(super) const TOKEN_PATTERN: &str = r"^[!#-\[\]-~]+$";

/// Exit codes and ranges, as in the custom resource 1.2.0.
const EXIT_CODES: &str = "^([0-9]+(-[0-9]+)?)(,([0-9]+(-[0-9]+)?))*$";

/// Returns the schema of a 32-bit integer in these bounds.
fn integer<const MIN: i32, const MAX: i32>(_: &mut SchemaGenerator) -> Schema {
    let mut schema = json_schema!({"type": "integer", "format": "int32"});
    if MIN > MIN_INTEGER {
        schema.insert("minimum".into(), MIN.into());
    }
    if MAX < MAX_INTEGER {
        schema.insert("maximum".into(), MAX.into());
    }
    schema
}

/// Returns the schema of a number that may be quoted, as in the custom resource 1.2.0.
fn number_or_text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}

/// Returns the schema of an object that Kubernetes defines.
fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
