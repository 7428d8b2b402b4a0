//! The observation of a job: its Pods from the store, its partitions, and the evidence about failures.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::job::{InstanceFacts, JobSpec, JobStatus, MissingProcess, Observation, PartitionFacts};
use ipu_core::{ControllerName, JobKey, PartitionId, Reason, ReasonCode, Timestamp};
use ipu_proxy_client::{BlockerDocument, HoldState, PartitionDocument};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use super::context::Context;
use super::error::ReconcileError;
use super::failure_order::{FailureEvidence, TIMESTAMP_RESOLUTION};
use super::partitions::is_owner;
use super::pod::{JobPod, millis};
use super::queue_reason::queue_reason;
use crate::crd::{IpuJob, IpuJobStatus};
use crate::resources::JOB_UID;

/// Observed state of a job for one reconciliation.
#[derive(Debug)]
pub(super) struct ObservedJob {
    /// Pods of the job, in order of their names.
    pub(super) pods: Vec<JobPod>,
    /// Partitions and requests at the proxy by instance.
    pub(super) partitions: BTreeMap<u32, PartitionDocument>,
    /// Instances that run on a partition that the proxy does not know, or whose owner it does not know, with
    /// the recorded controller. The proxy may have lost its record: the partition counts as what it was.
    pub(super) unknown: BTreeMap<u32, Option<ControllerName>>,
    /// Partitions of finished jobs that block requests of this job.
    finished_blockers: BTreeSet<PartitionId>,
    pub(super) submitted: Timestamp,
    /// Time of the request to delete the job.
    pub(super) deleted: Option<Timestamp>,
    /// True if the event stream of the proxy is connected.
    partition_watch_connected: bool,
    pub(super) now: Timestamp,
    pub(super) evidence: FailureEvidence,
    /// Why Kueue holds the job back, if it does.
    pub(super) hold: Option<String>,
}

impl Context {
    /// Gathers the state of a job whose recorded status is `before`.
    pub(super) async fn observe(
        &self,
        job: &IpuJob,
        spec: &JobSpec,
        before: &IpuJobStatus,
    ) -> Result<ObservedJob, ReconcileError> {
        let (key, now) = (spec.key(), (self.now)());
        let status = before.to_job_status();
        let pods = self.pods_of(key, now);
        let deleted = job.metadata.deletion_timestamp.as_ref().map(millis);
        let listed = self.partitions.instances_of(key);
        let partition_watch_connected = self.partitions.is_connected();
        // A job without a recorded phase has requested nothing that the event stream does not list.
        let is_new = before.phase.is_none() && deleted.is_none() && partition_watch_connected;
        let mut partitions = BTreeMap::new();
        if !(is_new && pods.is_empty() && listed.is_empty()) {
            let recorded = status.instances.iter().map(|instance| instance.index);
            let running = pods.iter().map(|pod| pod.instance);
            let all = (0..spec.instances()).chain(recorded).chain(running).chain(listed);
            for instance in all.collect::<BTreeSet<u32>>() {
                let document = self.partitions.get(&spec.partition_id(instance)).await?;
                partitions.extend(document.map(|document| (instance, document)));
            }
        }
        let evidence = match deleted {
            Some(_) => FailureEvidence::default(),
            None => FailureEvidence::gather(&self.client, spec, &status, &pods, now).await,
        };
        Ok(ObservedJob {
            unknown: unknown_partitions(before, &pods, &partitions),
            finished_blockers: self.finished_blockers(&partitions),
            pods,
            partitions,
            submitted: job
                .metadata
                .creation_timestamp
                .as_ref()
                .map(millis)
                .unwrap_or_default(),
            deleted,
            partition_watch_connected,
            now,
            evidence,
            hold: None,
        })
    }

