//! Verdicts: what ended, what restarts, what is to go. They are written into the status; nothing is touched yet.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::observation::{ProcessFacts, ProcessPhase};
use crate::plan::context::{Instance, Persisted, PlanContext};
use crate::plan::detect::{Finding, has_succeeded};
use crate::plan::{FirstFailure, InstanceOutcome, JobPhase};
use crate::reason::Reason;
use crate::rules::restart::{End, GiveUp};
use crate::rules::{backoff, deadline, restart, scale, suspend};
use crate::units::Timestamp;

impl<'a> PlanContext<'a> {
    pub(super) fn judge(&mut self) {
        if self.status.phase.is_finished() {
            return;
        }
        let mut instances = core::mem::take(&mut self.instances);
        let mut failures = Vec::new();
        for instance in &mut instances {
            if self.wanted(instance) == scale::ScaleDecision::Keep && instance.memory.outcome.is_none() {
                self.remember(instance);
                let finding = self.find(instance);
                failures.extend(self.record_finding(instance, finding));
            }
        }
        if let Some(first) = failures
            .into_iter()
            .min_by_key(|failure| (failure.at, failure.instance))
        {
            self.status.first_failure = Some(first);
        }
        self.instances = instances;
        self.close_surplus_and_suspended();
        self.enforce_deadline();
        self.conclude();
    }

    /// Writes down what can be forgotten by the world, but not by the job.
    fn remember(&mut self, instance: &mut Instance<'a>) {
        let begun = instance.processes().filter_map(began).min();
        if let Some(began) = begun {
            self.status.started = Some(self.status.started.map_or(began, |known| known.min(began)));
        }
        if !self.has_launcher() {
            let succeeded = self.own_workers(instance).filter(|worker| has_succeeded(worker));
            let mut done: Vec<u32> = succeeded
                .map(|worker| worker.index)
                .chain(instance.memory.done.clone())
                .collect();
            done.sort_unstable();
            done.dedup();
            instance.memory.done = done;
        }
        let launched = self.own_launchers(instance).filter_map(running_since).min();
        instance.memory.launched = instance.memory.launched.or(launched);
        let all_run = self.ready_workers(instance) == self.job.workers_per_instance();
        if all_run && instance.memory.running_since.is_none() {
            instance.memory.running_since = Some(self.seen.now);
            instance.memory.retry_at = None;
        }
        if all_run && (!self.has_launcher() || instance.memory.launched.is_some()) {
            instance.memory.clear_unused_releases();
        }
    }

    /// Writes a finding into the memory of its instance; gives the failure, if it was one.
    fn record_finding(&mut self, instance: &mut Instance<'a>, finding: Finding) -> Option<FirstFailure> {
        let index = instance.index;
        match finding {
            Finding::GoesOn(look_again) => {
                if let Some(at) = look_again {
                    self.requeue_at(at);
                }
                return None;
            }
            Finding::SessionOver => {
                instance.memory.outcome = Some(InstanceOutcome::SessionOver);
                self.push_reason(
                    Reason::new(
                        "SessionOver",
                        format!("the time of the session of instance {index} is over"),
                    )
                    .with("instance", index),
                );
            }
            Finding::GiveBack(reason) => {
                let before = instance.memory.unused_releases;
                instance.memory.close_attempt();
                instance.memory.unused_releases = before.saturating_add(1);
                instance.memory.unused_release_reason = Some(reason.clone());
                instance.memory.retry_at =
                    Some(self.seen.now.plus(backoff::decide(self.job.back_off(), before)));
                self.push_reason(reason);
            }
            Finding::RestartFresh(reason) => {
                instance.memory.close_attempt();
                self.push_reason(reason);
            }
            Finding::Succeeded => {
                self.after(instance, End::Success, "ended well");
            }
            Finding::Failed(failure) => {
                let code = failure
                    .exit
                    .filter(|exit| !exit.is_success())
                    .map(crate::Exit::code);
                self.after(instance, End::Failure(code), &failure.to_string());
                instance.recorded = Persisted::No;
                return Some(failure);
            }
        }
        instance.recorded = Persisted::No;
        None
    }

    /// Applies the restart rule to an attempt that has ended.
    fn after(&mut self, instance: &mut Instance<'a>, end: End, how: &str) {
        let used = self.status.restarts_after_failure;
        let index = instance.index;
        let about = |code, message: String| Reason::new(code, message).with("instance", index);
        let reason = match restart::decide(self.job.restart(), end, used) {
            restart::RestartDecision::Done => {
                instance.memory.outcome = Some(InstanceOutcome::Succeeded);
                about("InstanceDone", format!("instance {index} {how}"))
            }
            restart::RestartDecision::RestartAfterSuccess => {
                self.restart(instance, 0);
                about(
                    "RestartAfterSuccess",
                    format!("instance {index} {how}; it starts again"),
                )
            }
            restart::RestartDecision::RestartAfterFailure => {
                self.status.restarts_after_failure = used.saturating_add(1);
                self.restart(instance, used);
                about("RestartAfterFailure", format!("{how}; it starts again"))
            }
            restart::RestartDecision::GiveUp(why) => {
                let code = match end {
                    End::Failure(Some(code)) => code,
                    End::Failure(None) | End::Success => InstanceOutcome::LOST,
                };
                instance.memory.outcome = Some(InstanceOutcome::Failed(code));
                let reason = match why {
                    GiveUp::Policy => about("NeverRestarted", format!("{how}; it is never restarted")),
                    GiveUp::Permanent => about("PermanentFailure", format!("{how}, which is not retryable")),
                    GiveUp::LimitReached => about(
                        "BackOffLimitReached",
                        format!("{how}; the back-off limit of {used} is reached"),
                    ),
                };
                self.blame(&reason, code);
                reason
            }
        };
        self.push_reason(reason.with("restarts", self.status.restarts));
    }

