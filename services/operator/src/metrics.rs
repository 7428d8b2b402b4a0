//! `/metrics` in the OpenMetrics text format; events are counted as they happen.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use http::{StatusCode, header};
use ipu_serve::register_process_metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use warp::{Filter as _, Reply as _};

use crate::job_metrics::JobMetrics;
use crate::metrics_auth::MetricsAuthorizer;
use crate::webhook_server::{Routes, text};

/// Media type of the response.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    webhook: &'static str,
    outcome: &'static str,
}

type DurationFamily = Family<ReviewLabels, Histogram, fn() -> Histogram>;

/// Metrics of the operator; clones share one state.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    reviews: DurationFamily,
    leader: Gauge<i64, AtomicI64>,
    expiry: Gauge<i64, AtomicI64>,
    jobs: JobMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        // Buckets from 0.1 ms to some seconds.
        let reviews =
            DurationFamily::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 16)));
        let leader = Gauge::default();
        let expiry = Gauge::default();
        registry.register(
            "ipu_operator_admission_seconds",
            "Duration of admission reviews, by webhook and outcome",
            reviews.clone(),
        );
        registry.register(
            "ipu_operator_leader",
            "1 if this operator is the leader, else 0",
            leader.clone(),
        );
        registry.register(
            "ipu_operator_certificate_expiry_timestamp_seconds",
            "Expiry of the certificate that the operator manages, in seconds since 1970; 0 if the certificate was provided",
            expiry.clone(),
        );
        register_process_metrics(&mut registry, "ipu_operator", env!("CARGO_PKG_VERSION"));
        let jobs = JobMetrics::new(&mut registry);
        Self(Arc::new(Inner {
            jobs,
            registry,
            reviews,
            leader,
            expiry,
        }))
    }
}

impl Metrics {
    /// Renders all metrics as text.
    pub(crate) fn render(&self) -> String {
        let mut all = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut all, &self.0.registry);
        all
    }

    pub(crate) fn record_review(&self, webhook: &'static str, outcome: &'static str, took: Duration) {
        let labels = ReviewLabels { webhook, outcome };
        self.0.reviews.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Returns the metrics of jobs.
    pub(crate) fn jobs(&self) -> &JobMetrics {
        &self.0.jobs
    }

    pub(crate) fn set_leader(&self, is_leader: bool) {
        self.0.leader.set(is_leader.into());
    }

    pub(crate) fn set_certificate_expiry(&self, at: u64) {
        self.0.expiry.set(i64::try_from(at).unwrap_or(i64::MAX));
    }
}

/// Returns the `/metrics` route, which serves callers that RBAC permits.
pub(crate) fn routes(metrics: &Metrics, authorizer: &Arc<MetricsAuthorizer>) -> Routes {
    let (metrics, authorizer) = (metrics.clone(), Arc::clone(authorizer));
    warp::path!("metrics")
        .and(warp::get())
        .and(warp::header::optional::<String>("authorization"))
        .then(move |authorization: Option<String>| {
            let (metrics, authorizer) = (metrics.clone(), Arc::clone(&authorizer));
            async move {
                match authorizer.check(authorization.as_deref()).await {
                    Ok(()) => warp::reply::with_header(metrics.render(), header::CONTENT_TYPE, FORMAT)
                        .into_response(),
                    Err((status, reason)) => reject(status, reason),
                }
            }
        })
        .boxed()
}

fn reject(status: StatusCode, reason: String) -> warp::reply::Response {
    let response = text(status, reason);
    if status == StatusCode::UNAUTHORIZED {
        return warp::reply::with_header(response, header::WWW_AUTHENTICATE, "Bearer").into_response();
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use ipu_k8s::crd::{IpuJob, IpuJobSpec};
    use serde_json::json;

    use super::*;

    const GUIDE: &str = include_str!("../../../docs/reference/operator-metrics.md");

    /// Metrics by name: type, labels and help text.
    type Described = BTreeMap<String, (String, BTreeSet<String>, String)>;

    /// Parses the table of the guide.
    fn documented() -> Described {
        let cells = |line: &str| {
            line.split('|')
                .map(|cell| cell.trim().to_owned())
                .collect::<Vec<_>>()
        };
        let rows = GUIDE.lines().filter(|line| line.starts_with("| `")).map(cells);
        let metrics = rows.filter_map(|cells| match cells.as_slice() {
            [_, name, kind, labels, help, _] => {
                let labels = labels
                    .split(',')
                    .map(|label| label.trim().trim_matches('`').to_owned());
                let labels = labels.filter(|label| !label.is_empty()).collect();
                Some((
                    name.trim_matches('`').to_owned(),
                    (kind.clone(), labels, help.clone()),
                ))
            }
            _ => None,
        });
        metrics.collect()
    }

    /// Parses the metadata and labels in `text`.
    fn rendered(text: &str) -> Described {
        let mut all = Described::new();
        let mut last = String::new();
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words.as_slice() {
                ["#", "HELP", name, help] => {
                    // The library appends a full stop.
                    all.entry((*name).to_owned()).or_default().2 = help.trim_end_matches('.').to_owned();
                    (*name).clone_into(&mut last);
                }
                ["#", "TYPE", name, kind] => {
                    all.entry((*name).to_owned()).or_default().0 = (*kind).to_owned()
                }
                _ => {
                    let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
                    let pairs = labels.into_iter().flat_map(|(labels, _)| labels.split("\","));
                    let names = pairs
                        .filter_map(|pair| pair.split_once('='))
                        .map(|(name, _)| name);
                    let names = names.filter(|name| *name != "le").map(str::to_owned);
                    all.entry(last.clone()).or_default().1.extend(names);
                }
            }
        }
        all.remove("");
        all
    }

    #[test]
    fn the_guide_describes_every_metric_as_it_is_printed() {
        let metrics = Metrics::default();
        metrics.record_review("mutate", "allowed", Duration::ZERO);
        let jobs = metrics.jobs();
        jobs.record_reconcile("done", Duration::ZERO);
        jobs.record_interruption("IPUJobs");
        let times = json!({"queue": 0.0, "partition": 0.0, "schedule": 0.0, "start": 0.0});
        for status in [json!({}), json!({"phase": "Completed", "phaseSeconds": times})] {
            let mut job = IpuJob::new("a", IpuJobSpec::default());
            job.status = serde_json::from_value(status).unwrap();
            jobs.observe_job(&job);
        }
        let text = metrics.render();
        assert_eq!(documented(), rendered(&text), "{text}");
    }
}
