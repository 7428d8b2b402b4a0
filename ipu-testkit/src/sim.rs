//! A deterministic simulator: schedulers, ledgers, controllers and processes in one seeded world on virtual time.

mod adversary;
mod cordons;
mod driver;
mod flood;
mod hosts;
mod invariants;
mod jobs;
mod late;
mod lists;
mod liveness;
mod outages;
mod owners;
mod processes;
mod profile;
mod report;
mod run;
mod store;
mod usage;
mod world;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ipu_core::{CordonEffect, JobSpec, Observation, PartitionId, Plan};
use ipu_vipu_client::CreatePartition;

pub use report::SimReport;
use world::locked;

/// How much of the event log a failure shows.
const TAIL: usize = 60;

/// What decides in a simulation: [`ipu_core::plan`], or one of your own.
pub type Planner = Arc<dyn Fn(&JobSpec, &Observation) -> Plan + Send + Sync>;

/// Sees every plan of a simulation, with what it was made from.
pub type PlanHook = Arc<dyn Fn(&JobSpec, &Observation, &Plan) + Send + Sync>;

/// Changes a create request on its way to a controller. The number counts earlier requests for the same partition.
pub type CreateHook = Arc<dyn Fn(&mut CreatePartition, u32) + Send + Sync>;

/// Changes the answer to a cordon on its way to the administrator. The set has the partitions that the controller lists.
pub type CordonedHook = Arc<dyn Fn(&mut CordonEffect, &BTreeSet<PartitionId>) + Send + Sync>;

/// Whether drivers check plans before they apply them, as they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanCheck {
    /// A plan that [`ipu_core::check_plan`] finds broken ends the simulation.
    #[default]
    Check,
    /// Plans are applied as they are: what they break is to be seen in the world.
    Trust,
}

/// Whether drivers repair, as they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairPolicy {
    /// When they start, and now and then.
    #[default]
    OnStartAndTimer,
    /// Never.
    Never,
}

/// What a simulation is like. The rest is drawn from its seed.
#[derive(Clone)]
#[non_exhaustive]
pub struct SimOptions {
    /// How many things happen by themselves before faults stop; 60 unless set.
    pub steps: u32,
    /// How likely a fault is at a call, an effect or a commit, in percent; none draws a rate for each from the seed.
    pub fault_percent: Option<u32>,
    /// What decides.
    pub planner: Planner,
    /// Whether plans are checked.
    pub plan_check: PlanCheck,
    /// Whether drivers repair.
    pub repair: RepairPolicy,
    /// Sees every plan.
    pub on_plan: Option<PlanHook>,
    /// Plants a defect between the ledger and its controllers.
    pub on_create: Option<CreateHook>,
    /// Plants a defect between the ledger and the administrator who cordons machines.
    pub on_cordoned: Option<CordonedHook>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            steps: 60,
            fault_percent: None,
            planner: Arc::new(ipu_core::plan),
            plan_check: PlanCheck::default(),
            repair: RepairPolicy::default(),
            on_plan: None,
            on_create: None,
            on_cordoned: None,
        }
    }
}

impl fmt::Debug for SimOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimOptions")
            .field("steps", &self.steps)
            .field("fault_percent", &self.fault_percent)
            .field("plan_check", &self.plan_check)
            .field("repair", &self.repair)
            .finish_non_exhaustive()
    }
}

/// A simulation in which an invariant was broken. Displayed, it ends in the command that repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimFailure {
    /// The seed that repeats it.
    pub seed: u64,
    /// Which invariant.
    pub invariant: &'static str,
    /// What was seen.
    pub message: String,
    /// The whole event log.
    pub log: String,
}

impl fmt::Display for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.log.lines().collect();
        let hidden = lines.len().saturating_sub(TAIL);
        writeln!(
            f,
            "seed {}: {} is broken: {}",
            self.seed, self.invariant, self.message
        )?;
        if hidden > 0 {
            writeln!(f, "… {hidden} lines before")?;
        }
        for line in &lines[hidden..] {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "again, with the whole log: IPU_SIM_SEED={} cargo test -p ipu-testkit --test it simulat -- --nocapture",
            self.seed
        )
    }
}

impl std::error::Error for SimFailure {}

/// One simulation with everything that happened in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReplay {
    /// The event log: the same bytes for the same seed, options and version.
    pub log: String,
    /// What came of it.
    pub outcome: Result<SimReport, SimFailure>,
}

/// Runs the simulation of `seed`, and keeps its event log.
#[must_use]
pub fn replay_simulation(seed: u64, options: &SimOptions) -> SimReplay {
    run::replay(seed, options)
}

/// Runs the simulation of `seed`.
///
/// # Errors
///
/// The first invariant that was broken.
pub fn simulate(seed: u64, options: &SimOptions) -> Result<SimReport, Box<SimFailure>> {
    run::replay(seed, options).outcome.map_err(Box::new)
}

/// Runs the simulations of `seeds` on all cores, and adds up what they covered.
///
/// # Errors
///
/// The failure of the lowest seed that was found; others may fail too.
pub fn simulate_many(
    seeds: impl IntoIterator<Item = u64>,
    options: &SimOptions,
) -> Result<SimReport, Box<SimFailure>> {
    let seeds: Vec<u64> = seeds.into_iter().collect();
    let next = AtomicU64::new(0);
    let failure: Mutex<Option<Box<SimFailure>>> = Mutex::new(None);
    let work = || {
        let mut sum = SimReport::default();
        while locked(&failure).is_none() {
            let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap_or(usize::MAX);
            let Some(seed) = seeds.get(at) else { break };
            match simulate(*seed, options) {
                Ok(report) => sum.merge(&report),
                Err(found) => {
                    let mut failure = locked(&failure);
                    if failure.as_ref().is_none_or(|known| found.seed < known.seed) {
                        *failure = Some(found);
                    }
                }
            }
        }
        sum
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reports: Vec<SimReport> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let found = locked(&failure).take();
    found.map_or_else(|| Ok(run::sum(&reports)), Err)
}
