//! Scores a placement policy on a trace: how busy the IPUs are, who waits how long and why, how scattered free space is.
//!
//! A replay of 100,000 jobs on 1,024 IPUs takes less than a second, so that policies can be compared on real traces.

use std::collections::BTreeMap;

use ipu_core::{Inventory, PlacementPolicy, Topology};
use serde::Serialize;

mod accumulator;
mod distributions;
mod queue;
mod replay;
mod swf;
mod synthetic;
mod table;
mod trace;
mod wait_reason;

pub use replay::{JobOutcome, Replay, ScoreOptions, replay_trace};
pub use swf::{SwfError, SwfOptions};
pub use synthetic::{JobClass, SyntheticOptions};
pub use table::Comparison;
pub use trace::{SkipReason, SwfHeader, Trace, TraceJob};
pub use wait_reason::WaitReason;

/// How a trace went with one policy. Times are seconds, shares are from 0 to 1.
///
/// [`Display`](std::fmt::Display) writes it as a table, [`Score::compare`] several side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Score {
    /// The policy's name.
    pub policy: String,
    /// How many IPUs could be used.
    pub ipus: u32,
    /// How many jobs the trace has.
    pub jobs: u64,
    /// How many of them ran to their end.
    pub ran: u64,
    /// How many were turned away when they came, because the hardware cannot hold them.
    pub refused: u64,
    /// How many waited when nothing happened any more. Not 0 means that the policy never placed them: their waits are in no
    /// other figure.
    pub stranded: u64,
    /// Lines of the trace's file that are no job, and why.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// From the first submission to the last end, or to the last submission if that one did not run.
    pub makespan_seconds: f64,
    /// IPUs times seconds that jobs held.
    pub ipu_seconds: f64,
    /// The share of all IPU-seconds of the makespan that jobs held.
    pub utilisation: f64,
    /// The same without filling and draining: from when a tenth of the jobs has come until the last one comes. None if that
    /// is no time.
    pub steady_utilisation: Option<f64>,
    /// How long those that ran had waited.
    pub waiting: WaitStats,
    /// The same by number of IPUs.
    pub waiting_by_size: BTreeMap<u32, WaitStats>,
    /// Why jobs waited or never ran.
    pub causes: BTreeMap<WaitReason, CauseStats>,
    /// How scattered free space was.
    pub fragmentation: Fragmentation,
}

/// How long jobs waited, in seconds. Percentiles are by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaitStats {
    /// How many jobs, those that did not wait included.
    pub jobs: u64,
    /// The mean.
    pub mean: f64,
    /// Half of them waited no longer.
    pub p50: f64,
    /// 95 % waited no longer.
    pub p95: f64,
    /// 99 % waited no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// The mean of (wait + run time) / run time, run times under 10 seconds taken for 10, at least 1 (the bounded
    /// slowdown of Feitelson).
    pub slowdown: f64,
}

/// What one cause cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CauseStats {
    /// Jobs that had to wait when they came, for this cause then.
    pub waited: u64,
    /// Answers "not now": whenever something had happened, one for each size and priority of which jobs went on waiting
    /// for this.
    pub decisions: u64,
    /// The time that jobs waited for this, summed over jobs. A job's cause may change while it waits.
    pub job_seconds: f64,
    /// Jobs turned away.
    pub refused: u64,
    /// Jobs that still waited at the end.
    pub stranded: u64,
}

/// How scattered free space was, over the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Fragmentation {
    /// The mean over time of 1 − largest free block / free IPUs; 0 while nothing is free. Never 0 for long: 48 free IPUs
    /// have a largest block of 32 at best.
    pub mean: f64,
    /// The mean over time of 1 − largest free block / the largest block that so many free IPUs could form (the power of
    /// two, at most what fits into the hardware).
    pub avoidable: f64,
    /// The share of all IPU-seconds that was free while a job waited for which enough IPUs were free, but not side by
    /// side: what fragmentation really cost.
    pub idle: f64,
}

/// Replays `trace` on `topology` with the policy `P` and answers how it went.
///
/// [`replay_trace`] is the same for a policy that is made otherwise, an inventory with cordons, another limit of the
/// line, and tells what became of each job.
///
/// ```
/// use ipu_core::{BestFit, FirstFit, Topology};
/// use ipu_testkit::{Score, SyntheticOptions, Trace, score_policy};
///
/// let trace = Trace::synthetic(&SyntheticOptions::mixed(1, 500, 256));
/// let best = score_policy::<BestFit>(&trace, &Topology::pod256());
/// let first = score_policy::<FirstFit>(&trace, &Topology::pod256());
/// assert_eq!((best.ran, best.stranded), (500, 0));
/// assert_eq!(best.ipu_seconds, first.ipu_seconds);
/// let table = Score::compare(&[("best", &best), ("first", &first)]).to_string();
/// assert!(table.contains("utilisation"), "{table}");
/// ```
#[must_use]
pub fn score_policy<P: PlacementPolicy + Default>(trace: &Trace, topology: &Topology) -> Score {
    let inventory = Inventory::new(topology);
    replay_trace(&P::default(), trace, &inventory, &ScoreOptions::default())
        .score()
        .clone()
}
