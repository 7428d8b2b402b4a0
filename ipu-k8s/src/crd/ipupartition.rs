//! The custom resource `IPUPartition`: IPUs for Pods of any kind. Its CRD and its reference page are derived
//! from these types.
#![expect(
    unreachable_pub,
    reason = "`KubeSchema` copies the type with its visibility into a function"
)]

use ipu_core::{AccountName, AllocationId, JobKey, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Rule;
use kube::{CustomResource, CustomResourceExt as _, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules::{self, MAX_COUNT};
use super::schema;
use super::spec::TOKEN_PATTERN;
use super::status::{Time, is_zero, reason};

/// Specification of the partition. Only attempt and ttlSeconds can be changed.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "graphcore.ai",
    version = "v1alpha1",
    kind = "IPUPartition",
    root = "IpuPartition",
    namespaced,
    doc = "IPUs for Pods of any kind. Pods get their variables from the ConfigMap NAME-ipuof.",
    status = "IpuPartitionStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "ipup",
    category = "all",
    printcolumn(name = "IPUs", type_ = "integer", json_path = ".spec.size"),
    printcolumn(name = "phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "controller", type_ = "string", json_path = ".status.controller", priority = 1),
    printcolumn(name = "reason", type_ = "string", json_path = ".status.reason.message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = name_fits()
)]
#[x_kube(validation = gcds_divide_size(), validation = fixed(), validation = attempt_grows())]
#[serde(rename_all = "camelCase")]
pub struct IpuPartitionSpec {
    /// Number of IPUs, a power of two.
    #[x_kube(validation = power_of_two())]
    #[schemars(range(min = 1, max = MAX_COUNT))]
    pub size: u32,
    /// The only permitted V-IPU controller, host:port. Any if absent.
    #[schemars(length(min = 1, max = 253))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// The V-IPU allocation that provides the IPUs: at most 63 printable characters without blanks, quotation
    /// marks and backslashes. The controller chooses if absent.
    #[schemars(length(min = 1, max = AllocationId::MAX_REQUESTED_LEN), regex(pattern = TOKEN_PATTERN))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// Number of graph compilation domains (GCDs); divides the size. 1 if absent.
    #[schemars(range(min = 1, max = MAX_COUNT))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcds: Option<u32>,
    /// Specifies whether Poplar may pick devices of any aligned size inside the partition. Not with more than
    /// 64 IPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconfigurable: Option<bool>,
    /// Priority in the queue; larger values are served earlier. 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// True if a request of higher priority may preempt the partition: the Pods that use it are evicted. A
    /// preemptible partition never preempts others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<bool>,
    /// Account that is charged, for quotas: at most 63 printable characters without blanks, quotation marks
    /// and backslashes. The namespace if absent.
    #[schemars(length(min = 1, max = AccountName::MAX_LEN), regex(pattern = TOKEN_PATTERN))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Seconds from the time at which the partition is active until the object is deleted. The deletion waits
    /// for the Pods that use the partition. Never if absent.
    #[schemars(range(min = 1, max = i32::MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    /// Number of the user of the partition, which only grows: a larger number resets the partition, as soon
    /// as no Pod uses it. 0 if absent.
    #[schemars(range(min = 0, max = MAX_COUNT))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// Observed status of the partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct IpuPartitionStatus {
    /// Waiting, Creating, Resetting, Active, Failed or Terminating.
    pub phase: String,
    /// Why the partition is not active, or why it is not reset, preempted or released yet.
    #[schemars(schema_with = "reason")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Owners of the partitions that block a waiting request, namespace/name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
    /// The id of the partition.
    pub partition: String,
    /// The V-IPU controller of the partition, host:port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// The label of the nodes that reach the IPUs of this controller, key=value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_label: Option<String>,
    /// The ConfigMap with the variables, from before it is created until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<String>,
    /// When that ConfigMap was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn_time: Option<Time>,
    /// spec.attempt and the number of preemptions: the attempt in the ledger.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Number of times that a request of higher priority preempted the partition.
    #[serde(skip_serializing_if = "is_zero")]
    pub preemption_count: u32,
    /// When the partition was first active, and again after a preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_time: Option<Time>,
    /// The metadata.generation that this status is based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The condition Ready: True while the partition is active and the ConfigMap exists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PartitionCondition>,
}

/// The condition of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct PartitionCondition {
    /// Ready.
    #[serde(rename = "type")]
    pub kind: String,
    /// True or False.
    pub status: String,
    /// The code of the reason; Active without one.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Suffix of the ConfigMap of a partition.
const CONFIG_MAP_SUFFIX: &str = "-ipuof";

impl IpuPartition {
    /// The group and version of the resource.
    pub const API_VERSION: &'static str = "graphcore.ai/v1alpha1";
    /// The kind of the resource, and of the owner in the ledger.
    pub const KIND: &'static str = "IPUPartition";
    /// Finalizer that keeps an object until its partition is released.
    pub const FINALIZER: &'static str = "graphcore.ai/ipupartition";

    /// Returns the name of the ConfigMap with the variables of the partition `name`.
    ///
    /// ```
    /// assert_eq!(ipu_k8s::crd::IpuPartition::config_map("train"), "train-ipuof");
    /// ```
    #[must_use]
    pub fn config_map(name: &str) -> String {
        format!("{name}{CONFIG_MAP_SUFFIX}")
    }

    /// Returns the name of the partition whose variables a ConfigMap of this name has.
    #[cfg(feature = "operator")]
    pub(crate) fn of_config_map(config_map: &str) -> Option<&str> {
        config_map.strip_suffix(CONFIG_MAP_SUFFIX)
    }

    /// Returns the key of the owner in the ledger; none if the object was not read from an API server.
    #[must_use]
    pub fn key_of(metadata: &ObjectMeta) -> Option<JobKey> {
        let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
        JobKey::new(namespace, name, metadata.uid.as_deref()?).ok()
    }

    /// Returns the CustomResourceDefinition `ipupartitions.graphcore.ai`. The version of this repository is
    /// `deploy/crd/ipupartitions.graphcore.ai.yaml`.
    #[must_use]
    pub fn definition() -> Value {
        schema::definition(&Self::crd(), schema::stored_schema(&Self::crd()))
    }
}

/// The ConfigMap has the name with a suffix, and Pods of a job controller have it as the value of a label.
fn name_fits() -> Rule {
    Rule::new("oldSelf.hasValue() || self.metadata.name.size() <= 63")
        .optional_old_self(true)
        .field_path(".metadata")
        .message("metadata.name: must have at most 63 characters; use a shorter name")
}

fn power_of_two() -> Rule {
    Rule::new(format!("self in {}", rules::powers()))
        .message("spec.size: must be a power of two from 1 to 65536; use 1, 2, 4, 8 and so on")
}

fn gcds_divide_size() -> Rule {
    Rule::new("!has(self.gcds) || self.gcds >= 1 && self.size % self.gcds == 0").message(
        "spec.gcds: each graph compilation domain has the same number of IPUs, so that gcds must divide size; use a power of two up to size",
    )
}

fn fixed() -> Rule {
    let fields = [
        ("controller", "''"),
        ("allocation", "''"),
        ("account", "''"),
        ("gcds", "0"),
        ("priority", "0"),
        ("reconfigurable", "false"),
        ("preemptible", "false"),
    ];
    let fields = fields.map(|(field, absent)| {
        let of = |object: &str| format!("(has({object}.{field}) ? {object}.{field} : {absent})");
        format!("{} == {}", of("self"), of("oldSelf"))
    });
    Rule::new(format!("self.size == oldSelf.size && {}", fields.join(" && "))).message(
        "spec: only attempt and ttlSeconds can be changed, because the rest decides about the partition; delete the IPUPartition, and create another one",
    )
}

fn attempt_grows() -> Rule {
    Rule::new("self.?attempt.orValue(0) >= oldSelf.?attempt.orValue(0)").message(
        "spec.attempt: only grows, because an earlier attempt is over; use a larger number to reset the partition",
    )
}
