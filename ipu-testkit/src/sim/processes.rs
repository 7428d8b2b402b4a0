//! Process host of a simulation: processes start, run, end, get lost, and take time to stop. It outlives
//! drivers.
//!
//! The times of a process are drawn when it starts; its state follows from the clock.

use std::collections::BTreeMap;

use ipu_core::{ControllerName, Exit, PartitionId, ProcessFacts, ProcessPhase, Timestamp};

use super::owners::IpuUse;
use crate::fake::Masks;
use crate::random::Random;

/// Identity of a process: its job, its instance, and its role.
pub(super) type ProcessId = (usize, u32, SimRole);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimRole {
    Worker(u32),
    Launcher,
}

/// Milliseconds of the simulated clock.
type SimTime = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Code(u8),
    Lost,
}

#[derive(Clone, Debug)]
struct Process {
    attempt: u32,
    partition: PartitionId,
    controller: ControllerName,
    /// IPUs of the partition at the start of the process, which it uses even after the controller has
    /// forgotten them.
    ipus: Masks,
    created: SimTime,
    runs: Option<SimTime>,
    ends: Option<(SimTime, End)>,
    /// Whether it does not end by itself.
    serves: bool,
    /// End of the stop, once it was requested.
    stopped: Option<SimTime>,
}

impl Process {
    fn end_by(&self, now: SimTime) -> Option<(SimTime, End)> {
        self.ends.filter(|(at, _)| *at <= now)
    }

    /// Returns whether it uses its partition at `now`.
    fn is_running(&self, now: SimTime) -> bool {
        self.created <= now && self.end_by(now).is_none() && self.stopped.is_none_or(|stopped| stopped > now)
    }

    fn phase(&self, now: SimTime) -> ProcessPhase {
        let at = Timestamp::from_millis;
        match (self.end_by(now), self.stopped) {
            (Some((end, End::Code(code))), _) => ProcessPhase::Exited {
                exit: Exit::Code(code),
                at: at(end),
                last_lines: String::new(),
                cause: String::new(),
            },
            (Some((end, End::Lost)), _) => ProcessPhase::Lost {
                at: at(end),
                cause: "its host was lost".into(),
            },
            (None, Some(_)) => ProcessPhase::Stopping,
            (None, None) => match self.runs.filter(|runs| *runs <= now) {
                Some(runs) => ProcessPhase::Running { since: at(runs) },
                None => ProcessPhase::Starting {
                    since: at(self.created),
                    cause: String::new(),
                },
            },
        }
    }
}

/// Behaviour of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessBehaviour {
    /// Any event may happen to them.
    Wild,
    /// They start soon, succeed, and stop when requested.
    Calm,
}

/// Purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It runs to completion.
    Work,
    /// It serves a launcher or users, and does not end by itself.
    Serve,
}

/// All processes of the host.
#[derive(Debug, Default)]
pub(super) struct Processes(BTreeMap<ProcessId, Process>);

/// Parameters of a process start.
pub(super) struct StartProcess {
    pub(super) which: ProcessId,
    pub(super) attempt: u32,
    pub(super) partition: PartitionId,
    pub(super) controller: ControllerName,
    pub(super) ipus: Masks,
    pub(super) purpose: Purpose,
}

impl Processes {
    /// Starts a process, unless one with the same identity exists. Returns whether it did.
    pub(super) fn start(
        &mut self,
        start: StartProcess,
        behaviour: ProcessBehaviour,
        now: SimTime,
        random: &mut Random,
    ) -> bool {
        self.remove_stopped(now);
        if self.0.contains_key(&start.which) {
            return false;
        }
        let soon = now + u64::from(random.below(3_000));
        let (runs, ends) = match behaviour {
            ProcessBehaviour::Calm => (
                Some(soon),
                Some((soon + 1_000 + u64::from(random.below(20_000)), End::Code(0))),
            ),
            ProcessBehaviour::Wild => draw_times(soon, random),
        };
        let serves =
            start.purpose == Purpose::Serve && (behaviour == ProcessBehaviour::Calm || random.chance(90));
        let process = Process {
            attempt: start.attempt,
            partition: start.partition,
            controller: start.controller,
            ipus: start.ipus,
            created: now,
            runs,
            ends: ends.filter(|_| !serves),
            serves,
            stopped: None,
        };
        self.0.insert(start.which, process);
        true
    }

    /// Stops a process of `attempt`, or removes it if it has ended.
    pub(super) fn stop(
        &mut self,
        which: ProcessId,
        attempt: Option<u32>,
        behaviour: ProcessBehaviour,
        now: SimTime,
        random: &mut Random,
    ) -> bool {
        self.remove_stopped(now);
        let Some(process) = self.0.get_mut(&which) else {
            return false;
        };
        if attempt.is_some_and(|attempt| process.attempt != attempt) || process.stopped.is_some() {
            return false;
        }
        if process.end_by(now).is_some() {
            self.0.remove(&which);
            return true;
        }
        let lag = match behaviour {
            ProcessBehaviour::Wild if random.chance(15) => 5_000 + random.below(40_000),
            _ => random.below(800),
        };
        process.ends = None;
        process.stopped = Some(now + u64::from(lag));
        true
    }

