//! From a job and what is observed of it to what is to be done: the only file, with its parts, where the rules meet.
//!
//! One pass has five steps, each in a file: [`view`] puts the facts in order, [`find`] sees what happened, [`judge`] makes
//! verdicts and writes them into the status, [`act`] and [`remove`] turn the verdicts *of earlier passes* into effects, [`tell`] says why.
//!
//! The one idea that makes crashes harmless: **a verdict is recorded before anything that it condemns is touched.** An
//! attempt is closed in the status first; its processes are stopped, and its evidence forgotten, in a later pass. So the
//! effects of a pass follow from the record and the facts alone, repeating them does nothing new, and a pass whose record
//! was lost is simply made again.

mod build_effects;
mod context;
mod detect;
mod effect;
mod evaluate;
mod reasons;
mod status;
mod teardown;

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

pub use effect::Effect;
pub use status::{FailedComponent, FirstFailure, InstanceOutcome, InstanceStatus, JobPhase, JobStatus};

use crate::job::JobSpec;
use crate::observation::Observation;
use crate::reason::Reason;

/// What is to be done for a job now, what its status is, why, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[must_use]
pub struct Plan {
    /// To be applied in this order, stopping at the first that fails. Each is safe to repeat.
    pub effects: Vec<Effect>,
    /// To be recorded after the effects, in one write, and given back in the next [`Observation::status`].
    pub status: JobStatus,
    /// Why these effects, and why not others. Never empty: a job that waits says exactly why.
    pub reasons: Vec<Reason>,
    /// Look again after this time at the latest, even if nothing is heard; none if only an event can change anything.
    /// Zero after a verdict, which is acted upon in the next pass.
    #[serde(rename = "wakeMillis", with = "crate::units::millis::option", default)]
    pub requeue_after: Option<Duration>,
    /// The job has finished, nothing of it is left, and its `ttlSecondsAfterFinished` are over: who keeps a record of it deletes
    /// that, as Kubernetes does with a `Job`.
    #[serde(default)]
    pub expired: bool,
}

/// Decides what is to be done for `job`, of which `seen` is observed.
///
/// *Guarantees*: total (any observation has a plan), deterministic, and level-triggered: it depends on nothing but its
/// two arguments. Applying the effects and planning again leads to a plan without new effects. Deletion always leads to
/// [`Effect::Finalize`] if processes can be ended and partitions released. [`check_plan`](crate::check_plan) lists what
/// else holds of every plan.
///
/// *Assumptions*: a process that is observed as ended or lost no longer uses its partition; whoever observes reports one
/// of which that is not certain as alive. A process that was told to stop is reported as stopping until it is gone, and
/// then not at all.
pub fn plan(job: &JobSpec, seen: &Observation) -> Plan {
    let mut pass = context::PlanContext::new(job, seen);
    if !seen.deleted {
        pass.judge();
    }
    pass.act();
    pass.tell()
}
