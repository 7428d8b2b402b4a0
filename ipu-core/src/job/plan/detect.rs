//! Detects the events of an instance since the last reconciliation.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use crate::job::JobKind;
use crate::job::exit::Exit;
use crate::job::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::job::plan::context::{Instance, PlanContext};
use crate::job::rules::first_failure::Candidate;
use crate::job::rules::{first_failure, interactive, reset, start_deadline};
use crate::job::status::{FailedComponent, FirstFailure};
use crate::reason::{Reason, ReasonCode};
use crate::units::Timestamp;

/// The finding about an instance.
pub(super) enum Finding {
    /// The attempt continues; carries the time of the next check, if there is one.
    Continues(Option<Timestamp>),
    /// The attempt succeeded.
    Succeeded,
    /// The attempt failed.
    Failed(FirstFailure),
    /// The interactive session is over.
    SessionOver,
    /// No process can start on its partition; carries the reason.
    ReleaseUnused(Reason),
    /// The attempt restarts without a failure; carries the reason.
    RestartFresh(Reason),
}

impl<'a> PlanContext<'a> {
    pub(super) fn detect(&self, instance: &Instance<'a>) -> Finding {
        let usage = self.usage(instance);
        if let Some(finding) = self.detect_end(instance) {
            return finding;
        }
        let mut next_check = None;
        if let JobKind::Interactive { ttl } = self.job.shape() {
            match interactive::decide(*ttl, instance.status.launched, self.observation.now) {
                interactive::Session::Over => return Finding::SessionOver,
                interactive::Session::Open(end) => next_check = Some(end),
                interactive::Session::NotStarted => {}
            }
        }
        match reset::decide(instance.partition, instance.status.attempt, usage) {
            reset::ResetDecision::FailAttempt => {
                return Finding::Failed(partition_failure(instance, self.observation.now));
            }
            reset::ResetDecision::Release => {
                return Finding::ReleaseUnused(partition_error_reason(instance));
            }
            reset::ResetDecision::RestartAttempt => {
                return Finding::RestartFresh(self.missing_process_reason(instance));
            }
            reset::ResetDecision::Request
            | reset::ResetDecision::Reset
            | reset::ResetDecision::Use
            | reset::ResetDecision::Wait => {}
        }
        let delay = self.longest_startup_delay(instance);
        let since = delay.as_ref().map(|delay| delay.since);
        let verdict = start_deadline::decide(self.job.start_deadline(), since, self.observation.now);
        match (verdict, delay) {
            (start_deadline::StartDeadlineStatus::Missed, Some(delay)) => {
                return Finding::ReleaseUnused(self.unschedulable_reason(instance, &delay));
            }
            (start_deadline::StartDeadlineStatus::Open(end), _) => {
                next_check = Some(next_check.map_or(end, |at| at.min(end)));
            }
            (start_deadline::StartDeadlineStatus::Met, _)
            | (start_deadline::StartDeadlineStatus::Missed, None) => {}
        }
        Finding::Continues(next_check)
    }

    /// Returns the end of the attempt, if its processes have ended it.
    fn detect_end(&self, instance: &Instance<'a>) -> Option<Finding> {
        let mut candidates = Vec::new();
        if self.has_launcher() {
            if self.attempt_launchers(instance).any(has_succeeded) {
                return Some(Finding::Succeeded);
            }
            candidates.extend(
                self.attempt_launchers(instance)
                    .filter_map(|launcher| failure_from(FailedComponent::Launcher, launcher)),
            );
            // A worker that serves a launcher must not end, whatever its exit code.
            candidates.extend(
                self.attempt_workers(instance)
                    .filter_map(|process| end_from(worker(process.index), process)),
            );
            let earliest = candidates.iter().map(|candidate| candidate.at).min();
            candidates.extend(self.missing_processes(instance, earliest));
        } else {
            candidates.extend(
                self.attempt_workers(instance)
                    .filter_map(|process| failure_from(worker(process.index), process)),
            );
            let count = usize::try_from(self.job.workers_per_instance()).unwrap_or(usize::MAX);
            if candidates.is_empty() && instance.status.done.len() >= count {
                return Some(Finding::Succeeded);
            }
        }
        first_failure::decide(candidates, self.observation.timestamp_resolution).map(|first| {
            Finding::Failed(FirstFailure {
                instance: instance.index,
                component: first.component,
                attempt: instance.status.attempt,
                exit: first.exit,
                at: first.at,
                cause: describe(&first),
                last_lines: first.last_lines.into(),
            })
        })
    }

