//! The observation of a job: cached watch state, and requests for everything that the caches do not confirm.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{InstanceStatus, JobKind, JobSpec, JobStatus, MissingProcess};
use ipu_proxy_client::{HoldState, PartitionDocument};
use serde_json::Value;

use super::failure_order::FailureEvidence;
use super::observation::{Deleted, ObservedJob, instances, unlisted_pods};
use super::pod_state::{KubePod, parse_time};
use super::ports::PortError;
use super::reconcile::Reconciler;
use crate::crd::IpuJobStatus;
use crate::resources::ResourceBuilder;

/// Returns the processes of an instance that its status does not record, that are not among `pods`, and that
/// may have been started: workers, or the launcher (`None`). A launcher starts when all workers run, so it
/// never started if a worker has not run yet. A worker that ran and was deleted has no successor in the same
/// attempt.
fn unaccounted_processes(spec: &JobSpec, memory: &InstanceStatus, pods: &[KubePod]) -> Vec<Option<u32>> {
    let current_pods = pods
        .iter()
        .filter(|pod| (pod.instance, pod.attempt) == (memory.index, memory.attempt));
    let existing: BTreeSet<Option<u32>> = current_pods.clone().map(|pod| pod.worker).collect();
    let all_ran = memory.running_since.is_some()
        || !current_pods
            .into_iter()
            .any(|pod| pod.worker.is_some() && pod.has_not_run());
    let has_launcher = !matches!(spec.shape(), JobKind::Workers);
    let launcher = (has_launcher && all_ran && memory.launched.is_none()).then_some(None);
    let workers = (0..spec.workers_per_instance()).filter(|_| memory.running_since.is_none());
    let all = workers.map(Some).chain(launcher);
    all.filter(|process| !existing.contains(process)).collect()
}

/// Maximum number of rounds in which one observation resolves unconfirmed pods.
const MAX_CONFIRMATIONS: u32 = 3;

/// Returns whether a pod with the name of one of the job's counts as the job's: if the job is its controller.
/// During the deletion of the job, orphaned pods count too (`--cascade=orphan` removes their owner).
const fn is_owned(pod: &KubePod, is_deleting: bool) -> bool {
    pod.owned || is_deleting
}

impl Reconciler {
    /// Gathers the state of the job. Partitions that the proxy returned earlier in this reconcile are not
    /// requested again while they are active: events report later changes.
    pub(super) async fn observe(
        &self,
        builder: &ResourceBuilder<'_>,
        object: &Value,
        status: &IpuJobStatus,
        mut cached_partitions: BTreeMap<u32, PartitionDocument>,
    ) -> Result<ObservedJob, PortError> {
        let spec = builder.spec;
        let key = spec.key();
        let remembered: JobStatus = status.to_job_status();
        let mut observed = ObservedJob {
            pods: self.cache.pods(key),
            evicted: Vec::new(),
            partitions: BTreeMap::new(),
            finished_blockers: BTreeSet::new(),
            submitted: parse_time(&object["metadata"]["creationTimestamp"]).unwrap_or_default(),
            deleted: if object["metadata"]["deletionTimestamp"].is_null() {
                Deleted::No
            } else {
                Deleted::Yes
            },
            partition_watch_connected: self.cache.is_connected(),
            now: self.now(),
            failure_evidence: FailureEvidence::default(),
        };
        let is_deleting = observed.deleted == Deleted::Yes;
        observed.pods.retain(|pod| is_owned(pod, is_deleting));
        let unlisted = unlisted_pods(spec, &remembered, &observed.pods);
        self.fetch_pods(spec, unlisted, &mut observed).await?;
        // A relist that completes meanwhile makes a response inconclusive.
        for _ in 0..MAX_CONFIRMATIONS {
            let pending = self.cache.pending_checks(key);
            if pending.is_empty() {
                break;
            }
            self.fetch_pods(spec, pending.keys().cloned().collect(), &mut observed)
                .await?;
            let existing = observed.pods.iter().map(|pod| pod.name.as_str()).collect();
            self.cache.confirm(key, &pending, &existing);
        }
        // A job without a recorded phase has requested nothing. If its status was lost, the proxy's events
        // list the holds, or the proxy is queried.
        let held = self.cache.held(key);
        let is_new =
            status.phase.is_none() && observed.deleted == Deleted::No && observed.partition_watch_connected;
        let mut released = BTreeSet::new();
        if !(is_new && observed.pods.is_empty() && held.is_empty()) {
            cached_partitions.retain(|_, document| document.state == HoldState::Active);
            for instance in instances(spec, &remembered, &observed.pods, held) {
                let document = match cached_partitions.remove(&instance) {
                    Some(document) => Some(document),
                    None => self.get_partition(spec, instance).await?,
                };
                match document {
                    Some(document) => {
                        observed.partitions.insert(instance, document);
                    }
                    None => {
                        released.insert(instance);
                    }
                }
            }
        }
        observed.finished_blockers = self.cache.finished_blockers(observed.partitions.values());
        self.detect_unseen_processes(spec, &remembered, &mut observed)
            .await?;
        observed.evicted = self.cache.evicted(key, spec.instances(), &remembered, &released);
        observed.failure_evidence = self.collect_failure_evidence(spec, &remembered, &observed).await;
        Ok(observed)
    }

