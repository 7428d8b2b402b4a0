//! Effects of a plan. Each carries every decision; this module decides nothing.

use ipu_core::{Effect, JobKey, MissingProcess, PartitionId, PartitionSpec};
use ipu_proxy_client::{
    DeletePartition, HoldState, OwnerDocument, PartitionDocument, PutPartition, ResetPartition,
};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::observation::ObservedJob;
use super::pod_state::KubePod;
use super::ports::PortError;
use super::reconcile::Reconciler;
use crate::crd::IpuJob;
use crate::resources::{PartitionEndpoint, ResourceBuilder};

/// Outcome of an effect: whether the job must be observed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Changed,
    Unchanged,
    /// The finalizer was removed from the job.
    Finalized,
}

impl Reconciler {
    pub(super) async fn apply(
        &self,
        effect: &Effect,
        builder: &ResourceBuilder<'_>,
        object: &Value,
        observed: &mut ObservedJob,
    ) -> Result<Applied, PortError> {
        let spec = builder.spec;
        let key = spec.key();
        match effect {
            Effect::EnsurePartition {
                instance,
                attempt,
                partition,
                spec: partition_spec,
            } => {
                let wanted = partition_request(builder, *instance, *attempt, partition_spec);
                // The request keeps its place in the queue; repeating it changes nothing.
                if observed
                    .partitions
                    .get(instance)
                    .is_some_and(|current| is_same_request(current, &wanted))
                {
                    return Ok(Applied::Unchanged);
                }
                let request_guard = self.cache.begin_request(key, *instance);
                let document = self.partitions.ensure(partition, &wanted).await?;
                self.cache.record_response(key, *instance, Some(&document));
                drop(request_guard);
                let previous = observed.partitions.insert(*instance, document.clone());
                let is_unchanged = previous.is_some_and(|current| {
                    current.state == document.state && current.attempt == document.attempt
                });
                // A new request is recorded in the status; events report the progress of a partition that is
                // being created.
                Ok(if is_unchanged {
                    Applied::Unchanged
                } else {
                    Applied::Changed
                })
            }
            Effect::ResetPartition {
                instance,
                attempt,
                partition,
            } => {
                let mut request = ResetPartition::default();
                request.attempt = Some(*attempt);
                request.uid = Some(key.uid.to_string());
                let document = self.partitions.reset(partition, &request).await?;
                self.cache.record_response(key, *instance, Some(&document));
                observed.partitions.insert(*instance, document);
                Ok(Applied::Changed)
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                let endpoint = endpoint(observed, *instance, partition)?;
                self.ensure_shared_objects(builder, *attempt).await?;
                let pod = builder.worker(*instance, *worker, *attempt, &endpoint);
                let process = MissingProcess {
                    worker: Some(*worker),
                    attempt: *attempt,
                };
                self.start(builder, &pod, (*instance, process)).await
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                let endpoint = endpoint(observed, *instance, partition)?;
                self.ensure_shared_objects(builder, *attempt).await?;
                self.grant(builder, *instance).await?;
                let pod = builder.launcher(*instance, *attempt, &endpoint);
                let process = MissingProcess {
                    worker: None,
                    attempt: *attempt,
                };
                self.start(builder, &pod, (*instance, process)).await
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => {
                self.stop(observed, |pod| {
                    (pod.instance, pod.worker, pod.attempt) == (*instance, Some(*worker), *attempt)
                })
                .await
            }
            Effect::StopLauncher { instance, attempt } => {
                self.stop(observed, |pod| {
                    (pod.instance, pod.worker, pod.attempt) == (*instance, None, *attempt)
                })
                .await
            }
            Effect::ReleasePartition {
                instance,
                attempt,
                partition,
            } => {
                self.release(builder, *attempt, partition).await?;
                self.cache.invalidate_applied(key);
                if let Some(document) = self.get_partition(spec, *instance).await? {
                    observed.partitions.insert(*instance, document);
                } else {
                    observed.partitions.remove(instance);
                }
                Ok(Applied::Changed)
            }
            Effect::Finalize => {
                self.remove_finalizer(key, object).await?;
                Ok(Applied::Finalized)
            }
        }
    }

    async fn release(
        &self,
        builder: &ResourceBuilder<'_>,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<(), PortError> {
        let mut request = DeletePartition::default();
        request.uid = Some(builder.spec.key().uid.to_string());
        request.attempt = Some(attempt);
        self.partitions.release(partition, &request).await
    }

    /// Applies the objects that workers and launchers depend on. They are applied once per attempt, because
    /// they may have been deleted since.
    async fn ensure_shared_objects(
        &self,
        builder: &ResourceBuilder<'_>,
        attempt: u32,
    ) -> Result<(), PortError> {
        let objects = builder.shared();
        if objects.is_empty() {
            return Ok(());
        }
        let key = builder.spec.key();
        let mut hasher = DefaultHasher::new();
        attempt.hash(&mut hasher);
        for object in &objects {
            object.to_string().hash(&mut hasher);
        }
        let fingerprint = hasher.finish();
        if self.cache.is_applied(key, fingerprint) {
            return Ok(());
        }
        for object in &objects {
            self.api.apply(object).await?;
        }
        self.cache.mark_applied(key, fingerprint);
        Ok(())
    }

    /// Creates the pod of a process of an instance.
    async fn start(
        &self,
        builder: &ResourceBuilder<'_>,
        pod: &Value,
        process: (u32, MissingProcess),
    ) -> Result<Applied, PortError> {
        let lists = self.cache.relist_count();
        match self.api.create_pod(pod).await {
            Ok(created) => {
                self.cache.observe_response(&created, lists);
                Ok(Applied::Changed)
            }
            Err(PortError::Conflict(_)) => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let key = builder.spec.key();
                let Some(existing) = self.api.pod(key.namespace.as_str(), name).await? else {
                    return Ok(Applied::Changed);
                };
                if !KubePod::read(&existing).is_some_and(|pod| pod.owned && pod.job == *key) {
                    return Err(PortError::Refused {
                        code: "NameTaken".to_owned(),
                        message: format!("pod {name} exists and is not owned by this job: delete it"),
                    });
                }
                // If the watch has not delivered the pod yet, its event will not count as a change. Otherwise
                // it has been reported, and another observation would only repeat the request.
                Ok(if self.cache.observe_response(&existing, lists) {
                    Applied::Changed
                } else {
                    Applied::Unchanged
                })
            }
            // A shared object that the pod needs may have been deleted.
            Err(error @ PortError::Refused { .. }) => {
                self.cache.invalidate_applied(builder.spec.key());
                Err(error)
            }
            // The pod may exist all the same.
            Err(error @ PortError::Unavailable(_)) => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                self.cache.mark_unconfirmed(builder.spec.key(), name, process);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    async fn stop(
        &self,
        observed: &ObservedJob,
        which: impl Fn(&KubePod) -> bool,
    ) -> Result<Applied, PortError> {
        let mut applied = Applied::Unchanged;
        for pod in observed.pods.iter().filter(|pod| which(pod)) {
            if pod.deleted {
                self.cache.mark_missing(&pod.job, &pod.name, &pod.uid);
                applied = Applied::Changed;
                continue;
            }
            if pod.terminating {
                continue;
            }
            self.cache.mark_stop_requested(&pod.job, &pod.name, &pod.uid);
            match self.delete(pod).await {
                Ok(()) => self.cache.mark_terminating(&pod.job, &pod.name, &pod.uid),
                Err(PortError::NotFound(_) | PortError::Conflict(_)) => {
                    self.cache.mark_missing(&pod.job, &pod.name, &pod.uid);
                    applied = Applied::Changed;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(applied)
    }

    /// Deletes a pod by its uid.
    pub(super) async fn delete(&self, pod: &KubePod) -> Result<(), PortError> {
        let namespace = pod.job.namespace.as_str();
        self.api.delete_pod(namespace, &pod.name, &pod.uid).await
    }

    /// Removes the operator's finalizer from a job.
    pub(super) async fn remove_finalizer(&self, key: &JobKey, object: &Value) -> Result<(), PortError> {
        let metadata = &object["metadata"];
        let others = metadata["finalizers"].as_array().into_iter().flatten();
        let others: Vec<&Value> = others
            .filter(|finalizer| **finalizer != IpuJob::FINALIZER)
            .collect();
        let patch = json!({"metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": others,
        }});
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        match self.api.patch_job(namespace, name, &patch).await {
            Ok(_) | Err(PortError::NotFound(_)) => {
                self.cache.mark_finalized(key);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the request for a partition of an instance.
fn partition_request(
    builder: &ResourceBuilder<'_>,
    instance: u32,
    attempt: u32,
    partition_spec: &PartitionSpec,
) -> PutPartition {
    let spec = builder.spec;
    let key = spec.key();
    let owner = OwnerDocument::new(
        IpuJob::KIND,
        key.namespace.as_str(),
        key.name.as_str(),
        key.uid.as_str(),
    );
    let mut wanted = PutPartition::new(owner, partition_spec.size.get());
    wanted.instance = instance;
    wanted.attempt = attempt;
    wanted.gcds = Some(partition_spec.gcds);
    wanted.replicas = Some(partition_spec.replicas);
    wanted.reconfigurable = partition_spec.reconfigurable;
    wanted.allocation = partition_spec.allocation.as_ref().map(ToString::to_string);
    wanted.priority = spec.priority();
    wanted.max_runtime_seconds = spec.max_runtime().map(|runtime| runtime.as_secs());
    wanted.account = spec.account().map(str::to_owned);
    wanted.preemptible = spec.preemptible();
    wanted
}

/// Returns whether an equal request is queued already.
fn is_same_request(current: &PartitionDocument, wanted: &PutPartition) -> bool {
    current.state == HoldState::Waiting
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

/// Returns the endpoint of the partition that the processes of an instance use.
fn endpoint(
    observed: &ObservedJob,
    instance: u32,
    partition: &PartitionId,
) -> Result<PartitionEndpoint, PortError> {
    let document = observed
        .partitions
        .get(&instance)
        .filter(|document| document.id == *partition);
    // For a controller that is not in the proxy's list, the host is missing, and so are the nodes that reach
    // it.
    let is_listed = |document: &&PartitionDocument| {
        let controller = document.controller.as_ref();
        controller.is_some_and(|controller| controller.host.is_some())
    };
    let document = document
        .filter(|document| !document.env.is_empty())
        .filter(is_listed)
        .ok_or_else(|| {
            PortError::Unavailable(format!(
                "the proxy does not report the endpoint of partition {partition} yet"
            ))
        })?;
    let label = document
        .controller
        .as_ref()
        .and_then(|controller| controller.node_label.as_deref());
    Ok(PartitionEndpoint {
        partition: partition.clone(),
        env: document.env.clone(),
        node_label: label
            .and_then(|label| label.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    })
}
