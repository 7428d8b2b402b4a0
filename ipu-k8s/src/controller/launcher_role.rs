//! Rights of launchers: to read the workers of their instance and to exec into them, as long as all of these
//! exist and belong to the job.
//!
//! RBAC identifies pods by name alone, and any pod of the namespace may take a free name. A right is
//! therefore granted when the launcher starts, after its workers run. It is revoked before the operator
//! deletes a worker, and as soon as a worker is missing, terminating, finished or owned by another object.
//! Between the deletion of a worker by another client and its observation by the operator, the launcher can
//! reach a pod that takes the worker's name.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{Effect, InstanceStatus, JobKey, JobKind, JobSpec, JobStatus, Plan};
use ipu_proxy_client::HoldState;

use super::observation::{Deleted, ObservedJob, instances};
use super::pod_state::{KubePod, PodOutcome};
use super::ports::PortError;
use super::reconcile::Reconciler;
use crate::crd::IpuJobStatus;
use crate::resources::{ResourceBuilder, launcher_role};

/// The rights of the launcher of an instance, as far as this operator knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LauncherRole {
    Granted,
    Revoked,
}

impl Reconciler {
    /// Reconciles the rights of the job's launchers with the observed state, before any effect of `plan` is
    /// applied. A launcher that is about to start gets its rights with that effect.
    pub(super) async fn check_rights(
        &self,
        builder: &ResourceBuilder<'_>,
        status: &JobStatus,
        observed: &ObservedJob,
        plan: &Plan,
    ) -> Result<(), PortError> {
        let spec = builder.spec;
        if matches!(spec.shape(), JobKind::Workers) {
            return Ok(());
        }
        let key = spec.key();
        let entitled = entitled(spec, observed, plan);
        let roles = self.cache.rights(key);
        let known_instances = roles.keys().copied().collect();
        for instance in instances(spec, status, &observed.pods, known_instances) {
            match (roles.get(&instance), entitled.contains(&instance)) {
                (Some(LauncherRole::Granted), true) | (Some(LauncherRole::Revoked), false) => {}
                (_, true) if starts_launcher(plan, instance) => {}
                (_, true) => self.grant(builder, instance).await?,
                (None, false) if has_not_started(status.instance(instance), observed, instance) => {
                    self.cache.record_rights(key, instance, LauncherRole::Revoked);
                }
                (_, false) => self.revoke(key, instance).await?,
            }
        }
        Ok(())
    }

    /// Grants the launcher of an instance its rights, unless it has them.
    pub(super) async fn grant(&self, builder: &ResourceBuilder<'_>, instance: u32) -> Result<(), PortError> {
        let key = builder.spec.key();
        if self.cache.rights(key).get(&instance) == Some(&LauncherRole::Granted) {
            return Ok(());
        }
        // Without a response, the launcher may have the rights or not.
        self.cache.invalidate_rights(key, instance);
        for object in &builder.launcher_rights(instance) {
            self.api.apply(object).await?;
        }
        self.cache.record_rights(key, instance, LauncherRole::Granted);
        Ok(())
    }

    /// Revokes all rights of the launchers of a job that no reconcile manages any longer.
    pub(super) async fn revoke_all(
        &self,
        key: &JobKey,
        status: &IpuJobStatus,
        pods: &[KubePod],
    ) -> Result<(), PortError> {
        let roles = self.cache.rights(key);
        let recorded = status.instances.iter().map(|instance| instance.index);
        let all: BTreeSet<u32> = roles
            .keys()
            .copied()
            .chain(recorded)
            .chain(pods.iter().map(|pod| pod.instance))
            .collect();
        for instance in all {
            if roles.get(&instance) != Some(&LauncherRole::Revoked) {
                self.revoke(key, instance).await?;
            }
        }
        Ok(())
    }

    async fn revoke(&self, key: &JobKey, instance: u32) -> Result<(), PortError> {
        let role = launcher_role(key.name.as_str(), instance);
        self.api
            .revoke(key.namespace.as_str(), &role, key.uid.as_str())
            .await?;
        self.cache.record_rights(key, instance, LauncherRole::Revoked);
        Ok(())
    }
}

/// Returns the instances that have or start a launcher, and that have all workers of its attempt, none of
/// which is to be stopped.
fn entitled(spec: &JobSpec, observed: &ObservedJob, plan: &Plan) -> BTreeSet<u32> {
    let mut attempts: BTreeMap<u32, u32> = BTreeMap::new();
    if observed.deleted == Deleted::Yes {
        return BTreeSet::new();
    }
    for launcher in observed.pods.iter().filter(|pod| pod.worker.is_none()) {
        if !launcher.deleted && launcher.outcome_category() == PodOutcome::Active {
            attempts.insert(launcher.instance, launcher.attempt);
        }
    }
    for effect in &plan.effects {
        match effect {
            Effect::StartLauncher {
                instance, attempt, ..
            } => {
                attempts.insert(*instance, *attempt);
            }
            Effect::StopWorker { instance, .. } => {
                attempts.remove(instance);
            }
            _ => {}
        }
    }
    let mut workers: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| is_active(pod)) {
        if attempts.get(&pod.instance) == Some(&pod.attempt) {
            workers.entry(pod.instance).or_default().extend(pod.worker);
        }
    }
    let all: BTreeSet<u32> = (0..spec.workers_per_instance()).collect();
    workers.retain(|_, existing| all.is_subset(existing));
    workers.into_keys().collect()
}

/// Returns whether a pod exists, belongs to the job, and keeps its name for now.
fn is_active(pod: &KubePod) -> bool {
    pod.owned && !pod.deleted && !pod.terminating && pod.outcome_category() == PodOutcome::Active
}

fn starts_launcher(plan: &Plan, instance: u32) -> bool {
    let starts =
        |effect: &Effect| matches!(effect, Effect::StartLauncher { instance: of, .. } if *of == instance);
    plan.effects.iter().any(starts)
}

/// Returns whether no operator has started anything of an instance: then no rights were granted.
fn has_not_started(memory: Option<&InstanceStatus>, observed: &ObservedJob, instance: u32) -> bool {
    let is_new = memory.is_none_or(|memory| {
        memory.attempt == 0
            && memory.unused_releases == 0
            && memory.running_since.is_none()
            && memory.outcome.is_none()
    });
    let is_waiting = observed.partitions.get(&instance).is_none_or(|partition| {
        let state = partition.state;
        partition.attempt == 0
            && (state.is_in_progress() || matches!(state, HoldState::Waiting | HoldState::Gone))
    });
    is_new && is_waiting && observed.pods.iter().all(|pod| pod.instance != instance)
}
