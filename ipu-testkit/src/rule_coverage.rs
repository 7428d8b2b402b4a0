//! Which rules a plan followed, told from what one can see of it: the coverage of the rules by somebody's tests.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ipu_core::{
    Effect, FailedComponent, InstanceFacts, InstanceOutcome, InstanceStatus, JobKind, JobSpec, Observation,
    PartitionFacts, Plan, ProcessFacts, ProcessPhase, Timestamp,
};

/// One verdict of one rule of `docs/rules.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RuleVerdict {
    /// The rule, by its file in `ipu-core/src/rules`.
    pub rule: &'static str,
    /// The verdict, as the rule names it; for a rule that answers a value, a case of its table.
    pub verdict: &'static str,
}

impl fmt::Display for RuleVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.verdict)
    }
}

/// Every verdict of every rule, with a sentence on what shows that it was reached.
pub fn rule_verdicts() -> impl Iterator<Item = (RuleVerdict, &'static str)> {
    ROWS.iter().map(|row| (row.verdict(), row.shown_by))
}

/// The verdicts that `plan`, the answer to `seen` of `job`, shows to have been reached. A verdict that changes nothing that
/// one could see is not among them: the rules may have been asked more than this tells, never less.
///
/// ```
/// use ipu_core::plan;
/// use ipu_testkit::{JobWorld, rules_reached};
///
/// let world = JobWorld::new(["workers=1"])?;
/// let reached = rules_reached(&world.job, &world.seen, &plan(&world.job, &world.seen));
/// assert!(reached.iter().any(|verdict| verdict.to_string() == "reset: Ask"));
/// # Ok::<(), String>(())
/// ```
#[must_use]
pub fn rules_reached(job: &JobSpec, seen: &Observation, plan: &Plan) -> BTreeSet<RuleVerdict> {
    let look = PlanView { job, seen, plan };
    let reached = ROWS.iter().filter(|row| (row.reached)(&look));
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

/// The longest back-off, as documented.
const MAX_BACKOFF: Duration = Duration::from_secs(360);

#[rustfmt::skip]
const ROWS: [RuleRow; 49] = [
    row("backoff", "First", "an attempt is closed, `retryAt` is `backOffSeconds` away",
        |look| look.pauses().any(|pause| pause == look.job.back_off())),
    row("backoff", "Doubled", "an attempt is closed, `retryAt` is further away",
        |look| look.pauses().any(|pause| pause > look.job.back_off() && pause < MAX_BACKOFF)),
    row("backoff", "Longest", "an attempt is closed, `retryAt` is six minutes away",
        |look| look.pauses().any(|pause| pause > look.job.back_off() && pause == MAX_BACKOFF)),
    row("cleanup", "Keep", "an instance of a finished job has a partition or process that nothing ends",
        |look| look.is_over() && look.ended().any(|facts| look.holds(facts) && !look.is_reduced(facts.index))),
    row("cleanup", "Remove", "a process or partition of an instance of a finished job is ended",
        |look| look.is_over() && look.ended().any(|facts| look.is_reduced(facts.index))),
    row("cleanup", "UntilDeleted", "a finished job without `ttlSecondsAfterFinished` holds something",
        |look| look.is_over() && look.kept_until().is_none() && look.ended().any(|facts| look.holds(facts))),
    row("cleanup", "Until", "a finished job holds something, its `ttlSecondsAfterFinished` are not over, `wake` is set",
        |look| look.is_over() && look.kept_until().is_some_and(|end| end > look.seen.now) && look.plan.requeue_after.is_some()),
    row("cleanup", "Over", "a finished job whose `ttlSecondsAfterFinished` are over",
        |look| look.is_over() && look.kept_until().is_some_and(|end| end <= look.seen.now)),
    row("cleanup", "MakesRoom", "an instance that has ended before its job gives back a partition that another one waits for",
        |look| !look.is_over() && !look.seen.deleted && look.ended().any(|facts| look.makes_room(facts))),
    row("deadline", "Unlimited", "a job without limit, or that has not begun, goes on",
        |look| look.goes_on() && look.time_limit().is_none()),
    row("deadline", "Until", "a job goes on within its limit, and `wake` is not after it",
        |look| look.goes_on() && look.time_limit().is_some_and(|end| look.wakes_by(end) && end > look.seen.now)),
    row("deadline", "Exceeded", "reason `DeadlineExceeded`, and an instance has ended with code 124",
        |look| look.says("DeadlineExceeded") && look.news().any(|(_, now)| now.outcome == Some(InstanceOutcome::Failed(124)))),
    row("finalize", "AwaitProcesses", "reason `StoppingProcesses`",
        |look| look.says("StoppingProcesses")),
    row("finalize", "Release", "effect `ReleasePartition`",
        |look| look.does(|effect| matches!(effect, Effect::ReleasePartition { .. }))),
    row("finalize", "AwaitRelease", "reason `ReleasingPartition` without effect `ReleasePartition`",
        |look| look.says("ReleasingPartition") && !look.does(|effect| matches!(effect, Effect::ReleasePartition { .. }))),
    row("finalize", "Gone", "effect `Finalize`",
        |look| look.does(|effect| *effect == Effect::Finalize)),
    row("first_failure", "Worker", "`firstFailure` is new and names a worker",
        |look| matches!(look.blamed(), Some(FailedComponent::Worker { .. }))),
    row("first_failure", "Launcher", "`firstFailure` is new and names the launcher",
        |look| look.blamed() == Some(FailedComponent::Launcher)),
    row("first_failure", "Partition", "`firstFailure` is new and names the partition",
        |look| look.blamed() == Some(FailedComponent::Partition)),
    row("first_failure", "Several", "`firstFailure` is new, and more than one process of its attempt has ended",
        |look| look.blamed().is_some() && look.cascade() > 1),
    row("interactive", "NotBegun", "the launcher of an instance with `ttl` has not run, the instance goes on",
        |look| look.session().is_some() && look.open().any(|now| now.launched.is_none())),
    row("interactive", "Open", "the launcher of an instance with `ttl` has run for less, the instance goes on",
        |look| look.session().is_some() && look.open().any(|now| now.launched.is_some())),
    row("interactive", "Over", "reason `SessionOver`",
        |look| look.says("SessionOver")),
    row("orphan", "Belongs", "a process of an instance that runs is not stopped",
        |look| look.running().any(|(facts, process)| !look.is_stopped(facts, process))),
    row("orphan", "Stop", "a process of an instance that is neither surplus nor finished nor suspended is stopped",
        |look| look.running().any(|(facts, process)| look.is_stopped(facts, process))),
    row("request", "Request", "effect `EnsurePartition` for an instance without a partition",
        |look| look.does(|effect| matches!(effect, Effect::EnsurePartition { instance, .. } if look.has_no_partition(*instance)))),
    row("request", "Wait", "reason `NotRequested`",
        |look| look.says("NotRequested")),
    row("reset", "Ask", "effect `EnsurePartition`",
        |look| look.does(|effect| matches!(effect, Effect::EnsurePartition { .. }))),
    row("reset", "Reset", "effect `ResetPartition`",
        |look| look.does(|effect| matches!(effect, Effect::ResetPartition { .. }))),
    row("reset", "Use", "effect `StartWorker` or `StartLauncher`",
        |look| look.does(|effect| matches!(effect, Effect::StartWorker { .. } | Effect::StartLauncher { .. }))),
    row("reset", "Wait", "reason `PreparingPartition` for an instance whose partition is not asked for",
        |look| look.waits_for_a_partition()),
    row("reset", "GiveBack", "reason `PartitionFailed`",
        |look| look.says("PartitionFailed")),
    row("reset", "FailAttempt", "`firstFailure` is new and names the partition",
        |look| look.blamed() == Some(FailedComponent::Partition)),
    row("reset", "BeginAnew", "an attempt is closed for reason `WorkerGone` or `LauncherGone`",
        |look| (look.says("WorkerGone") || look.says("LauncherGone")) && look.news().any(|(before, now)| now.attempt > before.attempt)),
    row("restart", "Done", "an instance has ended with outcome `succeeded`",
        |look| look.news().any(|(_, now)| now.outcome == Some(InstanceOutcome::Succeeded))),
    row("restart", "RestartAfterSuccess", "reason `RestartAfterSuccess`",
        |look| look.says("RestartAfterSuccess")),
    row("restart", "RestartAfterFailure", "reason `RestartAfterFailure`",
        |look| look.says("RestartAfterFailure")),
    row("restart", "GiveUp", "one of the next three",
        |look| ["NeverRestarted", "PermanentFailure", "BackOffLimitReached"].iter().any(|code| look.says(code))),
    row("restart", "Policy", "reason `NeverRestarted`",
        |look| look.says("NeverRestarted")),
    row("restart", "Permanent", "reason `PermanentFailure`",
        |look| look.says("PermanentFailure")),
    row("restart", "LimitReached", "reason `BackOffLimitReached`",
        |look| look.says("BackOffLimitReached")),
    row("scale", "Keep", "an instance of the job is in its status",
        |look| look.plan.status.instances.iter().any(|now| now.index < look.job.instances())),
    row("scale", "Remove", "an instance that the job does not have is in its status",
        |look| look.plan.status.instances.iter().any(|now| now.index >= look.job.instances())),
    row("start_deadline", "Met", "`runningSince` is new",
        |look| look.open().any(|now| now.running_since == Some(look.seen.now))),
    row("start_deadline", "Open", "reason `StartingWorkers`, and `wake` is set",
        |look| look.goes_on() && look.says("StartingWorkers") && look.plan.requeue_after.is_some()),
    row("start_deadline", "Missed", "an attempt is closed for reason `WorkersUnschedulable` or `LauncherUnschedulable`",
        |look| (look.says("WorkersUnschedulable") || look.says("LauncherUnschedulable")) && look.news().any(|(before, now)| now.unused_releases > before.unused_releases)),
    row("suspend", "GoOn", "a job that is neither asked to suspend nor finished goes on",
        |look| look.goes_on()),
    row("suspend", "HoldNothing", "phase `Suspended`",
        |look| look.plan.status.phase == ipu_core::JobPhase::Suspended),
    row("suspend", "Finished", "a finished job stays finished, asked to suspend or not",
        |look| look.is_over() && look.plan.status.phase.is_finished()),
];

/// A plan and what it answers.
struct PlanView<'a> {
    job: &'a JobSpec,
    seen: &'a Observation,
    plan: &'a Plan,
}