    /// Returns the Pods of a job in the store.
    pub(super) fn pods_of(&self, key: &JobKey, now: Timestamp) -> Vec<JobPod> {
        let is_labelled = |labels: &BTreeMap<String, String>| {
            labels.get(JOB_UID).is_some_and(|uid| *uid == *key.uid.as_str())
        };
        let labelled = self.pods.state_filter(|pod| is_labelled(pod.labels()));
        let own = labelled.iter().filter_map(|pod| JobPod::read(pod, key, now));
        let mut pods: Vec<JobPod> = own.collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        pods
    }

    /// Returns the blockers of queued requests that finished jobs hold.
    fn finished_blockers(&self, partitions: &BTreeMap<u32, PartitionDocument>) -> BTreeSet<PartitionId> {
        let is_finished = |blocker: &&BlockerDocument| {
            let owner = blocker.owner.as_ref().filter(|owner| owner.kind == IpuJob::KIND);
            let job = owner.and_then(|owner| {
                let job = self
                    .jobs
                    .get(&ObjectRef::new(&owner.name).within(&owner.namespace))?;
                Some(job).filter(|job| job.meta().uid.as_deref() == Some(&*owner.uid))
            });
            let phase = job.and_then(|job| job.0.as_ref().ok()?.status.as_ref()?.phase);
            phase.is_some_and(ipu_core::job::JobPhase::is_finished)
        };
        let waiting = partitions
            .values()
            .filter_map(|document| document.waiting.as_ref());
        let blockers = waiting.flat_map(|waiting| &waiting.blockers);
        blockers
            .filter(is_finished)
            .map(|blocker| blocker.id.clone())
            .collect()
    }
}

/// Returns the instances with processes of the open attempt whose partition the proxy does not know or cannot
/// assign, each with its recorded controller.
fn unknown_partitions(
    before: &IpuJobStatus,
    pods: &[JobPod],
    partitions: &BTreeMap<u32, PartitionDocument>,
) -> BTreeMap<u32, Option<ControllerName>> {
    let recorded = |index: u32| before.instances.iter().find(|report| report.index == index);
    let is_open = |pod: &&JobPod| {
        !pod.has_ended() && recorded(pod.instance).is_none_or(|report| report.attempt == pod.attempt)
    };
    let is_known = |index: u32| {
        let document = partitions.get(&index);
        document.is_some_and(|document| !matches!(document.state, HoldState::Gone | HoldState::Quarantined))
    };
    let controller = |index: u32| ControllerName::new(recorded(index)?.controller.as_deref()?).ok();
    let in_use = pods.iter().filter(is_open).map(|pod| pod.instance);
    in_use
        .filter(|index| !is_known(*index))
        .map(|index| (index, controller(index)))
        .collect()
}

impl ObservedJob {
    /// Returns the time of the last step of a start: a change of a partition, or the scheduling of a Pod.
    pub(super) fn last_step(&self) -> Option<Timestamp> {
        let granted = self.partitions.values().map(|document| document.since);
        let scheduled = self.pods.iter().filter_map(|pod| pod.scheduled);
        granted.chain(scheduled).max()
    }

    /// Returns whether a controller works on a partition of the job.
    pub(super) fn has_open_call(&self) -> bool {
        let mut states = self.partitions.values().map(|document| document.state);
        states.any(|state| {
            matches!(
                state,
                HoldState::Creating | HoldState::Resetting | HoldState::Releasing
            )
        })
    }

