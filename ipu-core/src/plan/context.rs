//! The facts of one pass in order: one [`Instance`] for each index that the job, the record or the facts know.
//!
//! Whatever is odd in an observation is settled here: facts of one instance that come twice are joined, and an attempt
//! newer than the record's, which a lost record leaves behind, is taken over.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::job::{JobKind, JobSpec};
use crate::observation::{MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase};
use crate::plan::{Effect, FailedComponent, InstanceStatus, JobStatus};
use crate::reason::Reason;
use crate::rules::finalize::Processes;
use crate::rules::orphan;
use crate::rules::reset::Usage;
use crate::rules::scale;
use crate::units::Timestamp;

/// Everything that one pass reads and writes.
pub(super) struct PlanContext<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) seen: &'a Observation,
    /// The status to be recorded.
    pub(super) status: JobStatus,
    pub(super) instances: Vec<Instance<'a>>,
    pub(super) effects: Vec<Effect>,
    pub(super) reasons: Vec<Reason>,
    /// How many instances are in the queue, or have their partition made ready, those asked for in this pass included.
    pub(super) requested: u32,
    /// When to look again.
    pub(super) wake_at: Option<Timestamp>,
    /// Whether the job finished in this pass.
    pub(super) concluded: Persisted,
    /// Whether nothing is to be kept of it any more, and nothing is left.
    pub(super) expired: bool,
}

/// Whether a verdict stood in the record before this pass; only then it is acted upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persisted {
    Yes,
    No,
}

/// One instance: facts, memory, and what this pass makes of them.
pub(super) struct Instance<'a> {
    pub(super) index: u32,
    pub(super) partition: &'a PartitionFacts,
    pub(super) launchers: Vec<&'a ProcessFacts>,
    pub(super) workers: Vec<&'a ProcessFacts>,
    gone: Vec<MissingProcess>,
    pub(super) memory: InstanceStatus,
    /// The newest attempt that a partition was made or asked for.
    newest: Option<u32>,
    /// Whether the verdict that `memory` holds stood in the record before.
    pub(super) recorded: Persisted,
    pub(super) stage: InstanceStage,
}

/// How far an instance is, for the status and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstanceStage {
    /// A verdict was made in this pass.
    Judged,
    /// Processes of an earlier attempt, or of something that is to go, are ending.
    Stopping,
    /// Its partition is given back.
    Releasing,
    /// Nothing of it is left, and nothing is to come.
    Gone,
    /// Between two attempts, with its partition.
    BackingOff,
    /// Nothing could run on its partition: it holds nothing for a while.
    GivenBack,
    /// In the line for a partition.
    InLine(Reason),
    /// Its partition is not requested yet, because enough instances of the job are.
    NotRequested,
    /// Its partition is asked for, made, reset.
    Preparing,
    /// Its workers start; so many run.
    Starting(u32),
    /// Its workers run, its launcher starts.
    Launching,
    /// It runs.
    Running,
    /// It has ended, and keeps what its clean-up policy leaves.
    Ended,
}

impl<'a> PlanContext<'a> {
    pub(super) fn new(job: &'a JobSpec, seen: &'a Observation) -> Self {
        let mut instances: BTreeMap<u32, Instance<'a>> = BTreeMap::new();
        for index in 0..job.instances() {
            instances.insert(index, Instance::new(index));
        }
        for memory in &seen.status.instances {
            let instance = instances
                .entry(memory.index)
                .or_insert_with(|| Instance::new(memory.index));
            instance.memory = memory.clone();
            // Only workers without launcher are ever done, and only those that the job has.
            let all = match job.shape() {
                JobKind::Workers => job.workers_per_instance(),
                JobKind::Launcher { .. } | JobKind::Interactive { .. } => 0,
            };
            instance.memory.done.retain(|number| *number < all);
        }
        for facts in &seen.instances {
            let instance = instances
                .entry(facts.index)
                .or_insert_with(|| Instance::new(facts.index));
            instance.newest = instance.newest.max(asked_for(&facts.partition));
            if weight(&facts.partition) > weight(instance.partition) {
                instance.partition = &facts.partition;
            }
            instance.launchers.extend(&facts.launcher);
            instance.workers.extend(&facts.workers);
            instance.gone.extend(&facts.missing);
        }
        let mut instances: Vec<_> = instances.into_values().collect();
        for instance in &mut instances {
            instance.take_over_newest_attempt();
        }
        Self {
            job,
            seen,
            status: seen.status.clone(),
            instances,
            effects: Vec::new(),
            reasons: Vec::new(),
            requested: 0,
            wake_at: None,
            concluded: Persisted::Yes,
            expired: false,
        }
    }

