//! What is measured of IPUJobs: how many there are in which phase and why, how long they took to run, and how they ended.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipu_core::JobPhase;
use ipu_k8s::crd::{IpuJobStatus, PhaseSeconds};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobMetricsState {
    phase: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobPartition {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobOutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Watch {
    watch: &'static str,
}

type Times<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// The metrics of IPUJobs.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    jobs: Family<JobMetricsState, Gauge>,
    finished: Family<JobMetricsState, Counter>,
    restarts: Counter,
    seconds: Times<JobPartition>,
    passes: Times<JobOutcomeLabels>,
    waiting: Gauge<i64, AtomicI64>,
    interruptions: Family<Watch, Counter>,
    /// What each job was last, by its uid.
    known: Mutex<HashMap<String, CachedJob>>,
}

/// What was last heard of a job.
#[derive(Debug)]
struct CachedJob {
    state: JobMetricsState,
    finished: bool,
    timed: bool,
    restarts: u32,
}

impl JobMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            jobs: Family::default(),
            finished: Family::default(),
            restarts: Counter::default(),
            // From a tenth of a second to a day and more.
            seconds: Times::new_with_constructor(|| Histogram::new(exponential_buckets(0.1, 2.5, 16))),
            // From a millisecond to half a minute.
            passes: Times::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            waiting: Gauge::default(),
            interruptions: Family::default(),
            known: Mutex::default(),
        };
        registry.register("ipujobs", "IPUJobs, by phase and reason", metrics.jobs.clone());
        registry.register(
            "ipujobs_finished",
            "IPUJobs that finished, by phase and reason",
            metrics.finished.clone(),
        );
        registry.register(
            "ipujob_restarts",
            "Restarts of instances of IPUJobs",
            metrics.restarts.clone(),
        );
        registry.register(
            "ipujob_phase_seconds",
            "Seconds that IPUJobs spent on their way to running, by part of it",
            metrics.seconds.clone(),
        );
        registry.register(
            "ipu_operator_pass_seconds",
            "Time that passes over IPUJobs took, by outcome",
            metrics.passes.clone(),
        );
        registry.register(
            "ipu_operator_waiting_jobs",
            "IPUJobs that wait until the operator has time for a pass over them",
            metrics.waiting.clone(),
        );
        registry.register(
            "ipu_operator_watch_interruptions",
            "Times that a watch broke or could not be had, by what is watched",
            metrics.interruptions.clone(),
        );
        metrics
    }

    /// The watch of these objects broke, or could not be had.
    pub(crate) fn interrupted(&self, watch: &'static str) {
        self.interruptions.get_or_create(&Watch { watch }).inc();
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, CachedJob>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job is as this object says. What happened to it before this process first heard of it was counted by an earlier one.
    pub(crate) fn heard(&self, job: &Value) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        let status: IpuJobStatus = serde_json::from_value(job["status"].clone()).unwrap_or_default();
        let now = CachedJob {
            state: JobMetricsState {
                phase: status
                    .phase
                    .map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
                reason: reason_of(&status),
            },
            finished: status.phase.is_some_and(JobPhase::is_finished),
            timed: status.phase_seconds.is_some(),
            restarts: status.restart_count,
        };
        self.jobs.get_or_create(&now.state).inc();
        let mut known = self.known();
        if let Some(before) = known.get(uid) {
            self.jobs.get_or_create(&before.state).dec();
            if now.finished && !before.finished {
                self.finished.get_or_create(&now.state).inc();
            }
            let restarts = now.restarts.saturating_sub(before.restarts);
            self.restarts.inc_by(restarts.into());
            if let Some(seconds) = status.phase_seconds.filter(|_| !before.timed) {
                self.observe(seconds);
            }
        }
        known.insert(uid.to_owned(), now);
    }

    /// A job is gone.
    pub(crate) fn gone(&self, job: &Value) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(was) = self.known().remove(uid) {
            self.jobs.get_or_create(&was.state).dec();
        }
    }

    /// This operator works on jobs no longer, and hears of none.
    pub(crate) fn forget(&self) {
        self.known().clear();
        self.jobs.clear();
        self.waiting.set(0);
    }

    /// A pass has ended.
    pub(crate) fn passed(&self, outcome: &'static str, took: Duration) {
        let outcome = JobOutcomeLabels { outcome };
        self.passes.get_or_create(&outcome).observe(took.as_secs_f64());
    }

    /// So many jobs waited in one of the loops, and so many do now.
    pub(crate) fn waiting(&self, before: usize, now: usize) {
        let number = |jobs| i64::try_from(jobs).unwrap_or(i64::MAX);
        self.waiting.inc_by(number(now) - number(before));
    }

    fn observe(&self, seconds: PhaseSeconds) {
        let parts = [
            ("queue", seconds.queue),
            ("partition", seconds.partition),
            ("schedule", seconds.schedule),
            ("start", seconds.start),
        ];
        for (phase, seconds) in parts {
            self.seconds
                .get_or_create(&JobPartition { phase })
                .observe(seconds);
        }
    }
}