    /// Loses a process together with its host.
    pub(super) fn lose(&mut self, which: ProcessId, now: SimTime) {
        if let Some(process) = self.0.get_mut(&which)
            && process.is_running(now)
        {
            process.stopped = None;
            process.ends = Some((now, End::Lost));
        }
    }

    /// Deletes a process and its record by hand.
    pub(super) fn delete(&mut self, which: ProcessId) {
        self.0.remove(&which);
    }

    /// Ends a process at once if its partition does not exist.
    pub(super) fn end_soon(&mut self, which: ProcessId, now: SimTime) {
        if let Some(process) = self.0.get_mut(&which) {
            process.runs = Some(now);
            process.ends = Some((now + 100, End::Code(134)));
        }
    }

    /// Ends the fault phase: processes that could not start do so now.
    pub(super) fn calm_down(&mut self, now: SimTime) {
        for process in self.0.values_mut() {
            if process.stopped.is_none()
                && process.runs.is_none_or(|runs| runs > now)
                && process.is_running(now)
            {
                process.runs = Some(now + 1_000);
                process.ends = (!process.serves).then_some((now + 5_000, End::Code(0)));
            }
        }
    }

    fn remove_stopped(&mut self, now: SimTime) {
        self.0.retain(|_, process| {
            process.stopped.is_none_or(|stopped| stopped > now) || process.end_by(now).is_some()
        });
    }

    /// Returns the recorded processes of `job`.
    pub(super) fn facts(&mut self, job: usize, now: SimTime) -> Vec<(u32, SimRole, ProcessFacts)> {
        self.remove_stopped(now);
        let own = self
            .0
            .range((job, 0, SimRole::Worker(0))..(job + 1, 0, SimRole::Worker(0)));
        own.map(|((_, instance, role), process)| {
            let index = match role {
                SimRole::Worker(index) => *index,
                SimRole::Launcher => 0,
            };
            let facts = ProcessFacts {
                index,
                attempt: process.attempt,
                phase: process.phase(now),
            };
            (*instance, *role, facts)
        })
        .collect()
    }

    /// Returns every process that runs at `now`: identity, attempt, partition and location.
    pub(super) fn running(
        &self,
        now: SimTime,
    ) -> impl Iterator<Item = (ProcessId, u32, &PartitionId, &ControllerName)> {
        let running = self.0.iter().filter(move |(_, process)| process.is_running(now));
        running.map(|(which, process)| (*which, process.attempt, &process.partition, &process.controller))
    }

    /// Returns the IPUs that each running process uses at `now`.
    pub(super) fn using(&self, now: SimTime) -> impl Iterator<Item = IpuUse<'_>> {
        let running = self.0.values().filter(move |process| process.is_running(now));
        running.map(|process| IpuUse {
            id: &process.partition,
            attempt: process.attempt,
            controller: &process.controller,
            ipus: &process.ipus,
            by: "a worker",
        })
    }

    /// Exempts the processes whose partition is not `is_known`, by job, partition and controller: no record
    /// of their IPUs with an owner is left.
    pub(super) fn exempt(&mut self, is_known: impl Fn(usize, &PartitionId, &ControllerName) -> bool) {
        for ((job, ..), process) in &mut self.0 {
            if !is_known(*job, &process.partition, &process.controller) {
                process.ipus.clear();
            }
        }
    }

    /// Returns whether a process of `job` runs at `now`.
    pub(super) fn has_running(&self, job: usize, now: SimTime) -> bool {
        self.running(now).any(|((other, _, _), ..)| other == job)
    }

    /// Returns all recorded processes.
    pub(super) fn all(&self) -> Vec<ProcessId> {
        self.0.keys().copied().collect()
    }

    /// Returns the time of the next change of a process of `job`.
    pub(super) fn next_change(&self, job: usize, now: SimTime) -> Option<SimTime> {
        let own = self
            .0
            .range((job, 0, SimRole::Worker(0))..(job + 1, 0, SimRole::Worker(0)));
        own.flat_map(|(_, process)| [process.runs, process.ends.map(|(at, _)| at), process.stopped])
            .flatten()
            .filter(|at| *at > now)
            .min()
    }
}

/// Draws the times of a process while faults are injected.
fn draw_times(soon: SimTime, random: &mut Random) -> (Option<SimTime>, Option<(SimTime, End)>) {
    let runs = match random.below(20) {
        0 => None,
        1 => Some(soon + 60_000),
        _ => Some(soon),
    };
    let end = match random.below(12) {
        0 => End::Lost,
        1 => End::Code(1),
        2 => End::Code(137),
        3 => End::Code(42),
        _ => End::Code(0),
    };
    let takes = 200 + u64::from(random.below(60_000));
    // A process that never runs is sometimes lost.
    let ends = match runs {
        Some(runs) => Some((runs + takes, end)),
        None => (end == End::Lost).then_some((soon + takes, End::Lost)),
    };
    (runs, ends)
}
