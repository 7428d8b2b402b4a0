//! Shared state of a simulation: clock, log, random numbers, violation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipu_core::{ControllerName, Owner, PartitionId, Timestamp};
use ipu_ledger::MemoryUsageLog;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::SimOptions;
use super::cordons::SimCordon;
use super::invariants::BrokenInvariant;
use super::jobs::Job;
use super::late::RequestedPartitions;
use super::owners::Grants;
use super::processes::{ProcessBehaviour, Processes};
use super::profile::{Profile, primary};
use super::report::SimReport;
use super::store::{SimStore, StoreFault};
use super::usage::Holds;
use crate::fake::FakeController;
use crate::random::Random;

/// Start time of simulations, in milliseconds: late enough that no subtraction reaches 0.
const EPOCH: u64 = 1_000_000;

pub(super) struct SimWorld {
    pub(super) options: SimOptions,
    pub(super) profile: Profile,
    start: Instant,
    pub(super) controllers: Vec<(ControllerName, FakeController)>,
    pub(super) store: SimStore,
    /// Usage records of the ledgers.
    pub(super) usage: MemoryUsageLog,
    state: Mutex<SimWorldState>,
    /// Separate from the rest, because controllers read it during their operations.
    processes: Arc<Mutex<Processes>>,
}

/// Scheduler host.
#[derive(Default)]
pub(super) struct Driver {
    /// Number of the current start; none while it is down.
    pub(super) incarnation: Option<u32>,
    pub(super) starts: u32,
    pub(super) tasks: Vec<JoinHandle<()>>,
    pub(super) down_since: Option<u64>,
    /// End of its suspension.
    pub(super) suspended_until: Option<Instant>,
    pub(super) ledger: Option<super::driver::SimLedger>,
}

/// Last user of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) generation: u64,
    pub(super) job: usize,
    pub(super) attempt: u32,
}

/// Mutable state.
pub(super) struct SimWorldState {
    pub(super) random: Random,
    pub(super) log: String,
    pub(super) jobs: Vec<Job>,
    pub(super) drivers: Vec<Driver>,
    pub(super) report: SimReport,
    pub(super) broken: Option<BrokenInvariant>,
    /// Partitions that their controller has lost by itself.
    pub(super) lost: BTreeSet<(ControllerName, PartitionId)>,
    pub(super) users: BTreeMap<(ControllerName, PartitionId), User>,
    /// IPUs that owners were granted.
    pub(super) grants: Grants,
    /// Partitions that owners request.
    pub(super) wanted: RequestedPartitions,
    /// Cordoned machines.
    pub(super) cordons: Vec<SimCordon>,
    /// Owner of a flood of requests, if there was one, and whether it has left.
    pub(super) flood: Option<Owner>,
    pub(super) flood_is_over: bool,
    /// List of controllers, as an administrator has edited it.
    pub(super) listed: Vec<ControllerName>,
    pub(super) behaviour: ProcessBehaviour,
    /// Whether the ledger was replaced by an old copy.
    pub(super) restored: bool,
    /// Partition holds according to commits.
    pub(super) holds: Holds,
}

impl SimWorld {
    pub(super) fn new(seed: u64, options: &SimOptions) -> Arc<Self> {
        let mut random = Random::new(seed);
        let profile = Profile::new(options, &mut random);
        let controllers = profile.controllers(&mut random);
        Arc::new_cyclic(|this| {
            let start = Instant::now();
            let processes: Arc<Mutex<Processes>> = Arc::default();
            for (name, controller) in &controllers {
                if let Some(hook) = &options.on_create {
                    controller.on_create(Arc::clone(hook));
                }
                let (name, processes) = (name.clone(), Arc::clone(&processes));
                controller.set_users(Arc::new(move |id: &PartitionId, at: Instant| {
                    let processes = locked(&processes);
                    let mut living = processes.running(millis(start, at));
                    let user = living.find(|(_, _, other, place)| *other == id && **place == name)?;
                    let (which, attempt) = (user.0, user.1);
                    Some(format!("{which:?} of attempt {attempt}"))
                }));
            }
            let state = SimWorldState {
                random,
                log: String::new(),
                jobs: Vec::new(),
                drivers: (0..profile.drivers).map(|_| Driver::default()).collect(),
                report: SimReport::default(),
                broken: None,
                lost: BTreeSet::new(),
                users: BTreeMap::new(),
                grants: Grants::default(),
                wanted: RequestedPartitions::default(),
                cordons: Vec::new(),
                flood: None,
                flood_is_over: false,
                listed: controllers
                    .iter()
                    .map(|(name, _)| name.clone())
                    .chain(profile.alias())
                    .collect(),
                behaviour: ProcessBehaviour::Wild,
                restored: false,
                holds: Holds::default(),
            };
            Self {
                options: options.clone(),
                profile,
                start,
                controllers,
                store: SimStore::new(this.clone()),
                usage: MemoryUsageLog::new(),
                state: Mutex::new(state),
                processes,
            }
        })
    }

