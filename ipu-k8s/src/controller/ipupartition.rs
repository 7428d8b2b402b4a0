//! The reconciliation of an IPUPartition: it holds IPUs of the proxy, and a ConfigMap has the variables for
//! the Pods that use them.
//!
//! *Safety*: the status says that the ConfigMap may exist before it is created, on top of the version of the
//! object that was read. Before the partition is requested again, reset or released, the ConfigMap is
//! deleted, so that no further container starts with it; then the API server itself must show no Pod that may
//! have it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{JobKey, PartitionId, Reason, ReasonCode};
use ipu_proxy_client::{
    BlockerDocument, DeletePartition, HoldState, OwnerDocument, PartitionDocument, PutPartition,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, EvictParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Resource as _, ResourceExt as _};

use super::StoredPartition;
use super::context::Context;
use super::error::{ReconcileError, ignore_statuses, is_status};
use super::events::event;
use super::objects::{create_or_update, delete_params, post_params, set_finalizers};
use super::queue_reason::queue_reason;
use crate::crd::{IpuPartition, IpuPartitionSpec, IpuPartitionStatus, PartitionCondition, Time};
use crate::partition_users;

/// Interval in which the place in the queue is read.
const QUEUE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval in which it is checked whether Pods still use a partition.
const USERS_INTERVAL: Duration = Duration::from_secs(3);
/// Time after the deletion of a ConfigMap in which a kubelet may still start a container with it, and report
/// that it runs.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// Interval in which the ConfigMap of an active partition is compared.
const CONFIG_MAP_INTERVAL: Duration = Duration::from_secs(60);
/// Number of Pods that a message names.
const MAX_NAMES: usize = 3;

const WAITING: &str = "Waiting";
const ACTIVE: &str = "Active";
const FAILED: &str = "Failed";
const TERMINATING: &str = "Terminating";

/// Reconciles an IPUPartition of the store once.
pub(super) async fn reconcile(
    stored: Arc<StoredPartition>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let metadata = stored.meta();
    let is_deleted = metadata.deletion_timestamp.is_some();
    let partition = match &stored.0 {
        Ok(partition) => Cow::Borrowed(partition),
        // A release needs the metadata only.
        Err(_) if is_deleted => Cow::Owned(IpuPartition {
            metadata: metadata.clone(),
            ..IpuPartition::default()
        }),
        Err(unreadable) => {
            tracing::warn!(
                name = stored.name_any(),
                error = unreadable.error,
                "the IPUPartition is not of this version"
            );
            return Ok(Action::await_change());
        }
    };
    let Some(key) = IpuPartition::key_of(metadata) else {
        return Ok(Action::await_change());
    };
    let has_finalizer = stored
        .finalizers()
        .iter()
        .any(|one| one == IpuPartition::FINALIZER);
    match (has_finalizer, is_deleted) {
        (true, _) => {}
        (false, true) => return Ok(Action::await_change()),
        // No partition is requested for an object that could vanish.
        (false, false) => {
            let own = IpuPartition::FINALIZER.to_owned();
            let all = stored.finalizers().iter().chain([&own]).collect();
            set_finalizers::<IpuPartition>(&context.client, metadata, all).await?;
            return Ok(Action::await_change());
        }
    }
    let before = partition.status.clone().unwrap_or_default();
    let work = Work {
        context: &context,
        id: key.partition_id(0),
        config_map: IpuPartition::config_map(&stored.name_any()),
        key,
        partition: &partition,
        before: &before,
    };
    let (after, wait) = match work.next(is_deleted).await {
        Ok(Some(next)) => next,
        Ok(None) => return Ok(Action::await_change()),
        Err(error @ ReconcileError::Changed(_)) => return Err(error),
        Err(error) => {
            let reason = match &error {
                ReconcileError::Refused { code, message } => {
                    Reason::new(code.as_str().into(), message.as_str())
                }
                _ => Reason::new("Unavailable".into(), error.to_string()),
            };
            let mut after = before.clone();
            if after.phase.is_empty() {
                WAITING.clone_into(&mut after.phase);
            }
            after.reason = Some(reason);
            (after, Some(error.retry_after()))
        }
    };
    let wait = wait.into_iter().chain(work.ttl_left()).min();
    work.write(after).await?;
    Ok(wait.map_or_else(Action::await_change, Action::requeue))
}