    fn restart(&mut self, instance: &mut Instance<'a>, used: u32) {
        instance.memory.close_attempt();
        instance.memory.retry_at = Some(self.seen.now.plus(backoff::decide(self.job.back_off(), used)));
        self.status.restarts = self.status.restarts.saturating_add(1);
    }

    /// Closes the attempts of instances that suspension or scaling takes away.
    fn close_surplus_and_suspended(&mut self) {
        let suspended = self.suspension() == suspend::SuspendDecision::HoldNothing;
        if suspended {
            self.status.started = None;
        }
        let wanted = self.job.instances();
        for instance in &mut self.instances {
            let surplus = scale::decide(instance.index, wanted) == scale::ScaleDecision::Remove;
            let paused = suspended && instance.memory.outcome.is_none();
            if !surplus && !paused {
                continue;
            }
            if instance.holds_attempt() {
                instance.memory.close_attempt();
                instance.recorded = Persisted::No;
            }
            instance.memory.retry_at = None;
            instance.memory.clear_unused_releases();
        }
    }

    pub(super) const fn suspension(&self) -> suspend::SuspendDecision {
        let wish = if self.job.suspend() {
            suspend::RunIntent::Suspend
        } else {
            suspend::RunIntent::Run
        };
        suspend::decide(wish, self.status.phase)
    }

    fn enforce_deadline(&mut self) {
        match deadline::decide(self.job.max_runtime(), self.status.started, self.seen.now) {
            deadline::DeadlineStatus::Unlimited => {}
            deadline::DeadlineStatus::Until(end) => self.requeue_at(end),
            deadline::DeadlineStatus::Exceeded => {
                let wanted = self.job.instances();
                let mut ended = 0_u32;
                for instance in &mut self.instances {
                    let belongs = scale::decide(instance.index, wanted) == scale::ScaleDecision::Keep;
                    if belongs && instance.memory.outcome.is_none() {
                        instance.memory.outcome = Some(InstanceOutcome::Failed(deadline::EXIT_CODE));
                        instance.recorded = Persisted::No;
                        ended += 1;
                    }
                }
                if ended > 0 {
                    let seconds = self.job.max_runtime().unwrap_or_default().as_secs();
                    let message = format!("the job ran for longer than its {seconds} seconds");
                    let reason =
                        Reason::new("DeadlineExceeded", message).with("activeDeadlineSeconds", seconds);
                    self.blame(&reason, deadline::EXIT_CODE);
                    self.push_reason(reason);
                }
            }
        }
    }

    /// Finishes the job if all its instances have ended.
    fn conclude(&mut self) {
        let wanted = self
            .instances
            .iter()
            .filter(|instance| self.wanted(instance) == scale::ScaleDecision::Keep);
        let outcomes: Option<Vec<InstanceOutcome>> = wanted.map(|instance| instance.memory.outcome).collect();
        let Some(outcomes) = outcomes.filter(|outcomes| !outcomes.is_empty()) else {
            return;
        };
        let failed = outcomes.iter().find_map(|outcome| match outcome {
            InstanceOutcome::Failed(code) => Some(*code),
            InstanceOutcome::Succeeded | InstanceOutcome::SessionOver => None,
        });
        let status = &mut self.status;
        status.finished = Some(self.seen.now);
        self.concluded = Persisted::No;
        if let Some(code) = failed {
            status.phase = JobPhase::Failed;
            status.exit_code.get_or_insert(code);
            status
                .conclusion
                .get_or_insert_with(|| Reason::new("Failed", format!("an instance failed with code {code}")));
        } else {
            status.phase = JobPhase::Completed;
            status.exit_code = Some(0);
            status.conclusion = Some(Reason::new("Completed", "every instance ended well"));
        }
    }

    /// Remembers the first instance that failed for good: it gives the job its exit code.
    fn blame(&mut self, reason: &Reason, code: u8) {
        if self.status.conclusion.is_none() {
            self.status.conclusion = Some(reason.clone());
            self.status.exit_code = Some(code);
        }
    }
}
/// When a process first may have run.
fn began(process: &ProcessFacts) -> Option<Timestamp> {
    match &process.phase {
        ProcessPhase::Running { since } => Some(*since),
        ProcessPhase::Exited { at, .. } => Some(*at),
        ProcessPhase::Starting { .. } | ProcessPhase::Stopping | ProcessPhase::Lost { .. } => None,
    }
}

const fn running_since(process: &ProcessFacts) -> Option<Timestamp> {
    match &process.phase {
        ProcessPhase::Running { since } => Some(*since),
        ProcessPhase::Exited { .. }
        | ProcessPhase::Starting { .. }
        | ProcessPhase::Stopping
        | ProcessPhase::Lost { .. } => None,
    }
}
