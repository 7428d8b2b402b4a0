//! The facts of one reconciliation: one [`Instance`] for each index in the job, the record or the facts.
//!
//! This module resolves inconsistent observations. It merges duplicate facts of one instance, and adopts an
//! attempt that is newer than the recorded one, which a lost record leaves behind.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::job::observation::{MissingProcess, Observation, PartitionFacts, ProcessFacts, ProcessPhase};
use crate::job::plan::Effect;
use crate::job::rules::finalize::Processes;
use crate::job::rules::reset::Usage;
use crate::job::rules::{orphan, preempt, scale};
use crate::job::status::{FailedComponent, InstanceStatus, JobStatus};
use crate::job::{JobKind, JobSpec};
use crate::reason::Reason;
use crate::units::Timestamp;

/// The inputs and outputs of one reconciliation.
pub(super) struct PlanContext<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) observation: &'a Observation,
    /// The status to record.
    pub(super) status: JobStatus,
    pub(super) instances: Vec<Instance<'a>>,
    pub(super) effects: Vec<Effect>,
    pub(super) reasons: Vec<Reason>,
    /// The number of instances that are queued or have a pending partition, including requests of this
    /// reconciliation.
    pub(super) requested: u32,
    /// The time of the next reconciliation; none if only an event can change the plan.
    pub(super) requeue_time: Option<Timestamp>,
    /// Whether the end of the job is recorded; `No` if the job finished in this reconciliation.
    pub(super) concluded: Persisted,
    /// Whether the retention of the finished job is over and all its instances are removed.
    pub(super) expired: bool,
}

/// Whether a verdict was recorded before this reconciliation, which may act only upon recorded verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persisted {
    Yes,
    No,
}

/// One instance: its facts, its status, and the results of this reconciliation.
pub(super) struct Instance<'a> {
    pub(super) index: u32,
    pub(super) partition: &'a PartitionFacts,
    pub(super) launchers: Vec<&'a ProcessFacts>,
    pub(super) workers: Vec<&'a ProcessFacts>,
    missing: Vec<MissingProcess>,
    /// The demand that it releases its partition.
    pub(super) preempted: Option<&'a Reason>,
    pub(super) status: InstanceStatus,
    /// The newest attempt for which a partition was requested, created or reset.
    newest_partition_attempt: Option<u32>,
    /// Whether the verdict in `status` was recorded before this reconciliation.
    pub(super) recorded: Persisted,
    pub(super) stage: InstanceStage,
}

/// The stage of an instance, for the status and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstanceStage {
    /// This reconciliation reached a verdict.
    Evaluated,
    /// Processes of an earlier attempt or of an instance under teardown are ending.
    Stopping,
    /// Its partition is being released.
    Releasing,
    /// It has no processes and no partition, and needs none.
    Removed,
    /// It waits for its back-off and keeps its partition.
    BackingOff,
    /// No process could start on its partition: it waits for its back-off without a partition.
    AwaitingRetry,
    /// Its request is queued.
    Queued(Reason),
    /// Its partition is not requested yet, because the job has reached its limit of concurrent requests.
    NotRequested,
    /// Its partition is requested, created or reset.
    Preparing,
    /// Its workers start; carries the number of workers that run.
    Starting(u32),
    /// Its workers run and its launcher starts.
    Launching,
    /// It runs.
    Running,
    /// It has ended and keeps what its clean-up policy retains.
    Ended,
}

impl<'a> PlanContext<'a> {
    pub(super) fn new(job: &'a JobSpec, observation: &'a Observation) -> Self {
        let mut instances: BTreeMap<u32, Instance<'a>> = BTreeMap::new();
        for index in 0..job.instances() {
            instances.insert(index, Instance::new(index));
        }
        for status in &observation.status.instances {
            let instance = instances
                .entry(status.index)
                .or_insert_with(|| Instance::new(status.index));
            instance.status = status.clone();
            // Only workers of a job without launcher can be done, and only indices that the job has.
            let count = match job.shape() {
                JobKind::Workers => job.workers_per_instance(),
                JobKind::Launcher { .. } | JobKind::Interactive { .. } => 0,
            };
            instance.status.done.retain(|number| *number < count);
        }
        for facts in &observation.instances {
            let instance = instances
                .entry(facts.index)
                .or_insert_with(|| Instance::new(facts.index));
            instance.newest_partition_attempt = instance
                .newest_partition_attempt
                .max(requested_for(&facts.partition));
            if precedence(&facts.partition) > precedence(instance.partition) {
                instance.partition = &facts.partition;
            }
            instance.launchers.extend(&facts.launcher);
            instance.workers.extend(&facts.workers);
            instance.missing.extend(&facts.missing);
            instance.preempted = instance.preempted.or(facts.preempted.as_ref());
        }
        let mut instances: Vec<_> = instances.into_values().collect();
        for instance in &mut instances {
            instance.adopt_newest_attempt();
        }
        Self {
            job,
            observation,
            status: observation.status.clone(),
            instances,
            effects: Vec::new(),
            reasons: Vec::new(),
            requested: 0,
            requeue_time: None,
            concluded: Persisted::Yes,
            expired: false,
        }
    }