/// Returns when to reconcile an IPUPartition again that failed.
pub(super) fn retry(_: Arc<StoredPartition>, error: &ReconcileError, _: Arc<Context>) -> Action {
    Action::requeue(error.retry_after())
}

/// The next step for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Request it, or its reset for the wanted attempt.
    Request,
    /// Offer its variables to Pods.
    Offer,
    /// Evict its Pods, and release it: a request of higher priority gets the IPUs.
    GiveUp,
    /// The proxy or the user acts next.
    Wait,
}

/// Returns the next step for a partition of which attempt `wanted` is to be active.
fn next_step(wanted: u32, document: Option<&PartitionDocument>) -> Step {
    let Some(document) = document else {
        return Step::Request;
    };
    match document.state {
        HoldState::Releasing | HoldState::Gone | HoldState::Other => Step::Wait,
        // The proxy resets it for its owner.
        HoldState::Quarantined => Step::Request,
        _ if document.preemption.is_some() => Step::GiveUp,
        _ if document.attempt < wanted => Step::Request,
        HoldState::Active => Step::Offer,
        _ => Step::Wait,
    }
}

/// One reconciliation.
struct Work<'a> {
    context: &'a Context,
    key: JobKey,
    id: PartitionId,
    config_map: String,
    partition: &'a IpuPartition,
    before: &'a IpuPartitionStatus,
}

/// The status, and the delay of the next reconciliation without a change.
type Next = (IpuPartitionStatus, Option<Duration>);

