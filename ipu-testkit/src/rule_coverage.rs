//! Rule coverage: infers from plans which rule verdicts a test suite reaches.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ipu_core::{
    Effect, FailedComponent, InstanceFacts, InstanceOutcome, InstanceStatus, JobKind, JobSpec, Observation,
    PartitionFacts, Plan, ProcessFacts, ProcessPhase, Timestamp,
};

/// Verdict of a rule in `docs/rules.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RuleVerdict {
    /// File name of the rule in `ipu-core/src/rules`.
    pub rule: &'static str,
    /// Verdict as the rule names it; for a rule that returns a value, a case of its table.
    pub verdict: &'static str,
}

impl fmt::Display for RuleVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.verdict)
    }
}

/// Returns every verdict of every rule, with the evidence that it was reached.
pub fn rule_verdicts() -> impl Iterator<Item = (RuleVerdict, &'static str)> {
    ROWS.iter().map(|row| (row.verdict(), row.shown_by))
}

/// Returns the verdicts that `plan`, the result for `observation` of `job`, shows to have been reached.
/// Verdicts without an observable effect are left out: the rules may have reached more verdicts than this
/// set, never fewer.
///
/// ```
/// use ipu_core::plan;
/// use ipu_testkit::{JobWorld, rules_reached};
///
/// let world = JobWorld::new(["workers=1"])?;
/// let reached = rules_reached(&world.job, &world.observation, &plan(&world.job, &world.observation));
/// assert!(reached.iter().any(|verdict| verdict.to_string() == "reset: Request"));
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn rules_reached(job: &JobSpec, observation: &Observation, plan: &Plan) -> BTreeSet<RuleVerdict> {
    let view = PlanView {
        job,
        observation,
        plan,
    };
    let reached = ROWS.iter().filter(|row| (row.reached)(&view));
    reached.map(RuleRow::verdict).collect()
}

