//! Invariants of the verdicts: exactly the instances that ended have a verdict, as in the documented tables.

use alloc::vec::Vec;
use core::time::Duration;

use super::BrokenPlan;
use super::attempt_outcome::{AttemptOutcome, Failure};
use super::facts::AttemptFacts;
use crate::Timestamp;
use crate::job::RestartPolicy;
use crate::job::plan::Plan;
use crate::job::status::{FirstFailure, InstanceOutcome, InstanceStatus};

/// The documented exit code of a job that exceeded its deadline.
const DEADLINE_EXIT_CODE: u8 = 124;
/// The documented maximum back-off; a job may set a longer one.
const MAX_BACKOFF: Duration = Duration::from_secs(6 * 60);

pub(super) fn check(facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
    if facts.observation.deleted || facts.is_finished() {
        return;
    }
    if plan.status.started != facts.started() {
        let detail = "its start time is not that of its first process";
        broken.push(BrokenPlan::Status { detail });
    }
    let mut events = ReconcileFacts::default();
    let mut is_ambiguous = false;
    for now in plan
        .status
        .instances
        .iter()
        .filter(|now| facts.is_open(now.index))
    {
        if facts.partitions(now.index).count() > 1 {
            // The facts are ambiguous. The other checks hold under either interpretation.
            is_ambiguous = true;
            continue;
        }
        let attempt_outcome = facts.attempt_outcome(now.index);
        if let Some(wrong) = check_one(facts, plan, now, &attempt_outcome, &mut events) {
            broken.push(wrong);
        } else if let Some(wrong) = check_instance_status(facts, now, &attempt_outcome) {
            broken.push(wrong);
        }
    }
    if !is_ambiguous {
        events.check_counts(facts, plan, broken);
        events.check_first_failure(facts, plan, broken);
    }
}

/// The events of all instances in one reconciliation.
#[derive(Default)]
struct ReconcileFacts {
    restarts_after_success: u32,
    /// The number of attempts that are closed by a preemption.
    preempted: u32,
    /// The retry times of the instances that restart after failure.
    retries: Vec<Timestamp>,
    /// The first-failure candidates by instance.
    failures: Vec<(u32, Vec<Failure>)>,
}

fn check_one(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    now: &InstanceStatus,
    attempt_outcome: &AttemptOutcome,
    events: &mut ReconcileFacts,
) -> Option<BrokenPlan> {
    let instance = now.index;
    let missing = |cause| Some(BrokenPlan::NoVerdict { instance, cause });
    let wrong = |detail| Some(BrokenPlan::WrongVerdict { instance, detail });
    let closed = now.attempt > facts.attempt(instance);
    let paused = facts.job.suspend() || facts.is_preempted(instance);
    // The deadline ends an instance in any state, unless it failed permanently with the same code before.
    let overdue = facts.is_overdue();
    let failed_itself = match attempt_outcome {
        AttemptOutcome::Failed(candidates) => candidates
            .iter()
            .any(|failure| failure.failure_code() == Some(DEADLINE_EXIT_CODE)),
        AttemptOutcome::Ongoing
        | AttemptOutcome::SessionOver
        | AttemptOutcome::NeverStarted
        | AttemptOutcome::ProcessMissing
        | AttemptOutcome::Succeeded => false,
    };
    let outcome = match now.outcome {
        None if overdue => return missing("the job has exceeded its deadline"),
        Some(InstanceOutcome::Failed(DEADLINE_EXIT_CODE)) if overdue && (closed || !failed_itself) => None,
        other => other,
    };
    match attempt_outcome {
        AttemptOutcome::Ongoing if outcome.is_some() => return wrong("its attempt has not ended"),
        AttemptOutcome::Ongoing if closed && !paused => return wrong("its attempt continues"),
        AttemptOutcome::Ongoing
            if facts.is_preempted(instance) && facts.holds_attempt(instance) && !closed =>
        {
            return missing("its partition is preempted");
        }
        AttemptOutcome::Ongoing => events.preempted += u32::from(closed && facts.is_preempted(instance)),
        AttemptOutcome::SessionOver if outcome.is_none() => {
            return missing("the time of its session is over");
        }
        AttemptOutcome::SessionOver if outcome != Some(InstanceOutcome::SessionOver) => {
            return wrong("its session is over");
        }
        AttemptOutcome::SessionOver => {}
        AttemptOutcome::NeverStarted if outcome.is_some() => {
            return wrong("no process could start on its partition");
        }
        AttemptOutcome::NeverStarted if !closed => return missing("no process can start on its partition"),
        AttemptOutcome::NeverStarted => {}
        AttemptOutcome::ProcessMissing if outcome.is_some() => {
            return wrong("a process is missing, which is not a failure");
        }
        AttemptOutcome::ProcessMissing if !closed => return missing("one of its processes is missing"),
        AttemptOutcome::ProcessMissing => {}
        AttemptOutcome::Succeeded if outcome.is_none() && !closed => {
            return missing("all its processes succeeded");
        }
        AttemptOutcome::Succeeded => {
            let restarts = matches!(facts.job.restart(), RestartPolicy::Always { .. });
            if restarts != outcome.is_none() || !matches!(outcome, None | Some(InstanceOutcome::Succeeded)) {
                return wrong("its attempt has succeeded");
            }
            events.restarts_after_success += u32::from(restarts);
        }
        AttemptOutcome::Failed(_) if outcome.is_none() && !closed => {
            return missing("its attempt has failed");
        }
        AttemptOutcome::Failed(candidates) => {
            events.failures.push((instance, candidates.clone()));
            if let Some(wrong) = check_failure(facts, plan, now, candidates, outcome) {
                return Some(wrong);
            }
            if outcome.is_none() {
                events.retries.extend(now.retry_at);
            }
        }
    }
    None
}

