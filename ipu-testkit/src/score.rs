//! Scores of a placement policy on a trace: utilisation, wait times with their causes, and fragmentation.
//!
//! A replay of 100,000 jobs on 1,024 IPUs takes less than a second, so that policies can be compared on real
//! traces.

use std::collections::BTreeMap;

use ipu_core::ReasonCode;
use ipu_core::hardware::{Inventory, Topology};
use ipu_core::placement::PlacementPolicy;
use serde::Serialize;

mod distributions;
mod replay;
mod sums;
mod swf;
mod synthetic;
mod table;
mod trace;

pub use replay::{JobOutcome, Replay, ScoreOptions, replay_trace};
pub use swf::{SwfError, SwfOptions};
pub use synthetic::{JobClass, SyntheticOptions};
pub use table::Comparison;
pub use trace::{SkipReason, Trace, TraceJob};

/// Score of a policy on a trace. Times are seconds, shares are from 0 to 1.
///
/// [`Display`](std::fmt::Display) writes it as a table, and [`Score::compare`] several side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Score {
    /// Name of the policy.
    pub policy: String,
    /// Number of usable IPUs.
    pub ipus: u32,
    /// Number of jobs in the trace.
    pub jobs: u64,
    /// Number of jobs that completed.
    pub ran: u64,
    /// Number of jobs rejected at submission because the hardware cannot hold them.
    pub refused: u64,
    /// Number of jobs still queued after the last event. If not 0, the policy never placed them; their waits
    /// are in no other figure.
    pub stranded: u64,
    /// Number of skipped records of the trace file, by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// Time from the first submission to the last end, or to the last submission if that job did not run.
    pub makespan_seconds: f64,
    /// IPU-seconds that jobs held.
    pub ipu_seconds: f64,
    /// Share of all IPU-seconds of the makespan that jobs held.
    pub utilisation: f64,
    /// Utilisation without ramp-up and drain: from the arrival of a tenth of the jobs until the last arrival.
    /// None if that interval is empty.
    pub steady_utilisation: Option<f64>,
    /// Wait times of the jobs that ran.
    pub waiting: WaitStats,
    /// Wait times by number of IPUs.
    pub waiting_by_size: BTreeMap<u32, WaitStats>,
    /// Causes of waiting, rejection and stranding.
    pub causes: BTreeMap<ReasonCode, CauseStats>,
    /// Fragmentation of free IPUs.
    pub fragmentation: Fragmentation,
}

/// Wait times of jobs, in seconds. Percentiles are by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WaitStats {
    /// Number of jobs, including those that did not wait.
    pub jobs: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Mean of (wait + run time) / run time, with run times of at least 10 seconds and results of at least 1
    /// (the bounded slowdown of Feitelson).
    pub slowdown: f64,
}

/// Cost of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CauseStats {
    /// Number of jobs queued at submission for this cause.
    pub waited: u64,
    /// Time in the queue for this cause, summed over jobs. The cause of a job may change while it is queued.
    pub job_seconds: f64,
    /// Number of rejected jobs.
    pub refused: u64,
    /// Number of jobs still queued at the end.
    pub stranded: u64,
}

/// Fragmentation of free IPUs over the makespan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Fragmentation {
    /// Mean over time of 1 − largest free block / free IPUs; 0 while nothing is free. Never 0 for long: 48
    /// free IPUs have a largest block of at most 32.
    pub mean: f64,
    /// Mean over time of 1 − largest free block / the largest block that so many free IPUs could form (a
    /// power of two, at most what fits into the hardware).
    pub avoidable: f64,
    /// Share of all IPU-seconds that were free while a queued job had enough free IPUs, but not contiguous
    /// ones: the real cost of fragmentation.
    pub idle: f64,
}

/// Replays `trace` on `topology` with the policy `P` and returns its score.
///
/// [`replay_trace`] does the same for a policy with a constructor, an inventory with cordons, or another
/// overtake limit, and returns the outcome of each job.
///
/// ```
/// use ipu_core::hardware::Topology;
/// use ipu_core::placement::{BestFit, FirstFit};
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
