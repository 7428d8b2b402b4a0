//! Effects: what follows from the verdicts that stand in the record. What takes away is in [`remove`](super::remove).

use core::time::Duration;

use crate::observation::{PartitionFacts, ProcessPhase};
use crate::plan::Effect;
use crate::plan::context::{Instance, InstanceStage, Persisted, PlanContext};
use crate::rules::cleanup::{QueuedPeers, ResourceRole, Retention};
use crate::rules::finalize::{self, FinalizeStep, Processes};
use crate::rules::{request, reset, scale, suspend};

/// How soon to look again at a partition on its way: V-IPU sends no events, and takes seconds to make one.
const POLL: Duration = Duration::from_secs(1);
/// The same for who is told of changes: only what is said of waiting grows old, or something was not told after all.
const POLL_IF_TOLD: Duration = Duration::from_secs(15);

/// What is done with an instance in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceAction {
    /// Nothing: its verdict is to be recorded first.
    Hold,
    /// Everything that it has is given back.
    Remove,
    /// It has ended; the clean-up policy says what stays.
    Tidy,
    /// Its attempt goes on.
    Advance,
}

impl<'a> PlanContext<'a> {
    pub(super) fn act(&mut self) {
        let mut instances = core::mem::take(&mut self.instances);
        let line = self.line(&instances);
        // What goes, goes highest first; what comes, comes lowest first, and after what goes.
        for instance in instances.iter_mut().rev() {
            instance.stage = match self.course(instance) {
                InstanceAction::Hold => InstanceStage::Judged,
                InstanceAction::Remove => self.remove(instance),
                InstanceAction::Tidy => self.tidy(instance, line),
                InstanceAction::Advance => continue,
            };
        }
        // An instance that has ended asks no more, also if the ledger does not know the owner of its partition.
        let has_ended = |instance: &&Instance<'_>| {
            instance.memory.outcome.is_some() && instance.recorded == Persisted::Yes
        };
        let requested = instances
            .iter()
            .filter(|instance| !has_ended(instance) && request::is_requested(instance.partition));
        self.requested = requested.map(|_| 1).sum();
        for instance in &mut instances {
            if self.course(instance) == InstanceAction::Advance {
                instance.stage = self.advance(instance);
            }
        }
        let all_gone = instances
            .iter()
            .all(|instance| instance.stage == InstanceStage::Gone);
        if self.seen.deleted && all_gone {
            self.effects.push(Effect::Finalize);
        }
        if self.status.phase.is_finished() && !self.seen.deleted {
            match self.retention() {
                Retention::UntilDeleted => {}
                Retention::Until(end) => self.requeue_at(end),
                Retention::Over => self.expired = all_gone,
            }
        }
        let undecided = |instance: &Instance<'_>| instance.stage == InstanceStage::Judged;
        if instances.iter().any(undecided) {
            self.requeue_at(self.seen.now);
        }
        self.instances = instances;
    }

    /// Whether an instance that goes on stands in the line.
    fn line(&self, instances: &[Instance<'a>]) -> QueuedPeers {
        let waits = |instance: &Instance<'a>| {
            matches!(instance.partition, PartitionFacts::Waiting { .. })
                && self.course(instance) == InstanceAction::Advance
        };
        if instances.iter().any(waits) {
            QueuedPeers::Waits
        } else {
            QueuedPeers::Empty
        }
    }

    fn course(&self, instance: &Instance<'a>) -> InstanceAction {
        if self.seen.deleted {
            return InstanceAction::Remove;
        }
        if instance.recorded == Persisted::No || self.concluded == Persisted::No {
            return InstanceAction::Hold;
        }
        match (self.wanted(instance), self.suspension(), instance.memory.outcome) {
            (scale::ScaleDecision::Remove, _, _)
            | (_, suspend::SuspendDecision::HoldNothing, _)
            | (_, suspend::SuspendDecision::Finished, None)
            | (_, _, Some(crate::InstanceOutcome::SessionOver)) => InstanceAction::Remove,
            (_, suspend::SuspendDecision::Finished, Some(_)) if self.keeps(ResourceRole::Partition) => {
                InstanceAction::Tidy
            }
            (_, suspend::SuspendDecision::Finished, Some(_)) => InstanceAction::Remove,
            (_, suspend::SuspendDecision::GoOn, Some(_)) => InstanceAction::Tidy,
            (_, suspend::SuspendDecision::GoOn, None) => InstanceAction::Advance,
        }
    }

    /// Takes the next step towards an instance that runs.
    fn advance(&mut self, instance: &Instance<'a>) -> InstanceStage {
        let pause = instance.memory.retry_at.filter(|retry| *retry > self.seen.now);
        if let Some(retry) = pause {
            self.requeue_at(retry);
        }
        if self.stop_orphans(instance) == Processes::Alive {
            return InstanceStage::Stopping;
        }
        if pause.is_some() && instance.memory.unused_releases > 0 {
            return self.pause_without_partition(instance);
        }
        let attempt = instance.memory.attempt;
        match reset::decide(instance.partition, attempt, self.usage(instance)) {
            reset::ResetDecision::Use if pause.is_some() => InstanceStage::BackingOff,
            reset::ResetDecision::Use => self.start(instance),
            reset::ResetDecision::Ask if self.request(instance) == request::RequestDecision::Wait => {
                self.look_again();
                InstanceStage::NotRequested
            }
            reset::ResetDecision::Ask => {
                self.effects.push(Effect::EnsurePartition {
                    instance: instance.index,
                    attempt,
                    partition: self.job.partition_id(instance.index),
                    spec: self.job.partition().clone(),
                });
                self.await_partition(instance)
            }
            reset::ResetDecision::Reset => {
                self.effects.push(Effect::ResetPartition {
                    instance: instance.index,
                    attempt,
                    partition: self.job.partition_id(instance.index),
                });
                self.await_partition(instance)
            }
            // The last three were judged, and made this pass hold, if the attempt was not closed since.
            reset::ResetDecision::Wait
            | reset::ResetDecision::GiveBack
            | reset::ResetDecision::FailAttempt
            | reset::ResetDecision::BeginAnew => self.await_partition(instance),
        }
    }

    /// Whether an instance may ask for its partition; one that was not requested before counts from now on.
    fn request(&mut self, instance: &Instance<'a>) -> request::RequestDecision {
        let verdict = request::decide(instance.partition, self.requested, self.job.max_requested());
        if verdict == request::RequestDecision::Request && *instance.partition == PartitionFacts::Absent {
            self.requested = self.requested.saturating_add(1);
        }
        verdict
    }

    /// Looks again at a partition that is on its way.
    pub(super) fn look_again(&mut self) {
        let poll = if self.seen.partition_watch_connected {
            POLL_IF_TOLD
        } else {
            POLL
        };
        self.requeue_at(self.seen.now.plus(poll));
    }

    fn await_partition(&mut self, instance: &Instance<'a>) -> InstanceStage {
        self.look_again();
        match instance.partition {
            PartitionFacts::Waiting { reason, .. } => InstanceStage::InLine(reason.clone()),
            PartitionFacts::Absent
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. }
            | PartitionFacts::Releasing => InstanceStage::Preparing,
        }
    }

    /// Nothing could run on the partition: others may have it until the pause is over.
    fn pause_without_partition(&mut self, instance: &Instance<'a>) -> InstanceStage {
        match finalize::decide(instance.processes_left(), instance.partition) {
            FinalizeStep::Release => self.release(instance),
            FinalizeStep::AwaitRelease => self.look_again(),
            FinalizeStep::AwaitProcesses | FinalizeStep::Gone => {}
        }
        InstanceStage::GivenBack
    }

    /// Starts what is missing on a partition that is ready.
    fn start(&mut self, instance: &Instance<'a>) -> InstanceStage {
        let partition = self.job.partition_id(instance.index);
        let attempt = instance.memory.attempt;
        let all = self.job.workers_per_instance();
        for number in 0..all {
            let there = instance.workers.iter().any(|worker| worker.index == number);
            if !there && !instance.memory.done.contains(&number) {
                self.effects.push(Effect::StartWorker {
                    instance: instance.index,
                    worker: number,
                    attempt,
                    partition: partition.clone(),
                });
            }
        }
        let ready = self.ready_workers(instance);
        if !self.has_launcher() {
            return if instance.memory.running_since.is_some() && self.all_there(instance) {
                InstanceStage::Running
            } else {
                InstanceStage::Starting(ready)
            };
        }
        let launcher = self
            .own_launchers(instance)
            .next()
            .map(|launcher| &launcher.phase);
        match launcher {
            Some(ProcessPhase::Running { .. } | ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }) => {
                InstanceStage::Running
            }
            Some(ProcessPhase::Starting { .. } | ProcessPhase::Stopping) => InstanceStage::Launching,
            None if ready < all => InstanceStage::Starting(ready),
            None => {
                if instance.launchers.is_empty() && instance.memory.launched.is_none() {
                    self.effects.push(Effect::StartLauncher {
                        instance: instance.index,
                        attempt,
                        partition,
                    });
                }
                InstanceStage::Launching
            }
        }
    }

    /// Whether every worker of the attempt exists or is done.
    pub(super) fn all_there(&self, instance: &Instance<'a>) -> bool {
        (0..self.job.workers_per_instance()).all(|number| {
            instance.memory.done.contains(&number)
                || self.own_workers(instance).any(|worker| worker.index == number)
        })
    }
}
