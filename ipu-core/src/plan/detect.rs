//! What happened to an instance since the last pass.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use crate::exit_status::Exit;
use crate::job::JobKind;
use crate::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::plan::context::{Instance, PlanContext};
use crate::plan::{FailedComponent, FirstFailure};
use crate::reason::Reason;
use crate::rules::first_failure::Candidate;
use crate::rules::{first_failure, interactive, reset, start_deadline};
use crate::units::Timestamp;

/// What was found out about an instance.
pub(super) enum Finding {
    /// It goes on; look again at this moment, if at any.
    GoesOn(Option<Timestamp>),
    /// Its attempt ended well.
    Succeeded,
    /// Its attempt failed.
    Failed(FirstFailure),
    /// Its session is over.
    SessionOver,
    /// Nothing can run on its partition; the sentence says why.
    GiveBack(Reason),
    /// It begins anew, without having failed; the sentence says why.
    RestartFresh(Reason),
}

impl<'a> PlanContext<'a> {
    pub(super) fn find(&self, instance: &Instance<'a>) -> Finding {
        let usage = self.usage(instance);
        if let Some(finding) = self.find_end(instance) {
            return finding;
        }
        let mut look_again = None;
        if let JobKind::Interactive { ttl } = self.job.shape() {
            match interactive::decide(*ttl, instance.memory.launched, self.seen.now) {
                interactive::Session::Over => return Finding::SessionOver,
                interactive::Session::Open(end) => look_again = Some(end),
                interactive::Session::NotBegun => {}
            }
        }
        match reset::decide(instance.partition, instance.memory.attempt, usage) {
            reset::ResetDecision::FailAttempt => {
                return Finding::Failed(partition_failure(instance, self.seen.now));
            }
            reset::ResetDecision::GiveBack => {
                return Finding::GiveBack(partition_error(instance));
            }
            reset::ResetDecision::BeginAnew => {
                return Finding::RestartFresh(self.process_missing(instance));
            }
            reset::ResetDecision::Ask
            | reset::ResetDecision::Reset
            | reset::ResetDecision::Use
            | reset::ResetDecision::Wait => {}
        }
        let late = self.latest(instance);
        let since = late.as_ref().map(|late| late.since);
        let verdict = start_deadline::decide(self.job.start_deadline(), since, self.seen.now);
        match (verdict, late) {
            (start_deadline::StartDeadlineStatus::Missed, Some(late)) => {
                return Finding::GiveBack(self.unschedulable(instance, &late));
            }
            (start_deadline::StartDeadlineStatus::Open(end), _) => {
                look_again = Some(look_again.map_or(end, |at| at.min(end)));
            }
            (start_deadline::StartDeadlineStatus::Met, _)
            | (start_deadline::StartDeadlineStatus::Missed, None) => {}
        }
        Finding::GoesOn(look_again)
    }

    /// Whether the processes of the attempt have ended it.
    fn find_end(&self, instance: &Instance<'a>) -> Option<Finding> {
        let mut candidates = Vec::new();
        if self.has_launcher() {
            if self.own_launchers(instance).any(has_succeeded) {
                return Some(Finding::Succeeded);
            }
            candidates.extend(
                self.own_launchers(instance)
                    .filter_map(|launcher| failure_of(FailedComponent::Launcher, launcher)),
            );
            // A worker that serves a launcher is not to end at all.
            candidates.extend(
                self.own_workers(instance)
                    .filter_map(|own| end_of(worker(own.index), own)),
            );
            let known = candidates.iter().map(|known| known.at).min();
            candidates.extend(self.vanished(instance, known));
        } else {
            candidates.extend(
                self.own_workers(instance)
                    .filter_map(|own| failure_of(worker(own.index), own)),
            );
            let all = usize::try_from(self.job.workers_per_instance()).unwrap_or(usize::MAX);
            if candidates.is_empty() && instance.memory.done.len() >= all {
                return Some(Finding::Succeeded);
            }
        }
        first_failure::decide(candidates, self.seen.timestamp_resolution).map(|first| {
            Finding::Failed(FirstFailure {
                instance: instance.index,
                culprit: first.culprit,
                attempt: instance.memory.attempt,
                exit: first.exit,
                at: first.at,
                cause: describe(&first),
                last_lines: first.last_lines.into(),
            })
        })
    }