/// The code of why a job is what it is: of its end, or of what its first instance waits for. There are few of them.
fn reason_of(status: &IpuJobStatus) -> String {
    if let Some(conclusion) = &status.conclusion {
        return conclusion.code.clone();
    }
    let waits = status
        .instances
        .iter()
        .find_map(|instance| instance.reason.as_deref());
    let code = waits
        .and_then(|reason| reason.split(':').next())
        .unwrap_or_default();
    code.to_owned()
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_are_counted_in_the_phase_that_they_are_in_and_their_times_once() {
        let mut registry = Registry::default();
        let metrics = JobMetrics::new(&mut registry);
        let job = |status: Value| json!({"metadata": {"uid": "u"}, "status": status});
        let waits = json!({"phase": "Pending", "instances": [{"reason": "NotEnoughFree: 4 of 8"}]});
        let runs = json!({"phase": "Running", "phaseSeconds": {"queue": 1.5, "partition": 2.0, "schedule": 0.1, "start": 1.0}});
        for status in [waits, runs.clone(), runs.clone()] {
            metrics.heard(&job(status));
        }
        let text = rendered(&registry);
        assert!(
            text.contains("ipujobs{phase=\"Pending\",reason=\"NotEnoughFree\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("ipujobs{phase=\"Running\",reason=\"\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("ipujob_phase_seconds_count{phase=\"queue\"} 1"),
            "{text}"
        );
        let mut again = runs.clone();
        again["restartCount"] = 2.into();
        let mut failed = again.clone();
        failed["phase"] = "Failed".into();
        failed["conclusion"] = json!({"code": "BackoffLimitExceeded", "message": ""});
        for status in [again.clone(), again, failed.clone(), failed] {
            metrics.heard(&job(status));
        }
        let text = rendered(&registry);
        let finished = "ipujobs_finished_total{phase=\"Failed\",reason=\"BackoffLimitExceeded\"} 1";
        for line in ["ipujob_restarts_total 2", finished] {
            assert!(text.contains(line), "{text}");
        }
        metrics.gone(&job(json!({})));
        let text = rendered(&registry);
        assert!(
            text.contains("ipujobs{phase=\"Failed\",reason=\"BackoffLimitExceeded\"} 0"),
            "{text}"
        );
    }

    #[test]
    fn jobs_that_wait_in_several_loops_are_added_up() {
        let mut registry = Registry::default();
        let metrics = JobMetrics::new(&mut registry);
        metrics.waiting(0, 5);
        metrics.waiting(0, 2);
        metrics.waiting(5, 4);
        let text = rendered(&registry);
        assert!(text.contains("ipu_operator_waiting_jobs 6"), "{text}");
        metrics.forget();
        let text = rendered(&registry);
        assert!(text.contains("ipu_operator_waiting_jobs 0"), "{text}");
    }

    fn rendered(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).expect("a text takes everything");
        text
    }
}
