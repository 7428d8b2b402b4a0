//! What is measured of IPUJobs: how many there are in which phase and why, and how long they took to run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipu_k8s::crd::{IpuJobStatus, PhaseSeconds};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    phase: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

type Times = Family<Part, Histogram, fn() -> Histogram>;

/// The metrics of IPUJobs.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    jobs: Family<State, Gauge>,
    seconds: Times,
    passes: Family<Outcome, Counter>,
    /// What each job was last, by its uid, and whether its times were taken.
    known: Mutex<HashMap<String, (State, Option<PhaseSeconds>)>>,
}

impl JobMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            jobs: Family::default(),
            // From a tenth of a second to a day and more.
            seconds: Times::new_with_constructor(|| Histogram::new(exponential_buckets(0.1, 2.5, 16))),
            passes: Family::default(),
            known: Mutex::default(),
        };
        registry.register("ipujobs", "IPUJobs, by phase and reason", metrics.jobs.clone());
        registry.register(
            "ipujob_phase_seconds",
            "Seconds that IPUJobs spent on their way to running: queue, partition, schedule, start",
            metrics.seconds.clone(),
        );
        registry.register(
            "ipu_operator_passes",
            "Passes over IPUJobs, by outcome",
            metrics.passes.clone(),
        );
        metrics
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, (State, Option<PhaseSeconds>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job is as this object says.
    pub(crate) fn heard(&self, job: &Value) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        let status: IpuJobStatus = serde_json::from_value(job["status"].clone()).unwrap_or_default();
        let state = State {
            phase: status
                .phase
                .map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
            reason: reason_of(&status),
        };
        let mut known = self.known();
        let before = known.insert(uid.to_owned(), (state.clone(), status.phase_seconds));
        self.jobs.get_or_create(&state).inc();
        let (was, timed) = before.map_or((None, None), |(was, timed)| (Some(was), timed));
        // Of a job that ran before this process began, the times were taken by an earlier one.
        if let (Some(_), Some(seconds), None) = (&was, status.phase_seconds, timed) {
            self.observe(seconds);
        }
        if let Some(was) = was {
            self.jobs.get_or_create(&was).dec();
        }
    }

    /// A job is gone.
    pub(crate) fn gone(&self, job: &Value) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some((was, _)) = self.known().remove(uid) {
            self.jobs.get_or_create(&was).dec();
        }
    }

    /// This operator works on jobs no longer, and hears of none.
    pub(crate) fn forget(&self) {
        self.known().clear();
        self.jobs.clear();
    }

    /// A pass has ended.
    pub(crate) fn passed(&self, outcome: &'static str) {
        self.passes.get_or_create(&Outcome { outcome }).inc();
    }

    fn observe(&self, seconds: PhaseSeconds) {
        let parts = [
            ("queue", seconds.queue),
            ("partition", seconds.partition),
            ("schedule", seconds.schedule),
            ("start", seconds.start),
        ];
        for (phase, seconds) in parts {
            self.seconds.get_or_create(&Part { phase }).observe(seconds);
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
        for status in [waits, runs.clone(), runs] {
            metrics.heard(&job(status));
        }
        let mut text = String::new();
        encode(&mut text, &registry).expect("a text takes everything");
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
        metrics.gone(&job(json!({})));
        text.clear();
        encode(&mut text, &registry).expect("a text takes everything");
        assert!(
            text.contains("ipujobs{phase=\"Running\",reason=\"\"} 0"),
            "{text}"
        );
    }
}
