//! Sums of a replay.

use std::collections::BTreeMap;

use ipu_core::{Inventory, IpuCount};

use super::queue::ORDERS;
use super::trace::{Trace, TraceJob, millis};
use super::wait_reason::WaitReason;
use super::{CauseStats, Fragmentation, Score, WaitStats};

/// Minimum run time for slowdowns, so that very short jobs do not dominate (the bound of Feitelson's bounded
/// slowdown).
const SLOWDOWN_FLOOR_MILLIS: u64 = 10_000;

/// Sums over the time of the trace, in milliseconds.
pub(super) struct Accumulator {
    now: u64,
    began: u64,
    /// Usable IPUs.
    ipus: u32,
    /// Size of the largest partition that fits into the empty inventory.
    capacity: u32,
    /// Interval without ramp-up and drain.
    steady: (u64, u64),
    /// State since `now`.
    state: UsageSnapshot,
    used: u128,
    used_steady: u128,
    idle_fragmented: u128,
    fragmented: f64,
    avoidable: f64,
    waits: [WaitTimes; ORDERS],
    causes: [CauseStats; WaitReason::COUNT],
    waited: [u128; WaitReason::COUNT],
}

/// State between two events.
#[derive(Default)]
struct UsageSnapshot {
    /// Version of the inventory.
    version: Option<u64>,
    free: u32,
    /// 1 − largest free block / free IPUs.
    fragmented: f64,
    /// 1 − largest free block / the largest block that so many free IPUs could form.
    avoidable: f64,
    /// Number of queued jobs, by cause.
    waiting: [u64; WaitReason::COUNT],
}

/// Wait times of the started jobs of one size.
#[derive(Clone, Default)]
struct WaitTimes {
    times: Vec<u64>,
    slowdown: f64,
}

impl Accumulator {
    pub(super) fn new(trace: &Trace, inventory: &Inventory) -> Self {
        let jobs = trace.jobs();
        let submit = |index: usize| jobs.get(index).map_or(0, |job| millis(job.submit));
        let ipus = inventory.free();
        let mut accumulator = Self {
            now: submit(0),
            began: submit(0),
            ipus,
            capacity: inventory.largest_block().map_or(0, IpuCount::get),
            steady: (submit(jobs.len() / 10), submit(jobs.len().saturating_sub(1))),
            state: UsageSnapshot::default(),
            used: 0,
            used_steady: 0,
            idle_fragmented: 0,
            fragmented: 0.0,
            avoidable: 0.0,
            waits: std::array::from_fn(|_| WaitTimes::default()),
            causes: [CauseStats::default(); WaitReason::COUNT],
            waited: [0; WaitReason::COUNT],
        };
        accumulator.sample(inventory, 0);
        accumulator
    }

    /// Adds the current state up to `now`.
    pub(super) fn advance_to(&mut self, now: u64) {
        let span = now.saturating_sub(self.now);
        let used = u128::from(self.ipus - self.state.free);
        self.used += used * u128::from(span);
        let steady = now.min(self.steady.1).saturating_sub(self.now.max(self.steady.0));
        self.used_steady += used * u128::from(steady);
        self.fragmented += self.state.fragmented * span as f64;
        self.avoidable += self.state.avoidable * span as f64;
        if self.state.waiting[WaitReason::Fragmented as usize] > 0 {
            self.idle_fragmented += u128::from(self.state.free) * u128::from(span);
        }
        for (sum, waiting) in self.waited.iter_mut().zip(self.state.waiting) {
            *sum += u128::from(waiting) * u128::from(span);
        }
        self.now = now;
    }

    /// Samples the free IPUs; no job counts as queued until [`wait`](Self::wait).
    pub(super) fn sample(&mut self, inventory: &Inventory, version: u64) {
        self.state.waiting = [0; WaitReason::COUNT];
        if self.state.version == Some(version) {
            return;
        }
        self.state.version = Some(version);
        let free = inventory.free();
        let largest = f64::from(inventory.largest_block().map_or(0, IpuCount::get));
        self.state.free = free;
        (self.state.fragmented, self.state.avoidable) = match free.checked_ilog2() {
            None => (0.0, 0.0),
            Some(order) => {
                let possible = f64::from(self.capacity.min(1 << order));
                (1.0 - largest / f64::from(free), 1.0 - largest / possible)
            }
        };
    }