    pub(super) fn requeue_at(&mut self, at: Timestamp) {
        self.requeue_time = Some(self.requeue_time.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn push_reason(&mut self, reason: Reason) {
        self.reasons.push(reason);
    }

    pub(super) fn scale_decision(&self, instance: &Instance<'_>) -> scale::ScaleDecision {
        scale::decide(instance.index, self.job.instances())
    }

    pub(super) fn has_launcher(&self) -> bool {
        match self.job.shape() {
            JobKind::Workers => false,
            JobKind::Launcher { .. } | JobKind::Interactive { .. } => true,
        }
    }

    /// Applies the orphan rule to a worker.
    pub(super) fn classify_worker(
        &self,
        instance: &Instance<'_>,
        worker: &ProcessFacts,
    ) -> orphan::OrphanDecision {
        orphan::decide(orphan::OrphanFacts {
            of_this_attempt: worker.attempt == instance.status.attempt,
            in_range: worker.index < self.job.workers_per_instance(),
            does_work: !self.has_launcher(),
            alive: worker.phase.is_alive(),
            instance_ended: instance.status.outcome.is_some(),
        })
    }

    /// Applies the orphan rule to a launcher.
    pub(super) fn classify_launcher(
        &self,
        instance: &Instance<'_>,
        launcher: &ProcessFacts,
    ) -> orphan::OrphanDecision {
        orphan::decide(orphan::OrphanFacts {
            of_this_attempt: launcher.attempt == instance.status.attempt,
            in_range: self.has_launcher(),
            does_work: true,
            alive: launcher.phase.is_alive(),
            instance_ended: instance.status.outcome.is_some(),
        })
    }

    /// Returns the workers of the current attempt.
    pub(super) fn attempt_workers<'b>(
        &'b self,
        instance: &'b Instance<'a>,
    ) -> impl Iterator<Item = &'a ProcessFacts> + 'b {
        let workers = instance.workers.iter().copied();
        workers.filter(|worker| self.classify_worker(instance, worker) == orphan::OrphanDecision::Belongs)
    }

    /// Returns the launchers of the current attempt; more than one only in an inconsistent observation.
    pub(super) fn attempt_launchers<'b>(
        &'b self,
        instance: &'b Instance<'a>,
    ) -> impl Iterator<Item = &'a ProcessFacts> + 'b {
        let launchers = instance.launchers.iter().copied();
        launchers
            .filter(|launcher| self.classify_launcher(instance, launcher) == orphan::OrphanDecision::Belongs)
    }

    /// Returns the number of workers of the attempt that run or are done.
    pub(super) fn ready_workers(&self, instance: &Instance<'a>) -> u32 {
        let ready = |number: &u32| self.is_ready(instance, *number);
        (0..self.job.workers_per_instance())
            .filter(ready)
            .map(|_| 1)
            .sum()
    }

    /// Returns whether worker `number` runs or is done.
    pub(super) fn is_ready(&self, instance: &Instance<'a>, number: u32) -> bool {
        instance.status.done.contains(&number)
            || self
                .attempt_workers(instance)
                .any(|worker| worker.index == number && matches!(worker.phase, ProcessPhase::Running { .. }))
    }

    /// Returns the first missing process of the attempt that is not done and ran or may have run.
    pub(super) fn missing_process(&self, instance: &Instance<'a>) -> Option<FailedComponent> {
        let workers = 0..self.job.workers_per_instance();
        let of_attempt = instance
            .missing
            .iter()
            .filter(|missing| missing.attempt == instance.status.attempt);
        let reported = of_attempt.filter_map(|missing| match missing.worker {
            None => self.has_launcher().then_some(FailedComponent::Launcher),
            Some(worker) => (workers.contains(&worker) && !instance.status.done.contains(&worker))
                .then_some(FailedComponent::Worker { worker }),
        });
        let reported = reported.min();
        if reported.is_some() || instance.status.running_since.is_none() {
            return reported;
        }
        let is_present = |number: &u32| {
            instance.status.done.contains(number)
                || self
                    .attempt_workers(instance)
                    .any(|worker| worker.index == *number)
        };
        workers
            .clone()
            .find(|number| !is_present(number))
            .map(|worker| FailedComponent::Worker { worker })
    }

