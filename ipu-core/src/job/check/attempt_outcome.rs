//! The outcome of an attempt, derived from the documented tables instead of the rules.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use super::facts::{AttemptFacts, ProcessRole};
use crate::job::JobKind;
use crate::job::exit::Exit;
use crate::job::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::job::status::{FailedComponent, InstanceStatus};
use crate::units::Timestamp;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttemptOutcome {
    /// The attempt continues.
    Ongoing,
    /// All processes that do its work ended with code 0.
    Succeeded,
    /// A component failed; carries the candidates for the first failure.
    Failed(Vec<Failure>),
    /// The time of its session is over.
    SessionOver,
    /// No process can start on its partition.
    NeverStarted,
    /// A process that ran or may have run is missing without a known end.
    ProcessMissing,
}

/// A component that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) component: FailedComponent,
    pub(super) exit: Option<Exit>,
    pub(super) at: Timestamp,
    /// Whether the process was killed for lack of memory.
    out_of_memory: bool,
    /// Whether the process exited without output.
    has_no_output: bool,
}

impl Failure {
    /// Returns a failure without exit code, cause or output.
    const fn without_details(component: FailedComponent, at: Timestamp) -> Self {
        Self {
            component,
            exit: None,
            at,
            out_of_memory: false,
            has_no_output: false,
        }
    }

    /// Returns the failures that may be the first one; each step of the documented comparison removes others.
    fn candidates(mut failures: Vec<Self>, resolution: Duration) -> Vec<Self> {
        let is_launcher = |failure: &Self| failure.component == FailedComponent::Launcher;
        let is_stopped = |failure: &Self| failure.exit.is_some_and(|exit| [137, 143].contains(&exit.code()));
        let earliest = failures
            .iter()
            .map(|failure| failure.at)
            .min()
            .unwrap_or_default();
        failures.retain(|failure| failure.at <= earliest.plus(resolution));
        prefer(&mut failures, |failure| !is_launcher(failure));
        let all = failures.clone();
        prefer(&mut failures, |failure| failure.out_of_memory);
        prefer(&mut failures, |failure| !is_stopped(failure));
        let same_code_count = |failure: &Self| {
            all.iter()
                .filter(|other| other.exit_code() == failure.exit_code())
                .count()
        };
        let fewest = failures.iter().map(same_code_count).min();
        failures.retain(|failure| Some(same_code_count(failure)) == fewest);
        prefer(&mut failures, |failure| !failure.has_no_output);
        let earliest = failures.iter().map(|failure| failure.at).min();
        failures.retain(|failure| Some(failure.at) == earliest);
        let lowest = failures.iter().map(|failure| failure.component).min();
        failures.retain(|failure| Some(failure.component) == lowest);
        failures
    }

    fn exit_code(&self) -> Option<u8> {
        self.exit.map(Exit::code)
    }

    /// Returns the exit code for the restart policy; none for code 0 and without an exit code.
    pub(super) fn failure_code(&self) -> Option<u8> {
        self.exit.map(Exit::code).filter(|code| *code != 0)
    }
}

impl<'a> AttemptFacts<'a> {
    /// Returns the recorded status of the newest attempt; an empty one if the attempt is not recorded.
    pub(super) fn recorded_status(&self, instance: u32) -> InstanceStatus {
        let recorded = self
            .recorded(instance)
            .filter(|_| self.is_newest_attempt_recorded(instance));
        recorded.cloned().unwrap_or_else(|| InstanceStatus {
            attempt: self.attempt(instance),
            outcome: self.outcome(instance),
            ..InstanceStatus::new(instance)
        })
    }

    /// Returns the processes of the newest attempt.
    pub(super) fn attempt_processes(&self, instance: u32) -> Vec<(ProcessRole, &'a ProcessFacts)> {
        let attempt = self.attempt(instance);
        self.processes(instance)
            .filter(|(role, process)| process.attempt == attempt && self.is_of_job(*role))
            .collect()
    }

    /// Returns the outcome of the newest attempt of an instance without a final outcome.
    pub(super) fn attempt_outcome(&self, instance: u32) -> AttemptOutcome {
        let failures = if self.has_launcher() {
            if self
                .attempt_processes(instance)
                .iter()
                .any(|(role, process)| *role == ProcessRole::Launcher && has_succeeded(process))
            {
                return AttemptOutcome::Succeeded;
            }
            self.launcher_job_failures(instance)
        } else {
            let failed = |(role, process): &(ProcessRole, &ProcessFacts)| {
                failure(*role, process).filter(|_| !has_succeeded(process))
            };
            self.attempt_processes(instance)
                .iter()
                .filter_map(failed)
                .collect()
        };
        if !failures.is_empty() {
            return AttemptOutcome::Failed(Failure::candidates(
                failures,
                self.observation.timestamp_resolution,
            ));
        }
        if !self.has_launcher() && self.are_all(&self.done(instance)) {
            return AttemptOutcome::Succeeded;
        }
        if self.is_session_over(instance) {
            return AttemptOutcome::SessionOver;
        }
        if self.has_missing_process(instance) {
            return AttemptOutcome::ProcessMissing;
        }
        self.outcome_by_partition(instance)
    }

