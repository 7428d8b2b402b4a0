//! The AdmissionCheck of Kueue for jobs of any kind: a Workload that has a quota of IPUs gets an
//! IPUPartition, and the check is Ready once that is active. A Workload without a reservation has none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, Patch};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::StoredPartition;
use super::context::Context;
use super::error::{ReconcileError, ignore_statuses, is_status};
use super::kueue::{
    AdmissionCheck, CONTROLLER, Kueue, PodSet, RESOURCE, Workload, condition, set_condition, status_patch,
    time,
};
use super::objects::{delete_params, patch_params, post_params};
use crate::crd::{IpuPartition, IpuPartitionSpec, Time};

/// Interval in which the first lists are awaited.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// Interval in which an IPUPartition that is not of the Workload is looked for again.
const TAKEN_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which Kueue evicts a Workload whose check says Retry before it was Ready, and which limits the
/// retries. Kueue keeps the quota until then.
const RETRY_SECONDS: u32 = 10;
/// Label of an IPUPartition: the time of the reservation that it was made for, in seconds.
const RESERVATION: &str = "graphcore.ai/quota-reserved-at";

/// Answer of a check.
#[derive(Clone, Debug, PartialEq)]
enum CheckAnswer {
    Pending(String),
    /// The labels of the nodes by the name of the Pods.
    Ready(String, BTreeMap<String, String>),
    /// Kueue evicts the Workload, and tries again later.
    Retry(String),
    /// Kueue evicts the Workload, and deactivates it.
    Rejected(String),
}

/// Pods that share an IPUPartition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Demand {
    ipus: u64,
    pod_sets: Vec<String>,
}

/// Reports that a check of this operator is answered.
pub(super) async fn activate(
    check: Arc<AdmissionCheck>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let mut conditions = check.status.clone().unwrap_or_default().conditions;
    let is_active = conditions
        .iter()
        .any(|one| one.type_ == "Active" && one.status == "True");
    if check.spec.controller_name != CONTROLLER || is_active {
        return Ok(Action::await_change());
    }
    let now = time((context.now)());
    let text = "the IPU operator answers the check";
    set_condition(&mut conditions, condition("Active", true, "Active", text, now));
    let patch = status_patch(check.resource_version(), json!({"conditions": conditions}));
    let checks: Api<AdmissionCheck> = Api::all(context.client.clone());
    checks
        .patch_status(&check.name_any(), &patch_params(), &Patch::Merge(patch))
        .await?;
    Ok(Action::await_change())
}

/// Answers the checks of a Workload.
pub(super) async fn reconcile(
    workload: Arc<Workload>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let Some(kueue) = &context.kueue else {
        return Ok(Action::await_change());
    };
    // No decision is made before the stores have listed all objects.
    if !*kueue.is_listed.borrow() {
        return Ok(Action::requeue(LIST_INTERVAL));
    }
    let work = Check {
        context: &context,
        kueue,
        workload: &workload,
    };
    if !workload.has_reservation() {
        work.delete_partitions().await?;
        return Ok(Action::await_change());
    }
    let open = work.open_checks();
    if open.is_empty() {
        return Ok(Action::await_change());
    }
    let answer = work.decide().await?;
    work.write(&open, &answer).await?;
    Ok(match answer {
        CheckAnswer::Pending(_) => Action::requeue(TAKEN_INTERVAL),
        _ => Action::await_change(),
    })
}

/// One reconciliation.
struct Check<'a> {
    context: &'a Context,
    kueue: &'a Kueue,
    workload: &'a Workload,
}