    /// Processes that must have existed, because the launcher ran, and are gone without a trace. When is unknown; not
    /// later than what failed of the rest, which followed from it.
    fn vanished(&self, instance: &Instance<'a>, known: Option<Timestamp>) -> Vec<Candidate<'static>> {
        if instance.memory.launched.is_none() {
            return Vec::new();
        }
        let at = known.map_or(self.seen.now, |known| known.min(self.seen.now));
        let gone = |culprit| Candidate {
            culprit,
            exit: None,
            at,
            cause: "gone without an exit code",
            last_lines: "",
        };
        let workers = (0..self.job.workers_per_instance())
            .filter(|number| !self.own_workers(instance).any(|own| own.index == *number));
        let launcher = self.own_launchers(instance).next().is_none();
        workers
            .map(|number| gone(worker(number)))
            .chain(launcher.then(|| gone(FailedComponent::Launcher)))
            .collect()
    }

    /// What could have started earliest of what does not run; none if all ran, or if there is nothing to run on.
    fn latest(&self, instance: &Instance<'a>) -> Option<StartupDelay<'a>> {
        let PartitionFacts::Active { attempt, since, .. } = instance.partition else {
            return None;
        };
        if *attempt != instance.memory.attempt {
            return None;
        }
        if let Some(all_ran) = instance.memory.running_since {
            let waits = self.has_launcher() && instance.memory.launched.is_none();
            let launchers = self.own_launchers(instance).map(|launcher| &launcher.phase);
            return waits.then(|| StartupDelay::of(FailedComponent::Launcher, launchers, all_ran));
        }
        let ready = instance.memory.retry_at.map_or(*since, |retry| retry.max(*since));
        (0..self.job.workers_per_instance())
            .filter(|number| !self.is_ready(instance, *number))
            .map(|number| {
                let own = self.own_workers(instance).filter(|own| own.index == number);
                StartupDelay::of(worker(number), own.map(|own| &own.phase), ready)
            })
            .min_by_key(|late| late.since)
    }

    fn process_missing(&self, instance: &Instance<'a>) -> Reason {
        let (index, who) = (instance.index, self.gone(instance).unwrap_or(worker(0)));
        let message = format!(
            "{who} of instance {index} is not there any more, and may have run: the instance begins anew on a partition that is reset"
        );
        match who {
            FailedComponent::Worker { worker } => Reason::new("WorkerGone", message).with("worker", worker),
            FailedComponent::Launcher | FailedComponent::Partition => Reason::new("LauncherGone", message),
        }
        .with("instance", index)
    }

    fn unschedulable(&self, instance: &Instance<'a>, late: &StartupDelay<'a>) -> Reason {
        let (index, seconds) = (instance.index, self.job.start_deadline().as_secs());
        let why = late.to_string();
        if late.who == FailedComponent::Launcher {
            return Reason::new(
                "LauncherUnschedulable",
                format!("the launcher of instance {index} did not start within {seconds} s of its workers{why}: its partition is given back"),
            )
            .with("instance", index);
        }
        let (ready, all) = (self.ready_workers(instance), self.job.workers_per_instance());
        Reason::new(
            "WorkersUnschedulable",
            format!("only {ready} of {all} workers of instance {index} started within {seconds} s{why}: its partition is given back"),
        )
        .with("instance", index)
        .with("ready", ready)
        .with("workers", all)
    }
}

/// Something that does not run and could have.
struct StartupDelay<'a> {
    who: FailedComponent,
    since: Timestamp,
    cause: &'a str,
}

impl<'a> StartupDelay<'a> {
    /// It could have since the last of its processes could, if there are any, but not before it had what it needs.
    fn of(who: FailedComponent, processes: impl Iterator<Item = &'a ProcessPhase>, ready: Timestamp) -> Self {
        let waits = processes.filter_map(|phase| match phase {
            ProcessPhase::Starting { since, cause } => Some((*since, cause.as_str())),
            ProcessPhase::Running { .. }
            | ProcessPhase::Stopping
            | ProcessPhase::Exited { .. }
            | ProcessPhase::Lost { .. } => None,
        });
        let (since, cause) = waits.max_by_key(|(since, _)| *since).unwrap_or((ready, ""));
        Self {
            who,
            since: since.max(ready),
            cause,
        }
    }
}

/// What it waits for, in brackets, if that is known.
impl fmt::Display for StartupDelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.who, self.cause) {
            (_, "") => Ok(()),
            (FailedComponent::Launcher, cause) => write!(f, " ({cause})"),
            (who, cause) => write!(f, " ({who}: {cause})"),
        }
    }
}

fn partition_failure(instance: &Instance<'_>, now: Timestamp) -> FirstFailure {
    let cause = match instance.partition {
        PartitionFacts::Failed { errors, .. } => format!("in error ({})", errors.join("; ")),
        PartitionFacts::Absent | PartitionFacts::Waiting { .. } | PartitionFacts::Releasing => {
            "taken away while it was in use".to_string()
        }
        PartitionFacts::Pending { .. } | PartitionFacts::Active { .. } => {
            "not the one that the attempt was started on".to_string()
        }
    };
    FirstFailure {
        instance: instance.index,
        culprit: FailedComponent::Partition,
        attempt: instance.memory.attempt,
        exit: None,
        at: now,
        cause,
        last_lines: String::new(),
    }
}

fn partition_error(instance: &Instance<'_>) -> Reason {
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
        "PartitionFailed",
        format!("the partition of instance {index} came up in error and is given back ({errors})"),
    )
    .with("instance", index)
}

pub(super) fn has_succeeded(process: &ProcessFacts) -> bool {
    matches!(&process.phase, ProcessPhase::Exited { exit, .. } if exit.is_success())
}

/// The failure of a process that is to end with code 0.
fn failure_of(culprit: FailedComponent, process: &ProcessFacts) -> Option<Candidate<'_>> {
    end_of(culprit, process).filter(|end| !end.exit.is_some_and(Exit::is_success))
}

/// The end of a process, whatever its code.
fn end_of(culprit: FailedComponent, process: &ProcessFacts) -> Option<Candidate<'_>> {
    match &process.phase {
        ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } | ProcessPhase::Stopping => None,
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } => Some(Candidate {
            culprit,
            exit: Some(*exit),
            at: *at,
            cause,
            last_lines,
        }),
        ProcessPhase::Lost { at, cause } => Some(Candidate {
            culprit,
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