    fn launcher_job_failures(&self, instance: u32) -> Vec<Failure> {
        let attempt_processes = self.attempt_processes(instance);
        let ended = attempt_processes
            .iter()
            .filter(|(role, process)| *role != ProcessRole::Launcher || !has_succeeded(process));
        let mut failures: Vec<Failure> = ended
            .filter_map(|(role, process)| failure(*role, process))
            .collect();
        if self.launched(instance).is_some() {
            let failure_times = failures.iter().map(|failure| failure.at);
            let at = failure_times
                .chain([self.observation.now])
                .min()
                .unwrap_or_default();
            let existing: BTreeSet<FailedComponent> = attempt_processes
                .iter()
                .map(|(role, _)| component(*role))
                .collect();
            let workers =
                (0..self.job.workers_per_instance()).map(|worker| FailedComponent::Worker { worker });
            let missing = workers
                .chain([FailedComponent::Launcher])
                .filter(|component| !existing.contains(component));
            failures.extend(missing.map(|component| Failure::without_details(component, at)));
        }
        failures
    }

    /// Returns when the launcher of the newest attempt started to run.
    pub(super) fn launched(&self, instance: u32) -> Option<Timestamp> {
        let running =
            self.attempt_processes(instance)
                .into_iter()
                .filter_map(|(role, process)| match process.phase {
                    ProcessPhase::Running { since } if role == ProcessRole::Launcher => Some(since),
                    _ => None,
                });
        self.recorded_status(instance).launched.or(running.min())
    }

    fn is_session_over(&self, instance: u32) -> bool {
        let JobKind::Interactive { ttl } = self.job.shape() else {
            return false;
        };
        self.launched(instance)
            .is_some_and(|since| since.plus(*ttl) <= self.observation.now)
    }

    /// Returns the succeeded workers of the newest attempt in a job without launcher.
    pub(super) fn done(&self, instance: u32) -> BTreeSet<u32> {
        if self.has_launcher() {
            return BTreeSet::new();
        }
        let attempt_processes = self.attempt_processes(instance);
        let ended = attempt_processes.iter().filter_map(|(role, process)| match role {
            ProcessRole::Worker(worker) if has_succeeded(process) => Some(*worker),
            ProcessRole::Worker(_) | ProcessRole::Launcher => None,
        });
        let recorded = self.recorded_status(instance).done;
        let all = ended.chain(recorded.iter().copied());
        all.filter(|worker| self.is_of_job(ProcessRole::Worker(*worker)))
            .collect()
    }

    /// Returns the workers that run or have succeeded.
    pub(super) fn ready(&self, instance: u32) -> BTreeSet<u32> {
        let attempt_processes = self.attempt_processes(instance);
        let running = attempt_processes
            .iter()
            .filter_map(|(role, process)| match (role, &process.phase) {
                (ProcessRole::Worker(worker), ProcessPhase::Running { .. }) => Some(*worker),
                _ => None,
            });
        running.chain(self.done(instance)).collect()
    }

    /// Returns whether `workers`, a subset of the workers of the job, contains all of them.
    pub(super) fn are_all(&self, workers: &BTreeSet<u32>) -> bool {
        workers.len() == usize::try_from(self.job.workers_per_instance()).unwrap_or(usize::MAX)
    }

    /// Returns whether a launcher or worker without known success is reported as missing, or a worker does
    /// not exist although all workers ran.
    fn has_missing_process(&self, instance: u32) -> bool {
        let (attempt, done) = (self.attempt(instance), self.done(instance));
        let reported = self
            .observation
            .instances
            .iter()
            .filter(|facts| facts.index == instance);
        let mut reported = reported.flat_map(|facts| &facts.missing);
        if reported.any(|missing| {
            let role = missing.worker.map_or(ProcessRole::Launcher, ProcessRole::Worker);
            let done = missing.worker.is_some_and(|worker| done.contains(&worker));
            missing.attempt == attempt && self.is_of_job(role) && !done
        }) {
            return true;
        }
        let attempt_processes = self.attempt_processes(instance);
        let existing = attempt_processes.iter().filter_map(|(role, _)| match role {
            ProcessRole::Worker(worker) => Some(*worker),
            ProcessRole::Launcher => None,
        });
        let present_or_done: BTreeSet<u32> = existing.chain(done).collect();
        self.recorded_status(instance).running_since.is_some() && !self.are_all(&present_or_done)
    }

    fn outcome_by_partition(&self, instance: u32) -> AttemptOutcome {
        let attempt = self.attempt(instance);
        let is_in_use = !self.attempt_processes(instance).is_empty() || !self.done(instance).is_empty();
        let absent = PartitionFacts::Absent;
        let partition = self.partitions(instance).next().unwrap_or(&absent);
        match partition {
            PartitionFacts::Active {
                attempt: partition_attempt,
                since,
                ..
            } if *partition_attempt == attempt => {
                if self.missed_start_deadline(instance, *since) {
                    AttemptOutcome::NeverStarted
                } else {
                    AttemptOutcome::Ongoing
                }
            }
            PartitionFacts::Pending {
                attempt: partition_attempt,
            } if *partition_attempt == attempt => AttemptOutcome::Ongoing,
            _ if is_in_use => AttemptOutcome::Failed(
                [Failure::without_details(
                    FailedComponent::Partition,
                    self.observation.now,
                )]
                .into(),
            ),
            PartitionFacts::Failed {
                attempt: partition_attempt,
                ..
            } if *partition_attempt == attempt => AttemptOutcome::NeverStarted,
            _ => AttemptOutcome::Ongoing,
        }
    }

