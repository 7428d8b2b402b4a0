//! Effects that stop processes and release partitions: surplus, finished, or of another attempt.

use core::time::Duration;

use crate::job::observation::{ProcessFacts, ProcessPhase};
use crate::job::plan::Effect;
use crate::job::plan::context::{Instance, InstanceStage, PlanContext};
use crate::job::rules::cleanup::{self, QueuedPeers, ResourceRole, Retention};
use crate::job::rules::finalize::{self, FinalizeStep, Processes};
use crate::job::rules::orphan;
use crate::job::rules::preempt::PreemptDecision;

/// The poll interval after the records of ended processes were deleted, which no event announces.
const RECORD_POLL_INTERVAL: Duration = Duration::from_millis(100);

impl<'a> PlanContext<'a> {
    pub(super) fn retention(&self) -> Retention {
        cleanup::retention(
            self.job.ttl_after_finished(),
            self.status.finished,
            self.observation.now,
        )
    }

    pub(super) fn keeps(&self, role: ResourceRole) -> bool {
        let policy = self.job.clean_pod_policy();
        cleanup::decide(policy, role, self.status.phase, self.retention()) == cleanup::CleanupDecision::Keep
    }

    /// Stops the processes of an instance, then releases its partition.
    pub(super) fn tear_down(&mut self, instance: &Instance<'a>) -> InstanceStage {
        for launcher in &instance.launchers {
            self.stop_launcher(instance, launcher);
        }
        for worker in instance.workers.iter().rev() {
            self.stop_worker(instance, worker);
        }
        match finalize::decide(instance.remaining_processes(), instance.partition) {
            FinalizeStep::AwaitProcesses => InstanceStage::Stopping,
            FinalizeStep::Release => {
                self.release(instance);
                InstanceStage::Releasing
            }
            FinalizeStep::AwaitRelease => {
                self.schedule_poll();
                InstanceStage::Releasing
            }
            FinalizeStep::Done => InstanceStage::Removed,
        }
    }

    /// Removes the processes of an ended instance that the clean-up policy does not keep or that still do its
    /// work. If queued instances of the job or a preempting request need its partition, removes all processes
    /// that are alive.
    pub(super) fn clean_up(&mut self, instance: &Instance<'a>, queued_peers: QueuedPeers) -> InstanceStage {
        let queued_peers = match instance.preempt_decision() {
            PreemptDecision::ReleaseKept => QueuedPeers::Present,
            PreemptDecision::Keep | PreemptDecision::Requeue => queued_peers,
        };
        let releases_partition =
            cleanup::decide_ended(instance.partition, queued_peers) == cleanup::CleanupDecision::Remove;
        let must_yield =
            |process: &ProcessFacts| queued_peers == QueuedPeers::Present && process.phase.is_alive();
        let keeps_launchers = self.keeps(ResourceRole::Launcher);
        for launcher in &instance.launchers {
            let orphan = self.classify_launcher(instance, launcher) == orphan::OrphanDecision::Stop;
            if !keeps_launchers || orphan || must_yield(launcher) {
                self.stop_launcher(instance, launcher);
            }
        }
        let keeps_workers = self.keeps(ResourceRole::Worker);
        for worker in instance.workers.iter().rev() {
            let orphan = self.classify_worker(instance, worker) == orphan::OrphanDecision::Stop;
            if !keeps_workers || orphan || must_yield(worker) {
                self.stop_worker(instance, worker);
            }
        }
        if releases_partition
            && finalize::decide(instance.remaining_processes(), instance.partition) == FinalizeStep::Release
        {
            self.release(instance);
        }
        InstanceStage::Ended
    }

    /// Stops processes that do not belong to the attempt; returns the state of those that remain.
    pub(super) fn stop_orphans(&mut self, instance: &Instance<'a>) -> Processes {
        let mut remaining = Processes::None;
        let mut track = |process: &ProcessFacts| {
            if process.phase.is_alive() {
                remaining = Processes::Alive;
            } else if remaining == Processes::None {
                remaining = Processes::Ended;
            }
        };
        for launcher in &instance.launchers {
            if self.classify_launcher(instance, launcher) == orphan::OrphanDecision::Stop {
                track(launcher);
                self.stop_launcher(instance, launcher);
            }
        }
        for worker in instance.workers.iter().rev() {
            if self.classify_worker(instance, worker) == orphan::OrphanDecision::Stop {
                track(worker);
                self.stop_worker(instance, worker);
            }
        }
        remaining
    }

    fn stop_worker(&mut self, instance: &Instance<'a>, worker: &ProcessFacts) {
        self.push_stop(
            worker,
            Effect::StopWorker {
                instance: instance.index,
                worker: worker.index,
                attempt: worker.attempt,
            },
        );
    }

    fn stop_launcher(&mut self, instance: &Instance<'a>, launcher: &ProcessFacts) {
        self.push_stop(
            launcher,
            Effect::StopLauncher {
                instance: instance.index,
                attempt: launcher.attempt,
            },
        );
    }

    fn push_stop(&mut self, process: &ProcessFacts, stop: Effect) {
        match process.phase {
            ProcessPhase::Stopping => return,
            ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. } => {
                self.requeue_at(self.observation.now.plus(RECORD_POLL_INTERVAL))
            }
            ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } => {}
        }
        if !self.effects.contains(&stop) {
            self.effects.push(stop);
        }
    }

    pub(super) fn release(&mut self, instance: &Instance<'a>) {
        self.schedule_poll();
        self.effects.push(Effect::ReleasePartition {
            instance: instance.index,
            attempt: instance.status.attempt,
            partition: self.job.partition_id(instance.index),
        });
    }
}
