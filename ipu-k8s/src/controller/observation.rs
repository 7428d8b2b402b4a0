//! Conversion of the observed state of a job to the [`Observation`] that the core plans with.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{
    InstanceFacts, JobSpec, JobStatus, MissingProcess, Observation, PartitionFacts, PartitionId,
    ProcessPhase, Reason, Timestamp,
};
use ipu_proxy_client::{HoldState, PartitionDocument};

use super::failure_order::{self, FailureEvidence, TIMESTAMP_RESOLUTION};
use super::pod_state::{KubePod, tail};
use super::queue_reason::queue_reason;

/// Observed state of a job for one reconcile.
#[derive(Debug)]
pub(super) struct ObservedJob {
    pub(super) pods: Vec<KubePod>,
    /// Disrupted processes with their instances: deleted, but not by the operator.
    pub(super) evicted: Vec<(u32, MissingProcess)>,
    /// Partitions in the ledger by instance.
    pub(super) partitions: BTreeMap<u32, PartitionDocument>,
    /// Partitions of finished jobs that block requests of this job.
    pub(super) finished_blockers: BTreeSet<PartitionId>,
    pub(super) submitted: Timestamp,
    pub(super) deleted: Deleted,
    /// True if the proxy's event stream is connected.
    pub(super) partition_watch_connected: bool,
    pub(super) now: Timestamp,
    /// Evidence from logs and timestamps about failures.
    pub(super) failure_evidence: FailureEvidence,
}

/// Deletion state of a job: whether a deletion was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleted {
    No,
    Yes,
}

/// Returns the instances that may have resources.
pub(super) fn instances(
    spec: &JobSpec,
    status: &JobStatus,
    pods: &[KubePod],
    held: BTreeSet<u32>,
) -> BTreeSet<u32> {
    let remembered = status.instances.iter().map(|instance| instance.index);
    let running = pods.iter().map(|pod| pod.instance);
    (0..spec.instances())
        .chain(remembered)
        .chain(running)
        .chain(held)
        .collect()
}

/// Returns the names of pods that the status implies and that no watch lists: they are read from the API
/// server before they are treated as deleted.
pub(super) fn unlisted_pods(spec: &JobSpec, status: &JobStatus, pods: &[KubePod]) -> Vec<String> {
    let known: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    let mut names = Vec::new();
    for instance in &status.instances {
        if instance.outcome.is_some() || instance.index >= spec.instances() {
            continue;
        }
        if instance.running_since.is_some() {
            let working = (0..spec.workers_per_instance()).filter(|worker| !instance.done.contains(worker));
            names.extend(working.map(|worker| spec.worker_name(instance.index, worker)));
        }
        if instance.launched.is_some() {
            names.push(spec.launcher_name(instance.index));
        }
    }
    names.retain(|name| !known.contains(name.as_str()));
    names
}

impl ObservedJob {
    /// Returns the observation that the core plans with.
    pub(super) fn observation(&self, spec: &JobSpec, status: JobStatus) -> Observation {
        let mut facts: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        for (index, document) in &self.partitions {
            let facts = facts
                .entry(*index)
                .or_insert_with(|| InstanceFacts::empty(*index));
            facts.partition = self.partition(spec, document);
            let is_held = matches!(
                facts.partition,
                PartitionFacts::Active { .. } | PartitionFacts::Failed { .. }
            );
            let preemption = document.preemption.as_ref().filter(|_| is_held);
            facts.preempted = preemption.map(|preemption| preemption.reason.clone());
        }
        for (index, process) in &self.evicted {
            let facts = facts
                .entry(*index)
                .or_insert_with(|| InstanceFacts::empty(*index));
            facts.missing.push(*process);
        }
        let mut duplicates: Vec<InstanceFacts> = Vec::new();
        for pod in &self.pods {
            let disrupted_phase = self.deleted_while_running(pod, &status);
            if pod.deleted && disrupted_phase == Some(ProcessPhase::Stopping) {
                continue;
            }
            let instance = facts
                .entry(pod.instance)
                .or_insert_with(|| InstanceFacts::empty(pod.instance));
            let mut process = pod.facts(self.now);
            if let Some(phase) = disrupted_phase {
                process.phase = phase;
            } else if self.failure_evidence.early.contains(&pod.name) {
                process.phase = pod.phase_before_exit();
            } else {
                self.refine(pod, &mut process.phase);
            }
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
        let mut observation = Observation::for_new_job(self.now);
        observation.submitted = self.submitted;
        observation.partition_watch_connected = self.partition_watch_connected;
        observation.timestamp_resolution = TIMESTAMP_RESOLUTION;
        observation.deleted = self.deleted == Deleted::Yes;
        observation.status = status;
        observation.instances = facts.into_values().chain(duplicates).collect();
        for instance in &mut observation.instances {
            instance.workers.sort_by_key(|worker| worker.index);
        }
        observation
    }

    /// Adds evidence from logs to the exit of a process.
    fn refine(&self, pod: &KubePod, phase: &mut ProcessPhase) {
        let ProcessPhase::Exited {
            at,
            cause,
            last_lines,
            ..
        } = phase
        else {
            return;
        };
        if let Some(log) = self.failure_evidence.logs.get(&pod.name) {
            *last_lines = tail(log);
        }
        if let Some(written) = self.failure_evidence.last_log_time.get(&pod.name) {
            *at = failure_order::refine_exit_time(*at, *written);
        }
        if let Some(exit) = self.failure_evidence.exit_from_log(pod) {
            *cause = exit.cause();
        }
    }

    /// Returns the phase of a process that was deleted while it ran, if its attempt continues: the operator
    /// itself deletes none of those.
    fn deleted_while_running(&self, pod: &KubePod, status: &JobStatus) -> Option<ProcessPhase> {
        let lost = pod
            .deleted_while_running
            .clone()
            .filter(|_| self.deleted == Deleted::No)?;
        let memory = status
            .instances
            .iter()
            .find(|memory| memory.index == pod.instance);
        match memory {
            Some(memory) if memory.outcome.is_some() || memory.attempt > pod.attempt => None,
            // The processes of an attempt whose launcher has run form one unit.
            Some(memory) if memory.launched.is_some() => Some(lost),
            // Any other process is started again once it is deleted.
            _ => Some(ProcessPhase::Stopping),
        }
    }

    fn partition(&self, spec: &JobSpec, document: &PartitionDocument) -> PartitionFacts {
        let attempt = document.attempt;
        let is_owner = document
            .owner
            .as_ref()
            .is_some_and(|owner| owner.uid == spec.key().uid.as_str());
        match document.state {
            HoldState::Gone => PartitionFacts::Absent,
            // The job must not release it: a person decides.
            HoldState::Quarantined if self.deleted == Deleted::Yes => PartitionFacts::Absent,
            HoldState::Quarantined => PartitionFacts::Waiting {
                reason: document.reason.clone().unwrap_or_else(|| {
                    Reason::new(
                        "Quarantined",
                        "the ledger does not know the owner of the partition; it is reset for the next valid request",
                    )
                }),
                attempt,
            },
            _ if !is_owner => PartitionFacts::Waiting {
                reason: Reason::new("NotTheOwner", "another job owns the partition of this id"),
                attempt,
            },
            HoldState::Waiting => PartitionFacts::Waiting {
                reason: queue_reason(document, &self.finished_blockers),
                attempt,
            },
            // The ledger has durably taken over the release and continues it alone: the job need not exist
            // for that.
            HoldState::Releasing if self.deleted == Deleted::Yes => PartitionFacts::Absent,
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
