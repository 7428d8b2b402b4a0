//! Evaluates the rules and writes the verdicts (ended, restarted, removed) to the status; it adds no effects.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::job::observation::{ProcessFacts, ProcessPhase};
use crate::job::plan::context::{Instance, Persisted, PlanContext};
use crate::job::plan::detect::{Finding, has_succeeded};
use crate::job::plan::reasons::preemption_reason;
use crate::job::rules::restart::{AttemptEnd, GiveUp};
use crate::job::rules::{backoff, deadline, preempt, restart, scale, suspend};
use crate::job::status::{FirstFailure, InstanceOutcome, JobPhase, Preempted};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

impl<'a> PlanContext<'a> {
    pub(super) fn evaluate(&mut self) {
        if self.status.phase.is_finished() {
            return;
        }
        let mut instances = core::mem::take(&mut self.instances);
        let mut failures = Vec::new();
        for instance in &mut instances {
            if self.scale_decision(instance) == scale::ScaleDecision::Keep
                && instance.status.outcome.is_none()
            {
                self.record_progress(instance);
                let finding = self.detect(instance);
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
        self.close_preempted();
        self.enforce_deadline();
        self.finish_job();
    }

    /// Records progress that later observations may no longer show.
    fn record_progress(&mut self, instance: &mut Instance<'a>) {
        let earliest = instance.processes().filter_map(first_run).min();
        if let Some(earliest) = earliest {
            let started = self.status.started;
            self.status.started = Some(started.map_or(earliest, |started| started.min(earliest)));
        }
        if !self.has_launcher() {
            let succeeded = self
                .attempt_workers(instance)
                .filter(|worker| has_succeeded(worker));
            let mut done: Vec<u32> = succeeded
                .map(|worker| worker.index)
                .chain(instance.status.done.clone())
                .collect();
            done.sort_unstable();
            done.dedup();
            instance.status.done = done;
        }
        let launched = self.attempt_launchers(instance).filter_map(running_since).min();
        instance.status.launched = instance.status.launched.or(launched);
        let all_run = self.ready_workers(instance) == self.job.workers_per_instance();
        if all_run && instance.status.running_since.is_none() {
            instance.status.running_since = Some(self.observation.now);
            instance.status.retry_at = None;
        }
        if all_run && (!self.has_launcher() || instance.status.launched.is_some()) {
            instance.status.clear_unused_releases();
        }
    }

    /// Records a finding in the status of its instance; returns the failure, if it is one.
    fn record_finding(&mut self, instance: &mut Instance<'a>, finding: Finding) -> Option<FirstFailure> {
        let index = instance.index;
        match finding {
            Finding::Continues(next_check) => {
                if let Some(at) = next_check {
                    self.requeue_at(at);
                }
                return None;
            }
            Finding::SessionOver => {
                instance.status.outcome = Some(InstanceOutcome::SessionOver);
                self.push_reason(
                    Reason::new(
                        ReasonCode::SessionOver,
                        format!("the time of the session of instance {index} is over"),
                    )
                    .with("instance", index),
                );
            }
            Finding::ReleaseUnused(reason) => {
                let before = instance.status.unused_releases;
                instance.status.close_attempt();
                instance.status.unused_releases = before.saturating_add(1);
                instance.status.unused_release_reason = Some(reason.clone());
                instance.status.retry_at = Some(
                    self.observation
                        .now
                        .plus(backoff::decide(self.job.back_off(), before)),
                );
                self.push_reason(reason);
            }
            Finding::RestartFresh(reason) => {
                instance.status.close_attempt();
                self.push_reason(reason);
            }
            Finding::Succeeded => {
                self.apply_restart_rule(instance, AttemptEnd::Success, "succeeded");
            }
            Finding::Failed(failure) => {
                let code = failure
                    .exit
                    .filter(|exit| !exit.is_success())
                    .map(crate::job::Exit::code);
                self.apply_restart_rule(instance, AttemptEnd::Failure(code), &failure.to_string());
                instance.recorded = Persisted::No;
                return Some(failure);
            }
        }
        instance.recorded = Persisted::No;
        None
    }

    /// Applies the restart rule to an attempt that has ended; `description` describes the end in the reason.
    fn apply_restart_rule(&mut self, instance: &mut Instance<'a>, end: AttemptEnd, description: &str) {
        let used = self.status.restarts_after_failure;
        let index = instance.index;
        let reason_for = |code, message: String| Reason::new(code, message).with("instance", index);
        let reason = match restart::decide(self.job.restart(), end, used) {
            restart::RestartDecision::Done => {
                instance.status.outcome = Some(InstanceOutcome::Succeeded);
                reason_for(
                    ReasonCode::InstanceDone,
                    format!("instance {index} {description}"),
                )
            }
            restart::RestartDecision::RestartAfterSuccess => {
                self.restart(instance, 0);
                reason_for(
                    ReasonCode::RestartAfterSuccess,
                    format!("instance {index} {description}; it restarts"),
                )
            }
            restart::RestartDecision::RestartAfterFailure => {
                self.status.restarts_after_failure = used.saturating_add(1);
                self.restart(instance, used);
                reason_for(
                    ReasonCode::RestartAfterFailure,
                    format!("{description}; it restarts"),
                )
            }
            restart::RestartDecision::GiveUp(cause) => {
                let code = match end {
                    AttemptEnd::Failure(Some(code)) => code,
                    AttemptEnd::Failure(None) | AttemptEnd::Success => InstanceOutcome::LOST,
                };
                instance.status.outcome = Some(InstanceOutcome::Failed(code));
                let reason = match cause {
                    GiveUp::Policy => reason_for(
                        ReasonCode::NeverRestarted,
                        format!("{description}; it is never restarted"),
                    ),
                    GiveUp::Permanent => reason_for(
                        ReasonCode::PermanentFailure,
                        format!("{description}, which is not retryable"),
                    ),
                    GiveUp::LimitReached => reason_for(
                        ReasonCode::BackOffLimitReached,
                        format!("{description}; the back-off limit of {used} is reached"),
                    ),
                };
                self.record_permanent_failure(&reason, code);
                reason
            }
        };
        self.push_reason(reason.with("restarts", self.status.restarts));
    }

    fn restart(&mut self, instance: &mut Instance<'a>, used: u32) {
        instance.status.close_attempt();
        instance.status.retry_at = Some(
            self.observation
                .now
                .plus(backoff::decide(self.job.back_off(), used)),
        );
        self.status.restarts = self.status.restarts.saturating_add(1);
    }

    /// Closes the attempts of instances that suspension or scaling removes.
    fn close_surplus_and_suspended(&mut self) {
        let suspended = self.suspend_decision() == suspend::SuspendDecision::ReleaseAll;
        if suspended {
            self.status.started = None;
        }
        let desired = self.job.instances();
        for instance in &mut self.instances {
            let surplus = scale::decide(instance.index, desired) == scale::ScaleDecision::Remove;
            let paused = suspended && instance.status.outcome.is_none();
            if !surplus && !paused {
                continue;
            }
            if instance.holds_attempt() {
                instance.status.close_attempt();
                instance.recorded = Persisted::No;
            }
            instance.status.retry_at = None;
            instance.status.clear_unused_releases();
        }
    }

    /// Closes the attempts of instances whose partitions are preempted.
    fn close_preempted(&mut self) {
        let mut instances = core::mem::take(&mut self.instances);
        for instance in &mut instances {
            let is_preempted =
                instance.preempt_decision() == preempt::PreemptDecision::Requeue && !self.observation.deleted;
            let Some(demand) = instance
                .preempted
                .filter(|_| is_preempted && instance.holds_attempt())
            else {
                continue;
            };
            let reason = preemption_reason(instance.index, demand);
            self.status.preemptions = self.status.preemptions.saturating_add(1);
            self.status.last_preemption = Some(Preempted {
                instance: instance.index,
                attempt: instance.status.attempt,
                at: self.observation.now,
                reason: reason.clone(),
            });
            instance.status.close_attempt();
            instance.recorded = Persisted::No;
            self.push_reason(reason);
        }
        self.instances = instances;
    }

    pub(super) const fn suspend_decision(&self) -> suspend::SuspendDecision {
        let intent = if self.job.suspend() {
            suspend::RunIntent::Suspend
        } else {
            suspend::RunIntent::Run
        };
        suspend::decide(intent, self.status.phase)
    }

    fn enforce_deadline(&mut self) {
        match deadline::decide(self.job.max_runtime(), self.status.started, self.observation.now) {
            deadline::DeadlineStatus::Unlimited => {}
            deadline::DeadlineStatus::Until(end) => self.requeue_at(end),
            deadline::DeadlineStatus::Exceeded => {
                let desired = self.job.instances();
                let mut exceeded = 0_u32;
                for instance in &mut self.instances {
                    let kept = scale::decide(instance.index, desired) == scale::ScaleDecision::Keep;
                    if kept && instance.status.outcome.is_none() {
                        instance.status.outcome = Some(InstanceOutcome::Failed(deadline::EXIT_CODE));
                        instance.recorded = Persisted::No;
                        exceeded += 1;
                    }
                }
                if exceeded > 0 {
                    let seconds = self.job.max_runtime().unwrap_or_default().as_secs();
                    let message = format!("the job ran for longer than its {seconds} seconds");
                    let reason = Reason::new(ReasonCode::DeadlineExceeded, message)
                        .with("activeDeadlineSeconds", seconds);
                    self.record_permanent_failure(&reason, deadline::EXIT_CODE);
                    self.push_reason(reason);
                }
            }
        }
    }

    /// Finishes the job if all its instances have ended.
    fn finish_job(&mut self) {
        let desired = self
            .instances
            .iter()
            .filter(|instance| self.scale_decision(instance) == scale::ScaleDecision::Keep);
        let outcomes: Option<Vec<InstanceOutcome>> =
            desired.map(|instance| instance.status.outcome).collect();
        let Some(outcomes) = outcomes.filter(|outcomes| !outcomes.is_empty()) else {
            return;
        };
        let failed = outcomes.iter().find_map(|outcome| match outcome {
            InstanceOutcome::Failed(code) => Some(*code),
            InstanceOutcome::Succeeded | InstanceOutcome::SessionOver => None,
        });
        let status = &mut self.status;
        status.finished = Some(self.observation.now);
        self.concluded = Persisted::No;
        if let Some(code) = failed {
            status.phase = JobPhase::Failed;
            status.exit_code.get_or_insert(code);
            status.conclusion.get_or_insert_with(|| {
                Reason::new(ReasonCode::Failed, format!("an instance failed with code {code}"))
            });
        } else {
            status.phase = JobPhase::Completed;
            status.exit_code = Some(0);
            status.conclusion = Some(Reason::new(ReasonCode::Completed, "every instance succeeded"));
        }
    }

    /// Records the first permanent failure, which determines the exit code of the job.
    fn record_permanent_failure(&mut self, reason: &Reason, code: u8) {
        if self.status.conclusion.is_none() {
            self.status.conclusion = Some(reason.clone());
            self.status.exit_code = Some(code);
        }
    }
}

/// Returns the earliest known time at which a process ran.
fn first_run(process: &ProcessFacts) -> Option<Timestamp> {
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
