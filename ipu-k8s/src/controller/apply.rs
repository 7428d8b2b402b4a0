//! Effects, one by one: each carries every choice, so that nothing is decided here.

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

/// Whether an effect changed anything, so that it is worth looking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    Changed,
    Unchanged,
    /// The job is let go of.
    Finalized,
}

impl Reconciler {
    pub(super) async fn apply(
        &self,
        effect: &Effect,
        blueprint: &ResourceBuilder<'_>,
        object: &Value,
        seen: &mut ObservedJob,
    ) -> Result<Applied, PortError> {
        let spec = blueprint.spec;
        let key = spec.key();
        match effect {
            Effect::EnsurePartition {
                instance,
                attempt,
                partition,
                spec: make,
            } => {
                let wanted = partition_request(blueprint, *instance, *attempt, make);
                // Its place in the line is kept without asking again.
                if seen
                    .partitions
                    .get(instance)
                    .is_some_and(|known| is_same_request(known, &wanted))
                {
                    return Ok(Applied::Unchanged);
                }
                let asking = self.cache.begin_request(key, *instance);
                let document = self.partitions.ensure(partition, &wanted).await?;
                self.cache.record_response(key, *instance, Some(&document));
                drop(asking);
                let known = seen.partitions.insert(*instance, document.clone());
                let same = known
                    .is_some_and(|known| known.state == document.state && known.attempt == document.attempt);
                // What was only just asked for is worth telling; what is being made is told by itself.
                Ok(if same {
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
                let mut how = ResetPartition::default();
                how.attempt = Some(*attempt);
                how.uid = Some(key.uid.to_string());
                let document = self.partitions.reset(partition, &how).await?;
                self.cache.record_response(key, *instance, Some(&document));
                seen.partitions.insert(*instance, document);
                Ok(Applied::Changed)
            }
            Effect::StartWorker {
                instance,
                worker,
                attempt,
                partition,
            } => {
                let place = place(seen, *instance, partition)?;
                self.ensure_shared_objects(blueprint, *attempt).await?;
                let pod = blueprint.worker(*instance, *worker, *attempt, &place);
                let who = MissingProcess {
                    worker: Some(*worker),
                    attempt: *attempt,
                };
                self.start(blueprint, &pod, (*instance, who)).await
            }
            Effect::StartLauncher {
                instance,
                attempt,
                partition,
            } => {
                let place = place(seen, *instance, partition)?;
                self.ensure_shared_objects(blueprint, *attempt).await?;
                self.grant(blueprint, *instance).await?;
                let pod = blueprint.launcher(*instance, *attempt, &place);
                let who = MissingProcess {
                    worker: None,
                    attempt: *attempt,
                };
                self.start(blueprint, &pod, (*instance, who)).await
            }
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => {
                self.stop(seen, |pod| {
                    (pod.instance, pod.worker, pod.attempt) == (*instance, Some(*worker), *attempt)
                })
                .await
            }
            Effect::StopLauncher { instance, attempt } => {
                self.stop(seen, |pod| {
                    (pod.instance, pod.worker, pod.attempt) == (*instance, None, *attempt)
                })
                .await
            }
            Effect::ReleasePartition {
                instance,
                attempt,
                partition,
            } => {
                self.release(blueprint, *attempt, partition).await?;
                self.cache.not_applied(key);
                if let Some(document) = self.get_partition(spec, *instance).await? {
                    seen.partitions.insert(*instance, document);
                } else {
                    seen.partitions.remove(instance);
                }
                Ok(Applied::Changed)
            }
            Effect::Finalize => {
                self.remove_finalizer(key, object).await?;
                Ok(Applied::Finalized)
            }
            other => Err(PortError::Refused {
                code: "UnknownEffect".to_owned(),
                message: format!("this version does not know how to do {other:?}"),
            }),
        }
    }

    async fn release(
        &self,
        blueprint: &ResourceBuilder<'_>,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<(), PortError> {
        let mut how = DeletePartition::default();
        how.uid = Some(blueprint.spec.key().uid.to_string());
        how.attempt = Some(attempt);
        self.partitions.release(partition, &how).await
    }

    /// Sees to what workers and launchers need to be there before them: for each attempt anew, because somebody may have deleted it.
    async fn ensure_shared_objects(
        &self,
        blueprint: &ResourceBuilder<'_>,
        attempt: u32,
    ) -> Result<(), PortError> {
        let objects = blueprint.shared();
        if objects.is_empty() {
            return Ok(());
        }
        let key = blueprint.spec.key();
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
        self.cache.applied(key, fingerprint);
        Ok(())
    }

    /// Creates a Kubernetes Pod: of this process, with its instance.
    async fn start(
        &self,
        blueprint: &ResourceBuilder<'_>,
        pod: &Value,
        who: (u32, MissingProcess),
    ) -> Result<Applied, PortError> {
        let lists = self.cache.relist_count();
        match self.api.create_pod(pod).await {
            Ok(created) => {
                self.cache.observe_response(&created, lists);
                Ok(Applied::Changed)
            }
            Err(PortError::Conflict(_)) => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let key = blueprint.spec.key();
                let Some(there) = self.api.pod(key.namespace.as_str(), name).await? else {
                    return Ok(Applied::Changed);
                };
                if !KubePod::read(&there).is_some_and(|pod| pod.owned && pod.job == *key) {
                    return Err(PortError::Refused {
                        code: "NameTaken".to_owned(),
                        message: format!(
                            "a Kubernetes Pod that is not of this job is called {name}: delete it"
                        ),
                    });
                }
                // The watch will not call it news when it gets there. Otherwise it has told, and looking again at once would only
                // ask again.
                Ok(if self.cache.observe_response(&there, lists) {
                    Applied::Changed
                } else {
                    Applied::Unchanged
                })
            }
            // Perhaps because what it needs was deleted.
            Err(error @ PortError::Refused { .. }) => {
                self.cache.not_applied(blueprint.spec.key());
                Err(error)
            }
            // It may be there all the same.
            Err(error @ PortError::Unavailable(_)) => {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                self.cache.unconfirmed(blueprint.spec.key(), name, who);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    async fn stop(&self, seen: &ObservedJob, which: impl Fn(&KubePod) -> bool) -> Result<Applied, PortError> {
        let mut step = Applied::Unchanged;
        for pod in seen.pods.iter().filter(|pod| which(pod)) {
            if pod.deleted {
                self.cache.absent(&pod.job, &pod.name, &pod.uid);
                step = Applied::Changed;
                continue;
            }
            if pod.leaving {
                continue;
            }
            self.cache.will_be_stopped(&pod.job, &pod.name, &pod.uid);
            match self.delete(pod).await {
                Ok(()) => self.cache.stopping(&pod.job, &pod.name, &pod.uid),
                Err(PortError::NotFound(_) | PortError::Conflict(_)) => {
                    self.cache.absent(&pod.job, &pod.name, &pod.uid);
                    step = Applied::Changed;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(step)
    }

    /// Asks for the deletion of a Kubernetes Pod.
    pub(super) async fn delete(&self, pod: &KubePod) -> Result<(), PortError> {
        let namespace = pod.job.namespace.as_str();
        self.api.delete_pod(namespace, &pod.name, &pod.uid).await
    }

    /// Takes our finalizer off a job.
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

/// What is asked for.
fn partition_request(
    blueprint: &ResourceBuilder<'_>,
    instance: u32,
    attempt: u32,
    make: &PartitionSpec,
) -> PutPartition {
    let spec = blueprint.spec;
    let key = spec.key();
    let owner = OwnerDocument::new(
        IpuJob::KIND,
        key.namespace.as_str(),
        key.name.as_str(),
        key.uid.as_str(),
    );
    let mut wanted = PutPartition::new(owner, make.size.get());
    wanted.instance = instance;
    wanted.attempt = attempt;
    wanted.gcds = Some(make.gcds);
    wanted.replicas = Some(make.replicas);
    wanted.reconfigurable = make.reconfigurable;
    wanted.allocation = make.allocation.as_ref().map(ToString::to_string);
    wanted.priority = spec.priority();
    wanted.max_runtime_seconds = spec.max_runtime().map(|runtime| runtime.as_secs());
    wanted.account = spec.account().map(str::to_owned);
    wanted.preemptible = spec.preemptible();
    wanted
}

/// Whether what is wanted stands in the line already.
fn is_same_request(known: &PartitionDocument, wanted: &PutPartition) -> bool {
    known.state == HoldState::Waiting
        && known
            .owner
            .as_ref()
            .is_some_and(|owner| owner.uid == wanted.owner.uid)
        && (known.attempt, known.size) == (wanted.attempt, wanted.size)
        && (Some(known.gcds), Some(known.replicas)) == (wanted.gcds, wanted.replicas)
        && (known.reconfigurable, known.preemptible) == (wanted.reconfigurable, wanted.preemptible)
        && (known.priority, known.max_runtime_seconds) == (wanted.priority, wanted.max_runtime_seconds)
        && (&known.allocation, &known.account) == (&wanted.allocation, &wanted.account)
}

/// Where the processes of an instance run.
fn place(seen: &ObservedJob, instance: u32, partition: &PartitionId) -> Result<PartitionEndpoint, PortError> {
    let document = seen
        .partitions
        .get(&instance)
        .filter(|document| document.id == *partition);
    // Of a controller that is not on the proxy's list the host is not shown, and which nodes reach it is not known.
    let is_listed = |document: &&PartitionDocument| {
        let controller = document.controller.as_ref();
        controller.is_some_and(|controller| controller.host.is_some())
    };
    let document = document
        .filter(|document| !document.env.is_empty())
        .filter(is_listed)
        .ok_or_else(|| {
            PortError::Unavailable(format!(
                "the proxy does not say yet how partition {partition} is reached"
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
