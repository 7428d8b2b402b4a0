//! `/metrics` in the text format of Prometheus: events are counted as they happen, gauges are read at each
//! scrape.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use ipu_allocator::Comparison;
use ipu_core::{Phase, Timestamp};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::ipu_seconds::IpuSeconds;
use crate::problem::Problem;

/// Media type of the response.
pub(crate) const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabels {
    state: String,
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SameLabels {
    controller: String,
    other: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChargedLabels {
    namespace: String,
    account: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

type Seconds = Counter<f64, AtomicU64>;

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// Metrics that are counted as events happen.
pub(crate) struct Metrics {
    registry: Registry,
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
        Self { registry, ..this }
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
                action: (*action).to_owned(),
            };
            self.actions.get_or_create(&labels).inc();
        }
    }
}

/// Renders all metrics as text.
pub(crate) async fn render(app: &App) -> Result<String, Problem> {
    let mut gauges = Registry::with_prefix("vipu_proxy");
    let _permit = app.acquire_read().await;
    let view = app.allocator.view().await?;
    let partitions = Family::<PartitionLabels, Gauge>::default();
    let mut oldest: Option<Timestamp> = None;
    let mut quarantined = 0_i64;
    for entry in view.state().entries() {
        let labels = PartitionLabels {
            state: ipu_proxy_client::HoldState::from(&entry.phase).label().to_owned(),
            controller: entry
                .controller
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        };
        partitions.get_or_create(&labels).inc();
        match entry.phase {
            Phase::Creating | Phase::Resetting | Phase::Releasing { .. } => {
                oldest = Some(oldest.map_or(entry.since, |oldest| oldest.min(entry.since)));
            }
            Phase::Quarantined => quarantined += 1,
            _ => {}
        }
    }
    gauges.register(
        "partitions",
        "Partitions in the ledger, by state and controller",
        partitions,
    );
    let count = Gauge::<i64, AtomicI64>::default();
    count.set(quarantined);
    gauges.register(
        "quarantined",
        "Partitions without an owner that are in quarantine",
        count,
    );
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(oldest.map_or(0.0, |since| view.now().since(since).as_secs_f64()));
    gauges.register(
        "oldest_operation_seconds",
        "Age of the oldest operation at a controller: create, reset or release",
        age,
    );
    gauges.register(
        "ipus",
        "IPUs of the whole system, by kind",
        ipu_gauges(&view.stats()),
    );
    let waiting = Family::<ReasonLabels, Gauge>::default();
    for status in view.queue().values() {
        let labels = ReasonLabels {
            reason: status.reason.code.clone(),
        };
        waiting.get_or_create(&labels).inc();
    }
    gauges.register("waiting", "Queued requests, by reason", waiting);
    let same = Family::<SameLabels, Gauge>::default();
    for (name, other) in app.allocator.pool().aliases() {
        let labels = SameLabels {
            controller: name.to_string(),
            other: other.to_string(),
        };
        same.get_or_create(&labels).set(1);
    }
    gauges.register(
        "same_controller",
        "1 for each controller name that is an alias of another controller and gets no new partitions",
        same,
    );
    let preemptions = Counter::<u64>::default();
    preemptions.inc_by(app.allocator.preemption_count());
    gauges.register(
        "preemptions",
        "Partitions whose owners were asked to release them for a request of higher priority",
        preemptions,
    );
    register_seconds(
        &mut gauges,
        &app.consumption
            .read(view.state().entries().cloned(), app.allocator.now()),
    );
    let mut text = String::new();
    let unwritable = |_| {
        let detail = "cannot render the metrics";
        Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "Broken", detail)
    };
    prometheus_client::encoding::text::encode_registry(&mut text, &app.metrics.registry)
        .map_err(unwritable)?;
    encode(&mut text, &gauges).map_err(unwritable)?;
    Ok(text)
}

fn register_seconds(registry: &mut Registry, seconds: &IpuSeconds) {
    let held = Family::<ChargedLabels, Seconds>::default();
    for ((namespace, account), seconds) in &seconds.held {
        let labels = ChargedLabels {
            namespace: namespace.clone(),
            account: account.clone(),
        };
        held.get_or_create(&labels).inc_by(*seconds);
    }
    registry.register("ipu_seconds", "Held IPU seconds", held);
    let idle = Family::<StateLabels, Seconds>::default();
    for (state, seconds) in &seconds.idle {
        let labels = StateLabels {
            state: (*state).to_owned(),
        };
        idle.get_or_create(&labels).inc_by(*seconds);
    }
    registry.register(
        "idle_ipu_seconds",
        "Held IPU seconds without use, by the state of the partition",
        idle,
    );
}

fn ipu_gauges(stats: &ipu_core::Stats) -> Family<KindLabels, Gauge> {
    let gauges = Family::<KindLabels, Gauge>::default();
    for (kind, number) in crate::stats::ipus_by_kind(stats) {
        let labels = KindLabels {
            kind: kind.to_owned(),
        };
        gauges.get_or_create(&labels).set(i64::from(number));
    }
    gauges
}
