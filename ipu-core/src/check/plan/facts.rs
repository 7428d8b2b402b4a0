//! The facts as the checks ask for them: simple scans, repeated as often as needed.

use alloc::collections::BTreeSet;

use crate::job::{CleanPodPolicy, JobKind, JobSpec};
use crate::observation::{InstanceFacts, Observation, PartitionFacts, ProcessFacts, ProcessPhase};
use crate::plan::{InstanceOutcome, InstanceStatus, JobPhase, Plan};

pub(super) struct AttemptFacts<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) seen: &'a Observation,
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessRole {
    Worker(u32),
    Launcher,
}

impl<'a> AttemptFacts<'a> {
    pub(super) const fn new(job: &'a JobSpec, seen: &'a Observation) -> Self {
        Self { job, seen }
    }

    fn of(&self, instance: u32) -> impl Iterator<Item = &'a InstanceFacts> {
        self.seen
            .instances
            .iter()
            .filter(move |facts| facts.index == instance)
    }

    pub(super) fn processes(&self, instance: u32) -> impl Iterator<Item = (ProcessRole, &'a ProcessFacts)> {
        self.of(instance).flat_map(|facts| {
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
        self.of(instance).map(|facts| &facts.partition)
    }

    /// How many instances that have not ended are in the queue, or have their partition made ready, and nothing else.
    pub(super) fn requested(&self) -> u32 {
        let indexes: BTreeSet<u32> = self.seen.instances.iter().map(|facts| facts.index).collect();
        let is_requested = |partition: &&PartitionFacts| {
            matches!(
                partition,
                PartitionFacts::Waiting { .. } | PartitionFacts::Pending { .. }
            )
        };
        let requested = indexes.into_iter().filter(|instance| {
            let known = || {
                self.partitions(*instance)
                    .filter(|partition| **partition != PartitionFacts::Absent)
            };
            self.outcome(*instance).is_none()
                && known().next().is_some()
                && known().all(|partition| is_requested(&partition))
        });
        requested.map(|_| 1).sum()
    }

    /// The last of what is recorded, as the reader of a list with doubles would have it.
    pub(super) fn recorded(&self, instance: u32) -> Option<&'a InstanceStatus> {
        let mut known = self.seen.status.instances.iter();
        known.rfind(|known| known.index == instance)
    }

    pub(super) fn outcome(&self, instance: u32) -> Option<InstanceOutcome> {
        self.recorded(instance).and_then(|known| known.outcome)
    }

    /// The newest attempt that anything knows.
    pub(super) fn attempt(&self, instance: u32) -> u32 {
        let recorded = self.recorded(instance).map_or(0, |known| known.attempt);
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

    pub(super) fn any_alive(&self, instance: u32) -> bool {
        self.processes(instance)
            .any(|(_, process)| process.phase.is_alive())
    }

    pub(super) fn runs(&self, instance: u32, worker: u32, attempt: u32) -> bool {
        self.processes(instance).any(|(who, process)| {
            who == ProcessRole::Worker(worker)
                && process.attempt == attempt
                && matches!(process.phase, ProcessPhase::Running { .. })
        })
    }

    pub(super) const fn has_launcher(&self) -> bool {
        !matches!(self.job.shape(), JobKind::Workers)
    }

    /// Whether the job has such a process.
    pub(super) const fn is_of_the_job(&self, who: ProcessRole) -> bool {
        match who {
            ProcessRole::Worker(worker) => worker < self.job.workers_per_instance(),
            ProcessRole::Launcher => self.has_launcher(),
        }
    }

    pub(super) const fn is_finished(&self) -> bool {
        matches!(self.seen.status.phase, JobPhase::Completed | JobPhase::Failed)
    }

    pub(super) const fn is_surplus(&self, instance: u32) -> bool {
        instance >= self.job.instances()
    }

    /// Whether `plan` makes a verdict on an instance: then it is acted upon in the next pass.
    pub(super) fn is_judged(&self, plan: &Plan, instance: u32) -> bool {
        let ends = plan.status.phase.is_finished() && !self.is_finished();
        ends || plan
            .status
            .instance(instance)
            .is_some_and(|now| now.attempt != self.attempt(instance) || now.outcome != self.outcome(instance))
    }

    /// Whether an instance is to run.
    pub(super) fn is_to_run(&self, instance: u32) -> bool {
        !self.seen.deleted
            && !self.job.suspend()
            && !self.is_finished()
            && !self.is_surplus(instance)
            && self.outcome(instance).is_none()
    }

    /// Whether an instance is to have nothing at all.
    pub(super) fn is_to_have_nothing(&self, instance: u32) -> bool {
        self.seen.deleted
            || self.is_surplus(instance)
            || self.outcome(instance) == Some(InstanceOutcome::SessionOver)
            || (self.job.suspend() && !self.is_finished())
            || (self.is_finished()
                && (self.outcome(instance).is_none()
                    || self.job.clean_pod_policy() == CleanPodPolicy::All
                    || self.is_retention_over()))
    }

    /// Whether an instance that has ended stands in the line, and has no other partition.
    pub(super) fn waits_for_nothing(&self, instance: u32) -> bool {
        let mut others = self
            .partitions(instance)
            .filter(|partition| **partition != PartitionFacts::Absent);
        let waits = others
            .next()
            .is_some_and(|first| matches!(first, PartitionFacts::Waiting { .. }));
        self.outcome(instance).is_some() && waits && others.next().is_none()
    }

    /// Whether an instance that has ended is to make room, as far as it can be told: another one of its job stands in the line.
    pub(super) fn may_yield(&self, instance: u32) -> bool {
        let waits = |other: u32| {
            self.partitions(other)
                .any(|partition| matches!(partition, PartitionFacts::Waiting { .. }))
        };
        self.has_ended_early(instance) && self.others(instance).any(waits)
    }

    /// The same, where there is no doubt: what the other one has is not contradicted, and nothing is judged of it in `plan`.
    pub(super) fn must_yield(&self, plan: &Plan, instance: u32) -> bool {
        let waits = |other: u32| {
            let mut all = self.partitions(other);
            let waits = matches!(all.next(), Some(PartitionFacts::Waiting { .. })) && all.next().is_none();
            waits && !self.is_judged(plan, other)
        };
        self.has_ended_early(instance) && self.others(instance).any(waits)
    }

    fn has_ended_early(&self, instance: u32) -> bool {
        self.outcome(instance).is_some() && !self.is_finished()
    }

    /// The other instances that are to run.
    fn others(&self, instance: u32) -> impl Iterator<Item = u32> {
        let indexes = self.seen.instances.iter().map(|facts| facts.index);
        indexes.filter(move |other| *other != instance && self.is_to_run(*other))
    }

    pub(super) fn is_retention_over(&self) -> bool {
        match (self.job.ttl_after_finished(), self.seen.status.finished) {
            (Some(ttl), Some(finished)) => finished.plus(ttl) <= self.seen.now,
            (None, _) | (_, None) => false,
        }
    }

    /// Whether an instance that pauses holds nothing meanwhile.
    pub(super) fn is_given_back(&self, instance: u32) -> bool {
        self.attempt_is_recorded(instance)
            && self
                .recorded(instance)
                .is_some_and(|known| known.unused_releases > 0 && self.is_pausing(instance))
    }

    pub(super) fn is_pausing(&self, instance: u32) -> bool {
        let retry_at = self.recorded(instance).and_then(|known| known.retry_at);
        self.attempt_is_recorded(instance) && retry_at.is_some_and(|retry| retry > self.seen.now)
    }

    /// Whether the record knows of the newest attempt: what it says of an older one is void.
    pub(super) fn attempt_is_recorded(&self, instance: u32) -> bool {
        self.recorded(instance).map_or(0, |known| known.attempt) == self.attempt(instance)
    }
}
