//! How the attempt of an instance ended, told from the tables of the documents, not from the rules.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use super::facts::{AttemptFacts, ProcessRole};
use crate::exit_status::Exit;
use crate::job::JobKind;
use crate::observation::{PartitionFacts, ProcessFacts, ProcessPhase};
use crate::plan::{FailedComponent, InstanceStatus};
use crate::units::Timestamp;

/// How an attempt ended, or that it goes on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// It goes on.
    None,
    /// Everything that does its work ended with code 0.
    Well,
    /// Something failed; what may be blamed for it.
    Badly(Vec<Failure>),
    /// The time of its session is over.
    SessionOver,
    /// Nothing can run on its partition.
    NothingRuns,
    /// One of its workers is gone without an end, and ran or may have run.
    Torn,
}

/// Something that failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) culprit: FailedComponent,
    pub(super) exit: Option<Exit>,
    pub(super) at: Timestamp,
    /// Whether it was ended for want of memory.
    starved: bool,
    /// Whether it ended without having said anything.
    mute: bool,
}

impl Failure {
    /// A failure that nothing more is known of.
    const fn bare(culprit: FailedComponent, at: Timestamp) -> Self {
        Self {
            culprit,
            exit: None,
            at,
            starved: false,
            mute: false,
        }
    }

    /// Those of `failures` that the others followed from: at first all, then those that remain at each step.
    fn first(mut failures: Vec<Self>, blur: Duration) -> Vec<Self> {
        let launches = |one: &Self| one.culprit == FailedComponent::Launcher;
        let stopped = |one: &Self| one.exit.is_some_and(|exit| [137, 143].contains(&exit.code()));
        let earliest = failures.iter().map(|one| one.at).min().unwrap_or_default();
        failures.retain(|one| one.at <= earliest.plus(blur));
        prefer(&mut failures, |one| !launches(one));
        let all = failures.clone();
        prefer(&mut failures, |one| one.starved);
        prefer(&mut failures, |one| !stopped(one));
        let alike = |one: &Self| {
            all.iter()
                .filter(|other| other.code_seen() == one.code_seen())
                .count()
        };
        let fewest = failures.iter().map(alike).min();
        failures.retain(|one| Some(alike(one)) == fewest);
        prefer(&mut failures, |one| !one.mute);
        let earliest = failures.iter().map(|one| one.at).min();
        failures.retain(|one| Some(one.at) == earliest);
        let lowest = failures.iter().map(|one| one.culprit).min();
        failures.retain(|one| Some(one.culprit) == lowest);
        failures
    }

    fn code_seen(&self) -> Option<u8> {
        self.exit.map(Exit::code)
    }

    /// The exit code that is judged.
    pub(super) fn code(&self) -> Option<u8> {
        self.exit.map(Exit::code).filter(|code| *code != 0)
    }
}

impl<'a> AttemptFacts<'a> {
    /// What is remembered of the newest attempt: nothing, if the record does not know it.
    pub(super) fn memory(&self, instance: u32) -> InstanceStatus {
        let known = self
            .recorded(instance)
            .filter(|_| self.attempt_is_recorded(instance));
        known.cloned().unwrap_or_else(|| InstanceStatus {
            attempt: self.attempt(instance),
            outcome: self.outcome(instance),
            ..InstanceStatus::new(instance)
        })
    }

    /// The processes of the newest attempt.
    pub(super) fn own(&self, instance: u32) -> Vec<(ProcessRole, &'a ProcessFacts)> {
        let attempt = self.attempt(instance);
        self.processes(instance)
            .filter(|(who, process)| process.attempt == attempt && self.is_of_the_job(*who))
            .collect()
    }

    /// How the newest attempt of an instance that has not ended ended.
    pub(super) fn end(&self, instance: u32) -> End {
        let failures = if self.has_launcher() {
            if self
                .own(instance)
                .iter()
                .any(|(who, process)| *who == ProcessRole::Launcher && succeeded(process))
            {
                return End::Well;
            }
            self.failures_under_a_launcher(instance)
        } else {
            let failed = |(who, process): &(ProcessRole, &ProcessFacts)| {
                failure(*who, process).filter(|_| !succeeded(process))
            };
            self.own(instance).iter().filter_map(failed).collect()
        };
        if !failures.is_empty() {
            return End::Badly(Failure::first(failures, self.seen.timestamp_resolution));
        }
        if !self.has_launcher() && self.are_all(&self.done(instance)) {
            return End::Well;
        }
        if self.is_session_over(instance) {
            return End::SessionOver;
        }
        if self.is_torn(instance) {
            return End::Torn;
        }
        self.end_by_partition(instance)
    }