    /// Returns processes that must have existed, because the launcher ran, and are missing without a record.
    /// Their time is unknown; it is at most the time of the other failures, which they caused.
    fn missing_processes(
        &self,
        instance: &Instance<'a>,
        earliest: Option<Timestamp>,
    ) -> Vec<Candidate<'static>> {
        if instance.status.launched.is_none() {
            return Vec::new();
        }
        let at = earliest.map_or(self.observation.now, |earliest| {
            earliest.min(self.observation.now)
        });
        let missing_process = |component| Candidate {
            component,
            exit: None,
            at,
            cause: "missing without an exit code",
            last_lines: "",
        };
        let workers = (0..self.job.workers_per_instance()).filter(|number| {
            !self
                .attempt_workers(instance)
                .any(|worker| worker.index == *number)
        });
        let launcher = self.attempt_launchers(instance).next().is_none();
        workers
            .map(|number| missing_process(worker(number)))
            .chain(launcher.then(|| missing_process(FailedComponent::Launcher)))
            .collect()
    }

    /// Returns the process that could have started earliest and does not run; none if all ran, or without an
    /// active partition.
    fn longest_startup_delay(&self, instance: &Instance<'a>) -> Option<StartupDelay<'a>> {
        let PartitionFacts::Active { attempt, since, .. } = instance.partition else {
            return None;
        };
        if *attempt != instance.status.attempt {
            return None;
        }
        if let Some(all_ran) = instance.status.running_since {
            let awaits_launcher = self.has_launcher() && instance.status.launched.is_none();
            let launchers = self.attempt_launchers(instance).map(|launcher| &launcher.phase);
            return awaits_launcher.then(|| StartupDelay::new(FailedComponent::Launcher, launchers, all_ran));
        }
        let ready = instance.status.retry_at.map_or(*since, |retry| retry.max(*since));
        (0..self.job.workers_per_instance())
            .filter(|number| !self.is_ready(instance, *number))
            .map(|number| {
                let processes = self
                    .attempt_workers(instance)
                    .filter(|process| process.index == number);
                StartupDelay::new(worker(number), processes.map(|process| &process.phase), ready)
            })
            .min_by_key(|delay| delay.since)
    }

    fn missing_process_reason(&self, instance: &Instance<'a>) -> Reason {
        let (index, component) = (
            instance.index,
            self.missing_process(instance).unwrap_or(worker(0)),
        );
        let message = format!(
            "{component} of instance {index} is missing and may have run: \
             the instance restarts on a reset partition"
        );
        match component {
            FailedComponent::Worker { worker } => {
                Reason::new(ReasonCode::WorkerGone, message).with("worker", worker)
            }
            FailedComponent::Launcher | FailedComponent::Partition => {
                Reason::new(ReasonCode::LauncherGone, message)
            }
        }
        .with("instance", index)
    }

    fn unschedulable_reason(&self, instance: &Instance<'a>, delay: &StartupDelay<'a>) -> Reason {
        let (index, seconds) = (instance.index, self.job.start_deadline().as_secs());
        let cause = delay.to_string();
        if delay.component == FailedComponent::Launcher {
            return Reason::new(
                ReasonCode::LauncherUnschedulable,
                format!("the launcher of instance {index} did not start within {seconds} s of its workers{cause}: \
                     its partition is released"),
            )
            .with("instance", index);
        }
        let (ready, count) = (self.ready_workers(instance), self.job.workers_per_instance());
        Reason::new(
            ReasonCode::WorkersUnschedulable,
            format!(
                "only {ready} of {count} workers of instance {index} started within {seconds} s{cause}: \
                 its partition is released"
            ),
        )
        .with("instance", index)
        .with("ready", ready)
        .with("workers", count)
    }
}

