//! Effects that take away: what is surplus, over, or not of the attempt.

use core::time::Duration;

use crate::observation::{ProcessFacts, ProcessPhase};
use crate::plan::Effect;
use crate::plan::context::{Instance, InstanceStage, PlanContext};
use crate::rules::cleanup::{self, QueuedPeers, ResourceRole, Retention};
use crate::rules::finalize::{self, FinalizeStep, Processes};
use crate::rules::orphan;

/// How soon to look again after the records of ended processes were forgotten, which nothing announces.
const SOON: Duration = Duration::from_millis(100);

impl<'a> PlanContext<'a> {
    pub(super) fn retention(&self) -> Retention {
        cleanup::retention(self.job.ttl_after_finished(), self.status.finished, self.seen.now)
    }

    pub(super) fn keeps(&self, role: ResourceRole) -> bool {
        let policy = self.job.clean_pod_policy();
        cleanup::decide(policy, role, self.status.phase, self.retention()) == cleanup::CleanupDecision::Keep
    }

    /// Gives back everything that an instance has: processes first, then the partition.
    pub(super) fn remove(&mut self, instance: &Instance<'a>) -> InstanceStage {
        for launcher in &instance.launchers {
            self.stop_launcher(instance, launcher);
        }
        for worker in instance.workers.iter().rev() {
            self.stop_worker(instance, worker);
        }
        match finalize::decide(instance.processes_left(), instance.partition) {
            FinalizeStep::AwaitProcesses => InstanceStage::Stopping,
            FinalizeStep::Release => {
                self.release(instance);
                InstanceStage::Releasing
            }
            FinalizeStep::AwaitRelease => {
                self.look_again();
                InstanceStage::Releasing
            }
            FinalizeStep::Gone => InstanceStage::Gone,
        }
    }

    /// Removes what the clean-up policy does not keep of an instance that has ended, and what still works in it; if its
    /// partition goes, because others of the job stand in the `line`, everything that is alive.
    pub(super) fn tidy(&mut self, instance: &Instance<'a>, line: QueuedPeers) -> InstanceStage {
        let goes = cleanup::of_ended(instance.partition, line) == cleanup::CleanupDecision::Remove;
        let yields = |process: &ProcessFacts| line == QueuedPeers::Waits && process.phase.is_alive();
        let launchers_stay = self.keeps(ResourceRole::Launcher);
        for launcher in &instance.launchers {
            let orphan = self.judge_launcher(instance, launcher) == orphan::OrphanDecision::Stop;
            if !launchers_stay || orphan || yields(launcher) {
                self.stop_launcher(instance, launcher);
            }
        }
        let workers_stay = self.keeps(ResourceRole::Worker);
        for worker in instance.workers.iter().rev() {
            let orphan = self.judge_worker(instance, worker) == orphan::OrphanDecision::Stop;
            if !workers_stay || orphan || yields(worker) {
                self.stop_worker(instance, worker);
            }
        }
        if goes && finalize::decide(instance.processes_left(), instance.partition) == FinalizeStep::Release {
            self.release(instance);
        }
        InstanceStage::Ended
    }

    /// Stops what does not belong to the attempt; says what is left of it.
    pub(super) fn stop_orphans(&mut self, instance: &Instance<'a>) -> Processes {
        let mut left = Processes::None;
        let mut note = |process: &ProcessFacts| {
            if process.phase.is_alive() {
                left = Processes::Alive;
            } else if left == Processes::None {
                left = Processes::Ended;
            }
        };
        for launcher in &instance.launchers {
            if self.judge_launcher(instance, launcher) == orphan::OrphanDecision::Stop {
                note(launcher);
                self.stop_launcher(instance, launcher);
            }
        }
        for worker in instance.workers.iter().rev() {
            if self.judge_worker(instance, worker) == orphan::OrphanDecision::Stop {
                note(worker);
                self.stop_worker(instance, worker);
            }
        }
        left
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
                self.requeue_at(self.seen.now.plus(SOON))
            }
            ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } => {}
        }
        if !self.effects.contains(&stop) {
            self.effects.push(stop);
        }
    }

    pub(super) fn release(&mut self, instance: &Instance<'a>) {
        self.look_again();
        self.effects.push(Effect::ReleasePartition {
            instance: instance.index,
            attempt: instance.memory.attempt,
            partition: self.job.partition_id(instance.index),
        });
    }
}
