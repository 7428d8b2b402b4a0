//! Queries over the facts of an observation. They scan on every call, for simplicity.

use alloc::collections::BTreeSet;

use crate::job::observation::{InstanceFacts, Observation, PartitionFacts, ProcessFacts, ProcessPhase};
use crate::job::plan::Plan;
use crate::job::status::{InstanceOutcome, InstanceStatus, JobPhase};
use crate::job::{CleanPodPolicy, JobKind, JobSpec};

pub(super) struct AttemptFacts<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) observation: &'a Observation,
}

/// The role of a process within its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessRole {
    Worker(u32),
    Launcher,
}

impl<'a> AttemptFacts<'a> {
    pub(super) const fn new(job: &'a JobSpec, observation: &'a Observation) -> Self {
        Self { job, observation }
    }

    fn instance_facts(&self, instance: u32) -> impl Iterator<Item = &'a InstanceFacts> {
        self.observation
            .instances
            .iter()
            .filter(move |facts| facts.index == instance)
    }

    pub(super) fn processes(&self, instance: u32) -> impl Iterator<Item = (ProcessRole, &'a ProcessFacts)> {
        self.instance_facts(instance).flat_map(|facts| {
            let launcher = facts
                .launcher
                .iter()
                .map(|launcher| (ProcessRole::Launcher, launcher));
            let workers = facts
                .workers
                .iter()
                .map(|worker| (ProcessRole::Worker(worker.index), worker));
            launcher.chain(workers)
        })
    }

    pub(super) fn partitions(&self, instance: u32) -> impl Iterator<Item = &'a PartitionFacts> {
        self.instance_facts(instance).map(|facts| &facts.partition)
    }

    /// Returns the number of instances without outcome whose partition facts are all queued or pending.
    pub(super) fn requested(&self) -> u32 {
        let indexes: BTreeSet<u32> = self
            .observation
            .instances
            .iter()
            .map(|facts| facts.index)
            .collect();
        let is_requested = |partition: &&PartitionFacts| {
            matches!(
                partition,
                PartitionFacts::Waiting { .. } | PartitionFacts::Pending { .. }
            )
        };
        let requested = indexes.into_iter().filter(|instance| {
            let partitions = || {
                self.partitions(*instance)
                    .filter(|partition| **partition != PartitionFacts::Absent)
            };
            self.outcome(*instance).is_none()
                && partitions().next().is_some()
                && partitions().all(|partition| is_requested(&partition))
        });
        requested.map(|_| 1).sum()
    }

    /// Returns the recorded status of an instance; the last one if there are duplicates.
    pub(super) fn recorded(&self, instance: u32) -> Option<&'a InstanceStatus> {
        let mut instances = self.observation.status.instances.iter();
        instances.rfind(|recorded| recorded.index == instance)
    }

    pub(super) fn outcome(&self, instance: u32) -> Option<InstanceOutcome> {
        self.recorded(instance).and_then(|recorded| recorded.outcome)
    }

    /// Returns the newest attempt in the record, the processes and the partitions.
    pub(super) fn attempt(&self, instance: u32) -> u32 {
        let recorded = self.recorded(instance).map_or(0, |recorded| recorded.attempt);
        let processes = self.processes(instance).map(|(_, process)| process.attempt);
        let partitions = self.partitions(instance).filter_map(|partition| match partition {
            PartitionFacts::Waiting { attempt, .. }
            | PartitionFacts::Pending { attempt }
            | PartitionFacts::Active { attempt, .. }
            | PartitionFacts::Failed { attempt, .. } => Some(*attempt),
            PartitionFacts::Absent | PartitionFacts::Releasing => None,
        });
        processes.chain(partitions).max().unwrap_or(0).max(recorded)
    }

    pub(super) fn has_live_process(&self, instance: u32) -> bool {
        self.processes(instance)
            .any(|(_, process)| process.phase.is_alive())
    }

    pub(super) fn is_worker_running(&self, instance: u32, worker: u32, attempt: u32) -> bool {
        self.processes(instance).any(|(role, process)| {
            role == ProcessRole::Worker(worker)
                && process.attempt == attempt
                && matches!(process.phase, ProcessPhase::Running { .. })
        })
    }

    pub(super) const fn has_launcher(&self) -> bool {
        !matches!(self.job.shape(), JobKind::Workers)
    }

    /// Returns whether the job has a process of this role.
    pub(super) const fn is_of_job(&self, role: ProcessRole) -> bool {
        match role {
            ProcessRole::Worker(worker) => worker < self.job.workers_per_instance(),
            ProcessRole::Launcher => self.has_launcher(),
        }
    }

    pub(super) const fn is_finished(&self) -> bool {
        matches!(
            self.observation.status.phase,
            JobPhase::Completed | JobPhase::Failed
        )
    }

    pub(super) const fn is_surplus(&self, instance: u32) -> bool {
        instance >= self.job.instances()
    }

    /// Returns whether `plan` has a verdict on an instance, which the next reconciliation acts upon.
    pub(super) fn has_verdict(&self, plan: &Plan, instance: u32) -> bool {
        let job_ends = plan.status.phase.is_finished() && !self.is_finished();
        job_ends
            || plan.status.instance(instance).is_some_and(|now| {
                now.attempt != self.attempt(instance) || now.outcome != self.outcome(instance)
            })
    }

    /// Returns whether a request of higher priority demands the partition of an instance.
    pub(super) fn is_demanded(&self, instance: u32) -> bool {
        self.instance_facts(instance)
            .any(|facts| facts.preempted.is_some())
    }

    /// Returns whether processes or a partition of the newest attempt exist.
    pub(super) fn holds_attempt(&self, instance: u32) -> bool {
        let attempt = self.attempt(instance);
        self.processes(instance)
            .any(|(_, process)| process.attempt == attempt)
            || self
                .partitions(instance)
                .any(|partition| created_for(partition) == Some(attempt))
    }

    /// Returns whether an instance must release its partition and queue again.
    pub(super) fn is_preempted(&self, instance: u32) -> bool {
        self.is_demanded(instance)
            && self.outcome(instance).is_none()
            && !self.observation.deleted
            && !self.job.suspend()
            && !self.is_finished()
            && !self.is_surplus(instance)
    }

    /// Returns whether an instance that has ended must release the partition that it keeps.
    pub(super) fn must_release_kept(&self, instance: u32) -> bool {
        self.is_demanded(instance) && self.outcome(instance).is_some()
    }

    /// Returns whether an instance must run.
    pub(super) fn must_run(&self, instance: u32) -> bool {
        !self.observation.deleted
            && !self.job.suspend()
            && !self.is_finished()
            && !self.is_surplus(instance)
            && !self.is_preempted(instance)
            && self.outcome(instance).is_none()
    }

    /// Returns whether an instance must hold no resources.
    pub(super) fn must_hold_nothing(&self, instance: u32) -> bool {
        self.observation.deleted
            || self.is_surplus(instance)
            || self.outcome(instance) == Some(InstanceOutcome::SessionOver)
            || (self.job.suspend() && !self.is_finished())
            || self.is_preempted(instance)
            || (self.is_finished()
                && (self.outcome(instance).is_none()
                    || self.job.clean_pod_policy() == CleanPodPolicy::All
                    || self.is_retention_over()))
    }

    /// Returns whether an ended instance is queued and has no other partition.
    pub(super) fn is_queued_after_end(&self, instance: u32) -> bool {
        let mut partitions = self
            .partitions(instance)
            .filter(|partition| **partition != PartitionFacts::Absent);
        let is_queued = partitions
            .next()
            .is_some_and(|first| matches!(first, PartitionFacts::Waiting { .. }));
        self.outcome(instance).is_some() && is_queued && partitions.next().is_none()
    }

    /// Returns whether an ended instance may release its resources, because another instance of its job is
    /// queued.
    pub(super) fn may_release_for_peer(&self, instance: u32) -> bool {
        let is_queued = |other: u32| {
            self.partitions(other)
                .any(|partition| matches!(partition, PartitionFacts::Waiting { .. }))
        };
        self.must_release_kept(instance)
            || self.has_ended_early(instance) && self.runnable_peers(instance).any(is_queued)
    }

    /// Returns whether an ended instance must release its resources: the facts of the queued instance are
    /// unambiguous, and `plan` has no verdict on it.
    pub(super) fn must_release_for_peer(&self, plan: &Plan, instance: u32) -> bool {
        let is_queued = |other: u32| {
            let mut all = self.partitions(other);
            let is_queued =
                matches!(all.next(), Some(PartitionFacts::Waiting { .. })) && all.next().is_none();
            is_queued && !self.has_verdict(plan, other)
        };
        self.must_release_kept(instance)
            || self.has_ended_early(instance) && self.runnable_peers(instance).any(is_queued)
    }

    fn has_ended_early(&self, instance: u32) -> bool {
        self.outcome(instance).is_some() && !self.is_finished()
    }

    /// Returns the other instances that must run.
    fn runnable_peers(&self, instance: u32) -> impl Iterator<Item = u32> {
        let indexes = self.observation.instances.iter().map(|facts| facts.index);
        indexes.filter(move |other| *other != instance && self.must_run(*other))
    }

    pub(super) fn is_retention_over(&self) -> bool {
        match (self.job.ttl_after_finished(), self.observation.status.finished) {
            (Some(ttl), Some(finished)) => finished.plus(ttl) <= self.observation.now,
            (None, _) | (_, None) => false,
        }
    }

    /// Returns whether an instance must hold no partition yet: no process could start on the last one, which
    /// is not released, or the back-off is not over.
    pub(super) fn backs_off_without_partition(&self, instance: u32) -> bool {
        let attempt = self.attempt(instance);
        let is_unreleased = || {
            let mut partitions = self.partitions(instance);
            partitions.any(|partition| created_for(partition).is_some_and(|created| created < attempt))
        };
        self.is_newest_attempt_recorded(instance)
            && self.recorded(instance).is_some_and(|recorded| {
                recorded.unused_releases > 0 && (self.is_backing_off(instance) || is_unreleased())
            })
    }

    pub(super) fn is_backing_off(&self, instance: u32) -> bool {
        let retry_at = self.recorded(instance).and_then(|recorded| recorded.retry_at);
        self.is_newest_attempt_recorded(instance)
            && retry_at.is_some_and(|retry| retry > self.observation.now)
    }

    /// Returns whether the newest attempt is the recorded one. The record of an older attempt is void.
    pub(super) fn is_newest_attempt_recorded(&self, instance: u32) -> bool {
        self.recorded(instance).map_or(0, |recorded| recorded.attempt) == self.attempt(instance)
    }
}

/// Returns the attempt for which a partition was created or reset.
const fn created_for(partition: &PartitionFacts) -> Option<u32> {
    match partition {
        PartitionFacts::Pending { attempt }
        | PartitionFacts::Active { attempt, .. }
        | PartitionFacts::Failed { attempt, .. } => Some(*attempt),
        PartitionFacts::Absent | PartitionFacts::Waiting { .. } | PartitionFacts::Releasing => None,
    }
}
