//! Metrics of IPUJobs: counts by phase and reason, start times and outcomes.

use std::collections::HashMap;
use std::time::Duration;

use ipu_core::job::JobPhase;
use ipu_k8s::crd::{IpuJob, IpuJobStatus, PhaseSeconds};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    phase: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeldLabels {
    namespace: String,
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    watch: &'static str,
}

type DurationFamily<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// Metrics of IPUJobs.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    jobs: Family<JobLabels, Gauge>,
    finished: Family<JobLabels, Counter>,
    /// IPUs that jobs hold.
    held: Family<HeldLabels, Gauge>,
    restarts: Counter,
    seconds: DurationFamily<PhaseLabels>,
    reconciliations: DurationFamily<OutcomeLabels>,
    interruptions: Family<WatchLabels, Counter>,
    /// Last observed state of each job, by uid.
    cached: Mutex<HashMap<String, CachedJob>>,
}

/// Last observed state of a job.
#[derive(Debug)]
struct CachedJob {
    state: JobLabels,
    namespace: String,
    held_ipus: u32,
    finished: bool,
    timed: bool,
    restarts: u32,
}

impl CachedJob {
    fn held_labels(&self) -> HeldLabels {
        HeldLabels {
            namespace: self.namespace.clone(),
            phase: self.state.phase.clone(),
        }
    }
}

impl JobMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            jobs: Family::default(),
            finished: Family::default(),
            held: Family::default(),
            restarts: Counter::default(),
            // Buckets from 0.1 s to more than a day.
            seconds: DurationFamily::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.1, 2.5, 16))
            }),
            // Buckets from 1 ms to about half a minute.
            reconciliations: DurationFamily::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 16))
            }),
            interruptions: Family::default(),
            cached: Mutex::default(),
        };
        registry.register("ipujobs", "IPUJobs, by phase and reason", metrics.jobs.clone());
        registry.register(
            "ipujobs_finished",
            "IPUJobs that finished, by phase and reason",
            metrics.finished.clone(),
        );
        registry.register(
            "ipujob_held_ipus",
            "IPUs that IPUJobs hold, by namespace and phase",
            metrics.held.clone(),
        );
        registry.register(
            "ipujob_restarts",
            "Restarts of instances of IPUJobs",
            metrics.restarts.clone(),
        );
        registry.register(
            "ipujob_phase_seconds",
            "Seconds that IPUJobs spent before running, by phase",
            metrics.seconds.clone(),
        );
        registry.register(
            "ipu_operator_pass_seconds",
            "Duration of reconciliations of IPUJobs, by outcome",
            metrics.reconciliations.clone(),
        );
        registry.register(
            "ipu_operator_watch_interruptions",
            "Watch interruptions, by watched resource",
            metrics.interruptions.clone(),
        );
        metrics
    }

    /// Counts an interruption of the watch of these objects.
    pub(crate) fn record_interruption(&self, watch: &'static str) {
        self.interruptions.get_or_create(&WatchLabels { watch }).inc();
    }

    /// Updates the metrics with the current state of a job. Events before this process first observed the
    /// job were counted by an earlier process.
    pub(crate) fn observe_job(&self, job: &IpuJob) {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let nothing = IpuJobStatus::default();
        let status = job.status.as_ref().unwrap_or(&nothing);
        let now = CachedJob {
            state: JobLabels {
                phase: status
                    .phase
                    .map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
                reason: reason_of(status),
            },
            namespace: job.metadata.namespace.clone().unwrap_or_default(),
            held_ipus: status.ipus_held,
            finished: status.phase.is_some_and(JobPhase::is_finished),
            timed: status.phase_seconds.is_some(),
            restarts: status.restart_count,
        };
        self.add(&now);
        let mut cached = self.cached.lock();
        if let Some(before) = cached.get(&uid) {
            self.subtract(before);
            if now.finished && !before.finished {
                self.finished.get_or_create(&now.state).inc();
            }
            let restarts = now.restarts.saturating_sub(before.restarts);
            self.restarts.inc_by(restarts.into());
            if let Some(seconds) = status.phase_seconds.filter(|_| !before.timed) {
                self.observe(seconds);
            }
        }
        cached.insert(uid, now);
    }

    /// Removes a deleted job.
    pub(crate) fn remove_job(&self, uid: &str) {
        if let Some(removed) = self.cached.lock().remove(uid) {
            self.subtract(&removed);
        }
    }

    fn add(&self, job: &CachedJob) {
        self.jobs.get_or_create(&job.state).inc();
        self.held
            .get_or_create(&job.held_labels())
            .inc_by(job.held_ipus.into());
    }

    fn subtract(&self, job: &CachedJob) {
        self.jobs.get_or_create(&job.state).dec();
        self.held
            .get_or_create(&job.held_labels())
            .dec_by(job.held_ipus.into());
    }

    /// Clears all gauges when this operator is no longer the leader.
    pub(crate) fn clear(&self) {
        self.cached.lock().clear();
        self.jobs.clear();
        self.held.clear();
    }

    /// Records the duration of a reconciliation.
    pub(crate) fn record_reconcile(&self, outcome: &'static str, took: Duration) {
        let outcome = OutcomeLabels { outcome };
        self.reconciliations
            .get_or_create(&outcome)
            .observe(took.as_secs_f64());
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
                .get_or_create(&PhaseLabels { phase })
                .observe(seconds);
        }
    }
}

/// Returns the reason code of a job: of its conclusion, or of the first instance that waits. The set of
/// codes is small.
fn reason_of(status: &IpuJobStatus) -> String {
    if let Some(conclusion) = &status.conclusion {
        return conclusion.code.to_string();
    }
    let waiting = status
        .instances
        .iter()
        .find_map(|instance| instance.reason.as_deref());
    let code = waiting
        .and_then(|reason| reason.split(':').next())
        .unwrap_or_default();
    code.to_owned()
}

#[cfg(test)]
mod tests {
    use ipu_k8s::crd::IpuJobSpec;
    use prometheus_client::encoding::text::encode;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn jobs_are_counted_by_phase_and_their_durations_once() {
        let mut registry = Registry::default();
        let metrics = JobMetrics::new(&mut registry);
        let job = |status: Value| -> IpuJob {
            let mut job = IpuJob::new("a", IpuJobSpec::default());
            job.metadata.uid = Some("u".to_owned());
            job.status = serde_json::from_value(status).expect("a status");
            job
        };
        let waiting = json!({"phase": "Pending", "instances": [{"reason": "NotEnoughFree: 4 of 8"}]});
        let runs = json!({"phase": "Running", "ipusHeld": 8, "phaseSeconds": {"queue": 1.5, "partition": 2.0, "schedule": 0.1, "start": 1.0}});
        for status in [waiting, runs.clone(), runs.clone()] {
            metrics.observe_job(&job(status));
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
            text.contains("ipujob_held_ipus{namespace=\"\",phase=\"Running\"} 8"),
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
            metrics.observe_job(&job(status));
        }
        let text = rendered(&registry);
        let finished = "ipujobs_finished_total{phase=\"Failed\",reason=\"BackoffLimitExceeded\"} 1";
        let held = "ipujob_held_ipus{namespace=\"\",phase=\"Failed\"} 8";
        for line in ["ipujob_restarts_total 2", finished, held] {
            assert!(text.contains(line), "{text}");
        }
        metrics.remove_job("u");
        let text = rendered(&registry);
        assert!(
            text.contains("ipujobs{phase=\"Failed\",reason=\"BackoffLimitExceeded\"} 0"),
            "{text}"
        );
    }

    fn rendered(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).expect("writing to a String does not fail");
        text
    }
}
