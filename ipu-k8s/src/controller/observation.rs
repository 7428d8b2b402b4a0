//! From what was heard and asked to what the core wants to know.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::{
    InstanceFacts, JobSpec, JobStatus, MissingProcess, Observation, PartitionFacts, ProcessPhase, Reason,
    Timestamp,
};
use ipu_proxy_client::{HoldState, PartitionDocument};

use super::failure_order::{self, BLUR, FailureEvidence};
use super::pod_state::{KubePod, tail};

/// Everything that one pass looks at.
#[derive(Debug)]
pub(super) struct ObservedJob {
    pub(super) pods: Vec<KubePod>,
    /// The processes that others took away, with their instances.
    pub(super) evicted: Vec<(u32, MissingProcess)>,
    /// The partitions that the ledger has, by instance.
    pub(super) partitions: BTreeMap<u32, PartitionDocument>,
    pub(super) submitted: Timestamp,
    pub(super) deleted: Deleted,
    /// Whether the proxy's events are being heard.
    pub(super) told: bool,
    pub(super) now: Timestamp,
    /// What is known of ends besides.
    pub(super) ends: FailureEvidence,
}

/// Whether the deletion of a job was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deleted {
    No,
    Yes,
}

/// The instances that something may be known of.
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

/// The names of Kubernetes Pods that a job has by what is remembered of it, and that were not heard of: to be asked for
/// before anybody believes that they are gone.
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
    /// What the core is told.
    pub(super) fn observation(&self, spec: &JobSpec, status: JobStatus) -> Observation {
        let mut facts: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        for (index, document) in &self.partitions {
            let facts = facts
                .entry(*index)
                .or_insert_with(|| InstanceFacts::empty(*index));
            facts.partition = self.partition(spec, document);
        }
        for (index, gone) in &self.evicted {
            let facts = facts
                .entry(*index)
                .or_insert_with(|| InstanceFacts::empty(*index));
            facts.missing.push(*gone);
        }
        let mut doubled: Vec<InstanceFacts> = Vec::new();
        for pod in &self.pods {
            let cut_short = self.deleted_while_running(pod, &status);
            if pod.deleted && cut_short == Some(ProcessPhase::Stopping) {
                continue;
            }
            let instance = facts
                .entry(pod.instance)
                .or_insert_with(|| InstanceFacts::empty(pod.instance));
            let mut process = pod.facts(self.now);
            if let Some(phase) = cut_short {
                process.phase = phase;
            } else if self.ends.early.contains(&pod.name) {
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
                doubled.push(other);
            }
        }
        let mut observation = Observation::for_new_job(self.now);
        observation.submitted = self.submitted;
        observation.partition_watch_connected = self.told;
        observation.timestamp_resolution = BLUR;
        observation.deleted = self.deleted == Deleted::Yes;
        observation.status = status;
        observation.instances = facts.into_values().chain(doubled).collect();
        for instance in &mut observation.instances {
            instance.workers.sort_by_key(|worker| worker.index);
        }
        observation
    }

    /// Adds to an end what logs tell of it.
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
        if let Some(log) = self.ends.logs.get(&pod.name) {
            *last_lines = tail(log);
        }
        if let Some(words) = self.ends.last_log_time.get(&pod.name) {
            *at = failure_order::refined(*at, *words);
        }
        if let Some(told) = self.ends.told(pod) {
            *cause = told.cause();
        }
    }

    /// What a process is to its job that others deleted while it ran, if it is of an attempt that goes on: we end none of those.
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
            // What a launcher that ran has begun belongs together.
            Some(memory) if memory.launched.is_some() => Some(lost),
            // Anything else is started again once it is gone.
            _ => Some(ProcessPhase::Stopping),
        }
    }

    fn partition(&self, spec: &JobSpec, document: &PartitionDocument) -> PartitionFacts {
        let attempt = document.attempt;
        let ours = document
            .owner
            .as_ref()
            .is_some_and(|owner| owner.uid == spec.key().uid.as_str());
        match document.state {
            HoldState::Gone => PartitionFacts::Absent,
            // It is not this job's to give back: a person decides.
            HoldState::Quarantined if self.deleted == Deleted::Yes => PartitionFacts::Absent,
            HoldState::Quarantined => PartitionFacts::Waiting {
                reason: document.reason.clone().unwrap_or_else(|| {
                    Reason::new(
                        "Quarantined",
                        "the ledger does not know whose the partition is; it is reset for whoever asks for it rightly",
                    )
                }),
                attempt,
            },
            _ if !ours => PartitionFacts::Waiting {
                reason: Reason::new("NotTheOwner", "another job has a partition of this id"),
                attempt,
            },
            HoldState::Waiting => PartitionFacts::Waiting {
                reason: waiting_reason(document),
                attempt,
            },
            // The ledger has durably taken over the release, and goes on with it by itself: nothing of the job has to
            // stay for that.
            HoldState::Releasing if self.deleted == Deleted::Yes => PartitionFacts::Absent,
            HoldState::Releasing => PartitionFacts::Releasing,
            // Who is taken for dead and asks is not: the ledger finds that out, and until then it is his.
            HoldState::Active | HoldState::Orphaned => match &document.controller {
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

fn waiting_reason(document: &PartitionDocument) -> Reason {
    let waiting = document.waiting.as_ref().map(|waiting| waiting.reason.clone());
    waiting
        .or_else(|| document.reason.clone())
        .unwrap_or_else(|| Reason::new("NextInLine", "it goes with the next request"))
}