    pub(super) fn requeue_at(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn push_reason(&mut self, reason: Reason) {
        self.reasons.push(reason);
    }

    pub(super) fn wanted(&self, instance: &Instance<'_>) -> scale::ScaleDecision {
        scale::decide(instance.index, self.job.instances())
    }

    pub(super) fn has_launcher(&self) -> bool {
        match self.job.shape() {
            JobKind::Workers => false,
            JobKind::Launcher { .. } | JobKind::Interactive { .. } => true,
        }
    }

    /// Whether a worker belongs to the job.
    pub(super) fn judge_worker(
        &self,
        instance: &Instance<'_>,
        worker: &ProcessFacts,
    ) -> orphan::OrphanDecision {
        orphan::decide(orphan::OrphanFacts {
            of_this_attempt: worker.attempt == instance.memory.attempt,
            in_range: worker.index < self.job.workers_per_instance(),
            does_work: !self.has_launcher(),
            alive: worker.phase.is_alive(),
            instance_ended: instance.memory.outcome.is_some(),
        })
    }

    /// Whether a launcher belongs to the job.
    pub(super) fn judge_launcher(
        &self,
        instance: &Instance<'_>,
        launcher: &ProcessFacts,
    ) -> orphan::OrphanDecision {
        orphan::decide(orphan::OrphanFacts {
            of_this_attempt: launcher.attempt == instance.memory.attempt,
            in_range: self.has_launcher(),
            does_work: true,
            alive: launcher.phase.is_alive(),
            instance_ended: instance.memory.outcome.is_some(),
        })
    }

    /// The workers of the attempt that runs.
    pub(super) fn own_workers<'b>(
        &'b self,
        instance: &'b Instance<'a>,
    ) -> impl Iterator<Item = &'a ProcessFacts> + 'b {
        let workers = instance.workers.iter().copied();
        workers.filter(|worker| self.judge_worker(instance, worker) == orphan::OrphanDecision::Belongs)
    }

    /// The launchers of the attempt that runs; more than one only in an odd observation.
    pub(super) fn own_launchers<'b>(
        &'b self,
        instance: &'b Instance<'a>,
    ) -> impl Iterator<Item = &'a ProcessFacts> + 'b {
        let launchers = instance.launchers.iter().copied();
        launchers
            .filter(|launcher| self.judge_launcher(instance, launcher) == orphan::OrphanDecision::Belongs)
    }

    /// How many workers of the attempt run or are done.
    pub(super) fn ready_workers(&self, instance: &Instance<'a>) -> u32 {
        let ready = |number: &u32| self.is_ready(instance, *number);
        (0..self.job.workers_per_instance())
            .filter(ready)
            .map(|_| 1)
            .sum()
    }

    /// Whether worker `number` runs, or is done.
    pub(super) fn is_ready(&self, instance: &Instance<'a>, number: u32) -> bool {
        instance.memory.done.contains(&number)
            || self
                .own_workers(instance)
                .any(|worker| worker.index == number && matches!(worker.phase, ProcessPhase::Running { .. }))
    }

    /// The first process of the attempt that is gone, is not done, and ran or may have run.
    pub(super) fn gone(&self, instance: &Instance<'a>) -> Option<FailedComponent> {
        let all = 0..self.job.workers_per_instance();
        let own = instance
            .gone
            .iter()
            .filter(|gone| gone.attempt == instance.memory.attempt);
        let told = own.filter_map(|gone| match gone.worker {
            None => self.has_launcher().then_some(FailedComponent::Launcher),
            Some(worker) => (all.contains(&worker) && !instance.memory.done.contains(&worker))
                .then_some(FailedComponent::Worker { worker }),
        });
        let told = told.min();
        if told.is_some() || instance.memory.running_since.is_none() {
            return told;
        }
        let there = |number: &u32| {
            instance.memory.done.contains(number)
                || self.own_workers(instance).any(|worker| worker.index == *number)
        };
        all.clone()
            .find(|number| !there(number))
            .map(|worker| FailedComponent::Worker { worker })
    }

    /// Whether the attempt has begun to use its partition.
    pub(super) fn usage(&self, instance: &Instance<'a>) -> Usage {
        if self.gone(instance).is_some() {
            return Usage::Torn;
        }
        let begun = self.own_workers(instance).next().is_some()
            || self.own_launchers(instance).next().is_some()
            || !instance.memory.done.is_empty();
        if begun { Usage::InUse } else { Usage::Unused }
    }
}