    /// Returns whether a worker that does not run has exceeded the start deadline.
    fn missed_start_deadline(&self, instance: u32, active: Timestamp) -> bool {
        let recorded_status = self.recorded_status(instance);
        if let Some(all_ran) = recorded_status.running_since {
            return self.launcher_missed_start_deadline(instance, all_ran);
        }
        let mut starting_since: BTreeMap<u32, Timestamp> = BTreeMap::new();
        for (role, process) in self.attempt_processes(instance) {
            if let (ProcessRole::Worker(worker), ProcessPhase::Starting { since, .. }) =
                (role, &process.phase)
            {
                let latest = starting_since.entry(worker).or_insert(*since);
                *latest = (*latest).max(*since);
            }
        }
        let ready = self.ready(instance);
        let earliest = recorded_status.retry_at.map_or(active, |retry| retry.max(active));
        let is_late = |worker: u32| {
            let could_start = starting_since
                .get(&worker)
                .map_or(earliest, |since| (*since).max(earliest));
            !ready.contains(&worker) && could_start.plus(self.job.start_deadline()) <= self.observation.now
        };
        (0..self.job.workers_per_instance()).any(is_late)
    }

    /// Returns whether the launcher has exceeded the start deadline since `all_ran`, when all workers ran.
    fn launcher_missed_start_deadline(&self, instance: u32, all_ran: Timestamp) -> bool {
        if !self.has_launcher() || self.launched(instance).is_some() {
            return false;
        }
        let attempt_processes = self.attempt_processes(instance);
        let could_start =
            attempt_processes
                .iter()
                .filter_map(|(role, process)| match (role, &process.phase) {
                    (ProcessRole::Launcher, ProcessPhase::Starting { since, .. }) => Some(*since),
                    _ => None,
                });
        let latest = could_start.chain([all_ran]).max().unwrap_or(all_ran);
        latest.plus(self.job.start_deadline()) <= self.observation.now
    }

    /// Returns when the job started to run; none while it is suspended.
    pub(super) fn started(&self) -> Option<Timestamp> {
        if self.job.suspend() {
            return None;
        }
        let open = |index: u32| self.is_open(index);
        let indices = self.observation.instances.iter().map(|facts| facts.index);
        let began = indices
            .filter(|index| open(*index))
            .flat_map(|index| self.processes(index));
        let began = began.filter_map(|(_, process)| match process.phase {
            ProcessPhase::Running { since } => Some(since),
            ProcessPhase::Exited { at, .. } => Some(at),
            ProcessPhase::Starting { .. } | ProcessPhase::Stopping | ProcessPhase::Lost { .. } => None,
        });
        began.chain(self.observation.status.started).min()
    }

    /// Returns whether the job has exceeded its deadline.
    pub(super) fn is_overdue(&self) -> bool {
        let limit: Option<Duration> = self.job.max_runtime();
        let ends = limit
            .zip(self.started())
            .map(|(limit, started)| started.plus(limit));
        ends.is_some_and(|end| end <= self.observation.now)
    }

    /// Returns whether verdicts apply to an instance: it belongs to the job and has not ended.
    pub(super) fn is_open(&self, instance: u32) -> bool {
        !self.is_surplus(instance) && self.outcome(instance).is_none()
    }
}

/// Retains the failures for which `is_better` holds, if there are any.
fn prefer(failures: &mut Vec<Failure>, is_better: impl Fn(&Failure) -> bool) {
    if failures.iter().any(&is_better) {
        failures.retain(is_better);
    }
}

fn has_succeeded(process: &ProcessFacts) -> bool {
    matches!(process.phase, ProcessPhase::Exited { exit, .. } if exit.code() == 0)
}

/// Returns the end of a process with any exit code.
fn failure(role: ProcessRole, process: &ProcessFacts) -> Option<Failure> {
    let component = component(role);
    match &process.phase {
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } => Some(Failure {
            exit: Some(*exit),
            out_of_memory: cause == "OOMKilled",
            has_no_output: last_lines.is_empty(),
            ..Failure::without_details(component, *at)
        }),
        ProcessPhase::Lost { at, cause } => Some(Failure {
            out_of_memory: cause == "OOMKilled",
            ..Failure::without_details(component, *at)
        }),
        ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } | ProcessPhase::Stopping => None,
    }
}

const fn component(role: ProcessRole) -> FailedComponent {
    match role {
        ProcessRole::Worker(worker) => FailedComponent::Worker { worker },
        ProcessRole::Launcher => FailedComponent::Launcher,
    }
}
