//! What one pass looks at: what was heard, and what has to be asked because it was not.

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

/// The processes of an instance that its record does not tell of, which are not among `pods`, and which may have been started: workers,
/// or a launcher, which is none. It is started when all workers run, and a worker of which Kubernetes says that it has not run never has: of
/// one that ran and was taken away there is no other in the same attempt.
fn unaccounted_processes(spec: &JobSpec, memory: &InstanceStatus, pods: &[KubePod]) -> Vec<Option<u32>> {
    let own = pods
        .iter()
        .filter(|pod| (pod.instance, pod.attempt) == (memory.index, memory.attempt));
    let there: BTreeSet<Option<u32>> = own.clone().map(|pod| pod.worker).collect();
    let all_ran = memory.running_since.is_some()
        || !own
            .into_iter()
            .any(|pod| pod.worker.is_some() && pod.has_not_run());
    let has_launcher = !matches!(spec.shape(), JobKind::Workers);
    let launcher = (has_launcher && all_ran && memory.launched.is_none()).then_some(None);
    let workers = (0..spec.workers_per_instance()).filter(|_| memory.running_since.is_none());
    let all = workers.map(Some).chain(launcher);
    all.filter(|who| !there.contains(who)).collect()
}

/// How often one look asks again about what is in doubt.
const ASKS: u32 = 3;

/// Whether a Kubernetes Pod that is called as one of the job counts as one: if the job is its controller. Before the job `goes`, nothing is
/// left behind whose owner somebody took away, as `--cascade=orphan` does.
const fn is_owned(pod: &KubePod, goes: bool) -> bool {
    pod.owned || goes
}

impl Reconciler {
    /// Gathers what there is to know. Partitions that the proxy answered in this pass already are not asked for again while
    /// they are active: what changes later is told.
    pub(super) async fn observe(
        &self,
        blueprint: &ResourceBuilder<'_>,
        object: &Value,
        status: &IpuJobStatus,
        mut answered: BTreeMap<u32, PartitionDocument>,
    ) -> Result<ObservedJob, PortError> {
        let spec = blueprint.spec;
        let key = spec.key();
        let remembered: JobStatus = status.remembered();
        let mut seen = ObservedJob {
            pods: self.cache.pods(key),
            evicted: Vec::new(),
            partitions: BTreeMap::new(),
            submitted: parse_time(&object["metadata"]["creationTimestamp"]).unwrap_or_default(),
            deleted: if object["metadata"]["deletionTimestamp"].is_null() {
                Deleted::No
            } else {
                Deleted::Yes
            },
            told: self.cache.is_connected(),
            now: self.now(),
            ends: FailureEvidence::default(),
        };
        let goes = seen.deleted == Deleted::Yes;
        seen.pods.retain(|pod| is_owned(pod, goes));
        let missed = unlisted_pods(spec, &remembered, &seen.pods);
        self.fetch_pods(spec, missed, &mut seen).await?;
        // There may be doubt about an answer, if the watch began anew meanwhile.
        for _ in 0..ASKS {
            let doubts = self.cache.pending_checks(key);
            if doubts.is_empty() {
                break;
            }
            self.fetch_pods(spec, doubts.keys().cloned().collect(), &mut seen)
                .await?;
            let there = seen.pods.iter().map(|pod| pod.name.as_str()).collect();
            self.cache.confirm(key, &doubts, &there);
        }
        // A job that nothing was recorded of has asked for nothing; if it has, and the record was lost, the proxy tells, or is asked.
        let held = self.cache.held(key);
        let new = status.phase.is_none() && seen.deleted == Deleted::No && seen.told;
        let mut given_back = BTreeSet::new();
        if !(new && seen.pods.is_empty() && held.is_empty()) {
            answered.retain(|_, document| document.state == HoldState::Active);
            for instance in instances(spec, &remembered, &seen.pods, held) {
                let document = match answered.remove(&instance) {
                    Some(document) => Some(document),
                    None => self.get_partition(spec, instance).await?,
                };
                match document {
                    Some(document) => {
                        seen.partitions.insert(instance, document);
                    }
                    None => {
                        given_back.insert(instance);
                    }
                }
            }
        }
        self.detect_unseen_processes(spec, &remembered, &mut seen).await?;
        seen.evicted = self
            .cache
            .evicted(key, spec.instances(), &remembered, &given_back);
        seen.ends = self.look_at_ends(spec, &remembered, &seen).await;
        Ok(seen)
    }