impl Work<'_> {
    /// Takes the next step; none when the object is gone.
    async fn next(&self, is_deleted: bool) -> Result<Option<Next>, ReconcileError> {
        if is_deleted {
            return self.release().await;
        }
        if self.ttl_left().is_some_and(|left| left.is_zero()) {
            return self.expire().await.map(|()| None);
        }
        let spec = &self.partition.spec;
        let wanted = spec.attempt.unwrap_or(0);
        let wanted = wanted.saturating_add(self.before.preemption_count);
        let mut document = self.context.partitions.get(&self.id).await?;
        if document
            .as_ref()
            .is_some_and(|document| document.preemption.is_some())
        {
            // The demand may have ended since its event.
            document = self.context.partitions.fetch(&self.id).await?;
        }
        let document = match (next_step(wanted, document.as_ref()), document) {
            (Step::Offer, Some(document)) => return self.offer(&document).await.map(Some),
            (Step::GiveUp, Some(document)) => return self.give_up(wanted, &document).await.map(Some),
            (Step::Wait, Some(document)) => document,
            (_, document) => {
                let phase = document
                    .as_ref()
                    .map_or(WAITING, |document| phase(document.state));
                if let Some(next) = self.take_back(phase, "reset", &mut Vec::new()).await? {
                    return Ok(Some(next));
                }
                let request = self.request(wanted);
                self.context.partitions.ensure(&self.id, &request).await?
            }
        };
        let mut after = self.observed(&document);
        if document.state != HoldState::Active && after.config_map.is_some() {
            self.withdraw(&mut after).await?;
        }
        // Not every change of a reason is an event.
        let wait = (document.state != HoldState::Failed).then_some(QUEUE_INTERVAL);
        Ok(Some((after, wait)))
    }

    /// Returns the rest of the time to live; none without one, or before the partition was active.
    fn ttl_left(&self) -> Option<Duration> {
        let ttl = Duration::from_secs(self.partition.spec.ttl_seconds?.into());
        let is_deleted = self.partition.metadata.deletion_timestamp.is_some();
        let active = self.before.active_time.filter(|_| !is_deleted)?;
        Some(ttl.saturating_sub((self.context.now)().since(active.0)))
    }

    /// Deletes the object, if its version is still the observed one. The watch reports either.
    async fn expire(&self) -> Result<(), ReconcileError> {
        let mut params = delete_params(self.partition.uid());
        if let Some(preconditions) = &mut params.preconditions {
            preconditions.resource_version = self.partition.resource_version();
        }
        let partitions: Api<IpuPartition> = self.api();
        let deleted = partitions.delete(&self.partition.name_any(), &params).await;
        ignore_statuses(deleted, &[404])
    }

    /// Returns the request for attempt `wanted`.
    fn request(&self, wanted: u32) -> PutPartition {
        let (spec, key) = (&self.partition.spec, &self.key);
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        let owner = OwnerDocument::new(IpuPartition::KIND, namespace, name, key.uid.as_str());
        let mut request = PutPartition::new(owner, spec.size);
        request.attempt = wanted;
        request.gcds = spec.gcds;
        request.reconfigurable = spec.reconfigurable == Some(true);
        request.allocation.clone_from(&spec.allocation);
        request.controller.clone_from(&spec.controller);
        request.priority = spec.priority.unwrap_or(0);
        request.preemptible = spec.preemptible == Some(true);
        request.account.clone_from(&spec.account);
        request.max_runtime_seconds = spec.ttl_seconds.map(u64::from);
        request
    }

    /// Writes the ConfigMap of an active partition.
    async fn offer(&self, document: &PartitionDocument) -> Result<Next, ReconcileError> {
        let mut after = self.observed(document);
        after.active_time.get_or_insert(Time((self.context.now)()));
        if document.env.is_empty() {
            // The controller is not in the proxy's list any more.
            let text = "the proxy does not report the endpoint of the partition yet".to_owned();
            return Err(ReconcileError::Unavailable(text));
        }
        let config_maps: Api<ConfigMap> = self.api();
        let existing = config_maps.get_opt(&self.config_map).await?;
        if existing.as_ref().is_some_and(|existing| !self.is_own(existing)) {
            let text = format!(
                "ConfigMap {} exists and is not of this IPUPartition: delete it, or give the IPUPartition another name",
                self.config_map
            );
            return Err(ReconcileError::refused("NameTaken", text));
        }
        if after.config_map.is_none() {
            // Recorded first: a reader of a later version knows that the ConfigMap may exist.
            after.config_map = Some(self.config_map.clone());
            after.withdrawn_time = None;
            after.reason = Some(Reason::new("Offering".into(), "the variables are being written"));
            return Ok((after, Some(Duration::ZERO)));
        }
        let wanted = self.config_map_of(&document.env);
        let is_same = existing.is_some_and(|existing| {
            existing.data == wanted.data
                && existing.metadata.owner_references == wanted.metadata.owner_references
        });
        if !is_same {
            // Fails if a later version of the object exists.
            self.replace_status(self.before).await?;
            create_or_update(&self.context.client, wanted).await?;
        }
        Ok((after, Some(CONFIG_MAP_INTERVAL)))
    }

    fn config_map_of(&self, env: &BTreeMap<String, String>) -> ConfigMap {
        let owner = self.partition.controller_owner_ref(&());
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.config_map.clone()),
                namespace: Some(self.key.namespace.to_string()),
                owner_references: Some(owner.into_iter().collect()),
                ..ObjectMeta::default()
            },
            data: Some(env.clone()),
            ..ConfigMap::default()
        }
    }

    /// Returns whether a ConfigMap of the name is of this object, even if its owner was removed from it.
    fn is_own(&self, config_map: &ConfigMap) -> bool {
        let owners = config_map.owner_references();
        let mut values = config_map.data.iter().flat_map(BTreeMap::values);
        owners.iter().any(|owner| owner.uid == self.key.uid.as_str())
            || values.any(|value| value == self.id.as_str())
    }

    /// Deletes the ConfigMap: no further container starts with it.
    async fn withdraw(&self, after: &mut IpuPartitionStatus) -> Result<(), ReconcileError> {
        let config_maps: Api<ConfigMap> = self.api();
        let find = async || -> Result<Option<ConfigMap>, ReconcileError> {
            let found = config_maps.get_opt(&self.config_map).await?;
            Ok(found.filter(|found| self.is_own(found)))
        };
        if let Some(existing) = find().await? {
            let params = delete_params(existing.uid());
            ignore_statuses(config_maps.delete(&self.config_map, &params).await, &[404])?;
            if find().await?.is_some() {
                let text = format!(
                    "ConfigMap {} is not deleted: remove its finalizers",
                    self.config_map
                );
                return Err(ReconcileError::refused("ConfigMapKept", text));
            }
        }
        after.config_map = None;
        after.withdrawn_time = Some(Time((self.context.now)()));
        Ok(())
    }

    /// Takes the partition back from its Pods, which are then `users`. Returns the status that waits for
    /// them; none when no Pod has, or can get, the variables.
    async fn take_back(
        &self,
        phase: &str,
        action: &str,
        users: &mut Vec<String>,
    ) -> Result<Option<Next>, ReconcileError> {
        let mut after = self.before.clone();
        phase.clone_into(&mut after.phase);
        if after.config_map.is_some() {
            self.withdraw(&mut after).await?;
            let text = format!("the variables are withdrawn, so that the partition can be {action}");
            after.reason = Some(Reason::new(ReasonCode::InUse, text));
            return Ok(Some((after, Some(Duration::ZERO))));
        }
        let Some(withdrawn) = after.withdrawn_time else {
            return Ok(None);
        };
        let is_settled = (self.context.now)().since(withdrawn.0) >= SETTLE_TIME;
        let (client, namespace) = (&self.context.client, self.key.namespace.as_str());
        *users = partition_users::users(client, namespace, &self.config_map, is_settled).await?;
        Ok(in_use(users, action).map(|reason| {
            after.reason = Some(reason);
            (after, Some(USERS_INTERVAL))
        }))
    }

    /// Evicts the Pods that use the partition, and then releases it.
    async fn give_up(&self, wanted: u32, document: &PartitionDocument) -> Result<Next, ReconcileError> {
        let phase = phase(document.state);
        let mut users = Vec::new();
        let action = "released for a request of higher priority";
        if let Some((mut after, wait)) = self.take_back(phase, action, &mut users).await? {
            let pods: Api<Pod> = self.api();
            for pod in &users {
                match pods.evict(pod, &EvictParams::default()).await {
                    Ok(_) => {}
                    Err(error) if is_status(&error, 404) || is_status(&error, 409) => {}
                    // Of a PodDisruptionBudget, for example.
                    Err(error) => {
                        if let Some(reason) = &mut after.reason {
                            let error = ReconcileError::from(error);
                            reason
                                .message
                                .push_str(&format!("; the eviction of {pod} is refused: {error}"));
                        }
                    }
                }
            }
            return Ok((after, wait));
        }
        let mut after = self.before.clone();
        phase.clone_into(&mut after.phase);
        if document.attempt >= wanted {
            // Recorded first: the request that follows the release is of a newer attempt.
            after.preemption_count = after.preemption_count.saturating_add(1);
            return Ok((after, Some(Duration::ZERO)));
        }
        let mut request = DeletePartition::default();
        request.uid = Some(self.key.uid.to_string());
        request.attempt = Some(document.attempt);
        self.context.partitions.release(&self.id, &request).await?;
        WAITING.clone_into(&mut after.phase);
        (after.active_time, after.controller, after.node_label) = (None, None, None);
        let text = "a request of higher priority gets the IPUs; the partition is queued again";
        after.reason = Some(Reason::new(ReasonCode::Preempted, text));
        // The next reconciliation requests it again.
        Ok((after, Some(Duration::ZERO)))
    }

    /// Releases the partition of a deleted object; none when the finalizer is removed.
    async fn release(&self) -> Result<Option<Next>, ReconcileError> {
        if let Some(next) = self.take_back(TERMINATING, "released", &mut Vec::new()).await? {
            return Ok(Some(next));
        }
        let mut request = DeletePartition::default();
        request.uid = Some(self.key.uid.to_string());
        // Its id belongs to this object alone.
        request.quarantined = true;
        self.context.partitions.release(&self.id, &request).await?;
        let metadata = &self.partition.metadata;
        let others = self.partition.finalizers().iter();
        let others = others.filter(|finalizer| *finalizer != IpuPartition::FINALIZER);
        set_finalizers::<IpuPartition>(&self.context.client, metadata, others.collect()).await?;
        Ok(None)
    }

    /// Returns the status that follows from the document of the proxy.
    fn observed(&self, document: &PartitionDocument) -> IpuPartitionStatus {
        let mut status = self.before.clone();
        phase(document.state).clone_into(&mut status.phase);
        status.reason = reason_of(document);
        let blockers = document.waiting.iter().flat_map(|waiting| &waiting.blockers);
        let name = |blocker: &BlockerDocument| blocker.owner.as_ref().map(OwnerDocument::qualified_name);
        status.blockers = blockers.filter_map(name).collect();
        status.attempt = document.attempt;
        let controller = document.controller.as_ref();
        status.controller = controller.map(|controller| controller.name.to_string());
        status.node_label = controller.and_then(|controller| controller.node_label.clone());
        status
    }

    /// Replaces the status of the version of the object that was read.
    async fn replace_status(&self, status: &IpuPartitionStatus) -> Result<(), ReconcileError> {
        let name = self.partition.name_any();
        let mut object = IpuPartition::new(&name, IpuPartitionSpec::default());
        object.metadata.resource_version = self.partition.resource_version();
        object.status = Some(status.clone());
        let partitions: Api<IpuPartition> = self.api();
        partitions.replace_status(&name, &post_params(), &object).await?;
        Ok(())
    }

    /// Writes a changed status, and publishes an Event of a new phase or reason.
    async fn write(&self, mut after: IpuPartitionStatus) -> Result<(), ReconcileError> {
        after.partition = self.id.to_string();
        after.observed_generation = self.partition.metadata.generation;
        after.conditions = vec![self.ready(&after)];
        if after == *self.before {
            return Ok(());
        }
        self.replace_status(&after).await?;
        let code = |status: &IpuPartitionStatus| status.reason.as_ref().map(|reason| reason.code.clone());
        if after.phase != self.before.phase || code(&after) != code(self.before) {
            let type_ = if after.phase == FAILED {
                EventType::Warning
            } else {
                EventType::Normal
            };
            let note = after.reason.as_ref().map_or_else(
                || format!("the variables are in the ConfigMap {}", self.config_map),
                ToString::to_string,
            );
            let regarding = self.partition.object_ref(&());
            let event = event(type_, &format!("IPUPartition{}", after.phase), &note);
            self.context.publish(&regarding, vec![event]).await;
        }
        Ok(())
    }

    fn ready(&self, after: &IpuPartitionStatus) -> PartitionCondition {
        // An outage of the proxy changes nothing for the Pods.
        let was_ready = self.before.conditions.iter().any(|last| last.status == "True");
        let is_offered = after.phase == ACTIVE && after.config_map.is_some();
        let is_ready = is_offered && (after.reason.is_none() || was_ready);
        let mut condition = PartitionCondition::default();
        "Ready".clone_into(&mut condition.kind);
        condition.status = if is_ready { "True" } else { "False" }.to_owned();
        (condition.reason, condition.message) = match &after.reason {
            Some(reason) => (reason.code.to_string(), reason.message.clone()),
            None => (
                after.phase.clone(),
                format!("the partition is {}", after.phase.to_lowercase()),
            ),
        };
        let last = self
            .before
            .conditions
            .iter()
            .find(|last| last.status == condition.status);
        condition.last_transition_time = match last {
            Some(last) => last.last_transition_time,
            None => Some(Time((self.context.now)())),
        };
        condition
    }

    /// Returns the objects of a kind in the namespace.
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.context.client.clone(), self.key.namespace.as_str())
    }
}

