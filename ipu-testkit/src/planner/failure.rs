//! How a planner was found to be wrong.

use std::fmt;

use ipu_core::{BrokenPlan, Observation};
use serde_json::json;

use super::job_dsl::raw_job_from_dsl;

/// What [`check_planner`](crate::check_planner) proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PlannerProperty {
    /// It has an answer to every job and observation.
    Total,
    /// The same question has the same answer.
    Deterministic,
    /// [`check_plan`](ipu_core::check_plan) finds nothing.
    Sound,
    /// No effect shares a device.
    NothingShared,
    /// Applying its plans, with nothing else happening, comes to a plan that changes nothing.
    FixedPoint,
    /// Once the trouble has stopped, a job runs or has finished.
    ComesToRest,
    /// A job all of whose processes succeed finishes, or starts again if its restart policy is Always.
    Finishes,
    /// A job holds what its clean-up policy says, and for as long.
    HoldsWhatItsPolicySays,
    /// A deleted job is let go of.
    LetsGo,
}

impl fmt::Display for PlannerProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Total => "the planner panicked instead of answering",
            Self::Deterministic => "the planner answered the same question in two ways",
            Self::Sound => "the plan breaks an invariant",
            Self::NothingShared => "an effect would share a device",
            Self::FixedPoint => "plans go on changing things although nothing else happens",
            Self::ComesToRest => "the trouble is over, and the job neither runs nor has finished",
            Self::Finishes => "every process ended well, and the job does not finish, or finishes although it is to start again",
            Self::HoldsWhatItsPolicySays => "the job does not hold what its clean-up policy says",
            Self::LetsGo => "the job is deleted, and is not let go of",
        })
    }
}

/// The smallest case that was found to break a property.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannerFailure {
    /// What it breaks.
    pub property: PlannerProperty,
    /// What [`check_plan`](ipu_core::check_plan) says, if the property is [`PlannerProperty::Sound`].
    pub broken: Vec<BrokenPlan>,
    /// What else is known, in a sentence; empty if the property says it all.
    pub detail: String,
    /// The job, in words ([`raw_job_from_words`]).
    pub job: Vec<String>,
    /// What the planner saw when it was found to be wrong.
    pub seen: Observation,
    /// The lines of the story that led there, if it began with a new job.
    pub story: Option<Vec<String>>,
}

impl PlannerFailure {
    /// The case as a request for `ipuctl decide`, in JSON.
    #[must_use]
    pub fn request(&self) -> String {
        let job = raw_job_from_dsl(self.job.iter().map(String::as_str));
        json!({"format": Observation::FORMAT, "job": job.ok(), "observation": self.seen}).to_string()
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
        if let Some(story) = &self.story {
            write!(
                f,
                "\n\nas a story, for a file of ipu-core/testdata/plan:\n\n# {property}.\n"
            )?;
            for line in story {
                writeln!(f, "{line}")?;
            }
            f.write_str("----\n")?;
        }
        let request = self.request();
        write!(
            f,
            "\nwhat it saw when it went wrong, for `ipuctl decide`:\n\n{request}\n"
        )
    }
}

impl std::error::Error for PlannerFailure {}
