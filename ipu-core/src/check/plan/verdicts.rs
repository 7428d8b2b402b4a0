//! Invariants of the verdicts: who ended is judged by the tables, and nobody else is.

use alloc::vec::Vec;
use core::time::Duration;

use super::BrokenPlan;
use super::attempt_outcome::{End, Failure};
use super::facts::AttemptFacts;
use crate::Timestamp;
use crate::job::RestartPolicy;
use crate::plan::{FirstFailure, InstanceOutcome, InstanceStatus, Plan};

/// The exit code of a job that ran for too long, as documented.
const DEADLINE: u8 = 124;
/// The longest back-off, as documented; a job may ask for more.
const MAX_BACKOFF: Duration = Duration::from_secs(6 * 60);

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    if facts.seen.deleted || facts.is_finished() {
        return;
    }
    if plan.status.started != facts.started() {
        let what = "since when it runs is not since when its first process ran";
        broken.push(BrokenPlan::Status { what });
    }
    let mut pass = ReconcileFacts::default();
    let mut contradictions = false;
    for now in plan
        .status
        .instances
        .iter()
        .filter(|now| facts.is_open(now.index))
    {
        if facts.partitions(now.index).count() > 1 {
            // Facts that contradict one another: whichever is believed, the other checks hold.
            contradictions = true;
            continue;
        }
        let end = facts.end(now.index);
        if let Some(wrong) = check_one(facts, plan, now, &end, &mut pass) {
            broken.push(wrong);
        } else if let Some(wrong) = check_memory(facts, now, &end) {
            broken.push(wrong);
        }
    }
    if !contradictions {
        pass.check_counts(facts, plan, broken);
        pass.check_blame(facts, plan, broken);
    }
}

/// What happened to all instances in one pass.
#[derive(Default)]
struct ReconcileFacts {
    restarts_after_success: u32,
    /// When those start again that restart after failure.
    retries: Vec<Timestamp>,
    /// What may be blamed, by instance.
    failures: Vec<(u32, Vec<Failure>)>,
}

fn check_one(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    now: &InstanceStatus,
    end: &End,
    pass: &mut ReconcileFacts,
) -> Option<BrokenPlan> {
    let instance = now.index;
    let missing = |why| Some(BrokenPlan::NoVerdict { instance, why });
    let wrong = |what| Some(BrokenPlan::WrongVerdict { instance, what });
    let closed = now.attempt > facts.attempt(instance);
    let suspended = facts.job.suspend();
    // Who is out of time is ended, whatever else would have become of it; unless it ended so by itself, for good.
    let overdue = facts.is_overdue();
    let by_itself = match end {
        End::Badly(first) => first.iter().any(|failure| failure.code() == Some(DEADLINE)),
        End::None | End::SessionOver | End::NothingRuns | End::Torn | End::Well => false,
    };
    let outcome = match now.outcome {
        None if overdue => return missing("the job has run for longer than it may"),
        Some(InstanceOutcome::Failed(DEADLINE)) if overdue && (closed || !by_itself) => None,
        other => other,
    };
    match end {
        End::None if outcome.is_some() => return wrong("nothing of it has ended"),
        End::None if closed && !suspended => return wrong("its attempt goes on"),
        End::None => {}
        End::SessionOver if outcome.is_none() => return missing("the time of its session is over"),
        End::SessionOver if outcome != Some(InstanceOutcome::SessionOver) => {
            return wrong("its session is over");
        }
        End::SessionOver => {}
        End::NothingRuns if outcome.is_some() => return wrong("nothing could run on its partition"),
        End::NothingRuns if !closed => return missing("nothing can run on its partition"),
        End::NothingRuns => {}
        End::Torn if outcome.is_some() => return wrong("one of its processes is gone, which fails nobody"),
        End::Torn if !closed => return missing("one of its processes is gone"),
        End::Torn => {}
        End::Well if outcome.is_none() && !closed => return missing("everything of it ended well"),
        End::Well => {
            let again = matches!(facts.job.restart(), RestartPolicy::Always { .. });
            if again != outcome.is_none() || !matches!(outcome, None | Some(InstanceOutcome::Succeeded)) {
                return wrong("it ended well");
            }
            pass.restarts_after_success += u32::from(again);
        }
        End::Badly(_) if outcome.is_none() && !closed => return missing("its attempt has failed"),
        End::Badly(first) => {
            pass.failures.push((instance, first.clone()));
            if let Some(wrong) = check_failure(facts, plan, now, first, outcome) {
                return Some(wrong);
            }
            if outcome.is_none() {
                pass.retries.extend(now.retry_at);
            }
        }
    }
    None
}

