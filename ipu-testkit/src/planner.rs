//! `check_planner`: properties of every function from a job and an observation to a plan.

mod failure;
pub(crate) mod job_dsl;
mod job_event;
mod report;
mod runner;
mod world;

use ipu_core::{JobSpec, Observation, Plan};

pub use failure::{PlannerFailure, PlannerProperty};
pub use job_dsl::{job_from_dsl, raw_job_from_dsl};
pub use job_event::{EventEffect, JobEvent, ProcessEnd};
pub use report::PlannerReport;
pub use world::{CapacityState, JobWorld, ProcessRole, SafetyViolation};

/// Default number of cases: a few seconds in a debug build.
const CASES: u32 = 200;

/// Default limit on shrink attempts: enough for the dozen events and DSL fields of a case, few enough that a
/// planner that never quiesces is reported within seconds.
const SHRINKS: u32 = 200;

/// Number and seed of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannerOptions {
    /// Number of random histories, number of histories from a random state, and a fifth of the number of
    /// random observations: at least 1.
    pub cases: u32,
    /// Seed of the random cases: the same seed and number produce the same cases.
    pub seed: u64,
    /// Limit on attempts to shrink a failing case.
    pub shrinks: u32,
}

impl Default for PlannerOptions {
    fn default() -> Self {
        Self {
            cases: CASES,
            seed: 0,
            shrinks: SHRINKS,
        }
    }
}

impl PlannerOptions {
    /// Returns the default options with the number of cases in the variable `IPU_PLAN_CASES`.
    ///
    /// # Panics
    ///
    /// If the variable is set and not a positive number.
    #[must_use]
    pub fn from_env() -> Self {
        match std::env::var("IPU_PLAN_CASES") {
            Err(_) => Self::default(),
            Ok(text) => match text.parse() {
                Ok(cases) if cases > 0 => Self::default().with_cases(cases),
                _ => panic!("IPU_PLAN_CASES={text}: must be a positive number of cases"),
            },
        }
    }

    /// Sets the number of cases.
    #[must_use]
    pub const fn with_cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// Sets the limit on attempts to shrink a failing case.
    #[must_use]
    pub const fn with_shrinks(mut self, shrinks: u32) -> Self {
        self.shrinks = shrinks;
        self
    }

    /// Sets the seed.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Tests a planner: [`ipu_core::plan()`] itself, or custom rules around it.
///
/// For random jobs and observations, contradictory ones included, the planner returns a plan, always the same
/// one, and [`check_plan`](ipu_core::check_plan) finds no violation. It also runs from random states, and
/// through random job histories in which processes end, partitions fail and the planner crashes between
/// effects and status ([`JobWorld`]). No device is shared. Plans reach a fixed point when nothing else
/// happens. Once the faults stop, every job runs or finishes, holds only the resources of its clean-up
/// policy, and is finalized after its deletion.
///
/// `IPU_PLAN_CASES` sets the number of cases ([`PlannerOptions`]).
///
/// ```
/// use ipu_core::{JobSpec, Observation, Plan, plan};
/// use ipu_testkit::{PlannerOptions, PlannerProperty, try_check_planner};
///
/// /// Never releases a partition.
/// fn mine(job: &JobSpec, observation: &Observation) -> Plan {
///     let mut plan = plan(job, observation);
///     plan.effects.retain(|effect| !matches!(effect, ipu_core::Effect::ReleasePartition { .. }));
///     plan
/// }
///
/// // A test would call `check_planner(mine);`, which panics with this failure.
/// let failure = try_check_planner(mine, PlannerOptions::default().with_cases(20)).unwrap_err();
/// assert_eq!(failure.property, PlannerProperty::Sound);
/// let found = ["must have no process or partition", "keeps a partition that a queued instance needs"];
/// assert!(found.iter().any(|found| failure.to_string().contains(found)), "{failure}");
/// ```
///
/// # Panics
///
/// If a property is violated: with the property, the smallest case found as a request for `ipuctl decide`,
/// and, where possible, as a script for `ipu-core/testdata/plan`.
pub fn check_planner(planner: impl Fn(&JobSpec, &Observation) -> Plan) -> PlannerReport {
    match try_check_planner(planner, PlannerOptions::from_env()) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// Like [`check_planner`], but returns the failure.
///
/// # Errors
///
/// The smallest case found that violates a property.
pub fn try_check_planner(
    planner: impl Fn(&JobSpec, &Observation) -> Plan,
    options: PlannerOptions,
) -> Result<PlannerReport, Box<PlannerFailure>> {
    runner::PlannerRun::new(&planner).run(options)
}
