//! The objects of Kueue, as far as the operator reads and writes them.
//!
//! *Safety*: the ledger alone gives partitions to jobs. What Kueue says decides only when a job asks it.

use std::sync::Arc;

use ipu_core::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{CustomResource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{StoredJob, StoredPartition};
use crate::crd::IpuJob;

/// Resource of which a ClusterQueue has a quota: one IPU.
pub(super) const RESOURCE: &str = "graphcore.ai/ipu";
/// The `controllerName` of an AdmissionCheck that this operator answers.
pub(super) const CONTROLLER: &str = "graphcore.ai/ipu-partition";

/// Characters of a uid that make the name of a Workload that of one job.
const UID_CHARACTERS: usize = 8;

/// A job in a queue of Kueue.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    namespaced,
    schema = "disabled",
    status = "WorkloadStatus",
    derive = "Default"
)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkloadSpec {
    pub(super) queue_name: Option<String>,
    pub(super) priority: Option<i32>,
    pub(super) active: Option<bool>,
    pub(super) pod_sets: Vec<PodSet>,
}

/// Pods of one template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PodSet {
    pub(super) name: String,
    pub(super) count: u32,
    pub(super) template: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WorkloadStatus {
    pub(super) conditions: Vec<Condition>,
    pub(super) admission: Option<Admission>,
    /// With the fields that this operator does not know.
    pub(super) admission_checks: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Admission {
    pub(super) pod_set_assignments: Vec<PodSetAssignment>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct PodSetAssignment {
    pub(super) name: String,
    pub(super) count: Option<u32>,
}

/// A check that a ClusterQueue requires.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "AdmissionCheck",
    schema = "disabled",
    status = "AdmissionCheckStatus",
    derive = "Default"
)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AdmissionCheckSpec {
    pub(super) controller_name: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AdmissionCheckStatus {
    pub(super) conditions: Vec<Condition>,
}

/// The objects of Kueue that are watched.
pub(super) struct Kueue {
    pub(super) workloads: Store<Workload>,
    pub(super) checks: Store<AdmissionCheck>,
    /// True once the Workloads have their first list.
    pub(super) has_workloads: watch::Receiver<bool>,
    /// True once AdmissionChecks and IPUPartitions have theirs, too.
    pub(super) is_listed: watch::Receiver<bool>,
}

impl Kueue {
    /// Returns the Workload of an IPUJob.
    pub(super) fn workload_of(&self, job: &IpuJob) -> Option<Arc<Workload>> {
        let name = ObjectRef::new(&workload_name(job)).within(&job.namespace()?);
        let is_own = |workload: &Arc<Workload>| workload.owner_uid() == job.metadata.uid.as_deref();
        self.workloads.get(&name).filter(is_own)
    }
}

impl Workload {
    pub(super) fn condition(&self, kind: &str) -> Option<&Condition> {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| condition.type_ == kind)
    }

    pub(super) fn is(&self, kind: &str) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Returns whether the Workload has its quota, and keeps it.
    pub(super) fn has_reservation(&self) -> bool {
        self.is("QuotaReserved")
            && !self.is("Evicted")
            && !self.is("Finished")
            && self.metadata.deletion_timestamp.is_none()
    }

    /// Returns the uid of the job that the Workload is of.
    pub(super) fn owner_uid(&self) -> Option<&str> {
        let mut owners = self.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        Some(&owner.uid)
    }

    /// Returns the IPUJob that the Workload is of; none if it is of another kind.
    pub(super) fn ipujob(&self) -> Option<ObjectRef<StoredJob>> {
        let mut owners = self.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.kind == IpuJob::KIND && owner.controller == Some(true))?;
        Some(ObjectRef::new(&owner.name).within(self.metadata.namespace.as_deref()?))
    }
}

/// Returns the name of the Workload of an IPUJob.
pub(super) fn workload_name(job: &IpuJob) -> String {
    let uid = job.uid().unwrap_or_default();
    let uid: String = uid.chars().take(UID_CHARACTERS).collect();
    format!("ipujob-{}-{uid}", job.name_any())
}

/// Returns the Workload that an IPUPartition was made for.
pub(super) fn workload_of(holder: &StoredPartition) -> Option<ObjectRef<Workload>> {
    let owners = holder.owner_references().iter();
    let owner = owners.into_iter().find(|owner| owner.kind == "Workload")?;
    Some(ObjectRef::new(&owner.name).within(&holder.namespace()?))
}

/// Logs that Kueue's objects cannot be watched, as before Kueue is installed.
pub(super) fn log_failure<K>(namespace: Option<&str>, event: &watcher::Result<watcher::Event<K>>) {
    if let Err(error) = event {
        tracing::warn!(%error, namespace, "the watch of Kueue's objects failed");
    }
}

/// Sets a condition; its time changes with its status only.
pub(super) fn set_condition(conditions: &mut Vec<Condition>, condition: Condition) {
    match conditions.iter_mut().find(|one| one.type_ == condition.type_) {
        Some(existing) if existing.status == condition.status => {
            let since = existing.last_transition_time.clone();
            *existing = Condition {
                last_transition_time: since,
                ..condition
            };
        }
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

pub(super) fn time(now: Timestamp) -> Time {
    let millis = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    Time(jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX))
}

pub(super) fn condition(kind: &str, status: bool, reason: &str, message: &str, now: Time) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now,
        observed_generation: None,
    }
}

/// Returns a merge patch of the status that fails if a later version of the object exists.
pub(super) fn status_patch(version: Option<String>, status: Value) -> Value {
    let mut patch = json!({"metadata": {"resourceVersion": version}});
    patch["status"] = status;
    patch
}