struct RuleRow {
    rule: &'static str,
    name: &'static str,
    shown_by: &'static str,
    reached: fn(&PlanView<'_>) -> bool,
}

impl RuleRow {
    const fn verdict(&self) -> RuleVerdict {
        RuleVerdict {
            rule: self.rule,
            verdict: self.name,
        }
    }
}

const fn row(
    rule: &'static str,
    name: &'static str,
    shown_by: &'static str,
    reached: fn(&PlanView<'_>) -> bool,
) -> RuleRow {
    RuleRow {
        rule,
        name,
        shown_by,
        reached,
    }
}

/// Maximum back-off, as documented.
const MAX_BACKOFF: Duration = Duration::from_secs(360);

#[rustfmt::skip]
const ROWS: [RuleRow; 52] = [
    row("backoff", "First", "an attempt is closed, `retryAt` is `backOffSeconds` away",
        |view| view.back_offs().any(|pause| pause == view.job.back_off())),
    row("backoff", "Doubled", "an attempt is closed, `retryAt` is further away",
        |view| view.back_offs().any(|pause| pause > view.job.back_off() && pause < MAX_BACKOFF)),
    row("backoff", "Longest", "an attempt is closed, `retryAt` is six minutes away",
        |view| view.back_offs().any(|pause| pause > view.job.back_off() && pause == MAX_BACKOFF)),
    row("cleanup", "Keep", "an instance of a finished job keeps a partition or process",
        |view| view.was_finished() && view.ended_instances().any(|facts| view.holds(facts) && !view.is_reduced(facts.index))),
    row("cleanup", "Remove", "a process or partition of an instance of a finished job is ended",
        |view| view.was_finished() && view.ended_instances().any(|facts| view.is_reduced(facts.index))),
    row("cleanup", "UntilDeleted", "a finished job without `ttlSecondsAfterFinished` holds resources",
        |view| view.was_finished() && view.kept_until().is_none() && view.ended_instances().any(|facts| view.holds(facts))),
    row("cleanup", "Until", "a finished job holds resources, its `ttlSecondsAfterFinished` have not elapsed, `requeueAfter` is set",
        |view| view.was_finished() && view.kept_until().is_some_and(|end| end > view.observation.now) && view.plan.requeue_after.is_some()),
    row("cleanup", "Over", "a finished job whose `ttlSecondsAfterFinished` have elapsed",
        |view| view.was_finished() && view.kept_until().is_some_and(|end| end <= view.observation.now)),
    row("cleanup", "ReleaseForQueue", "an instance that ended before its job releases a partition for a queued instance",
        |view| !view.was_finished() && !view.observation.deleted && view.ended_instances().any(|facts| view.releases_for_queue(facts))),
    row("deadline", "Unlimited", "an active job has no limit or has not started",
        |view| view.is_active() && view.time_limit().is_none()),
    row("deadline", "Until", "an active job is within its limit, and `requeueAfter` ends by then",
        |view| view.is_active() && view.time_limit().is_some_and(|end| view.wakes_by(end) && end > view.observation.now)),
    row("deadline", "Exceeded", "reason `DeadlineExceeded`, and an instance has ended with code 124",
        |view| view.has_reason("DeadlineExceeded") && view.changed_instances().any(|(_, now)| now.outcome == Some(InstanceOutcome::Failed(124)))),
    row("finalize", "AwaitProcesses", "reason `StoppingProcesses`",
        |view| view.has_reason("StoppingProcesses")),
    row("finalize", "Release", "effect `ReleasePartition`",
        |view| view.has_effect(|effect| matches!(effect, Effect::ReleasePartition { .. }))),
    row("finalize", "AwaitRelease", "reason `ReleasingPartition` without effect `ReleasePartition`",
        |view| view.has_reason("ReleasingPartition") && !view.has_effect(|effect| matches!(effect, Effect::ReleasePartition { .. }))),
    row("finalize", "Done", "effect `Finalize`",
        |view| view.has_effect(|effect| *effect == Effect::Finalize)),
    row("first_failure", "Worker", "`firstFailure` is new and names a worker",
        |view| matches!(view.new_failed_component(), Some(FailedComponent::Worker { .. }))),
    row("first_failure", "Launcher", "`firstFailure` is new and names the launcher",
        |view| view.new_failed_component() == Some(FailedComponent::Launcher)),
    row("first_failure", "Partition", "`firstFailure` is new and names the partition",
        |view| view.new_failed_component() == Some(FailedComponent::Partition)),
    row("first_failure", "Several", "`firstFailure` is new, and more than one process of its attempt has ended",
        |view| view.new_failed_component().is_some() && view.ended_process_count() > 1),
    row("interactive", "NotStarted", "the launcher of an instance with `ttl` has not run; the instance is active",
        |view| view.session().is_some() && view.open_instances().any(|now| now.launched.is_none())),
    row("interactive", "Open", "the launcher of an instance with `ttl` has run for less; the instance is active",
        |view| view.session().is_some() && view.open_instances().any(|now| now.launched.is_some())),
    row("interactive", "Over", "reason `SessionOver`",
        |view| view.has_reason("SessionOver")),
    row("orphan", "Belongs", "a process of an instance that runs is not stopped",
        |view| view.running_processes().any(|(facts, process)| !view.is_stopped(facts, process))),
    row("orphan", "Stop", "a process of an instance that is neither surplus nor finished nor suspended is stopped",
        |view| view.running_processes().any(|(facts, process)| view.is_stopped(facts, process))),
    row("preempt", "Keep", "no instance has a demand for its partition",
        |view| view.is_active() && view.observation.instances.iter().all(|facts| facts.preempted.is_none())),
    row("preempt", "Requeue", "reason `Preempted`",
        |view| view.has_reason("Preempted")),
    row("preempt", "ReleaseKept", "an ended instance releases its partition because of a demand",
        |view| view.ended_instances().any(|facts| facts.preempted.is_some() && view.is_reduced(facts.index))),
    row("request", "Request", "effect `EnsurePartition` for an instance without a partition",
        |view| view.has_effect(|effect| matches!(effect, Effect::EnsurePartition { instance, .. } if view.has_no_partition(*instance)))),
    row("request", "Wait", "reason `NotRequested`",
        |view| view.has_reason("NotRequested")),
    row("reset", "Request", "effect `EnsurePartition`",
        |view| view.has_effect(|effect| matches!(effect, Effect::EnsurePartition { .. }))),
    row("reset", "Reset", "effect `ResetPartition`",
        |view| view.has_effect(|effect| matches!(effect, Effect::ResetPartition { .. }))),
    row("reset", "Use", "effect `StartWorker` or `StartLauncher`",
        |view| view.has_effect(|effect| matches!(effect, Effect::StartWorker { .. } | Effect::StartLauncher { .. }))),
    row("reset", "Wait", "reason `PreparingPartition` for an instance without a new partition request",
        |view| view.waits_for_partition()),
    row("reset", "Release", "reason `PartitionFailed`",
        |view| view.has_reason("PartitionFailed")),
    row("reset", "FailAttempt", "`firstFailure` is new and names the partition",
        |view| view.new_failed_component() == Some(FailedComponent::Partition)),
    row("reset", "RestartAttempt", "an attempt is closed for reason `WorkerGone` or `LauncherGone`",
        |view| (view.has_reason("WorkerGone") || view.has_reason("LauncherGone")) && view.changed_instances().any(|(before, now)| now.attempt > before.attempt)),
    row("restart", "Done", "an instance has ended with outcome `succeeded`",
        |view| view.changed_instances().any(|(_, now)| now.outcome == Some(InstanceOutcome::Succeeded))),
    row("restart", "RestartAfterSuccess", "reason `RestartAfterSuccess`",
        |view| view.has_reason("RestartAfterSuccess")),
    row("restart", "RestartAfterFailure", "reason `RestartAfterFailure`",
        |view| view.has_reason("RestartAfterFailure")),
    row("restart", "GiveUp", "one of the next three",
        |view| ["NeverRestarted", "PermanentFailure", "BackOffLimitReached"].iter().any(|code| view.has_reason(code))),
    row("restart", "Policy", "reason `NeverRestarted`",
        |view| view.has_reason("NeverRestarted")),
    row("restart", "Permanent", "reason `PermanentFailure`",
        |view| view.has_reason("PermanentFailure")),
    row("restart", "LimitReached", "reason `BackOffLimitReached`",
        |view| view.has_reason("BackOffLimitReached")),
    row("scale", "Keep", "an instance of the job is in its status",
        |view| view.plan.status.instances.iter().any(|now| now.index < view.job.instances())),
    row("scale", "Remove", "an instance that the job does not have is in its status",
        |view| view.plan.status.instances.iter().any(|now| now.index >= view.job.instances())),
    row("start_deadline", "Met", "`runningSince` is new",
        |view| view.open_instances().any(|now| now.running_since == Some(view.observation.now))),
    row("start_deadline", "Open", "reason `StartingWorkers`, and `requeueAfter` is set",
        |view| view.is_active() && view.has_reason("StartingWorkers") && view.plan.requeue_after.is_some()),
    row("start_deadline", "Missed", "an attempt is closed for reason `WorkersUnschedulable` or `LauncherUnschedulable`",
        |view| (view.has_reason("WorkersUnschedulable") || view.has_reason("LauncherUnschedulable")) && view.changed_instances().any(|(before, now)| now.unused_releases > before.unused_releases)),
    row("suspend", "Continue", "an active job is neither suspended nor finished",
        |view| view.is_active()),
    row("suspend", "ReleaseAll", "phase `Suspended`",
        |view| view.plan.status.phase == ipu_core::JobPhase::Suspended),
    row("suspend", "Finished", "a finished job stays finished, suspended or not",
        |view| view.was_finished() && view.plan.status.phase.is_finished()),
];

/// A plan with its job and observation.
struct PlanView<'a> {
    job: &'a JobSpec,
    observation: &'a Observation,
    plan: &'a Plan,
}

impl<'a> PlanView<'a> {
    fn has_reason(&self, code: &str) -> bool {
        self.plan.reasons.iter().any(|reason| reason.code == code)
    }