fn check_failure(
    facts: &AttemptFacts<'_>,
    plan: &Plan,
    now: &InstanceStatus,
    candidates: &[Failure],
    outcome: Option<InstanceOutcome>,
) -> Option<BrokenPlan> {
    let instance = now.index;
    let wrong = |detail| Some(BrokenPlan::WrongVerdict { instance, detail });
    let retryable = |code: Option<u8>| match facts.job.restart() {
        RestartPolicy::Never => false,
        RestartPolicy::Always { .. } | RestartPolicy::OnFailure { .. } => true,
        RestartPolicy::ExitCode { retryable, .. } => code.is_none_or(|code| retryable.contains(code)),
    };
    let exhausted = plan.status.restarts_after_failure >= limit(facts);
    match outcome {
        None if !candidates.iter().any(|failure| retryable(failure.failure_code())) => {
            wrong("it restarts after a failure that is not retryable")
        }
        None => None,
        Some(InstanceOutcome::Failed(code)) => {
            let has_code =
                |failure: &&Failure| failure.failure_code().unwrap_or(InstanceOutcome::LOST) == code;
            match candidates.iter().find(has_code) {
                None => wrong("its exit code differs from that of its first failure"),
                Some(failure) if retryable(failure.failure_code()) && !exhausted => {
                    wrong("it failed permanently although restarts remain")
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

/// Checks the recorded status of an instance: its back-off and the progress of its attempt.
fn check_instance_status(
    facts: &AttemptFacts<'_>,
    now: &InstanceStatus,
    attempt_outcome: &AttemptOutcome,
) -> Option<BrokenPlan> {
    let instance = now.index;
    let before = facts.recorded_status(instance);
    let base = facts.job.back_off();
    let wrong = |detail| Some(BrokenPlan::WrongInstanceStatus { instance, detail });
    if now.attempt > before.attempt {
        if facts.job.suspend() {
            return (now.retry_at.is_some() || now.unused_releases > 0)
                .then_some(())
                .and_then(|()| wrong("a suspended job backs off"));
        }
        // Compares times instead of durations, because additions saturate at the maximum time.
        let after = |back_off_time| Some(facts.observation.now.plus(back_off_time));
        let (expected, unused_releases) = match attempt_outcome {
            AttemptOutcome::Succeeded => (after(base), 0),
            AttemptOutcome::NeverStarted => (
                after(back_off(base, before.unused_releases)),
                before.unused_releases.saturating_add(1),
            ),
            // The assignment of back-offs to instances that failed together is arbitrary; `check_counts`
            // checks all.
            AttemptOutcome::Failed(_) => (now.retry_at, 0),
            AttemptOutcome::Ongoing | AttemptOutcome::SessionOver | AttemptOutcome::ProcessMissing => {
                (None, 0)
            }
        };
        if now.retry_at != expected
            || (expected.is_none()
                && *attempt_outcome != AttemptOutcome::ProcessMissing
                && !facts.is_preempted(instance))
        {
            return wrong("its back-off is not the expected one");
        }
        if now.unused_releases != unused_releases {
            return wrong("the number of unused releases");
        }
        if now.unused_release_reason.is_some() != (unused_releases > 0) {
            return wrong("the reason of the unused release");
        }
        return None;
    }
    let clears_back_off = now.running_since.is_some() || facts.job.suspend();
    if now.retry_at != before.retry_at && !(clears_back_off && now.retry_at.is_none()) {
        return wrong("its back-off is not the recorded one");
    }
    let launched = now.launched.is_some() || !facts.has_launcher();
    let is_running = launched && facts.are_all(&facts.ready(instance));
    if (now.unused_releases != before.unused_releases || is_running)
        && !((is_running || facts.job.suspend()) && now.unused_releases == 0)
    {
        return wrong("the number of unused releases");
    }
    let expected_reason = before
        .unused_release_reason
        .as_ref()
        .filter(|_| now.unused_releases > 0);
    if now.unused_release_reason.as_ref() != expected_reason {
        return wrong("the reason of the unused release");
    }
    if now.launched != facts.launched(instance) {
        return wrong("the start time of its launcher");
    }
    if !now.done.iter().copied().eq(facts.done(instance)) {
        return wrong("its set of done workers");
    }
    let all_run = facts.are_all(&facts.ready(instance));
    let running_since = before.running_since.or(all_run.then_some(facts.observation.now));
    (now.running_since != running_since)
        .then_some(())
        .and_then(|()| wrong("the start time of its workers"))
}

/// Returns the back-off after `used` earlier ones: it doubles each time.
fn back_off(base: Duration, used: u32) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(used));
    doubled.min(MAX_BACKOFF.max(base))
}

impl ReconcileFacts {
    fn check_counts(&mut self, facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
        let (before, now) = (&facts.observation.status, &plan.status);
        let used = now
            .restarts_after_failure
            .saturating_sub(before.restarts_after_failure);
        let all = now.restarts.saturating_sub(before.restarts);
        if now.preemptions != before.preemptions.saturating_add(self.preempted) {
            let detail = "its count of preemptions does not match the preempted instances";
            broken.push(BrokenPlan::Status { detail });
        }
        if facts.job.suspend() {
            // A suspension in the same reconciliation clears the back-off and keeps the restart count.
            return;
        }
        let restarted = u32::try_from(self.retries.len()).unwrap_or(u32::MAX);
        if used != restarted || all != restarted.saturating_add(self.restarts_after_success) {
            let detail = "its restart counts do not match the restarted instances";
            broken.push(BrokenPlan::Status { detail });
            return;
        }
        let earlier_restarts = before.restarts_after_failure;
        let due = (0..used).map(|more| {
            let back_off_time = back_off(facts.job.back_off(), earlier_restarts.saturating_add(more));
            facts.observation.now.plus(back_off_time)
        });
        self.retries.sort_unstable();
        if !due.eq(self.retries.iter().copied()) {
            let detail = "the back-off of the restarted instances is wrong";
            broken.push(BrokenPlan::Status { detail });
        }
    }

    fn check_first_failure(&self, facts: &AttemptFacts<'_>, plan: &Plan, broken: &mut Vec<BrokenPlan>) {
        let now = plan.status.first_failure.as_ref();
        if self.failures.is_empty() {
            if now != facts.observation.status.first_failure.as_ref() {
                let detail = "a failure is reported although no instance failed";
                broken.push(BrokenPlan::WrongFirstFailure { detail });
            }
            return;
        }
        let is_valid = |failure: &FirstFailure| {
            let own = self
                .failures
                .iter()
                .find(|(instance, _)| *instance == failure.instance);
            let is_candidate = own.is_some_and(|(_, candidates)| {
                candidates.iter().any(|candidate| {
                    (candidate.component, candidate.exit, candidate.at)
                        == (failure.component, failure.exit, failure.at)
                })
            });
            let earliest = self.failures.iter().all(|(instance, candidates)| {
                candidates
                    .iter()
                    .all(|candidate| (failure.at, failure.instance) <= (candidate.at, *instance))
            });
            is_candidate && earliest && failure.attempt == facts.attempt(failure.instance)
        };
        if !now.is_some_and(is_valid) {
            let detail = "it is not the earliest, or it follows from another failure";
            broken.push(BrokenPlan::WrongFirstFailure { detail });
        }
    }
}