/// A process that could have started and does not run.
struct StartupDelay<'a> {
    component: FailedComponent,
    since: Timestamp,
    cause: &'a str,
}

impl<'a> StartupDelay<'a> {
    /// Takes the latest start time of the component's processes, if there are any, but at least `ready`, when
    /// its prerequisites were met.
    fn new(
        component: FailedComponent,
        processes: impl Iterator<Item = &'a ProcessPhase>,
        ready: Timestamp,
    ) -> Self {
        let starting = processes.filter_map(|phase| match phase {
            ProcessPhase::Starting { since, cause } => Some((*since, cause.as_str())),
            ProcessPhase::Running { .. }
            | ProcessPhase::Stopping
            | ProcessPhase::Exited { .. }
            | ProcessPhase::Lost { .. } => None,
        });
        let (since, cause) = starting.max_by_key(|(since, _)| *since).unwrap_or((ready, ""));
        Self {
            component,
            since: since.max(ready),
            cause,
        }
    }
}

/// Writes the cause of the delay in parentheses, if it is known.
impl fmt::Display for StartupDelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.component, self.cause) {
            (_, "") => Ok(()),
            (FailedComponent::Launcher, cause) => write!(f, " ({cause})"),
            (component, cause) => write!(f, " ({component}: {cause})"),
        }
    }
}

fn partition_failure(instance: &Instance<'_>, now: Timestamp) -> FirstFailure {
    let cause = match instance.partition {
        PartitionFacts::Failed { errors, .. } => format!("in error ({})", errors.join("; ")),
        PartitionFacts::Absent | PartitionFacts::Waiting { .. } | PartitionFacts::Releasing => {
            "removed while it was in use".to_string()
        }
        PartitionFacts::Pending { .. } | PartitionFacts::Active { .. } => {
            "not the one of the attempt".to_string()
        }
    };
    FirstFailure {
        instance: instance.index,
        component: FailedComponent::Partition,
        attempt: instance.status.attempt,
        exit: None,
        at: now,
        cause,
        last_lines: String::new(),
    }
}

fn partition_error_reason(instance: &Instance<'_>) -> Reason {
    let index = instance.index;
    let errors = match instance.partition {
        PartitionFacts::Failed { errors, .. } => errors.join("; "),
        PartitionFacts::Absent
        | PartitionFacts::Waiting { .. }
        | PartitionFacts::Pending { .. }
        | PartitionFacts::Active { .. }
        | PartitionFacts::Releasing => String::new(),
    };
    Reason::new(
        ReasonCode::PartitionFailed,
        format!("the partition of instance {index} came up in error and is released ({errors})"),
    )
    .with("instance", index)
}

pub(super) fn has_succeeded(process: &ProcessFacts) -> bool {
    matches!(&process.phase, ProcessPhase::Exited { exit, .. } if exit.is_success())
}

/// Returns the failure of a process that must end with code 0.
fn failure_from(component: FailedComponent, process: &ProcessFacts) -> Option<Candidate<'_>> {
    end_from(component, process).filter(|end| !end.exit.is_some_and(Exit::is_success))
}

/// Returns the end of a process with any exit code.
fn end_from(component: FailedComponent, process: &ProcessFacts) -> Option<Candidate<'_>> {
    match &process.phase {
        ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } | ProcessPhase::Stopping => None,
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } => Some(Candidate {
            component,
            exit: Some(*exit),
            at: *at,
            cause,
            last_lines,
        }),
        ProcessPhase::Lost { at, cause } => Some(Candidate {
            component,
            exit: None,
            at: *at,
            cause,
            last_lines: "",
        }),
    }
}

const fn worker(number: u32) -> FailedComponent {
    FailedComponent::Worker { worker: number }
}

fn describe(candidate: &Candidate<'_>) -> String {
    match candidate.exit {
        Some(exit) if exit.is_success() => "ended before the launcher did".to_string(),
        Some(exit) if candidate.cause.is_empty() => exit.to_string(),
        Some(exit) => format!("{exit}, {}", candidate.cause),
        None if candidate.cause.is_empty() => "lost".to_string(),
        None => candidate.cause.to_string(),
    }
}