    /// Records queued jobs with their cause.
    pub(super) fn wait(&mut self, cause: WaitReason, jobs: u64) {
        if jobs > 0 {
            self.state.waiting[cause as usize] += jobs;
            self.causes[cause as usize].decisions += 1;
        }
    }

    /// Records a job that is queued at submission.
    pub(super) fn record_queued(&mut self, cause: WaitReason) {
        self.causes[cause as usize].waited += 1;
    }

    pub(super) fn record_rejected(&mut self, cause: WaitReason) {
        self.causes[cause as usize].refused += 1;
    }

    pub(super) fn record_stranded(&mut self, cause: WaitReason) {
        self.causes[cause as usize].stranded += 1;
    }

    pub(super) fn start(&mut self, job: &TraceJob) {
        let wait = self.now.saturating_sub(millis(job.submit));
        let runtime = millis(job.runtime);
        let waits = &mut self.waits[job.size.order() as usize];
        waits.times.push(wait);
        let slowdown = (wait + runtime) as f64 / runtime.max(SLOWDOWN_FLOOR_MILLIS) as f64;
        waits.slowdown += slowdown.max(1.0);
    }

    /// Returns the score at the end, which is now.
    pub(super) fn score(mut self, policy: &str, trace: &Trace) -> Score {
        let makespan = self.now - self.began;
        let share = |part: u128, span: u64| ratio(part as f64, f64::from(self.ipus) * span as f64);
        let (began, ended) = self.steady;
        for (stats, waited) in self.causes.iter_mut().zip(self.waited) {
            stats.job_seconds = waited as f64 / 1000.0;
        }
        let mut all = WaitTimes::default();
        let mut by_size = BTreeMap::new();
        for (order, waits) in (0..).zip(&mut self.waits) {
            let Some(size) = IpuCount::from_order(order).filter(|_| !waits.times.is_empty()) else {
                continue;
            };
            all.times.extend_from_slice(&waits.times);
            all.slowdown += waits.slowdown;
            by_size.insert(size.get(), waits.stats());
        }
        let total = |number: fn(&CauseStats) -> u64| self.causes.iter().map(number).sum::<u64>();
        Score {
            policy: policy.to_owned(),
            ipus: self.ipus,
            jobs: trace.jobs().len() as u64,
            ran: all.times.len() as u64,
            refused: total(|stats| stats.refused),
            stranded: total(|stats| stats.stranded),
            skipped: trace.skipped().clone(),
            makespan_seconds: makespan as f64 / 1000.0,
            ipu_seconds: self.used as f64 / 1000.0,
            utilisation: share(self.used, makespan),
            steady_utilisation: (ended > began).then(|| share(self.used_steady, ended - began)),
            waiting: all.stats(),
            waiting_by_size: by_size,
            causes: WaitReason::ALL
                .into_iter()
                .zip(self.causes)
                .filter(|(_, stats)| *stats != CauseStats::default())
                .collect(),
            fragmentation: Fragmentation {
                mean: ratio(self.fragmented, makespan as f64),
                avoidable: ratio(self.avoidable, makespan as f64),
                idle: share(self.idle_fragmented, makespan),
            },
        }
    }
}

impl WaitTimes {
    fn stats(&mut self) -> WaitStats {
        self.times.sort_unstable();
        let count = self.times.len();
        let seconds = |millis: u64| millis as f64 / 1000.0;
        // Nearest rank: the smallest time that this percentage of jobs does not exceed.
        let percentile = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            seconds(self.times.get(rank - 1).copied().unwrap_or(0))
        };
        let sum: u128 = self.times.iter().map(|time| u128::from(*time)).sum();
        WaitStats {
            jobs: count as u64,
            mean: ratio(sum as f64 / 1000.0, count as f64),
            p50: percentile(50),
            p95: percentile(95),
            p99: percentile(99),
            max: seconds(self.times.last().copied().unwrap_or(0)),
            slowdown: ratio(self.slowdown, count as f64),
        }
    }
}

/// Returns `part` / `whole`; 0 if both are 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