impl Check<'_> {
    /// Returns the names of the checks that this operator answers, and that Kueue has not acted upon.
    fn open_checks(&self) -> Vec<String> {
        let states = self
            .workload
            .status
            .iter()
            .flat_map(|status| &status.admission_checks);
        let is_open = |state: &&Value| matches!(state["state"].as_str(), Some("Pending" | "Ready"));
        let names = states.filter(is_open).filter_map(|state| state["name"].as_str());
        let is_ours = |name: &&str| {
            let check = self.kueue.checks.get(&ObjectRef::new(name));
            check.is_some_and(|check| check.spec.controller_name == CONTROLLER)
        };
        names.filter(is_ours).map(str::to_owned).collect()
    }

    /// Returns the answer for the Workload, after creating the IPUPartitions that it lacks.
    async fn decide(&self) -> Result<CheckAnswer, ReconcileError> {
        if self.workload.ipujob().is_some() {
            let text = "the IPUJob requests its partitions itself".to_owned();
            return Ok(CheckAnswer::Ready(text, BTreeMap::new()));
        }
        let demands = match demands(self.workload) {
            Ok(demands) => demands,
            Err(text) => return Ok(CheckAnswer::Rejected(text)),
        };
        let mut answer = CheckAnswer::Ready("the Pods request no IPUs".to_owned(), BTreeMap::new());
        for (name, demand) in demands {
            answer = worse(answer, self.partition(&name, &demand).await?);
        }
        Ok(answer)
    }

    /// Returns the answer that follows from an IPUPartition, which is created if it does not exist.
    async fn partition(&self, name: &str, demand: &Demand) -> Result<CheckAnswer, ReconcileError> {
        let namespace = self.workload.namespace().unwrap_or_default();
        let found = self.context.holders.get(&ObjectRef::new(name).within(&namespace));
        let Some(found) = found else {
            return self.create(name, demand).await;
        };
        let is_own = self.is_own(&found);
        if found.meta().deletion_timestamp.is_some() {
            let text = format!("IPUPartition {name} of an earlier admission is being released");
            return Ok(match is_own && self.is_ready() {
                true => CheckAnswer::Retry(format!("IPUPartition {name} was deleted")),
                false => CheckAnswer::Pending(text),
            });
        }
        if !is_own && self.is_of_former_workload(&found) {
            let text = format!("IPUPartition {name} of an earlier Workload is being released");
            return Ok(CheckAnswer::Pending(text));
        }
        if !is_own {
            return Ok(CheckAnswer::Retry(format!(
                "IPUPartition {name} exists and is not of this Workload: delete it, or name another ConfigMap in envFrom"
            )));
        }
        let reservation = found
            .meta()
            .labels
            .as_ref()
            .and_then(|labels| labels.get(RESERVATION));
        let is_of_this = reservation == Some(&self.reservation());
        let found = found.0.as_ref().ok().cloned().unwrap_or_default();
        // Kueue may also have admitted another number of Pods before.
        if !is_of_this || u64::from(found.spec.size) != demand.ipus && !self.is_ready() {
            let text = format!("IPUPartition {name} of an earlier admission is being released");
            if self.is_ready() {
                return Ok(CheckAnswer::Retry(text));
            }
            self.delete(&found.metadata).await?;
            return Ok(CheckAnswer::Pending(text));
        }
        let status = found.status.unwrap_or_default();
        let text = status.reason.as_ref().map_or_else(
            || format!("IPUPartition {name} is requested"),
            |reason| format!("IPUPartition {name}: {reason}"),
        );
        // It would keep its quota at each retry.
        if status.reason.is_some_and(|reason| reason.code.is_permanent()) {
            return Ok(CheckAnswer::Rejected(text));
        }
        if status.phase == "Failed" {
            return Ok(CheckAnswer::Retry(text));
        }
        let is_active = status
            .conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status == "True");
        if !is_active {
            return Ok(CheckAnswer::Pending(text));
        }
        let label = status.node_label;
        let conflict = label
            .as_ref()
            .and_then(|label| self.conflict(label, &demand.pod_sets));
        if let Some(text) = conflict.filter(|_| !self.is_ready()) {
            return Ok(CheckAnswer::Retry(text));
        }
        let labels = label
            .iter()
            .flat_map(|label| demand.pod_sets.iter().map(|set| (set.clone(), label.clone())));
        Ok(CheckAnswer::Ready(
            format!("IPUPartition {name} is active"),
            labels.collect(),
        ))
    }

    async fn create(&self, name: &str, demand: &Demand) -> Result<CheckAnswer, ReconcileError> {
        if self.is_ready() {
            // Its Pods have the variables of the one that was there.
            return Ok(match self.api().get_opt(name).await? {
                None => CheckAnswer::Retry(format!("IPUPartition {name} was deleted")),
                Some(_) => CheckAnswer::Pending(format!("IPUPartition {name} is being read")),
            });
        }
        let Ok(size) = u32::try_from(demand.ipus) else {
            return Ok(CheckAnswer::Rejected(format!(
                "the Pods request {} IPUs",
                demand.ipus
            )));
        };
        let spec = IpuPartitionSpec {
            size,
            priority: self.workload.spec.priority,
            ..IpuPartitionSpec::default()
        };
        let mut partition = IpuPartition::new(name, spec);
        partition.metadata.namespace = self.workload.namespace();
        partition.metadata.labels = Some([(RESERVATION.to_owned(), self.reservation())].into());
        partition.metadata.owner_references = Some(vec![OwnerReference {
            block_owner_deletion: None,
            ..self.workload.controller_owner_ref(&()).unwrap_or_default()
        }]);
        match self.api().create(&post_params(), &partition).await {
            Ok(_) => {}
            // The watch reports it.
            Err(error) if is_status(&error, 409) => {}
            // A rule of the IPUPartition: the next attempt would fail, too.
            Err(kube::Error::Api(status)) if status.code == 422 => {
                return Ok(CheckAnswer::Rejected(status.message.clone()));
            }
            Err(error) => {
                let text = format!(
                    "IPUPartition {name} cannot be created: {}",
                    ReconcileError::from(error)
                );
                return Ok(CheckAnswer::Pending(text));
            }
        }
        Ok(CheckAnswer::Pending(format!("IPUPartition {name} is requested")))
    }

    /// Writes the answer, unless a later version of the Workload exists.
    async fn write(&self, open: &[String], answer: &CheckAnswer) -> Result<(), ReconcileError> {
        let before = &self.workload.status.clone().unwrap_or_default().admission_checks;
        let mut after = before.clone();
        let now = (self.context.now)();
        for state in &mut after {
            if open.iter().any(|name| state["name"] == **name) {
                set_state(state, answer, &self.workload.spec.pod_sets, now);
            }
        }
        if after == *before {
            return Ok(());
        }
        let patch = status_patch(
            self.workload.resource_version(),
            json!({"admissionChecks": after}),
        );
        let workloads: Api<Workload> = Api::namespaced(
            self.context.client.clone(),
            &self.workload.namespace().unwrap_or_default(),
        );
        workloads
            .patch_status(&self.workload.name_any(), &patch_params(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Returns whether a check of this operator was answered with Ready.
    fn is_ready(&self) -> bool {
        let open = self.open_checks();
        let mut states = self
            .workload
            .status
            .iter()
            .flat_map(|status| &status.admission_checks);
        states.any(|state| state["state"] == "Ready" && open.iter().any(|name| state["name"] == **name))
    }

    /// Returns the time of the Workload's reservation, which tells its admissions apart.
    fn reservation(&self) -> String {
        let reserved = self.workload.condition("QuotaReserved");
        let at = reserved.map_or(0, |reserved| reserved.last_transition_time.0.as_second());
        at.to_string()
    }

    fn is_own(&self, partition: &StoredPartition) -> bool {
        let owners = partition.owner_references();
        owners
            .iter()
            .any(|owner| Some(&owner.uid) == self.workload.metadata.uid.as_ref())
    }

    /// Deletes the IPUPartitions of the Workload. Each waits for its Pods.
    async fn delete_partitions(&self) -> Result<(), ReconcileError> {
        let own = self
            .context
            .holders
            .state_filter(|partition| self.is_own(partition));
        for partition in own {
            if partition.meta().deletion_timestamp.is_none() {
                self.delete(partition.meta()).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, partition: &ObjectMeta) -> Result<(), ReconcileError> {
        let name = partition.name.as_deref().unwrap_or_default();
        let params = delete_params(partition.uid.clone());
        ignore_statuses(self.api().delete(name, &params).await, &[404, 409])
    }

    /// Returns whether an IPUPartition is of a Workload that is gone, or has no quota any more: then it is
    /// deleted.
    fn is_of_former_workload(&self, partition: &StoredPartition) -> bool {
        let owners = partition.owner_references().iter();
        let mut of_workloads = owners.filter(|owner| owner.kind == "Workload");
        of_workloads.any(|owner| {
            let is_present = |workload: &Arc<Workload>| {
                workload.metadata.uid.as_ref() == Some(&owner.uid) && workload.has_reservation()
            };
            !self.kueue.workloads.state().iter().any(is_present)
        })
    }

    /// Returns why Pods of these templates cannot run on the nodes with a label.
    fn conflict(&self, label: &str, pod_sets: &[String]) -> Option<String> {
        let (key, value) = label.split_once('=')?;
        let mut sets = self.workload.spec.pod_sets.iter();
        sets.find_map(|set| {
            let own = set.template["spec"]["nodeSelector"][key].as_str()?;
            (own != value && pod_sets.contains(&set.name)).then(|| {
                format!(
                    "podSet {}: nodeSelector {key} is {own}, and the partition is of a controller whose nodes have {value}",
                    set.name
                )
            })
        })
    }

    fn api(&self) -> Api<IpuPartition> {
        Api::namespaced(
            self.context.client.clone(),
            &self.workload.namespace().unwrap_or_default(),
        )
    }
}

/// Returns the worse of two answers; two good ones are joined.
fn worse(one: CheckAnswer, other: CheckAnswer) -> CheckAnswer {
    let rank = |answer: &CheckAnswer| match answer {
        CheckAnswer::Ready(..) => 0,
        CheckAnswer::Pending(_) => 1,
        CheckAnswer::Retry(_) => 2,
        CheckAnswer::Rejected(_) => 3,
    };
    match (one, other) {
        (CheckAnswer::Ready(_, mut labels), CheckAnswer::Ready(text, more)) => {
            labels.extend(more);
            CheckAnswer::Ready(text, labels)
        }
        (one, other) if rank(&one) > rank(&other) => one,
        (_, other) => other,
    }
}

/// Sets the state of a check.
fn set_state(state: &mut Value, answer: &CheckAnswer, pod_sets: &[PodSet], now: Timestamp) {
    let was_ready = state["state"] == "Ready";
    let (name, text) = match answer {
        // A short outage takes nothing from the Pods.
        CheckAnswer::Pending(_) if was_ready => return,
        CheckAnswer::Pending(text) => ("Pending", text),
        CheckAnswer::Ready(text, _) => ("Ready", text),
        CheckAnswer::Retry(text) => ("Retry", text),
        CheckAnswer::Rejected(text) => ("Rejected", text),
    };
    if state["state"] != name {
        state["lastTransitionTime"] = json!(Time(now));
    }
    state["state"] = json!(name);
    state["message"] = json!(text);
    let fields = state.as_object_mut();
    match (answer, fields) {
        // They are fixed while the check is Ready.
        (CheckAnswer::Ready(_, labels), Some(fields)) if !was_ready => {
            fields.insert("podSetUpdates".to_owned(), json!(updates(labels, pod_sets)));
        }
        // Pods of a partition that is gone end at once.
        (CheckAnswer::Retry(_), Some(fields)) if was_ready => drop(fields.remove("requeueAfterSeconds")),
        (CheckAnswer::Retry(_), Some(fields)) => {
            fields.insert("requeueAfterSeconds".to_owned(), json!(RETRY_SECONDS));
        }
        _ => {}
    }
}

/// Returns the node selectors that the Pods get in addition.
fn updates(labels: &BTreeMap<String, String>, pod_sets: &[PodSet]) -> Vec<Value> {
    let of_set = |set: &PodSet| {
        let (key, value) = labels.get(&set.name)?.split_once('=')?;
        let own = &set.template["spec"]["nodeSelector"][key];
        // Kueue refuses what a template has already.
        (own != value).then(|| json!({"name": set.name, "nodeSelector": {key: value}}))
    };
    pod_sets.iter().filter_map(of_set).collect()
}

/// Returns the IPUPartitions that a Workload needs, by name.
fn demands(workload: &Workload) -> Result<BTreeMap<String, Demand>, String> {
    let mut demands: BTreeMap<String, Demand> = BTreeMap::new();
    let assigned = workload
        .status
        .iter()
        .flat_map(|status| &status.admission)
        .flat_map(|admission| &admission.pod_set_assignments);
    let counts: BTreeMap<&str, u32> = assigned
        .filter_map(|set| Some((set.name.as_str(), set.count?)))
        .collect();
    for set in &workload.spec.pod_sets {
        let count = counts.get(set.name.as_str()).copied().unwrap_or(set.count);
        let ipus = ipus_of_pod(&set.template)
            .map_err(|text| format!("podSet {}: {text}", set.name))?
            .saturating_mul(count.into());
        let Some(name) = partition_of(&set.template) else {
            if ipus == 0 {
                continue;
            }
            return Err(format!(
                "podSet {}: requests {RESOURCE}, and no container has the variables of a partition; add envFrom: [{{configMapRef: {{name: {}}}}}], and IPUPartition NAME is created",
                set.name,
                IpuPartition::config_map("NAME"),
            ));
        };
        let demand = demands.entry(name).or_default();
        demand.ipus = demand.ipus.saturating_add(ipus);
        demand.pod_sets.push(set.name.clone());
    }
    demands.retain(|_, demand| demand.ipus > 0);
    Ok(demands)
}

/// Returns the IPUs that one Pod of a template requests.
fn ipus_of_pod(template: &Value) -> Result<u64, String> {
    let containers = template["spec"]["containers"].as_array();
    let mut ipus: u64 = 0;
    for container in containers.into_iter().flatten() {
        let resources = &container["resources"];
        let request = match &resources["requests"][RESOURCE] {
            Value::Null => &resources["limits"][RESOURCE],
            request => request,
        };
        ipus = ipus.saturating_add(match request {
            Value::Null => 0,
            Value::Number(number) => number.as_u64().unwrap_or(0),
            request => {
                let text = request.as_str().unwrap_or_default();
                text.parse()
                    .map_err(|_| format!("{RESOURCE} is {text:?}; use a whole number without a unit"))?
            }
        });
    }
    Ok(ipus)
}

/// Returns the IPUPartition whose variables a container of a template gets.
fn partition_of(template: &Value) -> Option<String> {
    let spec = &template["spec"];
    let containers = ["containers", "initContainers"].map(|list| spec[list].as_array());
    let containers = containers.into_iter().flatten().flatten();
    let sources = containers.filter_map(|container| container["envFrom"].as_array());
    let names = sources
        .flatten()
        .filter_map(|source| source["configMapRef"]["name"].as_str());
    let mut partitions = names.filter_map(IpuPartition::of_config_map);
    partitions.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a Workload with these Pods: name, count, IPUs of one Pod, ConfigMap.
    fn workload(sets: &[(&str, u32, Value, &str)]) -> Workload {
        let mut workload = Workload::default();
        for (name, count, ipus, config_map) in sets {
            let container = json!({
                "resources": {"limits": {RESOURCE: ipus}}, "envFrom": [{"configMapRef": {"name": config_map}}],
            });
            workload.spec.pod_sets.push(PodSet {
                name: (*name).to_owned(),
                count: *count,
                template: json!({"spec": {"containers": [{}, container], "nodeSelector": {"pod": "1"}}}),
            });
        }
        workload
    }

    #[test]
    fn templates_with_the_same_config_map_share_a_partition() {
        let some = workload(&[
            ("launcher", 1, Value::Null, "train-ipuof"),
            ("worker", 4, json!("2"), "train-ipuof"),
            ("other", 1, json!(4), "other-ipuof"),
            ("plain", 1, Value::Null, "settings"),
            ("user", 1, Value::Null, "made-by-hand-ipuof"),
        ]);
        let demands = demands(&some).unwrap();
        let found: Vec<_> = demands
            .iter()
            .map(|(name, demand)| (name.as_str(), demand.ipus, demand.pod_sets.as_slice()))
            .collect();
        let (launcher, worker, other) = ("launcher".to_owned(), "worker".to_owned(), "other".to_owned());
        assert_eq!(
            found,
            [("other", 4, &[other][..]), ("train", 8, &[launcher, worker][..])]
        );
    }

    #[test]
    fn the_count_that_kueue_admits_is_the_one_that_counts() {
        let mut some = workload(&[("main", 8, json!(1), "train-ipuof")]);
        let assigned = json!({"admission": {"podSetAssignments": [{"name": "main", "count": 4}]}});
        some.status = serde_json::from_value(assigned).unwrap();
        assert_eq!(demands(&some).unwrap()["train"].ipus, 4);
    }

    #[test]
    fn a_wrong_template_is_named_with_its_fix() {
        for (ipus, config_map, text) in [
            (
                json!("4"),
                "settings",
                "podSet main: requests graphcore.ai/ipu, and no container has the variables of a partition; add envFrom: [{configMapRef: {name: NAME-ipuof}}], and IPUPartition NAME is created",
            ),
            (
                json!("1k"),
                "train-ipuof",
                "podSet main: graphcore.ai/ipu is \"1k\"; use a whole number without a unit",
            ),
        ] {
            assert_eq!(
                demands(&workload(&[("main", 1, ipus, config_map)])).unwrap_err(),
                text
            );
        }
    }

    #[test]
    fn the_worst_of_several_partitions_is_the_answer() {
        let ready = |set: &str| {
            let labels = [(set.to_owned(), "pod=1".to_owned())];
            CheckAnswer::Ready("text".into(), labels.into())
        };
        let all = [
            ready("a"),
            CheckAnswer::Pending("p".into()),
            CheckAnswer::Retry("r".into()),
            CheckAnswer::Rejected("x".into()),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert_eq!(worse(one.clone(), other.clone()), *one);
                assert_eq!(worse(other.clone(), one.clone()), *one);
            }
        }
        let CheckAnswer::Ready(_, labels) = worse(ready("a"), ready("b")) else {
            panic!("two good answers are a good one");
        };
        assert_eq!(labels.len(), 2);
    }

    #[test]
    fn a_check_that_is_ready_stays_so_until_the_partition_is_lost() {
        let some = workload(&[("main", 1, json!(4), "train-ipuof")]);
        let mut state = json!({"name": "ipu", "state": "Pending", "message": "", "lastTransitionTime": null});
        let mut set = |answer: CheckAnswer| {
            set_state(
                &mut state,
                &answer,
                &some.spec.pod_sets,
                Timestamp::from_millis(1000),
            );
            state.clone()
        };
        let labels = |label: &str| [("main".to_owned(), label.to_owned())].into();
        let ready = set(CheckAnswer::Ready("active".into(), labels("vipu-ctrl=vctl1")));
        let selector = json!([{"name": "main", "nodeSelector": {"vipu-ctrl": "vctl1"}}]);
        assert_eq!(ready["podSetUpdates"], selector);
        assert_eq!(ready["lastTransitionTime"], "1970-01-01T00:00:01.000Z");
        assert_eq!(set(CheckAnswer::Pending("an outage".into())), ready);
        let other = set(CheckAnswer::Ready("active".into(), labels("pod=2")));
        assert_eq!(other["podSetUpdates"], selector);
        let lost = set(CheckAnswer::Retry("lost".into()));
        assert_eq!(
            (&lost["state"], &lost["requeueAfterSeconds"]),
            (&json!("Retry"), &Value::Null)
        );
        let (mut pending, now) = (json!({"state": "Pending"}), Timestamp::from_millis(0));
        set_state(&mut pending, &CheckAnswer::Retry("taken".into()), &[], now);
        assert_eq!(pending["requeueAfterSeconds"], 10);
        // The template has the label already.
        let same = updates(&labels("pod=1"), &some.spec.pod_sets);
        assert_eq!(same, Vec::<Value>::new());
    }
}