    // A panic ends the simulation: only the log is read afterwards.
    pub(super) fn state(&self) -> MutexGuard<'_, SimWorldState> {
        locked(&self.state)
    }

    /// Returns the processes after all due controller events.
    pub(super) fn processes(&self) -> MutexGuard<'_, Processes> {
        for (_, controller) in &self.controllers {
            controller.settle();
        }
        locked(&self.processes)
    }

    pub(super) fn millis(&self) -> u64 {
        millis(self.start, Instant::now())
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.millis())
    }

    pub(super) fn controller(&self, name: &ControllerName) -> Option<&FakeController> {
        let name = primary(name);
        let found = self.controllers.iter().find(|(other, _)| *other == name);
        found.map(|(_, controller)| controller)
    }

    pub(super) fn log(&self, source: &str, message: impl std::fmt::Display) {
        let at = self.millis() - EPOCH;
        // Writing to a string does not fail.
        let _ = writeln!(
            self.state().log,
            "{:>9.3} {source}: {message}",
            at as f64 / 1000.0
        );
    }

    pub(super) fn below(&self, end: u32) -> u32 {
        self.state().random.below(end)
    }

    pub(super) fn chance(&self, percent: u32) -> bool {
        self.state().random.chance(percent)
    }

    /// Records a violated invariant. The first one counts.
    pub(super) fn record_violation(&self, broken: BrokenInvariant) {
        self.log(
            "invariant",
            format_args!("invariant {} is violated: {}", broken.invariant, broken.message),
        );
        self.state().broken.get_or_insert(broken);
    }

    pub(super) fn expect(&self, found: Result<(), BrokenInvariant>) {
        if let Err(broken) = found {
            self.record_violation(broken);
        }
    }

    /// Returns the end of a driver's suspension; none if it runs.
    pub(super) fn suspended_until(&self, driver: usize) -> Option<Instant> {
        let until = self.state().drivers[driver].suspended_until;
        until.filter(|until| *until > Instant::now())
    }

    pub(super) fn is_wild(&self) -> bool {
        self.state().behaviour == ProcessBehaviour::Wild
    }

    pub(super) fn count_event(&self, event: &'static str) {
        *self.state().report.events.entry(event).or_default() += 1;
    }

    /// Draws the fault of an effect, or of recording the status.
    pub(super) fn draw_effect_fault(&self, effect: &str) -> Option<&'static str> {
        let mut state = self.state();
        // Rare effects fail often, so that their faults are covered.
        let seldom = matches!(
            effect,
            "ResetPartition" | "StartLauncher" | "StopLauncher" | "Finalize"
        );
        let rate = (self.profile.effect_faults * if seldom { 4 } else { 1 }).min(60);
        if state.behaviour == ProcessBehaviour::Calm || !state.random.chance(rate) {
            return None;
        }
        Some(*state.random.pick::<&'static str>(&SimReport::EFFECT_FAULTS))
    }

    pub(super) fn count_effect_fault(&self, fault: &'static str, effect: &'static str) {
        *self
            .state()
            .report
            .effect_faults
            .entry((fault, effect))
            .or_default() += 1;
    }

    pub(super) fn draw_store_fault(&self, operation: &'static str) -> Option<StoreFault> {
        let mut state = self.state();
        if state.behaviour == ProcessBehaviour::Calm || !state.random.chance(self.profile.store_faults) {
            return None;
        }
        let fault = match state.random.below(3) {
            0 => StoreFault::Broken,
            1 => StoreFault::LostReply,
            _ => StoreFault::Slow(Duration::from_millis(u64::from(state.random.below(40)))),
        };
        if operation == "load" && fault != StoreFault::Broken {
            return None;
        }
        let counted = (fault.label(), operation);
        *state.report.store_faults.entry(counted).or_default() += 1;
        Some(fault)
    }

    /// Ends all tasks of driver `number` at any point.
    pub(super) fn crash(&self, number: usize, reason: &str) {
        self.log("world", format_args!("driver {number} crashes {reason}"));
        let now = self.millis();
        let mut state = self.state();
        *state.report.events.entry("driver crashed").or_default() += 1;
        for job in state.jobs.iter_mut().filter(|job| job.driver == Some(number)) {
            job.driver = None;
        }
        let driver = &mut state.drivers[number];
        driver.incarnation = None;
        driver.suspended_until = None;
        driver.down_since = Some(now);
        for task in driver.tasks.drain(..) {
            task.abort();
        }
    }
}

fn millis(start: Instant, at: Instant) -> u64 {
    let elapsed = at.saturating_duration_since(start).as_millis();
    EPOCH + u64::try_from(elapsed).unwrap_or(u64::MAX - EPOCH)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
