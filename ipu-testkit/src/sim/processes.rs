//! The host of a simulation: processes that start, run, end, get lost, and take their time to stop. It outlives drivers.
//!
//! What becomes of a process is drawn when it starts, as moments in time; what it is like now follows from the clock.

use std::collections::BTreeMap;

use ipu_core::{ControllerName, Exit, PartitionId, ProcessFacts, ProcessPhase, Timestamp};

use super::owners::IpuUse;
use crate::fake::Masks;
use crate::random::Random;

/// Which process: its job, its instance, and what it is of that.
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
    /// The IPUs of the partition when the process started: it uses them also after the controller has forgotten them.
    ipus: Masks,
    created: SimTime,
    runs: Option<SimTime>,
    ends: Option<(SimTime, End)>,
    /// Whether it does not end by itself.
    serves: bool,
    /// When it is gone, once it was told to stop.
    gone: Option<SimTime>,
}

impl Process {
    fn end_by(&self, now: SimTime) -> Option<(SimTime, End)> {
        self.ends.filter(|(at, _)| *at <= now)
    }

    /// Whether it uses its partition at `now`.
    fn lives(&self, now: SimTime) -> bool {
        self.created <= now && self.end_by(now).is_none() && self.gone.is_none_or(|gone| gone > now)
    }

    fn phase(&self, now: SimTime) -> ProcessPhase {
        let at = Timestamp::from_millis;
        match (self.end_by(now), self.gone) {
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

/// How processes behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessBehaviour {
    /// Anything may happen to them.
    Wild,
    /// They start soon, end well, and stop when they are told to.
    Calm,
}

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It does the work, and ends when that is done.
    Work,
    /// It serves a launcher or people, and does not end by itself.
    Serve,
}

/// All processes of the host.
#[derive(Debug, Default)]
pub(super) struct Processes(BTreeMap<ProcessId, Process>);

/// What is asked for when a process starts.
pub(super) struct StartProcess {
    pub(super) which: ProcessId,
    pub(super) attempt: u32,
    pub(super) partition: PartitionId,
    pub(super) controller: ControllerName,
    pub(super) ipus: Masks,
    pub(super) purpose: Purpose,
}

impl Processes {
    /// Starts a process, unless there is one of the name. Says whether it did.
    pub(super) fn start(
        &mut self,
        start: StartProcess,
        manners: ProcessBehaviour,
        now: SimTime,
        random: &mut Random,
    ) -> bool {
        self.forget_gone(now);
        if self.0.contains_key(&start.which) {
            return false;
        }
        let soon = now + u64::from(random.below(3_000));
        let (runs, ends) = match manners {
            ProcessBehaviour::Calm => (
                Some(soon),
                Some((soon + 1_000 + u64::from(random.below(20_000)), End::Code(0))),
            ),
            ProcessBehaviour::Wild => wild(soon, random),
        };
        let serves =
            start.purpose == Purpose::Serve && (manners == ProcessBehaviour::Calm || random.chance(90));
        let process = Process {
            attempt: start.attempt,
            partition: start.partition,
            controller: start.controller,
            ipus: start.ipus,
            created: now,
            runs,
            ends: ends.filter(|_| !serves),
            serves,
            gone: None,
        };
        self.0.insert(start.which, process);
        true
    }

    /// Tells a process of `attempt` to stop, or forgets it if it has ended.
    pub(super) fn stop(
        &mut self,
        which: ProcessId,
        attempt: Option<u32>,
        manners: ProcessBehaviour,
        now: SimTime,
        random: &mut Random,
    ) -> bool {
        self.forget_gone(now);
        let Some(process) = self.0.get_mut(&which) else {
            return false;
        };
        if attempt.is_some_and(|attempt| process.attempt != attempt) || process.gone.is_some() {
            return false;
        }
        if process.end_by(now).is_some() {
            self.0.remove(&which);
            return true;
        }
        let lag = match manners {
            ProcessBehaviour::Wild if random.chance(15) => 5_000 + random.below(40_000),
            _ => random.below(800),
        };
        process.ends = None;
        process.gone = Some(now + u64::from(lag));
        true
    }

