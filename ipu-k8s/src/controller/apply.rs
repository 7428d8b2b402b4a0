//! Effects of a plan. Each carries every decision; this module decides nothing, and checks against the API
//! server and the proxy what the stores may show too late.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::hardware::PartitionSpec;
use ipu_core::job::{Effect, JobKind, JobSpec, Plan};
use ipu_core::{JobKey, PartitionId};
use ipu_proxy_client::{
    DeletePartition, HoldState, OwnerDocument, PartitionDocument, PutPartition, ResetPartition,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};

use super::context::Context;
use super::error::{ReconcileError, is_status};
use super::launcher_rights;
use super::objects::{create_or_update, post_params, remove, set_finalizers, untrack};
use super::observe::ObservedJob;
use super::pod::JobPod;
use super::status::recorded_status;
use crate::crd::IpuJob;
use crate::resources::{INSTANCE, JOB_UID, PartitionEndpoint, ResourceBuilder};

/// Maximum number of effects of one reconciliation: the next one continues. A job may have a thousand
/// instances.
const MAX_EFFECTS: usize = 64;

/// Progress of the effects of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All effects are applied.
    Complete,
    /// Further effects are left for the next reconciliation.
    Partial,
    /// The finalizer is removed from the job.
    Finalized,
}

/// Applies the effects of one plan.
pub(super) struct Effects<'a> {
    context: &'a Context,
    job: &'a IpuJob,
    spec: &'a JobSpec,
    observed: &'a ObservedJob,
    pods: Api<Pod>,
    builder: Option<ResourceBuilder<'a>>,
    has_shared_objects: bool,
    /// Access to the partitions that processes start on, by instance.
    endpoints: BTreeMap<u32, PartitionEndpoint>,
    /// Instances whose launcher has no rights any longer.
    revoked: BTreeSet<u32>,
    /// Instances without a running process, as the API server confirms.
    ended: BTreeSet<u32>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(
        context: &'a Context,
        job: &'a IpuJob,
        spec: &'a JobSpec,
        observed: &'a ObservedJob,
    ) -> Self {
        Self {
            context,
            job,
            spec,
            observed,
            pods: Api::namespaced(context.client.clone(), spec.key().namespace.as_str()),
            builder: None,
            has_shared_objects: false,
            endpoints: BTreeMap::new(),
            revoked: BTreeSet::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Applies the effects of `plan` in order, until the first that fails, and releases the Pods whose
    /// outcome is recorded.
    pub(super) async fn apply(&mut self, plan: &Plan) -> Result<Progress, ReconcileError> {
        let applied = self.apply_effects(plan).await;
        if applied != Ok(Progress::Finalized) {
            self.untrack_recorded(plan).await?;
        }
        applied
    }

    async fn apply_effects(&mut self, plan: &Plan) -> Result<Progress, ReconcileError> {
        let mut applied = 0;
        for effect in &plan.effects {
            if self.is_applied(effect) {
                continue;
            }
            if applied == MAX_EFFECTS {
                return Ok(Progress::Partial);
            }
            applied += 1;
            tracing::debug!(job = %self.spec.key(), ?effect, "applying effect");
            self.apply_one(effect).await?;
            if *effect == Effect::Finalize {
                return Ok(Progress::Finalized);
            }
        }
        Ok(Progress::Complete)
    }

    /// Returns whether the proxy has the same request already.
    fn is_applied(&self, effect: &Effect) -> bool {
        let Effect::EnsurePartition {
            instance,
            attempt,
            spec,
            ..
        } = effect
        else {
            return false;
        };
        let wanted = self.partition_request(*instance, *attempt, spec);
        let current = self.observed.partitions.get(instance);
        current.is_some_and(|current| is_same_request(current, &wanted))
    }

    async fn apply_one(&mut self, effect: &Effect) -> Result<(), ReconcileError> {
        match effect {
            Effect::EnsurePartition {
                instance,
                attempt,
                partition,
                spec,
            } => self.ensure(*instance, *attempt, partition, spec).await,
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => {
                self.confirm_ended(*instance).await?;
                let mut request = ResetPartition::default();
                request.attempt = Some(*attempt);
                request.uid = Some(self.spec.key().uid.to_string());
                self.context.partitions.reset(partition, &request).await.map(drop)
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                let endpoint = self.endpoint(*instance, *attempt, partition).await?;
                self.create_shared_objects().await?;
                let pod = self.builder()?.worker(*instance, *worker, *attempt, &endpoint);
                self.start(pod).await
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                let endpoint = self.endpoint(*instance, *attempt, partition).await?;
                let (client, pods) = (self.context.client.clone(), &self.observed.pods);
                let is_worker = |pod: &&JobPod| {
                    pod.worker.is_some() && (pod.instance, pod.attempt) == (*instance, *attempt)
                };
                let workers = pods.iter().filter(is_worker);
                let builder = self.builder()?;
                launcher_rights::grant(&client, builder, *instance, workers).await?;
                let pod = builder.launcher(*instance, *attempt, &endpoint);
                self.start(pod).await
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => self.stop(*instance, Some(*worker), *attempt).await,
            Effect::StopLauncher { instance, attempt } => self.stop(*instance, None, *attempt).await,
            Effect::ReleasePartition {
                instance,
                attempt,
                partition,
            } => {
                self.confirm_ended(*instance).await?;
                let mut request = DeletePartition::default();
                request.uid = Some(self.spec.key().uid.to_string());
                request.attempt = Some(*attempt);
                self.context.partitions.release(partition, &request).await
            }
            Effect::Finalize => self.context.finalize(self.job, self.spec.key()).await,
        }
    }

    /// Requests the partition of an instance.
    async fn ensure(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
        spec: &PartitionSpec,
    ) -> Result<(), ReconcileError> {
        let wanted = self.partition_request(instance, attempt, spec);
        let current = self.observed.partitions.get(&instance);
        // The request may reset a partition that an earlier attempt used.
        if attempt > 0 || current.is_some_and(|current| current.state.holds()) {
            self.confirm_ended(instance).await?;
        }
        self.context.partitions.ensure(partition, &wanted).await.map(drop)
    }

    /// Returns the request for a partition of an instance.
    fn partition_request(&self, instance: u32, attempt: u32, partition: &PartitionSpec) -> PutPartition {
        let key = self.spec.key();
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        let owner = OwnerDocument::new(IpuJob::KIND, namespace, name, key.uid.as_str());
        let mut wanted = PutPartition::new(owner, partition.size.get());
        wanted.instance = instance;
        wanted.attempt = attempt;
        wanted.gcds = Some(partition.gcds);
        wanted.replicas = Some(partition.replicas);
        wanted.reconfigurable = partition.reconfigurable;
        wanted.allocation = partition.allocation.as_ref().map(ToString::to_string);
        wanted.priority = self.spec.priority();
        wanted.max_runtime_seconds = self.spec.max_runtime().map(|runtime| runtime.as_secs());
        wanted.account = self.spec.account().map(str::to_owned);
        wanted.preemptible = self.spec.preemptible();
        wanted
    }

    /// Returns the endpoint of the partition that the processes of an instance use, if the proxy confirms
    /// that it is active for this attempt.
    async fn endpoint(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<PartitionEndpoint, ReconcileError> {
        if let Some(endpoint) = self.endpoints.get(&instance) {
            return Ok(endpoint.clone());
        }
        let document = self.context.partitions.fetch(partition).await?;
        let document = document.filter(|document| {
            (document.state, document.attempt) == (HoldState::Active, attempt) && !document.env.is_empty()
        });
        // For a controller that is not in the proxy's list, the host is missing, and so are the nodes that
        // reach it.
        let found = document.as_ref().and_then(|document| {
            let controller = document.controller.as_ref()?;
            controller.host.as_ref()?;
            Some((document, controller))
        });
        let (document, controller) = found.ok_or_else(|| {
            ReconcileError::Unavailable(format!(
                "the proxy does not report the endpoint of partition {partition} yet"
            ))
        })?;
        let label = controller
            .node_label
            .as_deref()
            .and_then(|label| label.split_once('='));
        let endpoint = PartitionEndpoint {
            partition: partition.clone(),
            env: document.env.clone(),
            node_label: label.map(|(name, value)| (name.to_owned(), value.to_owned())),
        };
        self.endpoints.insert(instance, endpoint.clone());
        Ok(endpoint)
    }

    /// Returns the builder of the job's objects.
    fn builder(&mut self) -> Result<&ResourceBuilder<'a>, ReconcileError> {
        let builder = match self.builder.take() {
            Some(builder) => builder,
            None => ResourceBuilder::new(self.job, self.spec, &self.context.installation)
                .map_err(|message| ReconcileError::refused("InvalidTemplate", message))?,
        };
        Ok(self.builder.insert(builder))
    }

    /// Creates the objects that the Pods of a job share, once before the first worker.
    async fn create_shared_objects(&mut self) -> Result<(), ReconcileError> {
        if self.has_shared_objects {
            return Ok(());
        }
        let (client, has_launcher) = (self.context.client.clone(), self.has_launcher());
        let has_service = self.job.spec.headless_service == Some(true);
        let builder = self.builder()?;
        if has_launcher {
            create_or_update(&client, builder.config_map()).await?;
            create_or_update(&client, builder.service_account()).await?;
        }
        if has_service {
            create_or_update(&client, builder.headless_service()).await?;
        }
        self.has_shared_objects = true;
        Ok(())
    }

    fn has_launcher(&self) -> bool {
        !matches!(self.spec.shape(), JobKind::Workers)
    }

    /// Creates the Pod of a process. A Pod of the job that the store does not show yet is left as it is.
    async fn start(&self, pod: Pod) -> Result<(), ReconcileError> {
        match self.pods.create(&post_params(), &pod).await {
            Ok(_) => return Ok(()),
            Err(error) if is_status(&error, 409) => {}
            Err(error) => return Err(error.into()),
        }
        let name = pod.name_any();
        let Some(existing) = self.pods.get_opt(&name).await? else {
            return Err(ReconcileError::Changed(format!("Pod {name} was deleted")));
        };
        match JobPod::read(&existing, self.spec.key(), self.observed.now) {
            Some(_) => Ok(()),
            None => Err(ReconcileError::refused(
                "NameTaken",
                format!("pod {name} exists and is not owned by this job: delete it"),
            )),
        }
    }

    /// Stops a process and removes its Pod. The rights of its launcher end before the name of a worker is
    /// free.
    async fn stop(&mut self, instance: u32, worker: Option<u32>, attempt: u32) -> Result<(), ReconcileError> {
        let observed = self.observed;
        let place = (instance, worker, attempt);
        for pod in observed
            .pods
            .iter()
            .filter(|pod| (pod.instance, pod.worker, pod.attempt) == place)
        {
            self.revoke(pod).await?;
            remove(&self.pods, pod).await?;
        }
        Ok(())
    }

    /// Removes the finalizer of Pods that have ended and whose outcome is recorded: planning with them
    /// changes nothing about their instance.
    async fn untrack_recorded(&mut self, plan: &Plan) -> Result<(), ReconcileError> {
        let observed = self.observed;
        let recorded = recorded_status(self.job).to_job_status();
        let is_recorded = |pod: &&JobPod| {
            let judged = pod.tracked && pod.has_ended() && !observed.evidence.early.contains(&pod.name);
            judged && plan.status.instance(pod.instance) == recorded.instance(pod.instance)
        };
        for pod in observed.pods.iter().filter(is_recorded) {
            self.revoke(pod).await?;
            untrack(&self.pods, &pod.name, &pod.uid).await?;
        }
        Ok(())
    }

    /// Revokes the rights of a launcher over `pod`, if it is a worker.
    async fn revoke(&mut self, pod: &JobPod) -> Result<(), ReconcileError> {
        if pod.worker.is_some() && self.has_launcher() && self.revoked.insert(pod.instance) {
            let revoked = launcher_rights::revoke(&self.context.client, self.spec.key(), pod.instance).await;
            revoked.inspect_err(|_| {
                self.revoked.remove(&pod.instance);
            })?;
        }
        Ok(())
    }

    /// Fails unless the API server itself shows that no process of an instance can run: before its partition
    /// is reset or released, however late the store is.
    async fn confirm_ended(&mut self, instance: u32) -> Result<(), ReconcileError> {
        if self.ended.contains(&instance) {
            return Ok(());
        }
        let key = self.spec.key();
        let selector = format!("{JOB_UID}={},{INSTANCE}={instance}", key.uid);
        for pod in self.pods.list(&ListParams::default().labels(&selector)).await? {
            let Some(live) = JobPod::read(&pod, key, self.observed.now) else {
                continue;
            };
            let is_observed = self.observed.pods.iter().any(|pod| pod.uid == live.uid);
            if live.lingering.is_some() {
                // Its other containers do not end by themselves, and its IPUs are demanded.
                self.revoke(&live).await?;
                remove(&self.pods, &live).await?;
            }
            if !live.has_ended() || !is_observed {
                return Err(ReconcileError::Changed(format!(
                    "Pod {} exists and the store does not show it as ended",
                    live.name
                )));
            }
        }
        self.ended.insert(instance);
        Ok(())
    }
}

impl Context {
    /// Removes the operator's finalizer from a deleted job, once the API server itself shows none of its
    /// Pods.
    pub(super) async fn finalize(&self, job: &IpuJob, key: &JobKey) -> Result<(), ReconcileError> {
        self.confirm_no_pods(key).await?;
        let others = job
            .finalizers()
            .iter()
            .filter(|finalizer| *finalizer != IpuJob::FINALIZER);
        set_finalizers::<IpuJob>(&self.client, &job.metadata, others.collect()).await
    }

    /// Fails if the API server itself shows a Pod of the job.
    pub(super) async fn confirm_no_pods(&self, key: &JobKey) -> Result<(), ReconcileError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), key.namespace.as_str());
        let labels = ListParams::default().labels(&format!("{JOB_UID}={}", key.uid));
        let now = (self.now)();
        let left = pods.list(&labels).await?;
        if let Some(pod) = left.iter().find_map(|pod| JobPod::read(pod, key, now)) {
            return Err(ReconcileError::Changed(format!("Pod {} exists", pod.name)));
        }
        Ok(())
    }

    /// Adds the operator's finalizer to a job: no partition is requested for a job that could vanish.
    pub(super) async fn add_finalizer(&self, job: &IpuJob) -> Result<(), ReconcileError> {
        let own = IpuJob::FINALIZER.to_owned();
        let all = job.finalizers().iter().chain([&own]);
        set_finalizers::<IpuJob>(&self.client, &job.metadata, all.collect()).await
    }
}

/// Returns whether an equal request is queued, or its partition is being made ready.
fn is_same_request(current: &PartitionDocument, wanted: &PutPartition) -> bool {
    let is_open = matches!(
        current.state,
        HoldState::Waiting | HoldState::Creating | HoldState::Resetting
    );
    is_open
        && current
            .owner
            .as_ref()
            .is_some_and(|owner| owner.uid == wanted.owner.uid)
        && (current.attempt, current.size) == (wanted.attempt, wanted.size)
        && (Some(current.gcds), Some(current.replicas)) == (wanted.gcds, wanted.replicas)
        && (current.reconfigurable, current.preemptible) == (wanted.reconfigurable, wanted.preemptible)
        && (current.priority, current.max_runtime_seconds) == (wanted.priority, wanted.max_runtime_seconds)
        && (&current.allocation, &current.account) == (&wanted.allocation, &wanted.account)
}
