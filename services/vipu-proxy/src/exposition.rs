//! `/metrics` in the text format of Prometheus: counted metrics, and gauges that are read at each scrape.

use std::sync::atomic::{AtomicI64, AtomicU64};

use ipu_allocator::View;
use ipu_core::allocator::{Phase, QuotaSubject};
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::ipu_seconds::IpuSeconds;
use crate::problem::Problem;

/// Media type of the response.
pub(crate) const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a series: names and values.
type Labels<const N: usize> = [(&'static str, String); N];
type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
type SecondGauges = Family<Labels<1>, Gauge<f64, AtomicU64>>;
type SecondCounters<const N: usize> = Family<Labels<N>, Counter<f64, AtomicU64>>;

/// Renders all metrics as text. A proxy that stands by has no metrics of the ledger.
pub(crate) async fn render(app: &App) -> Result<String, Problem> {
    let mut gauges = Registry::with_prefix("vipu_proxy");
    let _permit = app.acquire_read().await;
    let leader = Gauge::<i64, AtomicI64>::default();
    leader.set(app.allocator.check_leading().is_ok().into());
    gauges.register("leader", "1 if this proxy writes the ledger, else 0", leader);
    if let Ok(view) = app.allocator.view().await {
        register_entries(&mut gauges, &view);
        register_ipus(&mut gauges, &view);
        register_controllers(&mut gauges, app, &view);
        register_quotas(&mut gauges, &view);
        let preemptions = Counter::<u64>::default();
        preemptions.inc_by(app.allocator.preemption_count());
        gauges.register(
            "preemptions",
            "Partitions whose owners were asked to release them for a request of higher priority",
            preemptions,
        );
        register_fill(&mut gauges, app);
        let entries = view.state().entries().cloned();
        register_seconds(&mut gauges, &app.consumption.read(entries, app.allocator.now()));
    }
    let mut text = String::new();
    let unwritable = |_| {
        let detail = "cannot render the metrics";
        Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "Broken", detail)
    };
    encode_registry(&mut text, &app.metrics.process).map_err(unwritable)?;
    encode_registry(&mut text, &app.metrics.registry).map_err(unwritable)?;
    encode(&mut text, &gauges).map_err(unwritable)?;
    Ok(text)
}

fn register_entries(registry: &mut Registry, view: &View) {
    let partitions = Gauges::<2>::default();
    let oldest_operations = SecondGauges::default();
    for operation in ["create", "reset", "remove"] {
        raise(&oldest_operations, [("operation", operation.to_owned())], 0.0);
    }
    let quarantined = Gauge::<i64, AtomicI64>::default();
    for entry in view.state().entries() {
        let state = ipu_proxy_client::HoldState::from(&entry.phase).label();
        let controller = entry
            .controller
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let labels = [("state", state.to_owned()), ("controller", controller)];
        partitions.get_or_create(&labels).inc();
        let operation = match entry.phase {
            Phase::Creating => "create",
            Phase::Resetting => "reset",
            Phase::Releasing { .. } => "remove",
            Phase::Quarantined => {
                quarantined.inc();
                continue;
            }
            Phase::Queued | Phase::Active | Phase::Failed { .. } => continue,
        };
        let age = view.now().since(entry.since).as_secs_f64();
        raise(&oldest_operations, [("operation", operation.to_owned())], age);
    }
    registry.register(
        "partitions",
        "Partitions in the ledger, by state and controller",
        partitions,
    );
    registry.register(
        "quarantined",
        "Partitions without an owner that are in quarantine",
        quarantined,
    );
    registry.register(
        "oldest_operation_seconds",
        "Age of the oldest operation at a controller, by operation",
        oldest_operations,
    );
    let waiting = Gauges::<1>::default();
    let oldest_waiting = SecondGauges::default();
    for (id, status) in view.queue() {
        let labels = [("reason", status.reason.code.to_string())];
        waiting.get_or_create(&labels).inc();
        let since = view.get(id).map_or(view.now(), |entry| entry.since);
        raise(&oldest_waiting, labels, view.now().since(since).as_secs_f64());
    }
    registry.register("waiting", "Queued requests, by reason", waiting);
    registry.register(
        "oldest_waiting_seconds",
        "Age of the oldest queued request, by present reason",
        oldest_waiting,
    );
}

/// Raises the gauge of `labels` to `seconds`.
fn raise(gauges: &SecondGauges, labels: Labels<1>, seconds: f64) {
    let gauge = gauges.get_or_create_owned(&labels);
    gauge.set(gauge.get().max(seconds));
}

fn register_ipus(registry: &mut Registry, view: &View) {
    let ipus = Gauges::<2>::default();
    for (controller, stats) in view.stats_by_controller() {
        for (kind, number) in crate::stats::ipus_by_kind(&stats) {
            let labels = [("kind", kind.to_owned()), ("controller", controller.to_string())];
            ipus.get_or_create(&labels).set(number.into());
        }
    }
    registry.register("ipus", "IPUs, by kind and controller", ipus);
    let used = Gauges::<1>::default();
    for (namespace, number) in view.stats().by_namespace {
        used.get_or_create(&[("namespace", namespace.to_string())])
            .set(number.into());
    }
    registry.register("used_ipus", "IPUs that the ledger holds, by namespace", used);
}

fn register_controllers(registry: &mut Registry, app: &App, view: &View) {
    let pool = app.allocator.pool();
    let up = Gauges::<1>::default();
    for member in pool.members().into_iter().chain(pool.draining()) {
        // A second name of a controller is never listed.
        if member.same_as.is_none() {
            let is_up = view.hardware().listing(&member.name).is_some();
            up.get_or_create(&[("controller", member.name.to_string())])
                .set(is_up.into());
        }
    }
    registry.register("controller_up", "1 if the controller responds, else 0", up);
    let same = Gauges::<2>::default();
    for (name, other) in pool.aliases() {
        let labels = [("controller", name.to_string()), ("other", other.to_string())];
        same.get_or_create(&labels).set(1);
    }
    registry.register(
        "same_controller",
        "1 for each controller name that is an alias of another controller and gets no new partitions",
        same,
    );
}

fn register_quotas(registry: &mut Registry, view: &View) {
    let (limits, used) = (Gauges::<3>::default(), Gauges::<3>::default());
    for usage in view.quota_usage() {
        let (namespace, account) = match usage.subject {
            QuotaSubject::Namespace(namespace) => (namespace.to_string(), String::new()),
            QuotaSubject::Account(account) => (String::new(), account),
        };
        for (unit, limit, number) in [
            ("ipus", usage.quota.max_ipus, usage.ipus),
            ("partitions", usage.quota.max_partitions, usage.partitions),
        ] {
            let Some(limit) = limit else { continue };
            let labels = [
                ("namespace", namespace.clone()),
                ("account", account.clone()),
                ("unit", unit.to_owned()),
            ];
            limits.get_or_create(&labels).set(limit.into());
            used.get_or_create(&labels).set(number.into());
        }
    }
    registry.register("quota_limit", "Limit of a quota", limits);
    registry.register("quota_used", "Present use of a quota", used);
}

fn register_fill(registry: &mut Registry, app: &App) {
    let Some(fill) = app.allocator.store_fill() else {
        return;
    };
    let gauge = |number: usize| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
    registry.register(
        "ledger_bytes",
        "Size of the ledger in a ConfigMap, with the growth of its entries",
        gauge(fill.bytes),
    );
    registry.register(
        "ledger_limit_bytes",
        "Size of the ledger in a ConfigMap from which new requests are refused",
        gauge(fill.limit),
    );
}

fn register_seconds(registry: &mut Registry, seconds: &IpuSeconds) {
    let held = SecondCounters::<2>::default();
    for ((namespace, account), seconds) in &seconds.held {
        let labels = [("namespace", namespace.clone()), ("account", account.clone())];
        held.get_or_create(&labels).inc_by(*seconds);
    }
    registry.register("ipu_seconds", "Held IPU seconds", held);
    let idle = SecondCounters::<1>::default();
    for (state, seconds) in &seconds.idle {
        idle.get_or_create(&[("state", (*state).to_owned())])
            .inc_by(*seconds);
    }
    registry.register(
        "idle_ipu_seconds",
        "Held IPU seconds without use, by the state of the partition",
        idle,
    );
}