    /// Asks the API server for the Kubernetes Pods of these names, and puts what there is in the place of what was known.
    async fn fetch_pods(
        &self,
        spec: &JobSpec,
        names: Vec<String>,
        seen: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let key = spec.key();
        let (pods, goes) = (&mut seen.pods, seen.deleted == Deleted::Yes);
        for name in names {
            let lists = self.cache.relist_count();
            let found = self.api.pod(key.namespace.as_str(), &name).await?;
            let there = found.as_ref().map(|pod| &pod["metadata"]["uid"]);
            // What was known of this name and is not what is there is gone. How it ended may be known all the same.
            pods.retain_mut(|pod| {
                if pod.name != name || there.is_some_and(|uid| *uid == pod.uid) {
                    return true;
                }
                there.is_none()
                    && (pod.deleted || self.cache.absent(key, &name, &pod.uid) && pod.mark_deleted())
            });
            let Some(pod) = found else { continue };
            self.cache.observe_response(&pod, lists);
            let Some(mut found) = KubePod::read(&pod).filter(|pod| pod.job == *key) else {
                continue;
            };
            match pods.iter_mut().find(|known| known.name == found.name) {
                // The watch will not call it news.
                Some(known) if known.version < found.version => {
                    found.merge_previous(known);
                    *known = found;
                }
                Some(_) => {}
                None if is_owned(&found, goes) => pods.push(found),
                None => {}
            }
        }
        Ok(())
    }

    /// Finds the processes that may have run before this operator looked. Whoever finds a partition ready for an attempt whose
    /// workers are not all there, or whose workers run and whose launcher is not there, and did not see to it himself, cannot know
    /// whether another operator had started them, and somebody took them away before their job said so.
    async fn detect_unseen_processes(
        &self,
        spec: &JobSpec,
        status: &JobStatus,
        seen: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let key = spec.key();
        for index in 0..spec.instances() {
            let memory = status.instance(index);
            let attempt = memory.map_or(0, |memory| memory.attempt);
            if self.cache.is_witnessed(key, index, attempt) {
                continue;
            }
            match seen
                .partitions
                .get(&index)
                .map(|document| (document.state, document.attempt))
            {
                // Nothing has run there yet.
                None | Some((HoldState::Waiting | HoldState::Intent | HoldState::Gone, _)) => {}
                Some((_, made_for)) if made_for < attempt => {}
                Some((HoldState::Active | HoldState::Orphaned, _)) => {
                    let nothing = InstanceStatus::new(index);
                    let memory = memory.unwrap_or(&nothing);
                    if memory.outcome.is_none() && seen.deleted == Deleted::No {
                        self.suspect_instance(spec, memory, seen).await?;
                    }
                }
                Some(_) => continue,
            }
            self.cache.mark_accounted(key, index, attempt);
        }
        Ok(())
    }

    async fn suspect_instance(
        &self,
        spec: &JobSpec,
        memory: &InstanceStatus,
        seen: &mut ObservedJob,
    ) -> Result<(), PortError> {
        let instance = memory.index;
        let name = |who: Option<u32>| match who {
            Some(worker) => spec.worker_name(instance, worker),
            None => spec.launcher_name(instance),
        };
        let names = unaccounted_processes(spec, memory, &seen.pods)
            .into_iter()
            .map(name)
            .collect();
        self.fetch_pods(spec, names, seen).await?;
        for worker in unaccounted_processes(spec, memory, &seen.pods) {
            let attempt = memory.attempt;
            self.cache
                .record_eviction(spec.key(), instance, MissingProcess { worker, attempt });
        }
        Ok(())
    }

    /// Asks the proxy for the partition of an instance.
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