const fn phase(state: HoldState) -> &'static str {
    match state {
        HoldState::Creating => "Creating",
        HoldState::Resetting => "Resetting",
        HoldState::Active => ACTIVE,
        HoldState::Failed | HoldState::Quarantined => FAILED,
        HoldState::Waiting | HoldState::Releasing | HoldState::Gone | HoldState::Other => WAITING,
    }
}

/// Returns why a partition is not active.
fn reason_of(document: &PartitionDocument) -> Option<Reason> {
    match document.state {
        HoldState::Active => None,
        HoldState::Waiting => Some(queue_reason(document, &BTreeSet::new())),
        HoldState::Failed => {
            let errors = match document.errors.as_slice() {
                [] => "the controller reports an error".to_owned(),
                errors => errors.join("; "),
            };
            let text = format!("{errors}; raise spec.attempt to reset the partition");
            Some(Reason::new(ReasonCode::PartitionFailed, text))
        }
        state => {
            let plain = || Reason::new(phase(state).into(), format!("the partition is {state}"));
            Some(document.reason.clone().unwrap_or_else(plain))
        }
    }
}

/// Returns why a partition that these Pods use is not reset or released yet; none without Pods.
fn in_use(pods: &[String], action: &str) -> Option<Reason> {
    let named = pods
        .iter()
        .take(MAX_NAMES)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let (noun, verb, pronoun) = match pods.len() {
        0 => return None,
        1 => ("Pod", "uses", "it has"),
        _ => ("Pods", "use", "they have"),
    };
    let more = match pods.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!("{noun} {named}{more} {verb} the partition, which is {action} when {pronoun} ended");
    Some(Reason::new(ReasonCode::InUse, text).with("pods", u64::try_from(pods.len()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(state: &str, attempt: u32, is_demanded: bool) -> PartitionDocument {
        let reason = json!({"code": "Preempted", "numbers": {}, "message": "text"});
        let by = json!({"by": "other", "owner": null, "priority": 1, "at": 0, "reason": reason});
        let preemption = if is_demanded { by } else { Value::Null };
        serde_json::from_value(json!({
            "id": "p", "state": state, "owner": null, "instance": 0, "attempt": attempt, "size": 4, "gcds": 1,
            "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "since": 0, "heldSince": null,
            "priority": 0, "account": null, "preemptible": true, "preemption": preemption,
            "maxRuntimeSeconds": null, "leaseUntil": null, "waiting": null, "errors": ["link down"], "env": {},
        }))
        .unwrap()
    }

    #[test]
    fn every_state_of_a_partition_has_one_next_step() {
        assert_eq!(next_step(0, None), Step::Request);
        for (state, same, older, demanded) in [
            ("waiting", Step::Wait, Step::Request, Step::GiveUp),
            ("creating", Step::Wait, Step::Request, Step::GiveUp),
            ("resetting", Step::Wait, Step::Request, Step::GiveUp),
            ("active", Step::Offer, Step::Request, Step::GiveUp),
            ("failed", Step::Wait, Step::Request, Step::GiveUp),
            ("quarantined", Step::Request, Step::Request, Step::Request),
            ("releasing", Step::Wait, Step::Wait, Step::Wait),
            ("later", Step::Wait, Step::Wait, Step::Wait),
        ] {
            assert_eq!(next_step(3, Some(&document(state, 3, false))), same, "{state}");
            assert_eq!(next_step(3, Some(&document(state, 2, false))), older, "{state}");
            for wanted in [3, 4] {
                let step = next_step(wanted, Some(&document(state, 3, true)));
                assert_eq!(step, demanded, "{state}");
            }
        }
    }

    #[test]
    fn a_reason_names_the_errors_or_the_pods_and_what_to_do() {
        let failed = reason_of(&document("failed", 0, false)).unwrap();
        assert_eq!(
            failed.to_string(),
            "PartitionFailed: link down; raise spec.attempt to reset the partition"
        );
        assert_eq!(reason_of(&document("active", 0, false)), None);
        let pods = |count: u32| (0..count).map(|index| format!("p{index}")).collect::<Vec<_>>();
        assert_eq!(in_use(&pods(0), "reset"), None);
        let one = in_use(&pods(1), "reset").unwrap();
        assert_eq!(
            one.message,
            "Pod p0 uses the partition, which is reset when it has ended"
        );
        let five = in_use(&pods(5), "released").unwrap();
        assert_eq!(
            five.message,
            "Pods p0, p1, p2 and 2 more use the partition, which is released when they have ended"
        );
        assert_eq!(five.numbers["pods"], 5);
    }
}