    /// Returns whether the attempt has started to use its partition.
    pub(super) fn usage(&self, instance: &Instance<'a>) -> Usage {
        if self.missing_process(instance).is_some() {
            return Usage::ProcessMissing;
        }
        let is_in_use = self.attempt_workers(instance).next().is_some()
            || self.attempt_launchers(instance).next().is_some()
            || !instance.status.done.is_empty();
        if is_in_use { Usage::InUse } else { Usage::Unused }
    }
}

impl<'a> Instance<'a> {
    fn new(index: u32) -> Self {
        Self {
            index,
            partition: &PartitionFacts::Absent,
            launchers: Vec::new(),
            workers: Vec::new(),
            missing: Vec::new(),
            preempted: None,
            status: InstanceStatus::new(index),
            newest_partition_attempt: None,
            recorded: Persisted::Yes,
            stage: InstanceStage::Removed,
        }
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &'a ProcessFacts> + '_ {
        self.launchers.iter().chain(&self.workers).copied()
    }

    pub(super) fn remaining_processes(&self) -> Processes {
        if self.processes().any(|process| process.phase.is_alive()) {
            Processes::Alive
        } else if self.processes().next().is_some() {
            Processes::Ended
        } else {
            Processes::None
        }
    }

    /// Returns whether processes or a partition of the recorded attempt, or of a newer one, exist. If so, the
    /// attempt is closed before the instance is torn down.
    pub(super) fn holds_attempt(&self) -> bool {
        let attempt = self.status.attempt;
        self.processes().any(|process| process.attempt >= attempt)
            || created_for(self.partition).is_some_and(|created| created >= attempt)
    }

    /// Returns whether the partition was created or reset for an attempt before the current one.
    pub(super) fn holds_partition_of_earlier_attempt(&self) -> bool {
        created_for(self.partition).is_some_and(|created| created < self.status.attempt)
    }

    /// Applies the preempt rule.
    pub(super) const fn preempt_decision(&self) -> preempt::PreemptDecision {
        let demand = if self.preempted.is_some() {
            preempt::Demand::Preempted
        } else {
            preempt::Demand::None
        };
        let progress = if self.status.outcome.is_some() {
            preempt::Progress::Ended
        } else {
            preempt::Progress::Open
        };
        preempt::decide(demand, progress)
    }

    /// Returns whether the instance holds IPUs.
    pub(super) const fn holds_ipus(&self) -> bool {
        match self.partition {
            PartitionFacts::Absent | PartitionFacts::Waiting { .. } => false,
            PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. }
            | PartitionFacts::Releasing => true,
        }
    }

    /// Adopts an attempt newer than the recorded one; it exists if a record was lost after its effects were
    /// applied.
    fn adopt_newest_attempt(&mut self) {
        let processes = self.processes().map(|process| process.attempt);
        let newest = processes.chain(self.newest_partition_attempt).max();
        if let Some(newest) = newest.filter(|newest| *newest > self.status.attempt) {
            self.status = InstanceStatus {
                attempt: newest,
                outcome: self.status.outcome,
                ..InstanceStatus::new(self.index)
            };
        }
    }
}

/// Returns the attempt for which a partition was requested, created or reset.
const fn requested_for(partition: &PartitionFacts) -> Option<u32> {
    match partition {
        PartitionFacts::Waiting { attempt, .. } => Some(*attempt),
        PartitionFacts::Absent
        | PartitionFacts::Pending { .. }
        | PartitionFacts::Active { .. }
        | PartitionFacts::Failed { .. }
        | PartitionFacts::Releasing => created_for(partition),
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

/// Ranks contradictory facts by the resources that they hold. The highest rank wins, so that no held IPUs are
/// reassigned.
fn precedence(partition: &PartitionFacts) -> (u8, Option<u32>) {
    let state = match partition {
        PartitionFacts::Absent => 0,
        PartitionFacts::Waiting { .. } => 1,
        PartitionFacts::Releasing => 2,
        PartitionFacts::Pending { .. } => 3,
        PartitionFacts::Failed { .. } => 4,
        PartitionFacts::Active { .. } => 5,
    };
    (state, created_for(partition))
}