    fn has_effect(&self, predicate: impl Fn(&Effect) -> bool) -> bool {
        self.plan.effects.iter().any(predicate)
    }

    /// Returns whether the job had already finished.
    fn was_finished(&self) -> bool {
        !self.observation.deleted && self.observation.status.phase.is_finished()
    }

    /// Returns whether the job should run and is not finished.
    fn is_active(&self) -> bool {
        !self.observation.deleted && !self.job.suspend() && !self.plan.status.phase.is_finished()
    }

    /// Returns the changed instance statuses of the job, each before and after.
    fn changed_instances(&self) -> impl Iterator<Item = (InstanceStatus, &'a InstanceStatus)> {
        let all = self.plan.status.instances.iter();
        let wanted = all.filter(|now| now.index < self.job.instances());
        let before = |now: &InstanceStatus| {
            let mut status = self.observation.status.instances.iter();
            let status = status.rfind(|status| status.index == now.index);
            status.cloned().unwrap_or_else(|| InstanceStatus::new(now.index))
        };
        let pairs = wanted.map(move |now| (before(now), now));
        pairs.filter(|(before, now)| before != *now)
    }

    /// Returns the back-off of each attempt that was closed.
    fn back_offs(&self) -> impl Iterator<Item = Duration> {
        let closed = self
            .changed_instances()
            .filter(|(before, now)| now.attempt > before.attempt);
        closed.filter_map(|(_, now)| Some(now.retry_at?.since(self.observation.now)))
    }

    /// Returns the unfinished instances that should run.
    fn open_instances(&self) -> impl Iterator<Item = &'a InstanceStatus> {
        let all = self.plan.status.instances.iter().filter(|_| self.is_active());
        all.filter(|now| now.index < self.job.instances() && now.outcome.is_none())
    }