impl<'a> PlanView<'a> {
    fn says(&self, code: &str) -> bool {
        self.plan.reasons.iter().any(|reason| reason.code == code)
    }

    fn does(&self, what: impl Fn(&Effect) -> bool) -> bool {
        self.plan.effects.iter().any(what)
    }

    /// Whether the job had finished before.
    fn is_over(&self) -> bool {
        !self.seen.deleted && self.seen.status.phase.is_finished()
    }

    /// Whether the job is to run, and is not over yet.
    fn goes_on(&self) -> bool {
        !self.seen.deleted && !self.job.suspend() && !self.plan.status.phase.is_finished()
    }

    /// What is recorded of instances of the job, before and now, where that changed.
    fn news(&self) -> impl Iterator<Item = (InstanceStatus, &'a InstanceStatus)> {
        let all = self.plan.status.instances.iter();
        let wanted = all.filter(|now| now.index < self.job.instances());
        let before = |now: &InstanceStatus| {
            let mut known = self.seen.status.instances.iter();
            let known = known.rfind(|known| known.index == now.index);
            known.cloned().unwrap_or_else(|| InstanceStatus::new(now.index))
        };
        let pairs = wanted.map(move |now| (before(now), now));
        pairs.filter(|(before, now)| before != *now)
    }

    /// How long those wait whose attempt was closed.
    fn pauses(&self) -> impl Iterator<Item = Duration> {
        let closed = self.news().filter(|(before, now)| now.attempt > before.attempt);
        closed.filter_map(|(_, now)| Some(now.retry_at?.since(self.seen.now)))
    }

