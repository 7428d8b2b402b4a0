//! Metrics that are counted as events happen.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use ipu_allocator::Comparison;
use ipu_serve::register_process_metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    /// Path template, which bounds the number of series.
    path: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    controller: String,
    operation: String,
    outcome: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics that are counted as events happen.
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    /// Metrics of the process, whose names have no prefix.
    pub(crate) process: Registry,
    requests: Durations<RequestLabels>,
    calls: Durations<CallLabels>,
    writes: Histogram,
    batch: Histogram,
    repairs: Counter,
    actions: Family<ActionLabels, Counter>,
}

/// Creates a histogram from one millisecond to about a minute.
fn duration_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("vipu_proxy");
        let this = Self {
            requests: Durations::new_with_constructor(duration_histogram),
            calls: Durations::new_with_constructor(duration_histogram),
            writes: duration_histogram(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            repairs: Counter::default(),
            actions: Family::default(),
            registry: Registry::default(),
            process: Registry::default(),
        };
        registry.register(
            "request_seconds",
            "Time until the response started, by operation and status",
            this.requests.clone(),
        );
        registry.register(
            "controller_call_seconds",
            "Duration of controller calls, by controller, operation and outcome",
            this.calls.clone(),
        );
        registry.register(
            "ledger_write_seconds",
            "Duration of ledger writes",
            this.writes.clone(),
        );
        registry.register(
            "ledger_write_changes",
            "Number of changes of one ledger write",
            this.batch.clone(),
        );
        registry.register(
            "repairs",
            "Repair runs, which compare ledger, controllers and owners",
            this.repairs.clone(),
        );
        registry.register("repair_actions", "Repair actions, by kind", this.actions.clone());
        let mut process = Registry::default();
        register_process_metrics(&mut process, "vipu_proxy", env!("CARGO_PKG_VERSION"));
        Self {
            registry,
            process,
            ..this
        }
    }
}

impl Metrics {
    pub(crate) fn record_request(&self, method: &str, path: &str, status: u16, duration: Duration) {
        let labels = RequestLabels {
            method: method.to_owned(),
            path: path.to_owned(),
            status,
        };
        self.requests
            .get_or_create(&labels)
            .observe(duration.as_secs_f64());
    }

    pub(crate) fn record_call(&self, controller: &str, operation: &str, outcome: &str, duration: Duration) {
        let labels = CallLabels {
            controller: controller.to_owned(),
            operation: operation.to_owned(),
            outcome: outcome.to_owned(),
        };
        self.calls.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    pub(crate) fn record_write(&self, changes: usize, duration: Duration) {
        self.writes.observe(duration.as_secs_f64());
        self.batch
            .observe(f64::from(u32::try_from(changes).unwrap_or(u32::MAX)));
    }

    pub(crate) fn record_repair(&self, comparison: &Comparison) {
        self.repairs.inc();
        for (action, _) in &comparison.actions {
            let labels = ActionLabels {
                action: action.as_str().to_owned(),
            };
            self.actions.get_or_create(&labels).inc();
        }
    }
}
