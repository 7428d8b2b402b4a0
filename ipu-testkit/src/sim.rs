//! Deterministic simulator: schedulers, ledgers, controllers and processes on virtual time, from one seed.

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
mod order;
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

use ipu_core::{CordonEffect, JobSpec, Observation, PartitionId, PlacementMode, Plan};
use ipu_vipu_client::CreatePartition;

pub use report::SimReport;
use world::locked;

/// Number of lines of the event log that a failure shows.
const MAX_LOG_LINES: usize = 60;

/// Planner of a simulation: [`ipu_core::plan`], or a custom one.
pub type Planner = Arc<dyn Fn(&JobSpec, &Observation) -> Plan + Send + Sync>;

/// Observes every plan of a simulation, with its inputs.
pub type PlanHook = Arc<dyn Fn(&JobSpec, &Observation, &Plan) + Send + Sync>;

/// Modifies a create request on its way to a controller. The number counts earlier requests for the same
/// partition.
pub type CreateHook = Arc<dyn Fn(&mut CreatePartition, u32) + Send + Sync>;

/// Modifies the result of a cordon on its way to the administrator. The set contains the partitions that the
/// controller lists.
pub type CordonedHook = Arc<dyn Fn(&mut CordonEffect, &BTreeSet<PartitionId>) + Send + Sync>;

/// Check of plans before drivers apply them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanCheck {
    /// A plan that [`ipu_core::check_plan`] rejects ends the simulation.
    #[default]
    Check,
    /// Plans are applied unchecked: only their effects can violate an invariant.
    Trust,
}

/// Repair by drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairPolicy {
    /// On start, and at random intervals.
    #[default]
    OnStartAndTimer,
    /// Never.
    Never,
}

/// Options of a simulation. All other parameters are drawn from its seed.
#[derive(Clone)]
#[non_exhaustive]
pub struct SimOptions {
    /// Number of random events before faults stop; 60 by default.
    pub steps: u32,
    /// Probability of a fault in a call, an effect or a commit, in percent; if none, a rate for each is drawn
    /// from the seed.
    pub fault_percent: Option<u32>,
    /// Placement mode of all ledgers; if none, the seed decides.
    pub placement: Option<PlacementMode>,
    /// Planner.
    pub planner: Planner,
    /// Check of plans.
    pub plan_check: PlanCheck,
    /// Repair by drivers.
    pub repair: RepairPolicy,
    /// Observer of every plan.
    pub on_plan: Option<PlanHook>,
    /// Fault injection between the ledger and its controllers.
    pub on_create: Option<CreateHook>,
    /// Fault injection between the ledger and the administrator who cordons machines.
    pub on_cordoned: Option<CordonedHook>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            steps: 60,
            fault_percent: None,
            placement: None,
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
            .field("placement", &self.placement)
            .field("plan_check", &self.plan_check)
            .field("repair", &self.repair)
            .finish_non_exhaustive()
    }
}

/// Simulation that violated an invariant. The text ends with the command that repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimFailure {
    /// Seed of the simulation.
    pub seed: u64,
    /// Violated invariant.
    pub invariant: &'static str,
    /// Details.
    pub message: String,
    /// Complete event log.
    pub log: String,
}

impl fmt::Display for SimFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.log.lines().collect();
        let hidden = lines.len().saturating_sub(MAX_LOG_LINES);
        writeln!(
            f,
            "seed {}: invariant {} is violated: {}",
            self.seed, self.invariant, self.message
        )?;
        if hidden > 0 {
            writeln!(f, "… {hidden} earlier lines")?;
        }
        for line in &lines[hidden..] {
            writeln!(f, "{line}")?;
        }
        write!(
            f,
            "to repeat it with the whole log: IPU_SIM_SEED={} cargo test -p ipu-testkit --test it simulat -- --nocapture",
            self.seed
        )
    }
}

impl std::error::Error for SimFailure {}

/// Simulation with its event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimReplay {
    /// Event log: identical for the same seed, options and version.
    pub log: String,
    /// Outcome.
    pub outcome: Result<SimReport, SimFailure>,
}

/// Runs the simulation of `seed` and returns its event log.
#[must_use]
pub fn replay_simulation(seed: u64, options: &SimOptions) -> SimReplay {
    run::replay(seed, options)
}

/// Runs the simulation of `seed`.
///
/// # Errors
///
/// The first violated invariant.
pub fn simulate(seed: u64, options: &SimOptions) -> Result<SimReport, Box<SimFailure>> {
    run::replay(seed, options).outcome.map_err(Box::new)
}

/// Runs the simulations of `seeds` on all cores and sums their coverage.
///
/// # Errors
///
/// The failure with the lowest seed found; others may fail too.
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
                    if failure.as_ref().is_none_or(|current| found.seed < current.seed) {
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