    /// Returns the observation that the core plans with.
    pub(super) fn observation(&self, spec: &JobSpec, status: JobStatus) -> Observation {
        let mut facts: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        let indices = self.partitions.keys().chain(self.unknown.keys()).copied();
        for index in indices.collect::<BTreeSet<u32>>() {
            let mut instance = InstanceFacts::empty(index);
            instance.partition = self.partition_facts(spec, &status, index);
            let is_held = matches!(
                instance.partition,
                PartitionFacts::Active { .. } | PartitionFacts::Failed { .. }
            );
            let preemption = self
                .partitions
                .get(&index)
                .and_then(|document| document.preemption.as_ref());
            instance.preempted = preemption
                .filter(|_| is_held)
                .map(|preemption| preemption.reason.clone());
            facts.insert(index, instance);
        }
        let mut duplicates: Vec<InstanceFacts> = Vec::new();
        for pod in &self.pods {
            let entry = facts.entry(pod.instance);
            let instance = entry.or_insert_with(|| InstanceFacts::empty(pod.instance));
            if self.is_missing(pod, &status) {
                instance.missing.push(MissingProcess {
                    worker: pod.worker,
                    attempt: pod.attempt,
                });
                continue;
            }
            let mut process = pod.facts();
            process.phase = self.evidence.refine(pod);
            if pod.worker.is_some() {
                instance.workers.push(process);
            } else if instance.launcher.is_none() {
                instance.launcher = Some(process);
            } else {
                let mut other = InstanceFacts::empty(pod.instance);
                other.launcher = Some(process);
                duplicates.push(other);
            }
        }
        for instance in facts.values_mut() {
            instance.workers.sort_by_key(|worker| worker.index);
        }
        let mut observation = Observation::for_new_job(self.now);
        observation.submitted = self.submitted;
        observation.partition_watch_connected = self.partition_watch_connected;
        observation.timestamp_resolution = TIMESTAMP_RESOLUTION;
        observation.deleted = self.deleted.is_some();
        observation.status = status;
        observation.instances = facts.into_values().chain(duplicates).collect();
        observation
    }

    /// Returns whether a Pod of an open attempt was deleted while its process ran, by another client: the
    /// operator deletes none of those. The processes of an attempt whose launcher has run form one unit, and
    /// the loss of one is a failure instead.
    fn is_missing(&self, pod: &JobPod, status: &JobStatus) -> bool {
        let is_open = status.instance(pod.instance).is_none_or(|memory| {
            memory.outcome.is_none() && memory.attempt <= pod.attempt && memory.launched.is_none()
        });
        pod.removed && is_open && self.deleted.is_none()
    }

    fn partition_facts(&self, spec: &JobSpec, status: &JobStatus, index: u32) -> PartitionFacts {
        if let Some(controller) = self.unknown.get(&index) {
            let memory = status.instance(index).cloned().unwrap_or_default();
            return match controller {
                Some(controller) => PartitionFacts::Active {
                    attempt: memory.attempt,
                    since: memory.running_since.unwrap_or(self.now),
                    controller: controller.clone(),
                },
                None => PartitionFacts::Pending {
                    attempt: memory.attempt,
                },
            };
        }
        let Some(document) = self.partitions.get(&index) else {
            return PartitionFacts::Absent;
        };
        let attempt = document.attempt;
        match document.state {
            HoldState::Gone => PartitionFacts::Absent,
            // The job must not release it: a person decides.
            HoldState::Quarantined if self.deleted.is_some() => PartitionFacts::Absent,
            HoldState::Quarantined => PartitionFacts::Waiting {
                reason: document.reason.clone().unwrap_or_else(|| {
                    Reason::new(
                        ReasonCode::Quarantined,
                        "the ledger does not know the owner of the partition; it is reset for the next valid request",
                    )
                }),
                attempt,
            },
            _ if !is_owner(document, spec.key()) => PartitionFacts::Waiting {
                reason: Reason::new(ReasonCode::Other("NotTheOwner".into()), "another job owns the partition of this id"),
                attempt,
            },
            HoldState::Waiting => PartitionFacts::Waiting {
                reason: queue_reason(document, &self.finished_blockers),
                attempt,
            },
            // The ledger has durably taken over the release and continues it alone: the job need not exist
            // for that.
            HoldState::Releasing if self.deleted.is_some() => PartitionFacts::Absent,
            HoldState::Releasing => PartitionFacts::Releasing,
            HoldState::Active => match &document.controller {
                Some(controller) => PartitionFacts::Active {
                    attempt,
                    since: document.since,
                    controller: controller.name.clone(),
                },
                None => PartitionFacts::Pending { attempt },
            },
            HoldState::Failed => PartitionFacts::Failed {
                attempt,
                errors: document.errors.clone(),
            },
            _ => PartitionFacts::Pending { attempt },
        }
    }
}
