//! Failures of a planner.

use std::fmt;

use ipu_core::{BrokenPlan, Observation};
use serde_json::json;

use super::job_dsl::raw_job_from_dsl;

/// Property that [`check_planner`](crate::check_planner) tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlannerProperty {
    /// The planner returns a plan for every job and observation.
    Total,
    /// The planner returns the same plan for the same input.
    Deterministic,
    /// [`check_plan`](ipu_core::check_plan) finds no violation.
    Sound,
    /// No effect shares a device.
    NoSharedDevices,
    /// Applying the plans, with no other events, reaches a plan without changes.
    FixedPoint,
    /// Once the faults stop, a job runs or has finished.
    Quiesces,
    /// A job all of whose processes succeed finishes, or restarts if its restart policy is Always.
    Finishes,
    /// A job keeps its resources exactly as its clean-up policy requires.
    FollowsCleanupPolicy,
    /// A deleted job is finalized.
    Finalizes,
}

impl fmt::Display for PlannerProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Total => "the planner panicked",
            Self::Deterministic => "the planner returned different plans for the same input",
            Self::Sound => "the plan violates an invariant",
            Self::NoSharedDevices => "an effect would share a device",
            Self::FixedPoint => "the plans reach no fixed point although nothing else happens",
            Self::Quiesces => "the faults have stopped, and the job neither runs nor has finished",
            Self::Finishes => {
                "every process succeeded, and the job does not finish, or finishes instead of restarting"
            }
            Self::FollowsCleanupPolicy => "the job does not follow its clean-up policy",
            Self::Finalizes => "the job is deleted, and is not finalized",
        })
    }
}

/// Smallest case found that violates a property.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannerFailure {
    /// Violated property.
    pub property: PlannerProperty,
    /// Violations that [`check_plan`](ipu_core::check_plan) found, if the property is
    /// [`PlannerProperty::Sound`].
    pub broken: Vec<BrokenPlan>,
    /// Further details, in a sentence; may be empty.
    pub detail: String,
    /// Job in the job DSL ([`raw_job_from_dsl`](crate::raw_job_from_dsl)).
    pub job: Vec<String>,
    /// Observation at the failure.
    pub observation: Observation,
    /// Script that leads to the failure, if it starts with a new job.
    pub script: Option<Vec<String>>,
}

impl PlannerFailure {
    /// Returns the case as a request for `ipuctl decide`, in JSON.
    #[must_use]
    pub fn request(&self) -> String {
        let job = raw_job_from_dsl(self.job.iter().map(String::as_str));
        json!({"format": Observation::FORMAT, "job": job.ok(), "observation": self.observation}).to_string()
    }
}

impl fmt::Display for PlannerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let property = self.property;
        write!(f, "{property}")?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        for broken in &self.broken {
            write!(f, "\n  - {broken}")?;
        }
        if let Some(script) = &self.script {
            write!(
                f,
                "\n\nas a script for a file in ipu-core/testdata/plan:\n\n# {property}.\n"
            )?;
            for line in script {
                writeln!(f, "{line}")?;
            }
            f.write_str("----\n")?;
        }
        let request = self.request();
        write!(
            f,
            "\nthe observation at the failure, for `ipuctl decide`:\n\n{request}\n"
        )
    }
}

impl std::error::Error for PlannerFailure {}
