//! Routes of the admission webhooks: parse, review, respond, count.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use ipu_k8s::webhook::{AdmissionRules, ReviewError, mutate, validate};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionResponse, AdmissionReview};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use warp::{Filter as _, Reply as _};

use crate::metrics::Metrics;
use crate::webhook_server::{Routes, text};

const MUTATE_PATH: &str = "mutate-graphcore-ai-v1alpha1-ipujob";
const VALIDATE_PATH: &str = "validate-graphcore-ai-v1alpha1-ipujob";

/// Maximum number of concurrent reviews, each on its own core. The largest review takes about 60 MiB; most
/// take a fraction of a millisecond.
const MAX_CONCURRENT_REVIEWS: usize = 2;

pub(crate) fn routes(rules: AdmissionRules, metrics: &Metrics) -> Routes {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_REVIEWS));
    let mutating = route(MUTATE_PATH, "mutate", metrics.clone(), &permits, mutate);
    let validating = route(
        VALIDATE_PATH,
        "validate",
        metrics.clone(),
        &permits,
        move |review| validate(review, &rules),
    );
    mutating.or(validating).unify().boxed()
}

fn route(
    path: &'static str,
    webhook: &'static str,
    metrics: Metrics,
    permits: &Arc<Semaphore>,
    review_fn: impl Fn(&[u8]) -> Result<AdmissionResponse, ReviewError> + Clone + Send + Sync + 'static,
) -> Routes {
    let permits = Arc::clone(permits);
    warp::path(path)
        .and(warp::path::end())
        .and(warp::post())
        .and(warp::body::bytes())
        .then(move |review: Bytes| {
            let (permits, metrics, review_fn) = (Arc::clone(&permits), metrics.clone(), review_fn.clone());
            async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                respond(webhook, &review, &metrics, review_fn)
            }
        })
        .boxed()
}

fn respond(
    webhook: &'static str,
    review: &[u8],
    metrics: &Metrics,
    review_fn: impl Fn(&[u8]) -> Result<AdmissionResponse, ReviewError>,
) -> warp::reply::Response {
    let started = Instant::now();
    let response = review_fn(review);
    let outcome = match &response {
        Ok(response) if response.allowed => "allowed",
        Ok(_) => "refused",
        Err(_) => "malformed",
    };
    metrics.record_review(webhook, outcome, started.elapsed());
    match response {
        Ok(response) => {
            log_outcome(webhook, review, &response);
            warp::reply::json(&response.into_review()).into_response()
        }
        Err(error) => {
            warn!(webhook, %error, "malformed review");
            text(StatusCode::BAD_REQUEST, error.to_string())
        }
    }
}

/// Logs one line: a refused request with its user and the broken rules.
fn log_outcome(webhook: &'static str, review: &[u8], response: &AdmissionResponse) {
    if response.allowed {
        debug!(webhook, warnings = ?response.warnings, "admitted");
        return;
    }
    let review: Option<AdmissionReview<DynamicObject>> = serde_json::from_slice(review).ok();
    let Some(request) = review.and_then(|review| review.request) else {
        return;
    };
    let details = response.result.details.as_ref();
    let causes = details.map(|details| &*details.causes).unwrap_or_default();
    let rules: Vec<String> = causes
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    info!(
        webhook,
        namespace = request.namespace.unwrap_or_default(),
        name = request.name,
        user = request.user_info.username.unwrap_or_default(),
        rules = rules.join("; "),
        "refused"
    );
}