    /// Returns facts about instances that had ended.
    fn ended_instances(&self) -> impl Iterator<Item = &'a InstanceFacts> {
        self.observation.instances.iter().filter(|facts| {
            let status = self.observation.status.instance(facts.index);
            facts.index < self.job.instances() && status.is_some_and(|status| status.outcome.is_some())
        })
    }

    fn holds(&self, facts: &InstanceFacts) -> bool {
        let partition = !matches!(
            facts.partition,
            PartitionFacts::Absent | PartitionFacts::Waiting { .. }
        );
        partition || facts.launcher.is_some() || !facts.workers.is_empty()
    }

    fn has_no_partition(&self, of: u32) -> bool {
        let mut own = self
            .observation
            .instances
            .iter()
            .filter(|facts| facts.index == of);
        own.all(|facts| facts.partition == PartitionFacts::Absent)
    }

    /// Returns whether the plan stops or releases anything of an instance.
    fn is_reduced(&self, of: u32) -> bool {
        self.has_effect(|effect| {
            matches!(effect, Effect::StopWorker { instance, .. } | Effect::StopLauncher { instance, .. }
                | Effect::ReleasePartition { instance, .. } if *instance == of)
        })
    }

    /// Returns whether an instance that could keep its partition releases it.
    fn releases_for_queue(&self, facts: &InstanceFacts) -> bool {
        let status = self.observation.status.instance(facts.index);
        let may_keep = status.is_some_and(|status| status.outcome != Some(InstanceOutcome::SessionOver));
        let granted = matches!(facts.partition, PartitionFacts::Active { .. });
        may_keep && granted && !self.job.suspend() && self.is_reduced(facts.index)
    }

    fn kept_until(&self) -> Option<Timestamp> {
        let ttl = self.job.ttl_after_finished()?;
        Some(self.observation.status.finished?.plus(ttl))
    }

    fn time_limit(&self) -> Option<Timestamp> {
        let limit = self.job.max_runtime()?;
        Some(self.plan.status.started?.plus(limit))
    }

    fn wakes_by(&self, moment: Timestamp) -> bool {
        let wake = self.plan.requeue_after;
        wake.is_some_and(|wake| self.observation.now.plus(wake) <= moment)
    }

    /// Returns the component of a new first failure.
    fn new_failed_component(&self) -> Option<FailedComponent> {
        let now = self.plan.status.first_failure.as_ref();
        let new = now.filter(|_| now != self.observation.status.first_failure.as_ref());
        new.map(|failure| failure.component)
    }

    /// Returns the number of ended processes of the failed attempt.
    fn ended_process_count(&self) -> usize {
        let Some(failure) = &self.plan.status.first_failure else {
            return 0;
        };
        let own = self
            .observation
            .instances
            .iter()
            .filter(|facts| facts.index == failure.instance);
        let processes = own.flat_map(|facts| facts.workers.iter().chain(&facts.launcher));
        let ended_instances = processes.filter(|process| {
            let ended_instances = matches!(
                process.phase,
                ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }
            );
            ended_instances && process.attempt == failure.attempt
        });
        ended_instances.count()
    }

    fn session(&self) -> Option<Duration> {
        match self.job.shape() {
            JobKind::Interactive { ttl } => Some(*ttl),
            _ => None,
        }
    }

    /// Returns the processes of instances that the job wants to run.
    fn running_processes(&self) -> impl Iterator<Item = (&'a InstanceFacts, &'a ProcessFacts)> {
        let wanted = |facts: &&InstanceFacts| {
            let status = self.observation.status.instance(facts.index);
            let runs = status.is_none_or(|status| status.outcome != Some(InstanceOutcome::SessionOver));
            self.is_active() && facts.index < self.job.instances() && runs
        };
        let instances = self.observation.instances.iter().filter(wanted);
        instances.flat_map(|facts| {
            let all = facts.workers.iter().chain(&facts.launcher);
            all.map(move |process| (facts, process))
        })
    }

    fn is_stopped(&self, facts: &InstanceFacts, process: &ProcessFacts) -> bool {
        self.has_effect(|effect| match effect {
            Effect::StopWorker {
                instance,
                worker,
                attempt,
            } => (*instance, *worker, *attempt) == (facts.index, process.index, process.attempt),
            Effect::StopLauncher { instance, attempt } => {
                (*instance, *attempt) == (facts.index, process.attempt)
                    && facts.launcher.as_ref() == Some(process)
            }
            _ => false,
        })
    }

    fn waits_for_partition(&self) -> bool {
        let prepares = |index: u32| {
            self.plan.reasons.iter().any(|reason| {
                let own = reason.numbers.get("instance") == Some(&u64::from(index));
                reason.code == "PreparingPartition" && own
            })
        };
        let requests = |index: u32| {
            self.has_effect(|effect| {
                matches!(effect, Effect::EnsurePartition { instance, .. } | Effect::ResetPartition { instance, .. }
                    if *instance == index)
            })
        };
        let mut indices = self.observation.instances.iter().map(|facts| facts.index);
        indices.any(|index| prepares(index) && !requests(index))
    }
}
