//! The routes of the admission webhooks: parse, ask the library, print, count.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use ipu_k8s::webhook::{AdmissionRules, ReviewError, ReviewResponse, mutate, validate};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use warp::{Filter as _, Reply as _};

use crate::metrics::Metrics;
use crate::webhook_server::{Routes, text};

const MUTATE: &str = "mutate-graphcore-ai-v1alpha1-ipujob";
const VALIDATE: &str = "validate-graphcore-ai-v1alpha1-ipujob";

/// Most reviews that are worked on at a time, each on a processor of its own: the largest takes some 60 MiB while it is, and most
/// take a fraction of a millisecond.
const WORKED_ON: usize = 2;

pub(crate) fn routes(rules: AdmissionRules, metrics: &Metrics) -> Routes {
    let places = Arc::new(Semaphore::new(WORKED_ON));
    let mutating = route(MUTATE, "mutate", metrics.clone(), &places, mutate);
    let validating = route(VALIDATE, "validate", metrics.clone(), &places, move |review| {
        validate(review, &rules)
    });
    mutating.or(validating).unify().boxed()
}

fn route(
    path: &'static str,
    webhook: &'static str,
    metrics: Metrics,
    places: &Arc<Semaphore>,
    ask: impl Fn(&[u8]) -> Result<ReviewResponse, ReviewError> + Clone + Send + Sync + 'static,
) -> Routes {
    let places = Arc::clone(places);
    warp::path(path)
        .and(warp::path::end())
        .and(warp::post())
        .and(warp::body::bytes())
        .then(move |review: Bytes| {
            let (places, metrics, ask) = (Arc::clone(&places), metrics.clone(), ask.clone());
            async move {
                // Never closed.
                let _place = places.acquire().await;
                answer(webhook, &review, &metrics, ask)
            }
        })
        .boxed()
}

fn answer(
    webhook: &'static str,
    review: &[u8],
    metrics: &Metrics,
    ask: impl Fn(&[u8]) -> Result<ReviewResponse, ReviewError>,
) -> warp::reply::Response {
    let began = Instant::now();
    let answer = ask(review);
    let outcome = match &answer {
        Ok(answer) if answer.allowed() => "allowed",
        Ok(_) => "refused",
        Err(_) => "malformed",
    };
    metrics.reviewed(webhook, outcome, began.elapsed());
    match answer {
        Ok(answer) => {
            tell(webhook, &answer);
            warp::reply::json(&answer.to_review()).into_response()
        }
        Err(error) => {
            warn!(webhook, %error, "a review is refused");
            text(StatusCode::BAD_REQUEST, error.to_string())
        }
    }
}

fn tell(webhook: &'static str, answer: &ReviewResponse) {
    if answer.allowed() {
        debug!(
            webhook,
            changes = answer.patch().len(),
            warnings = answer.warnings().len(),
            "admitted"
        );
    } else {
        info!(webhook, message = answer.message(), "refused");
    }
}
