//! Derives effects from the recorded verdicts. Effects that stop or release are in
//! [`teardown`](super::teardown).

use core::time::Duration;

use crate::job::observation::{PartitionFacts, ProcessPhase};
use crate::job::plan::Effect;
use crate::job::plan::context::{Instance, InstanceStage, Persisted, PlanContext};
use crate::job::rules::cleanup::{QueuedPeers, ResourceRole, Retention};
use crate::job::rules::finalize::{self, FinalizeStep, Processes};
use crate::job::rules::{preempt, request, reset, scale, suspend};
use crate::units::Timestamp;

/// The poll interval for a partition that is being created, reset or released. V-IPU sends no events and
/// needs seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The poll interval if the observer watches partitions: it refreshes queue reasons and covers missed events.
const WATCHED_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// The action on an instance in this reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstanceAction {
    /// No action: the verdict must be recorded first.
    AwaitRecord,
    /// Stop its processes and release its partition.
    Remove,
    /// Apply the clean-up policy to an instance that has ended.
    CleanUp,
    /// Continue its attempt.
    Advance,
}

impl<'a> PlanContext<'a> {
    pub(super) fn build_effects(&mut self) {
        let mut instances = core::mem::take(&mut self.instances);
        let queued_peers = self.queued_peers(&instances);
        // Instances are torn down in descending order first, then advanced in ascending order.
        for instance in instances.iter_mut().rev() {
            instance.stage = match self.action_for(instance) {
                InstanceAction::AwaitRecord => InstanceStage::Evaluated,
                InstanceAction::Remove => {
                    // A preempted instance keeps its back-off.
                    if let Some(retry) = self.pending_retry(instance) {
                        self.requeue_at(retry);
                    }
                    self.tear_down(instance)
                }
                InstanceAction::CleanUp => self.clean_up(instance, queued_peers),
                InstanceAction::Advance => continue,
            };
        }
        // An ended instance requests no partition, even if the ledger does not know the owner of its entry.
        let has_ended = |instance: &&Instance<'_>| {
            instance.status.outcome.is_some() && instance.recorded == Persisted::Yes
        };
        let requested = instances
            .iter()
            .filter(|instance| !has_ended(instance) && request::is_requested(instance.partition));
        self.requested = requested.map(|_| 1).sum();
        for instance in &mut instances {
            if self.action_for(instance) == InstanceAction::Advance {
                instance.stage = self.advance(instance);
            }
        }
        let all_removed = instances
            .iter()
            .all(|instance| instance.stage == InstanceStage::Removed);
        if self.observation.deleted && all_removed {
            self.effects.push(Effect::Finalize);
        }
        if self.status.phase.is_finished() && !self.observation.deleted {
            match self.retention() {
                Retention::UntilDeleted => {}
                Retention::Until(end) => self.requeue_at(end),
                Retention::Over => self.expired = all_removed,
            }
        }
        let awaits_record = |instance: &Instance<'_>| instance.stage == InstanceStage::Evaluated;
        if instances.iter().any(awaits_record) {
            self.requeue_at(self.observation.now);
        }
        self.instances = instances;
    }

    /// Returns whether an instance that continues is queued.
    fn queued_peers(&self, instances: &[Instance<'a>]) -> QueuedPeers {
        let is_queued = |instance: &Instance<'a>| {
            matches!(instance.partition, PartitionFacts::Waiting { .. })
                && self.action_for(instance) == InstanceAction::Advance
        };
        if instances.iter().any(is_queued) {
            QueuedPeers::Present
        } else {
            QueuedPeers::Absent
        }
    }

    fn action_for(&self, instance: &Instance<'a>) -> InstanceAction {
        if self.observation.deleted {
            return InstanceAction::Remove;
        }
        if instance.recorded == Persisted::No || self.concluded == Persisted::No {
            return InstanceAction::AwaitRecord;
        }
        let is_preempted = instance.preempt_decision() == preempt::PreemptDecision::Requeue;
        match (
            self.scale_decision(instance),
            self.suspend_decision(),
            instance.status.outcome,
        ) {
            (_, suspend::SuspendDecision::Continue, None) if is_preempted => InstanceAction::Remove,
            (scale::ScaleDecision::Remove, _, _)
            | (_, suspend::SuspendDecision::ReleaseAll, _)
            | (_, suspend::SuspendDecision::Finished, None)
            | (_, _, Some(crate::job::InstanceOutcome::SessionOver)) => InstanceAction::Remove,
            (_, suspend::SuspendDecision::Finished, Some(_)) if self.keeps(ResourceRole::Partition) => {
                InstanceAction::CleanUp
            }
            (_, suspend::SuspendDecision::Finished, Some(_)) => InstanceAction::Remove,
            (_, suspend::SuspendDecision::Continue, Some(_)) => InstanceAction::CleanUp,
            (_, suspend::SuspendDecision::Continue, None) => InstanceAction::Advance,
        }
    }

    /// Returns the end of the back-off, unless it is over.
    fn pending_retry(&self, instance: &Instance<'a>) -> Option<Timestamp> {
        let retry_at = instance.status.retry_at;
        retry_at.filter(|retry| *retry > self.observation.now)
    }

    /// Adds the effects of the next step towards a running instance.
    fn advance(&mut self, instance: &Instance<'a>) -> InstanceStage {
        let pending_retry = self.pending_retry(instance);
        if let Some(retry) = pending_retry {
            self.requeue_at(retry);
        }
        if self.stop_orphans(instance) == Processes::Alive {
            return InstanceStage::Stopping;
        }
        // Without a back-off too, the next attempt gets another partition.
        let is_unreleased = instance.holds_partition_of_earlier_attempt();
        if instance.status.unused_releases > 0 && (pending_retry.is_some() || is_unreleased) {
            return self.release_unused(instance);
        }
        let attempt = instance.status.attempt;
        match reset::decide(instance.partition, attempt, self.usage(instance)) {
            reset::ResetDecision::Use if pending_retry.is_some() => InstanceStage::BackingOff,
            reset::ResetDecision::Use => self.start(instance),
            reset::ResetDecision::Request if self.request(instance) == request::RequestDecision::Wait => {
                self.schedule_poll();
                InstanceStage::NotRequested
            }
            reset::ResetDecision::Request => {
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
            // The last three closed the attempt, or their verdict awaits its record, so this arm only polls.
            reset::ResetDecision::Wait
            | reset::ResetDecision::Release
            | reset::ResetDecision::FailAttempt
            | reset::ResetDecision::RestartAttempt => self.await_partition(instance),
        }
    }

    /// Decides whether an instance may request its partition, and counts a new request against the limit.
    fn request(&mut self, instance: &Instance<'a>) -> request::RequestDecision {
        let verdict = request::decide(instance.partition, self.requested, self.job.max_requested());
        if verdict == request::RequestDecision::Request && *instance.partition == PartitionFacts::Absent {
            self.requested = self.requested.saturating_add(1);
        }
        verdict
    }

    /// Schedules the next poll of a partition in transition.
    pub(super) fn schedule_poll(&mut self) {
        let interval = if self.observation.partition_watch_connected {
            WATCHED_POLL_INTERVAL
        } else {
            POLL_INTERVAL
        };
        self.requeue_at(self.observation.now.plus(interval));
    }

    fn await_partition(&mut self, instance: &Instance<'a>) -> InstanceStage {
        self.schedule_poll();
        match instance.partition {
            PartitionFacts::Waiting { reason, .. } => InstanceStage::Queued(reason.clone()),
            PartitionFacts::Absent
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. }
            | PartitionFacts::Releasing => InstanceStage::Preparing,
        }
    }

    /// Releases a partition on which no process could start, until the back-off is over.
    fn release_unused(&mut self, instance: &Instance<'a>) -> InstanceStage {
        match finalize::decide(instance.remaining_processes(), instance.partition) {
            FinalizeStep::Release => self.release(instance),
            FinalizeStep::AwaitRelease => self.schedule_poll(),
            FinalizeStep::AwaitProcesses | FinalizeStep::Done => {}
        }
        InstanceStage::AwaitingRetry
    }

    /// Starts the missing processes on an active partition.
    fn start(&mut self, instance: &Instance<'a>) -> InstanceStage {
        let partition = self.job.partition_id(instance.index);
        let attempt = instance.status.attempt;
        let all = self.job.workers_per_instance();
        for number in 0..all {
            let exists = instance.workers.iter().any(|worker| worker.index == number);
            if !exists && !instance.status.done.contains(&number) {
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
            return if instance.status.running_since.is_some() && self.has_all_workers(instance) {
                InstanceStage::Running
            } else {
                InstanceStage::Starting(ready)
            };
        }
        let launcher = self
            .attempt_launchers(instance)
            .next()
            .map(|launcher| &launcher.phase);
        match launcher {
            Some(ProcessPhase::Running { .. } | ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }) => {
                InstanceStage::Running
            }
            Some(ProcessPhase::Starting { .. } | ProcessPhase::Stopping) => InstanceStage::Launching,
            None if ready < all => InstanceStage::Starting(ready),
            None => {
                if instance.launchers.is_empty() {
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

    /// Returns whether every worker of the attempt exists or has succeeded.
    pub(super) fn has_all_workers(&self, instance: &Instance<'a>) -> bool {
        (0..self.job.workers_per_instance()).all(|number| {
            instance.status.done.contains(&number)
                || self
                    .attempt_workers(instance)
                    .any(|worker| worker.index == number)
        })
    }
}