    /// The instances that are to run, and go on.
    fn open(&self) -> impl Iterator<Item = &'a InstanceStatus> {
        let all = self.plan.status.instances.iter().filter(|_| self.goes_on());
        all.filter(|now| now.index < self.job.instances() && now.outcome.is_none())
    }

    /// What exists of instances that had ended.
    fn ended(&self) -> impl Iterator<Item = &'a InstanceFacts> {
        self.seen.instances.iter().filter(|facts| {
            let known = self.seen.status.instance(facts.index);
            facts.index < self.job.instances() && known.is_some_and(|known| known.outcome.is_some())
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
        let mut own = self.seen.instances.iter().filter(|facts| facts.index == of);
        own.all(|facts| facts.partition == PartitionFacts::Absent)
    }

    /// Whether anything is taken away from an instance.
    fn is_reduced(&self, of: u32) -> bool {
        self.does(|effect| {
            matches!(effect, Effect::StopWorker { instance, .. } | Effect::StopLauncher { instance, .. }
                | Effect::ReleasePartition { instance, .. } if *instance == of)
        })
    }

    /// Whether an instance that could have kept its partition gives it back.
    fn makes_room(&self, facts: &InstanceFacts) -> bool {
        let known = self.seen.status.instance(facts.index);
        let keeps = known.is_some_and(|known| known.outcome != Some(InstanceOutcome::SessionOver));
        let granted = matches!(facts.partition, PartitionFacts::Active { .. });
        keeps && granted && !self.job.suspend() && self.is_reduced(facts.index)
    }

    fn kept_until(&self) -> Option<Timestamp> {
        let ttl = self.job.ttl_after_finished()?;
        Some(self.seen.status.finished?.plus(ttl))
    }

    fn time_limit(&self) -> Option<Timestamp> {
        let limit = self.job.max_runtime()?;
        Some(self.plan.status.started?.plus(limit))
    }

    fn wakes_by(&self, moment: Timestamp) -> bool {
        let wake = self.plan.requeue_after;
        wake.is_some_and(|wake| self.seen.now.plus(wake) <= moment)
    }

    /// Who is blamed for a failure that is new.
    fn blamed(&self) -> Option<FailedComponent> {
        let now = self.plan.status.first_failure.as_ref();
        let new = now.filter(|_| now != self.seen.status.first_failure.as_ref());
        new.map(|failure| failure.culprit)
    }

    /// How many processes of the attempt that failed have ended.
    fn cascade(&self) -> usize {
        let Some(failure) = &self.plan.status.first_failure else {
            return 0;
        };
        let own = self
            .seen
            .instances
            .iter()
            .filter(|facts| facts.index == failure.instance);
        let processes = own.flat_map(|facts| facts.workers.iter().chain(&facts.launcher));
        let ended = processes.filter(|process| {
            let ended = matches!(
                process.phase,
                ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }
            );
            ended && process.attempt == failure.attempt
        });
        ended.count()
    }

    fn session(&self) -> Option<Duration> {
        match self.job.shape() {
            JobKind::Interactive { ttl } => Some(*ttl),
            _ => None,
        }
    }

    /// The processes of instances that the job wants to run.
    fn running(&self) -> impl Iterator<Item = (&'a InstanceFacts, &'a ProcessFacts)> {
        let wanted = |facts: &&InstanceFacts| {
            let known = self.seen.status.instance(facts.index);
            let runs = known.is_none_or(|known| known.outcome != Some(InstanceOutcome::SessionOver));
            self.goes_on() && facts.index < self.job.instances() && runs
        };
        let instances = self.seen.instances.iter().filter(wanted);
        instances.flat_map(|facts| {
            let all = facts.workers.iter().chain(&facts.launcher);
            all.map(move |process| (facts, process))
        })
    }

    fn is_stopped(&self, facts: &InstanceFacts, process: &ProcessFacts) -> bool {
        self.does(|effect| match effect {
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

    fn waits_for_a_partition(&self) -> bool {
        let prepares = |index: u32| {
            self.plan.reasons.iter().any(|reason| {
                let own = reason.numbers.get("instance") == Some(&u64::from(index));
                reason.code == "PreparingPartition" && own
            })
        };
        let asks = |index: u32| {
            self.does(|effect| {
                matches!(effect, Effect::EnsurePartition { instance, .. } | Effect::ResetPartition { instance, .. }
                    if *instance == index)
            })
        };
        let mut indices = self.seen.instances.iter().map(|facts| facts.index);
        indices.any(|index| prepares(index) && !asks(index))
    }
}