    fn failures_under_a_launcher(&self, instance: u32) -> Vec<Failure> {
        let own = self.own(instance);
        let ended = own
            .iter()
            .filter(|(who, process)| *who != ProcessRole::Launcher || !succeeded(process));
        let mut failures: Vec<Failure> = ended
            .filter_map(|(who, process)| failure(*who, process))
            .collect();
        if self.launched(instance).is_some() {
            let known = failures.iter().map(|failure| failure.at);
            let at = known.chain([self.seen.now]).min().unwrap_or_default();
            let there: BTreeSet<FailedComponent> = own.iter().map(|(who, _)| culprit(*who)).collect();
            let workers =
                (0..self.job.workers_per_instance()).map(|worker| FailedComponent::Worker { worker });
            let gone = workers
                .chain([FailedComponent::Launcher])
                .filter(|one| !there.contains(one));
            failures.extend(gone.map(|culprit| Failure::bare(culprit, at)));
        }
        failures
    }

    /// Since when the launcher of the newest attempt runs, or ran.
    pub(super) fn launched(&self, instance: u32) -> Option<Timestamp> {
        let running = self
            .own(instance)
            .into_iter()
            .filter_map(|(who, process)| match process.phase {
                ProcessPhase::Running { since } if who == ProcessRole::Launcher => Some(since),
                _ => None,
            });
        self.memory(instance).launched.or(running.min())
    }

    fn is_session_over(&self, instance: u32) -> bool {
        let JobKind::Interactive { ttl } = self.job.shape() else {
            return false;
        };
        self.launched(instance)
            .is_some_and(|since| since.plus(*ttl) <= self.seen.now)
    }

    /// The workers without launcher that have done their part of the newest attempt.
    pub(super) fn done(&self, instance: u32) -> BTreeSet<u32> {
        if self.has_launcher() {
            return BTreeSet::new();
        }
        let own = self.own(instance);
        let ended = own.iter().filter_map(|(who, process)| match who {
            ProcessRole::Worker(worker) if succeeded(process) => Some(*worker),
            ProcessRole::Worker(_) | ProcessRole::Launcher => None,
        });
        let known = self.memory(instance).done;
        let all = ended.chain(known.iter().copied());
        all.filter(|worker| self.is_of_the_job(ProcessRole::Worker(*worker)))
            .collect()
    }

    /// The workers that run, or have done their part.
    pub(super) fn ready(&self, instance: u32) -> BTreeSet<u32> {
        let own = self.own(instance);
        let running = own
            .iter()
            .filter_map(|(who, process)| match (who, &process.phase) {
                (ProcessRole::Worker(worker), ProcessPhase::Running { .. }) => Some(*worker),
                _ => None,
            });
        running.chain(self.done(instance)).collect()
    }

    /// Whether `workers`, which the job has, are all that it has.
    pub(super) fn are_all(&self, workers: &BTreeSet<u32>) -> bool {
        workers.len() == usize::try_from(self.job.workers_per_instance()).unwrap_or(usize::MAX)
    }

    /// Whether there is a launcher or a worker of which no success is known, and that others are known to have taken away, or a worker
    /// of which nothing is there although all ran.
    fn is_torn(&self, instance: u32) -> bool {
        let (attempt, done) = (self.attempt(instance), self.done(instance));
        let taken = self.seen.instances.iter().filter(|facts| facts.index == instance);
        let mut taken = taken.flat_map(|facts| &facts.missing);
        if taken.any(|gone| {
            let who = gone.worker.map_or(ProcessRole::Launcher, ProcessRole::Worker);
            let done = gone.worker.is_some_and(|worker| done.contains(&worker));
            gone.attempt == attempt && self.is_of_the_job(who) && !done
        }) {
            return true;
        }
        let own = self.own(instance);
        let there = own.iter().filter_map(|(who, _)| match who {
            ProcessRole::Worker(worker) => Some(*worker),
            ProcessRole::Launcher => None,
        });
        let accounted: BTreeSet<u32> = there.chain(done).collect();
        self.memory(instance).running_since.is_some() && !self.are_all(&accounted)
    }

    fn end_by_partition(&self, instance: u32) -> End {
        let attempt = self.attempt(instance);
        let begun = !self.own(instance).is_empty() || !self.done(instance).is_empty();
        let nothing = PartitionFacts::Absent;
        let partition = self.partitions(instance).next().unwrap_or(&nothing);
        match partition {
            PartitionFacts::Active {
                attempt: of, since, ..
            } if *of == attempt => {
                if self.is_too_late(instance, *since) {
                    End::NothingRuns
                } else {
                    End::None
                }
            }
            PartitionFacts::Pending { attempt: of } if *of == attempt => End::None,
            _ if begun => End::Badly([Failure::bare(FailedComponent::Partition, self.seen.now)].into()),
            PartitionFacts::Failed { attempt: of, .. } if *of == attempt => End::NothingRuns,
            _ => End::None,
        }
    }