impl<'a> Instance<'a> {
    fn new(index: u32) -> Self {
        Self {
            index,
            partition: &PartitionFacts::Absent,
            launchers: Vec::new(),
            workers: Vec::new(),
            gone: Vec::new(),
            memory: InstanceStatus::new(index),
            newest: None,
            recorded: Persisted::Yes,
            stage: InstanceStage::Gone,
        }
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &'a ProcessFacts> + '_ {
        self.launchers.iter().chain(&self.workers).copied()
    }

    pub(super) fn processes_left(&self) -> Processes {
        if self.processes().any(|process| process.phase.is_alive()) {
            Processes::Alive
        } else if self.processes().next().is_some() {
            Processes::Ended
        } else {
            Processes::None
        }
    }

    /// Whether anything of the recorded attempt, or of a newer one, exists: then the attempt is closed before it goes.
    pub(super) fn holds_attempt(&self) -> bool {
        let attempt = self.memory.attempt;
        self.processes().any(|process| process.attempt >= attempt)
            || made_for(self.partition).is_some_and(|made_for| made_for >= attempt)
    }

    /// Whether the instance holds IPUs.
    pub(super) const fn holds_ipus(&self) -> bool {
        match self.partition {
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } => false,
            PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. }
            | PartitionFacts::Releasing => true,
        }
    }

    /// A newer attempt than the recorded one exists if a record was lost after its effects were applied.
    fn take_over_newest_attempt(&mut self) {
        let processes = self.processes().map(|process| process.attempt);
        let newest = processes.chain(self.newest).max();
        if let Some(newest) = newest.filter(|newest| *newest > self.memory.attempt) {
            self.memory = InstanceStatus {
                attempt: newest,
                outcome: self.memory.outcome,
                ..InstanceStatus::new(self.index)
            };
        }
    }
}

/// The attempt that a partition was made or reset for, or is waited for.
const fn asked_for(partition: &PartitionFacts) -> Option<u32> {
    match partition {
        PartitionFacts::Waiting { attempt, .. } => Some(*attempt),
        PartitionFacts::Absent
        | PartitionFacts::Pending { .. }
        | PartitionFacts::Active { .. }
        | PartitionFacts::Failed { .. }
        | PartitionFacts::Releasing => made_for(partition),
    }
}

/// The attempt that a partition was made or reset for.
const fn made_for(partition: &PartitionFacts) -> Option<u32> {
    match partition {
        PartitionFacts::Pending { attempt }
        | PartitionFacts::Active { attempt, .. }
        | PartitionFacts::Failed { attempt, .. } => Some(*attempt),
        PartitionFacts::Absent | PartitionFacts::Waiting { .. } | PartitionFacts::Releasing => None,
    }
}

/// Of facts that contradict one another the one that holds most is believed: nothing is handed on by mistake.
fn weight(partition: &PartitionFacts) -> (u8, Option<u32>) {
    let state = match partition {
        PartitionFacts::Absent => 0,
        PartitionFacts::Waiting { .. } => 1,
        PartitionFacts::Releasing => 2,
        PartitionFacts::Pending { .. } => 3,
        PartitionFacts::Failed { .. } => 4,
        PartitionFacts::Active { .. } => 5,
    };
    (state, made_for(partition))
}