fn check_failure(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    now: &InstanceStatus,
    first: &[Failure],
    outcome: Option<InstanceOutcome>,
) -> Option<BrokenPlan> {
    let instance = now.index;
    let wrong = |what| Some(BrokenPlan::WrongVerdict { instance, what });
    let retryable = |code: Option<u8>| match facts.job.restart() {
        RestartPolicy::Never => false,
        RestartPolicy::Always { .. } | RestartPolicy::OnFailure { .. } => true,
        RestartPolicy::ExitCode { retryable, .. } => code.is_none_or(|code| retryable.contains(code)),
    };
    let exhausted = plan.status.restarts_after_failure >= limit(facts);
    match outcome {
        None if !first.iter().any(|failure| retryable(failure.code())) => {
            wrong("it starts again after a failure that is not retryable")
        }
        None => None,
        Some(InstanceOutcome::Failed(code)) => {
            let judged = |failure: &&Failure| failure.code().unwrap_or(InstanceOutcome::LOST) == code;
            match first.iter().find(judged) {
                None => wrong("it failed with another code than that of its first failure"),
                Some(failure) if retryable(failure.code()) && !exhausted => {
                    wrong("it is given up while restarts are left")
                }
                Some(_) => None,
            }
        }
        Some(InstanceOutcome::Succeeded | InstanceOutcome::SessionOver) => wrong("its attempt has failed"),
    }
}

fn limit(facts: &AttemptFacts<'_>) -> u32 {
    match facts.job.restart() {
        RestartPolicy::Never => 0,
        RestartPolicy::Always { back_off_limit }
        | RestartPolicy::OnFailure { back_off_limit }
        | RestartPolicy::ExitCode { back_off_limit, .. } => *back_off_limit,
    }
}

/// What is remembered of an instance: the pause before its next attempt, and what its attempt has done.
fn check_memory(facts: &AttemptFacts<'_>, now: &InstanceStatus, end: &End) -> Option<BrokenPlan> {
    let instance = now.index;
    let before = facts.memory(instance);
    let base = facts.job.back_off();
    let wrong = |what| Some(BrokenPlan::WrongMemory { instance, what });
    if now.attempt > before.attempt {
        if facts.job.suspend() {
            return (now.retry_at.is_some() || now.unused_releases > 0)
                .then_some(())
                .and_then(|()| wrong("a suspended job backs off"));
        }
        // Points in time and not pauses are compared: at the end of time no pause is as long as is due.
        let after = |pause| Some(facts.seen.now.plus(pause));
        let (expected, given_back) = match end {
            End::Well => (after(base), 0),
            End::NothingRuns => (
                after(back_off(base, before.unused_releases)),
                before.unused_releases.saturating_add(1),
            ),
            // Which of those that failed together had which restart is all the same: the counts are checked together.
            End::Badly(_) => (now.retry_at, 0),
            End::None | End::SessionOver | End::Torn => (None, 0),
        };
        if now.retry_at != expected || (expected.is_none() && *end != End::Torn) {
            return wrong("its back-off is not the one that is due");
        }
        if now.unused_releases != given_back {
            return wrong("how often its partition was given back in a row");
        }
        if now.unused_release_reason.is_some() != (given_back > 0) {
            return wrong("why its partition was given back");
        }
        return None;
    }
    let lifted = now.running_since.is_some() || facts.job.suspend();
    if now.retry_at != before.retry_at && !(lifted && now.retry_at.is_none()) {
        return wrong("its back-off is not the one that is recorded");
    }
    let launched = now.launched.is_some() || !facts.has_launcher();
    let runs = launched && facts.are_all(&facts.ready(instance));
    if (now.unused_releases != before.unused_releases || runs)
        && !((runs || facts.job.suspend()) && now.unused_releases == 0)
    {
        return wrong("how often its partition was given back in a row");
    }
    let known = before
        .unused_release_reason
        .as_ref()
        .filter(|_| now.unused_releases > 0);
    if now.unused_release_reason.as_ref() != known {
        return wrong("why its partition was given back");
    }
    if now.launched != facts.launched(instance) {
        return wrong("since when its launcher runs");
    }
    if !now.done.iter().copied().eq(facts.done(instance)) {
        return wrong("which of its workers are done");
    }
    let run = facts.are_all(&facts.ready(instance));
    let running_since = before.running_since.or(run.then_some(facts.seen.now));
    (now.running_since != running_since)
        .then_some(())
        .and_then(|()| wrong("since when its workers run"))
}