    /// Whether a worker that does not run could have started longer ago than it may take.
    fn is_too_late(&self, instance: u32, active: Timestamp) -> bool {
        let memory = self.memory(instance);
        if let Some(all_ran) = memory.running_since {
            return self.is_launcher_too_late(instance, all_ran);
        }
        let mut waits: BTreeMap<u32, Timestamp> = BTreeMap::new();
        for (who, process) in self.own(instance) {
            if let (ProcessRole::Worker(worker), ProcessPhase::Starting { since, .. }) = (who, &process.phase)
            {
                let latest = waits.entry(worker).or_insert(*since);
                *latest = (*latest).max(*since);
            }
        }
        let ready = self.ready(instance);
        let free = memory.retry_at.map_or(active, |retry| retry.max(active));
        let late = |worker: u32| {
            let could = waits.get(&worker).map_or(free, |since| (*since).max(free));
            !ready.contains(&worker) && could.plus(self.job.start_deadline()) <= self.seen.now
        };
        (0..self.job.workers_per_instance()).any(late)
    }

    /// The same of a launcher, whose workers `all_ran` since then.
    fn is_launcher_too_late(&self, instance: u32, all_ran: Timestamp) -> bool {
        if !self.has_launcher() || self.launched(instance).is_some() {
            return false;
        }
        let own = self.own(instance);
        let could = own
            .iter()
            .filter_map(|(who, process)| match (who, &process.phase) {
                (ProcessRole::Launcher, ProcessPhase::Starting { since, .. }) => Some(*since),
                _ => None,
            });
        let latest = could.chain([all_ran]).max().unwrap_or(all_ran);
        latest.plus(self.job.start_deadline()) <= self.seen.now
    }

    /// When the job began to run, its suspension aside.
    pub(super) fn started(&self) -> Option<Timestamp> {
        if self.job.suspend() && !self.is_finished() && !self.seen.deleted {
            return None;
        }
        let open = |index: u32| self.is_open(index);
        let indices = self.seen.instances.iter().map(|facts| facts.index);
        let began = indices
            .filter(|index| open(*index))
            .flat_map(|index| self.processes(index));
        let began = began.filter_map(|(_, process)| match process.phase {
            ProcessPhase::Running { since } => Some(since),
            ProcessPhase::Exited { at, .. } => Some(at),
            ProcessPhase::Starting { .. } | ProcessPhase::Stopping | ProcessPhase::Lost { .. } => None,
        });
        began.chain(self.seen.status.started).min()
    }

    /// Whether the job has run for longer than it may.
    pub(super) fn is_overdue(&self) -> bool {
        let limit: Option<Duration> = self.job.max_runtime();
        let ends = limit
            .zip(self.started())
            .map(|(limit, started)| started.plus(limit));
        !self.seen.deleted && !self.is_finished() && ends.is_some_and(|end| end <= self.seen.now)
    }

    /// Whether verdicts are made on an instance: it is wanted, it has not ended, nor has its job.
    pub(super) fn is_open(&self, instance: u32) -> bool {
        !self.seen.deleted
            && !self.is_finished()
            && !self.is_surplus(instance)
            && self.outcome(instance).is_none()
    }
}

/// Keeps what is `better`, if anything is.
fn prefer(failures: &mut Vec<Failure>, better: impl Fn(&Failure) -> bool) {
    if failures.iter().any(&better) {
        failures.retain(better);
    }
}

fn succeeded(process: &ProcessFacts) -> bool {
    matches!(process.phase, ProcessPhase::Exited { exit, .. } if exit.code() == 0)
}

/// The end of a process, whatever its code.
fn failure(who: ProcessRole, process: &ProcessFacts) -> Option<Failure> {
    let culprit = culprit(who);
    match &process.phase {
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } => Some(Failure {
            exit: Some(*exit),
            starved: cause == "OOMKilled",
            mute: last_lines.is_empty(),
            ..Failure::bare(culprit, *at)
        }),
        ProcessPhase::Lost { at, cause } => Some(Failure {
            starved: cause == "OOMKilled",
            ..Failure::bare(culprit, *at)
        }),
        ProcessPhase::Starting { .. } | ProcessPhase::Running { .. } | ProcessPhase::Stopping => None,
    }
}

const fn culprit(who: ProcessRole) -> FailedComponent {
    match who {
        ProcessRole::Worker(worker) => FailedComponent::Worker { worker },
        ProcessRole::Launcher => FailedComponent::Launcher,
    }
}