    /// Reads the pods of these names from the API server, and replaces their cached state.
    async fn fetch_pods(
        &self,
        spec: &JobSpec,
        names: Vec<String>,
        observed: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let key = spec.key();
        let (pods, is_deleting) = (&mut observed.pods, observed.deleted == Deleted::Yes);
        for name in names {
            let lists = self.cache.relist_count();
            let found = self.api.pod(key.namespace.as_str(), &name).await?;
            let existing = found.as_ref().map(|pod| &pod["metadata"]["uid"]);
            // A cached pod of this name with another uid was deleted. Its outcome may still be known.
            pods.retain_mut(|pod| {
                if pod.name != name || existing.is_some_and(|uid| *uid == pod.uid) {
                    return true;
                }
                existing.is_none()
                    && (pod.deleted || self.cache.mark_missing(key, &name, &pod.uid) && pod.mark_deleted())
            });
            let Some(pod) = found else { continue };
            self.cache.observe_response(&pod, lists);
            let Some(mut found) = KubePod::read(&pod).filter(|pod| pod.job == *key) else {
                continue;
            };
            match pods.iter_mut().find(|current| current.name == found.name) {
                // The watch event of this version will not count as a change.
                Some(current) if current.version < found.version => {
                    found.merge_previous(current);
                    *current = found;
                }
                Some(_) => {}
                None if is_owned(&found, is_deleting) => pods.push(found),
                None => {}
            }
        }
        Ok(())
    }

    /// Detects processes that may have run before this operator observed the job. An active partition implies
    /// that processes may have been started, if its attempt lacks workers, or its workers run without a
    /// launcher. Unless this operator started them, another one may have, and they may have been deleted
    /// before the status recorded them.
    async fn detect_unseen_processes(
        &self,
        spec: &JobSpec,
        status: &JobStatus,
        observed: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let key = spec.key();
        for index in 0..spec.instances() {
            let memory = status.instance(index);
            let attempt = memory.map_or(0, |memory| memory.attempt);
            if self.cache.is_witnessed(key, index, attempt) {
                continue;
            }
            match observed
                .partitions
                .get(&index)
                .map(|document| (document.state, document.attempt))
            {
                // No process has run there yet.
                None
                | Some((
                    HoldState::Waiting | HoldState::Creating | HoldState::Resetting | HoldState::Gone,
                    _,
                )) => {}
                Some((_, made_for)) if made_for < attempt => {}
                Some((HoldState::Active, _)) => {
                    let nothing = InstanceStatus::new(index);
                    let memory = memory.unwrap_or(&nothing);
                    if memory.outcome.is_none() && observed.deleted == Deleted::No {
                        self.record_unaccounted(spec, memory, observed).await?;
                    }
                }
                Some(_) => continue,
            }
            self.cache.mark_accounted(key, index, attempt);
        }
        Ok(())
    }

    async fn record_unaccounted(
        &self,
        spec: &JobSpec,
        memory: &InstanceStatus,
        observed: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let instance = memory.index;
        let name = |process: Option<u32>| match process {
            Some(worker) => spec.worker_name(instance, worker),
            None => spec.launcher_name(instance),
        };
        let names = unaccounted_processes(spec, memory, &observed.pods)
            .into_iter()
            .map(name)
            .collect();
        self.fetch_pods(spec, names, observed).await?;
        for worker in unaccounted_processes(spec, memory, &observed.pods) {
            let attempt = memory.attempt;
            self.cache
                .record_eviction(spec.key(), instance, MissingProcess { worker, attempt });
        }
        Ok(())
    }

    /// Requests the partition of an instance from the proxy.
    pub(super) async fn get_partition(
        &self,
        spec: &JobSpec,
        instance: u32,
    ) -> Result<Option<PartitionDocument>, PortError> {
        let document = self
            .partitions
            .get_partition(&spec.partition_id(instance))
            .await?;
        self.cache
            .record_response(spec.key(), instance, document.as_ref());
        Ok(document)
    }
}
