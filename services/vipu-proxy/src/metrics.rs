//! `/metrics`, in the text format of Prometheus: what happened is counted as it happens, what is is read when it is asked for.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use ipu_core::{EntryState, Timestamp};
use ipu_ledger::RepairReport;
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

/// The media type of the answer.
pub(crate) const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    /// The template of the path, of which there are as many as operations.
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

type Times<L> = Family<L, Histogram, fn() -> Histogram>;

/// What is counted as it happens.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Times<RequestLabels>,
    calls: Times<CallLabels>,
    writes: Histogram,
    batch: Histogram,
    repairs: Counter,
    actions: Family<ActionLabels, Counter>,
    conflicts: Gauge,
}

/// From a millisecond to about a minute.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("vipu_proxy");
        let this = Self {
            requests: Times::new_with_constructor(times),
            calls: Times::new_with_constructor(times),
            writes: times(),
            batch: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            repairs: Counter::default(),
            actions: Family::default(),
            conflicts: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register(
            "request_seconds",
            "Time until the answer began, by operation and status",
            this.requests.clone(),
        );
        registry.register(
            "controller_call_seconds",
            "Time that calls to controllers took, by controller, operation and outcome",
            this.calls.clone(),
        );
        registry.register(
            "placement_conflicts",
            "Partitions that their controllers do not list and whose IPUs another partition has, at the last repair",
            this.conflicts.clone(),
        );
        registry.register(
            "ledger_write_seconds",
            "Time that writes of the ledger took",
            this.writes.clone(),
        );
        registry.register(
            "ledger_write_changes",
            "Changes that one write of the ledger carried",
            this.batch.clone(),
        );
        registry.register(
            "repairs",
            "Comparisons of ledger, controllers and owners",
            this.repairs.clone(),
        );
        registry.register("repair_actions", "What repair did, by kind", this.actions.clone());
        Self { registry, ..this }
    }
}

impl Metrics {
    pub(crate) fn request(&self, method: &str, path: &str, status: u16, took: Duration) {
        let labels = RequestLabels {
            method: method.to_owned(),
            path: path.to_owned(),
            status,
        };
        self.requests.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn call(&self, controller: &str, operation: &str, outcome: &str, took: Duration) {
        let labels = CallLabels {
            controller: controller.to_owned(),
            operation: operation.to_owned(),
            outcome: outcome.to_owned(),
        };
        self.calls.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(crate) fn write(&self, changes: usize, took: Duration) {
        self.writes.observe(took.as_secs_f64());
        self.batch
            .observe(f64::from(u32::try_from(changes).unwrap_or(u32::MAX)));
    }

    pub(crate) fn repaired(&self, report: &RepairReport) {
        self.repairs.inc();
        for action in &report.done {
            let labels = ActionLabels {
                action: action.label().to_owned(),
            };
            self.actions.get_or_create(&labels).inc();
        }
        self.conflicts
            .set(i64::try_from(report.conflicts.len()).unwrap_or(i64::MAX));
    }
}

/// Everything, as text.
pub(crate) async fn render(app: &App) -> Result<String, Problem> {
    let mut now = Registry::with_prefix("vipu_proxy");
    let _turn = app.turn_to_read().await;
    let entries = app.ledger.list().await?;
    let partitions = Family::<PartitionLabels, Gauge>::default();
    let mut oldest: Option<Timestamp> = None;
    let mut quarantined = 0_i64;
    for entry in &entries {
        let labels = PartitionLabels {
            state: entry.state.label().to_owned(),
            controller: entry
                .controller
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        };
        partitions.get_or_create(&labels).inc();
        match entry.state {
            EntryState::Intent { .. } => {
                oldest = Some(oldest.map_or(entry.since, |oldest| oldest.min(entry.since)));
            }
            EntryState::Quarantined => quarantined += 1,
            _ => {}
        }
    }
    now.register(
        "partitions",
        "Partitions of the ledger, by state and controller",
        partitions,
    );
    let count = Gauge::<i64, AtomicI64>::default();
    count.set(quarantined);
    now.register(
        "quarantined",
        "Partitions that were found and nobody owns, and that are left alone",
        count,
    );
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(oldest.map_or(0.0, |since| app.ledger.now().since(since).as_secs_f64()));
    now.register(
        "oldest_intent_seconds",
        "Age of the oldest operation that is under way",
        age,
    );
    now.register(
        "ipus",
        "IPUs of the whole system, by what they are",
        ipus(app).await?,
    );
    let waiting = Family::<ReasonLabels, Gauge>::default();
    for waits in app.line().await?.into_values() {
        let labels = ReasonLabels {
            reason: waits.reason.code,
        };
        waiting.get_or_create(&labels).inc();
    }
    now.register("waiting", "Requests in the line, by reason", waiting);
    let same = Family::<SameLabels, Gauge>::default();
    for (name, other) in app.ledger.aliases().await? {
        let labels = SameLabels {
            controller: name.to_string(),
            other: other.to_string(),
        };
        same.get_or_create(&labels).set(1);
    }
    now.register(
        "same_controller",
        "1 for each controller that is another one under a second name and takes no new partitions",
        same,
    );
    register_seconds(&mut now, &app.consumption.read(&entries, app.ledger.now()));
    let mut text = String::new();
    let unwritable = |_| {
        let detail = "the metrics cannot be written";
        Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "Broken", detail)
    };
    prometheus_client::encoding::text::encode_registry(&mut text, &app.metrics.registry)
        .map_err(unwritable)?;
    encode(&mut text, &now).map_err(unwritable)?;
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
    registry.register("ipu_seconds", "IPUs times the seconds that they were held", held);
    let idle = Family::<StateLabels, Seconds>::default();
    for (state, seconds) in &seconds.idle {
        let labels = StateLabels {
            state: (*state).to_owned(),
        };
        idle.get_or_create(&labels).inc_by(*seconds);
    }
    registry.register(
        "idle_ipu_seconds",
        "IPUs times the seconds that they were held and could not be used, by the state of their partition",
        idle,
    );
}

async fn ipus(app: &App) -> Result<Family<KindLabels, Gauge>, Problem> {
    let kinds: BTreeMap<&str, u32> = crate::stats::kinds(app).await?;
    let gauges = Family::<KindLabels, Gauge>::default();
    for (kind, number) in kinds {
        let labels = KindLabels {
            kind: kind.to_owned(),
        };
        gauges.get_or_create(&labels).set(i64::from(number));
    }
    Ok(gauges)
}