    /// The host of a process is lost, and the process with it.
    pub(super) fn lose(&mut self, which: ProcessId, now: SimTime) {
        if let Some(process) = self.0.get_mut(&which)
            && process.lives(now)
        {
            process.gone = None;
            process.ends = Some((now, End::Lost));
        }
    }

    /// Somebody kills a process by hand and removes its record.
    pub(super) fn vanish(&mut self, which: ProcessId) {
        self.0.remove(&which);
    }

    /// Has a process end at once if its partition is not there.
    pub(super) fn end_soon(&mut self, which: ProcessId, now: SimTime) {
        if let Some(process) = self.0.get_mut(&which) {
            process.runs = Some(now);
            process.ends = Some((now + 100, End::Code(134)));
        }
    }

    /// Wild times are over: whatever could not start so far does now.
    pub(super) fn calm_down(&mut self, now: SimTime) {
        for process in self.0.values_mut() {
            if process.gone.is_none() && process.runs.is_none_or(|runs| runs > now) && process.lives(now) {
                process.runs = Some(now + 1_000);
                process.ends = (!process.serves).then_some((now + 5_000, End::Code(0)));
            }
        }
    }

    fn forget_gone(&mut self, now: SimTime) {
        self.0
            .retain(|_, process| process.gone.is_none_or(|gone| gone > now) || process.end_by(now).is_some());
    }

    /// The processes of `job` that there is a record of.
    pub(super) fn facts(&mut self, job: usize, now: SimTime) -> Vec<(u32, SimRole, ProcessFacts)> {
        self.forget_gone(now);
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

    /// Every process that lives at `now`: which, its attempt, its partition and where that is.
    pub(super) fn living(
        &self,
        now: SimTime,
    ) -> impl Iterator<Item = (ProcessId, u32, &PartitionId, &ControllerName)> {
        let living = self.0.iter().filter(move |(_, process)| process.lives(now));
        living.map(|(which, process)| (*which, process.attempt, &process.partition, &process.controller))
    }

    /// What each living process uses at `now`.
    pub(super) fn using(&self, now: SimTime) -> impl Iterator<Item = IpuUse<'_>> {
        let living = self.0.values().filter(move |process| process.lives(now));
        living.map(|process| IpuUse {
            id: &process.partition,
            attempt: process.attempt,
            controller: &process.controller,
            ipus: &process.ipus,
            by: "a worker",
        })
    }

    /// Excuses the processes whose partition is not `known`, by job, partition and controller: no record of their IPUs is
    /// left that has an owner.
    pub(super) fn excuse(&mut self, known: impl Fn(usize, &PartitionId, &ControllerName) -> bool) {
        for ((job, ..), process) in &mut self.0 {
            if !known(*job, &process.partition, &process.controller) {
                process.ipus.clear();
            }
        }
    }

    /// Whether a process of `job` lives at `now`.
    pub(super) fn any_of(&self, job: usize, now: SimTime) -> bool {
        self.living(now).any(|((other, _, _), ..)| other == job)
    }

    /// All processes that there is a record of.
    pub(super) fn all(&self) -> Vec<ProcessId> {
        self.0.keys().copied().collect()
    }

    /// When the next process of `job` changes by itself.
    pub(super) fn next_change(&self, job: usize, now: SimTime) -> Option<SimTime> {
        let own = self
            .0
            .range((job, 0, SimRole::Worker(0))..(job + 1, 0, SimRole::Worker(0)));
        own.flat_map(|(_, process)| [process.runs, process.ends.map(|(at, _)| at), process.gone])
            .flatten()
            .filter(|at| *at > now)
            .min()
    }
}

/// What becomes of a process in wild times.
fn wild(soon: SimTime, random: &mut Random) -> (Option<SimTime>, Option<(SimTime, End)>) {
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
    // One that never runs is lost now and then.
    let ends = match runs {
        Some(runs) => Some((runs + takes, end)),
        None => (end == End::Lost).then_some((soon + takes, End::Lost)),
    };
    (runs, ends)
}
