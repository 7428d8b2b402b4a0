//! `check_planner`: what must hold of any function from a job and an observation to a plan.

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

/// How many cases unless somebody asks for more: a few seconds in a debug build.
const CASES: u32 = 200;

/// How often a failing case is made smaller at most, unless somebody asks for more: enough for the dozen events and words
/// that a case has, few enough that a planner that never comes to rest is reported within seconds.
const SHRINKS: u32 = 200;

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannerOptions {
    /// How many random lives, how many random states that a life begins from, and a fifth of how many random
    /// observations: at least 1.
    pub cases: u32,
    /// What the random cases follow from: the same seed and number make the same cases.
    pub seed: u64,
    /// How often a failing case is made smaller at most.
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
    /// The default, with as many cases as the variable `IPU_PLAN_CASES` says.
    ///
    /// # Panics
    ///
    /// The variable is set and is not a positive number.
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

    /// So many cases.
    #[must_use]
    pub const fn with_cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// So many attempts to make a failing case smaller.
    #[must_use]
    pub const fn with_shrinks(mut self, shrinks: u32) -> Self {
        self.shrinks = shrinks;
        self
    }

    /// Other cases.
    #[must_use]
    pub const fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

/// Proves a planner: [`ipu_core::plan()`] itself, or rules of your own around it.
///
/// Over random jobs and observations, contradictory ones included: it has an answer to everything, the same each time, and
/// [`check_plan`](ipu_core::check_plan) finds nothing in any. From random states, and over random lives of jobs whose
/// processes end, whose partitions break and whose planner crashes between applying and recording ([`JobWorld`]): no
/// device is shared; applying its plans with nothing else happening reaches a fixed point; once the trouble stops, every
/// job runs or comes to its end; it then holds what its clean-up policy leaves; and once deleted it is let go of.
///
/// `IPU_PLAN_CASES` asks for more than the default number of cases ([`PlannerOptions`]).
///
/// ```
/// use ipu_core::{JobSpec, Observation, Plan, plan};
/// use ipu_testkit::{PlannerOptions, PlannerProperty, try_check_planner};
///
/// /// Never gives a partition back: somebody may want it again.
/// fn mine(job: &JobSpec, seen: &Observation) -> Plan {
///     let mut plan = plan(job, seen);
///     plan.effects.retain(|effect| !matches!(effect, ipu_core::Effect::ReleasePartition { .. }));
///     plan
/// }
///
/// // A test says `check_planner(mine);`: it would panic with what is looked at here.
/// let failure = try_check_planner(mine, PlannerOptions::default().with_cases(20)).unwrap_err();
/// assert_eq!(failure.property, PlannerProperty::Sound);
/// let found = ["which is to have nothing, is left alone", "keeps one that another instance waits for"];
/// assert!(found.iter().any(|found| failure.to_string().contains(found)), "{failure}");
/// ```
///
/// # Panics
///
/// A property does not hold: the message says which, in a sentence, with the smallest case that was found, as a story for
/// `ipu-core/testdata/plan` where it is one, and as a request for `ipuctl decide`.
pub fn check_planner(planner: impl Fn(&JobSpec, &Observation) -> Plan) -> PlannerReport {
    match try_check_planner(planner, PlannerOptions::from_env()) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// [`check_planner`] for those who want to look at the failure.
///
/// # Errors
///
/// The smallest case that was found to break a property.
pub fn try_check_planner(
    planner: impl Fn(&JobSpec, &Observation) -> Plan,
    options: PlannerOptions,
) -> Result<PlannerReport, Box<PlannerFailure>> {
    runner::PlannerRun::new(&planner).all(options)
}
