//! Rights of launchers: to see the workers of their instance and to run commands in them, for as long as all of these exist
//! and are the job's own.
//!
//! RBAC knows Pods by name alone, and any Pod of the namespace may take a name that is free. So a right is granted when the
//! launcher starts, which is after its workers run, and revoked before the operator deletes a worker, and as soon as a
//! worker is missing, terminating, ended or of another owner. Between the moment at which another client removes a worker
//! and the moment at which the operator has seen that, a Pod that takes the name of the worker can be reached.

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
    /// Makes the rights of the job's launchers follow from what was seen, before any effect of `plan` is applied. A launcher
    /// that is about to start gets its rights with that effect.
    pub(super) async fn check_rights(
        &self,
        blueprint: &ResourceBuilder<'_>,
        status: &JobStatus,
        seen: &ObservedJob,
        plan: &Plan,
    ) -> Result<(), PortError> {
        let spec = blueprint.spec;
        if matches!(spec.shape(), JobKind::Workers) {
            return Ok(());
        }
        let key = spec.key();
        let entitled = entitled(spec, seen, plan);
        let known = self.cache.rights(key);
        let seen_before = known.keys().copied().collect();
        for instance in instances(spec, status, &seen.pods, seen_before) {
            match (known.get(&instance), entitled.contains(&instance)) {
                (Some(LauncherRole::Granted), true) | (Some(LauncherRole::Revoked), false) => {}
                (_, true) if starts_launcher(plan, instance) => {}
                (_, true) => self.grant(blueprint, instance).await?,
                (None, false) if has_not_begun(status.instance(instance), seen, instance) => {
                    self.cache.has_rights(key, instance, LauncherRole::Revoked);
                }
                (_, false) => self.revoke(key, instance).await?,
            }
        }
        Ok(())
    }

    /// Grants the launcher of an instance its rights, unless it has them.
    pub(super) async fn grant(
        &self,
        blueprint: &ResourceBuilder<'_>,
        instance: u32,
    ) -> Result<(), PortError> {
        let key = blueprint.spec.key();
        if self.cache.rights(key).get(&instance) == Some(&LauncherRole::Granted) {
            return Ok(());
        }
        // Without an answer it may have them or not.
        self.cache.doubts_rights(key, instance);
        for object in &blueprint.launcher_rights(instance) {
            self.api.apply(object).await?;
        }
        self.cache.has_rights(key, instance, LauncherRole::Granted);
        Ok(())
    }

    /// Revokes all rights that the launchers of a job may have which this operator does not supervise.
    pub(super) async fn revoke_all(
        &self,
        key: &JobKey,
        status: &IpuJobStatus,
        pods: &[KubePod],
    ) -> Result<(), PortError> {
        let known = self.cache.rights(key);
        let recorded = status.instances.iter().map(|instance| instance.index);
        let all: BTreeSet<u32> = known
            .keys()
            .copied()
            .chain(recorded)
            .chain(pods.iter().map(|pod| pod.instance))
            .collect();
        for instance in all {
            if known.get(&instance) != Some(&LauncherRole::Revoked) {
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
        self.cache.has_rights(key, instance, LauncherRole::Revoked);
        Ok(())
    }
}

/// The instances that have a launcher, or get one now, and all workers of its attempt, none of which is to be stopped.
fn entitled(spec: &JobSpec, seen: &ObservedJob, plan: &Plan) -> BTreeSet<u32> {
    let mut attempts: BTreeMap<u32, u32> = BTreeMap::new();
    if seen.deleted == Deleted::Yes {
        return BTreeSet::new();
    }
    for launcher in seen.pods.iter().filter(|pod| pod.worker.is_none()) {
        if !launcher.deleted && launcher.count() == PodOutcome::Active {
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
    for pod in seen.pods.iter().filter(|pod| is_there(pod)) {
        if attempts.get(&pod.instance) == Some(&pod.attempt) {
            workers.entry(pod.instance).or_default().extend(pod.worker);
        }
    }
    let all: BTreeSet<u32> = (0..spec.workers_per_instance()).collect();
    workers.retain(|_, there| all.is_subset(there));
    workers.into_keys().collect()
}

/// Whether a Pod exists, is the job's, and keeps its name for now.
fn is_there(pod: &KubePod) -> bool {
    pod.owned && !pod.deleted && !pod.leaving && pod.count() == PodOutcome::Active
}

fn starts_launcher(plan: &Plan, instance: u32) -> bool {
    let starts =
        |effect: &Effect| matches!(effect, Effect::StartLauncher { instance: of, .. } if *of == instance);
    plan.effects.iter().any(starts)
}

/// Whether nothing of an instance was started yet by any operator: then no rights were granted.
fn has_not_begun(memory: Option<&InstanceStatus>, seen: &ObservedJob, instance: u32) -> bool {
    let new = memory.is_none_or(|memory| {
        memory.attempt == 0
            && memory.unused_releases == 0
            && memory.running_since.is_none()
            && memory.outcome.is_none()
    });
    let waits = seen.partitions.get(&instance).is_none_or(|partition| {
        let state = partition.state;
        partition.attempt == 0 && matches!(state, HoldState::Waiting | HoldState::Intent | HoldState::Gone)
    });
    new && waits && seen.pods.iter().all(|pod| pod.instance != instance)
}
