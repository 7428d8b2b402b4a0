//! `/metrics` in the text format of Prometheus: counted metrics, and gauges that are read at each scrape.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicI64, AtomicU64};

use ipu_core::Timestamp;
use ipu_core::allocator::Phase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::ipu_seconds::IpuSeconds;
use crate::problem::Problem;

/// Media type of the response.
pub(crate) const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
            reason: status.reason.code.to_string(),
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

fn ipu_gauges(stats: &ipu_core::allocator::Stats) -> Family<KindLabels, Gauge> {
    let gauges = Family::<KindLabels, Gauge>::default();
    for (kind, number) in crate::stats::ipus_by_kind(stats) {
        let labels = KindLabels {
            kind: kind.to_owned(),
        };
        gauges.get_or_create(&labels).set(i64::from(number));
    }
    gauges
}
