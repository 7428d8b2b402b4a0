//! Sums of a replay.

use std::collections::BTreeMap;

use ipu_core::hardware::Inventory;
use ipu_core::{IpuCount, ReasonCode};

use super::trace::{Trace, TraceJob, millis};
use super::{CauseStats, Fragmentation, Score, WaitStats};

/// Minimum run time for slowdowns in milliseconds, so that very short jobs do not dominate (the bound of
/// Feitelson's bounded slowdown).
const SLOWDOWN_FLOOR: u64 = 10_000;

/// Sums over the time of the trace, in milliseconds, and the state since the last event.
pub(super) struct Sums {
    now: u64,
    began: u64,
    /// Usable IPUs.
    ipus: u32,
    /// Size of the largest partition that fits into the empty inventory.
    capacity: u32,
    /// Interval without ramp-up and drain.
    steady: (u64, u64),
    free: u32,
    /// 1 − largest free block / free IPUs.
    fragmented: f64,
    /// 1 − largest free block / the largest block that so many free IPUs could form.
    avoidable: f64,
    /// Number of queued jobs, by cause.
    waiting: BTreeMap<ReasonCode, u64>,
    used_time: f64,
    used_steady_time: f64,
    fragmented_time: f64,
    avoidable_time: f64,
    idle_fragmented_time: f64,
    /// Wait and run time of the started jobs, by size.
    waits: BTreeMap<IpuCount, Vec<(u64, u64)>>,
    causes: BTreeMap<ReasonCode, CauseStats>,
}

impl Sums {
    pub(super) fn new(trace: &Trace, inventory: &Inventory) -> Self {
        let jobs = trace.jobs();
        let submit = |index: usize| jobs.get(index).map_or(0, |job| millis(job.submit));
        let mut sums = Self {
            now: submit(0),
            began: submit(0),
            ipus: inventory.free(),
            capacity: inventory.largest_block().map_or(0, IpuCount::get),
            steady: (submit(jobs.len() / 10), submit(jobs.len().saturating_sub(1))),
            free: 0,
            fragmented: 0.0,
            avoidable: 0.0,
            waiting: BTreeMap::new(),
            used_time: 0.0,
            used_steady_time: 0.0,
            fragmented_time: 0.0,
            avoidable_time: 0.0,
            idle_fragmented_time: 0.0,
            waits: BTreeMap::new(),
            causes: BTreeMap::new(),
        };
        sums.sample(inventory);
        sums
    }

    /// Adds the current state up to `now`.
    pub(super) fn advance_to(&mut self, now: u64) {
        let span = now.saturating_sub(self.now) as f64;
        let used = f64::from(self.ipus - self.free);
        let steady = now.min(self.steady.1).saturating_sub(self.now.max(self.steady.0));
        self.used_time += used * span;
        self.used_steady_time += used * steady as f64;
        self.fragmented_time += self.fragmented * span;
        self.avoidable_time += self.avoidable * span;
        if self.waiting.contains_key(&ReasonCode::Fragmented) {
            self.idle_fragmented_time += f64::from(self.free) * span;
        }
        for (cause, jobs) in &self.waiting {
            self.causes.entry(cause.clone()).or_default().job_seconds += *jobs as f64 * span / 1000.0;
        }
        self.now = now;
    }

    /// Samples the free IPUs.
    pub(super) fn sample(&mut self, inventory: &Inventory) {
        self.free = inventory.free();
        let largest = f64::from(inventory.largest_block().map_or(0, IpuCount::get));
        (self.fragmented, self.avoidable) = match self.free.checked_ilog2() {
            None => (0.0, 0.0),
            Some(order) => {
                let possible = f64::from(self.capacity.min(1 << order));
                (1.0 - largest / f64::from(self.free), 1.0 - largest / possible)
            }
        };
    }

    /// Replaces the numbers of queued jobs.
    pub(super) fn set_waiting(&mut self, waiting: BTreeMap<ReasonCode, u64>) {
        self.waiting = waiting;
    }

    /// Returns the stats of a cause.
    pub(super) fn cause(&mut self, cause: ReasonCode) -> &mut CauseStats {
        self.causes.entry(cause).or_default()
    }

    pub(super) fn start(&mut self, job: &TraceJob) {
        let wait = self.now.saturating_sub(millis(job.submit));
        self.waits
            .entry(job.size)
            .or_default()
            .push((wait, millis(job.runtime)));
    }

    /// Returns the score at the end, which is now.
    pub(super) fn score(mut self, policy: &str, trace: &Trace) -> Score {
        let makespan = (self.now - self.began) as f64;
        let share = |part: f64, span: f64| ratio(part, f64::from(self.ipus) * span);
        let steady = self.steady.1.saturating_sub(self.steady.0) as f64;
        self.causes.retain(|_, stats| *stats != CauseStats::default());
        let total = |number: fn(&CauseStats) -> u64| -> u64 { self.causes.values().map(number).sum() };
        let (refused, stranded) = (total(|stats| stats.refused), total(|stats| stats.stranded));
        let all: Vec<(u64, u64)> = self.waits.values().flatten().copied().collect();
        Score {
            policy: policy.to_owned(),
            ipus: self.ipus,
            jobs: trace.jobs().len() as u64,
            ran: all.len() as u64,
            refused,
            stranded,
            skipped: trace.skipped().clone(),
            makespan_seconds: makespan / 1000.0,
            ipu_seconds: self.used_time / 1000.0,
            utilisation: share(self.used_time, makespan),
            steady_utilisation: (steady > 0.0).then(|| share(self.used_steady_time, steady)),
            waiting: wait_stats(all),
            waiting_by_size: self
                .waits
                .into_iter()
                .map(|(size, waits)| (size.get(), wait_stats(waits)))
                .collect(),
            fragmentation: Fragmentation {
                mean: ratio(self.fragmented_time, makespan),
                avoidable: ratio(self.avoidable_time, makespan),
                idle: share(self.idle_fragmented_time, makespan),
            },
            causes: self.causes,
        }
    }
}

/// Returns the stats of pairs of wait and run time.
fn wait_stats(mut times: Vec<(u64, u64)>) -> WaitStats {
    times.sort_unstable();
    let count = times.len();
    let seconds = |rank: usize| times.get(rank).map_or(0.0, |(wait, _)| *wait as f64 / 1000.0);
    // Nearest rank: the smallest time that this percentage of jobs does not exceed.
    let percentile = |percent: usize| seconds((count * percent).div_ceil(100).max(1) - 1);
    let mean = |sum: f64| ratio(sum, count as f64);
    let slowdown = |(wait, runtime): &(u64, u64)| {
        ((wait + runtime) as f64 / (*runtime).max(SLOWDOWN_FLOOR) as f64).max(1.0)
    };
    WaitStats {
        jobs: count as u64,
        mean: mean(times.iter().map(|(wait, _)| *wait as f64).sum::<f64>() / 1000.0),
        p50: percentile(50),
        p95: percentile(95),
        p99: percentile(99),
        max: seconds(count.saturating_sub(1)),
        slowdown: mean(times.iter().map(slowdown).sum()),
    }
}

/// Returns `part` / `whole`; 0 if both are 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