/// The pause after so many earlier ones: it doubles each time.
fn back_off(base: Duration, used: u32) -> Duration {
    let longest = if base > MAX_BACKOFF { base } else { MAX_BACKOFF };
    let mut pause = base;
    for _ in 0..used {
        if pause.is_zero() || pause >= longest {
            break;
        }
        pause *= 2;
    }
    pause.min(longest)
}

impl ReconcileFacts {
    fn check_counts(&mut self, facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
        let (before, now) = (&facts.seen.status, &plan.status);
        let used = now
            .restarts_after_failure
            .saturating_sub(before.restarts_after_failure);
        let all = now.restarts.saturating_sub(before.restarts);
        if facts.job.suspend() {
            // Who is suspended in the same pass forgets its pause, not that it restarted.
            return;
        }
        let restarted = u32::try_from(self.retries.len()).unwrap_or(u32::MAX);
        if used != restarted || all != restarted.saturating_add(self.restarts_after_success) {
            let what = "its restarts are not how many instances restart";
            broken.push(BrokenPlan::Status { what });
            return;
        }
        let first = before.restarts_after_failure;
        let due = (0..used).map(|more| {
            let pause = back_off(facts.job.back_off(), first.saturating_add(more));
            facts.seen.now.plus(pause)
        });
        self.retries.sort_unstable();
        if !due.eq(self.retries.iter().copied()) {
            let what = "those that restart do not pause as long as is due";
            broken.push(BrokenPlan::Status { what });
        }
    }

    fn check_blame(&self, facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
        let now = plan.status.first_failure.as_ref();
        if self.failures.is_empty() {
            if now != facts.seen.status.first_failure.as_ref() {
                let what = "something is blamed although nothing failed";
                broken.push(BrokenPlan::WrongBlame { what });
            }
            return;
        }
        let blamed = |failure: &FirstFailure| {
            let own = self
                .failures
                .iter()
                .find(|(instance, _)| *instance == failure.instance);
            let known = own.is_some_and(|(_, first)| {
                first
                    .iter()
                    .any(|one| (one.culprit, one.exit, one.at) == (failure.culprit, failure.exit, failure.at))
            });
            let earliest = self.failures.iter().all(|(instance, first)| {
                first
                    .iter()
                    .all(|one| (failure.at, failure.instance) <= (one.at, *instance))
            });
            known && earliest && failure.attempt == facts.attempt(failure.instance)
        };
        if !now.is_some_and(blamed) {
            let what = "it is not the earliest, or it followed from another";
            broken.push(BrokenPlan::WrongBlame { what });
        }
    }
}
