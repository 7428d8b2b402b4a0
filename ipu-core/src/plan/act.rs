//! Effects: what follows from the verdicts that stand in the record. What takes away is in [`remove`](super::remove).

use core::time::Duration;

use crate::observation::{PartitionFacts, ProcessPhase};
use crate::plan::Effect;
use crate::plan::view::{Instance, Pass, Recorded, Stage};
use crate::rules::cleanup::{Line, Retention, Role};
use crate::rules::finalize::{self, Processes, Step};
use crate::rules::{request, reset, scale, suspend};

/// How soon to look again at a partition on its way: V-IPU sends no events, and takes seconds to make one.
const POLL: Duration = Duration::from_secs(1);
/// The same for who is told of changes: only what is said of waiting grows old, or something was not told after all.
const POLL_IF_TOLD: Duration = Duration::from_secs(15);

/// What is done with an instance in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Nothing: its verdict is to be recorded first.
    Hold,
    /// Everything that it has is given back.
    Remove,
    /// It has ended; the clean-up policy says what stays.
    Tidy,
    /// Its attempt goes on.
    Advance,
}

impl<'a> Pass<'a> {
    pub(super) fn act(&mut self) {
        let mut instances = core::mem::take(&mut self.instances);
        let line = self.line(&instances);
        // What goes, goes highest first; what comes, comes lowest first, and after what goes.
        for instance in instances.iter_mut().rev() {
            instance.stage = match self.course(instance) {
                Course::Hold => Stage::Judged,
                Course::Remove => self.remove(instance),
                Course::Tidy => self.tidy(instance, line),
                Course::Advance => continue,
            };
        }
        // An instance that has ended asks no more, also if the ledger does not know the owner of its partition.
        let has_ended = |instance: &&Instance<'_>| {
            instance.memory.outcome.is_some() && instance.recorded == Recorded::Before
        };
        let requested = instances
            .iter()
            .filter(|instance| !has_ended(instance) && request::is_requested(instance.partition));
        self.requested = requested.map(|_| 1).sum();
        for instance in &mut instances {
            if self.course(instance) == Course::Advance {
                instance.stage = self.advance(instance);
            }
        }
        let all_gone = instances.iter().all(|instance| instance.stage == Stage::Gone);
        if self.seen.deleted && all_gone {
            self.effects.push(Effect::Finalize);
        }
        if self.status.phase.is_finished() && !self.seen.deleted {
            match self.retention() {
                Retention::UntilDeleted => {}
                Retention::Until(end) => self.wake_by(end),
                Retention::Over => self.expired = all_gone,
            }
        }
        let undecided = |instance: &Instance<'_>| instance.stage == Stage::Judged;
        if instances.iter().any(undecided) {
            self.wake_by(self.seen.now);
        }
        self.instances = instances;
    }

    /// Whether an instance that goes on stands in the line.
    fn line(&self, instances: &[Instance<'a>]) -> Line {
        let waits = |instance: &Instance<'a>| {
            matches!(instance.partition, PartitionFacts::Waiting { .. })
                && self.course(instance) == Course::Advance
        };
        if instances.iter().any(waits) {
            Line::Waits
        } else {
            Line::Empty
        }
    }

    fn course(&self, instance: &Instance<'a>) -> Course {
        if self.seen.deleted {
            return Course::Remove;
        }
        if instance.recorded == Recorded::InThisPass || self.concluded == Recorded::InThisPass {
            return Course::Hold;
        }
        match (self.wanted(instance), self.suspension(), instance.memory.outcome) {
            (scale::Verdict::Remove, _, _)
            | (_, suspend::Verdict::HoldNothing, _)
            | (_, suspend::Verdict::Finished, None)
            | (_, _, Some(crate::Outcome::SessionOver)) => Course::Remove,
            (_, suspend::Verdict::Finished, Some(_)) if self.keeps(Role::Partition) => Course::Tidy,
            (_, suspend::Verdict::Finished, Some(_)) => Course::Remove,
            (_, suspend::Verdict::GoOn, Some(_)) => Course::Tidy,
            (_, suspend::Verdict::GoOn, None) => Course::Advance,
        }
    }

    /// Takes the next step towards an instance that runs.
    fn advance(&mut self, instance: &Instance<'a>) -> Stage {
        let pause = instance.memory.retry_at.filter(|retry| *retry > self.seen.now);
        if let Some(retry) = pause {
            self.wake_by(retry);
        }
        if self.stop_orphans(instance) == Processes::Alive {
            return Stage::Stopping;
        }
        if pause.is_some() && instance.memory.given_back > 0 {
            return self.pause_without_partition(instance);
        }
        let attempt = instance.memory.attempt;
        match reset::decide(instance.partition, attempt, self.usage(instance)) {
            reset::Verdict::Use if pause.is_some() => Stage::BackingOff,
            reset::Verdict::Use => self.start(instance),
            reset::Verdict::Ask if self.request(instance) == request::Verdict::Wait => {
                self.look_again();
                Stage::NotRequested
            }
            reset::Verdict::Ask => {
                self.effects.push(Effect::EnsurePartition {
                    instance: instance.index,
                    attempt,
                    partition: self.job.partition_id(instance.index),
                    spec: self.job.partition().clone(),
                });
                self.await_partition(instance)
            }
            reset::Verdict::Reset => {
                self.effects.push(Effect::ResetPartition {
                    instance: instance.index,
                    attempt,
                    partition: self.job.partition_id(instance.index),
                });
                self.await_partition(instance)
            }
            // The last three were judged, and made this pass hold, if the attempt was not closed since.
            reset::Verdict::Wait
            | reset::Verdict::GiveBack
            | reset::Verdict::FailAttempt
            | reset::Verdict::BeginAnew => self.await_partition(instance),
        }
    }

    /// Whether an instance may ask for its partition; one that was not requested before counts from now on.
    fn request(&mut self, instance: &Instance<'a>) -> request::Verdict {
        let verdict = request::decide(instance.partition, self.requested, self.job.max_requested());
        if verdict == request::Verdict::Request && *instance.partition == PartitionFacts::Absent {
            self.requested = self.requested.saturating_add(1);
        }
        verdict
    }

    /// Looks again at a partition that is on its way.
    pub(super) fn look_again(&mut self) {
        let poll = if self.seen.told { POLL_IF_TOLD } else { POLL };
        self.wake_by(self.seen.now.plus(poll));
    }

    fn await_partition(&mut self, instance: &Instance<'a>) -> Stage {
        self.look_again();
        match instance.partition {
            PartitionFacts::Waiting { reason, .. } => Stage::InLine(reason.clone()),
            PartitionFacts::Absent
            | PartitionFacts::Pending { .. }
            | PartitionFacts::Active { .. }
            | PartitionFacts::Failed { .. }
            | PartitionFacts::Releasing => Stage::Preparing,
        }
    }

    /// Nothing could run on the partition: others may have it until the pause is over.
    fn pause_without_partition(&mut self, instance: &Instance<'a>) -> Stage {
        match finalize::decide(instance.processes_left(), instance.partition) {
            Step::Release => self.release(instance),
            Step::AwaitRelease => self.look_again(),
            Step::AwaitProcesses | Step::Gone => {}
        }
        Stage::GivenBack
    }

    /// Starts what is missing on a partition that is ready.
    fn start(&mut self, instance: &Instance<'a>) -> Stage {
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
                Stage::Running
            } else {
                Stage::Starting(ready)
            };
        }
        let launcher = self
            .own_launchers(instance)
            .next()
            .map(|launcher| &launcher.phase);
        match launcher {
            Some(ProcessPhase::Running { .. } | ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }) => {
                Stage::Running
            }
            Some(ProcessPhase::Starting { .. } | ProcessPhase::Stopping) => Stage::Launching,
            None if ready < all => Stage::Starting(ready),
            None => {
                if instance.launchers.is_empty() && instance.memory.launched.is_none() {
                    self.effects.push(Effect::StartLauncher {
                        instance: instance.index,
                        attempt,
                        partition,
                    });
                }
                Stage::Launching
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
