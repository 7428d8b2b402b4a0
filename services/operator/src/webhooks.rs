//! The routes of the admission webhooks: parse, ask the library, print, count.

use bytes::Bytes;
use http::StatusCode;
use ipu_k8s::webhook::{AdmissionRules, Answer, ReviewError, mutate, validate};
use tokio::time::Instant;
use tracing::{debug, info, warn};
use warp::{Filter as _, Reply as _};

use crate::door::{Routes, text};
use crate::metrics::Metrics;

const MUTATE: &str = "mutate-graphcore-ai-v1alpha1-ipujob";
const VALIDATE: &str = "validate-graphcore-ai-v1alpha1-ipujob";

pub(crate) fn routes(rules: AdmissionRules, metrics: &Metrics) -> Routes {
    let mutating = route(MUTATE, "mutate", metrics.clone(), mutate);
    let validating = route(VALIDATE, "validate", metrics.clone(), move |review| {
        validate(review, &rules)
    });
    mutating.or(validating).unify().boxed()
}

fn route(
    path: &'static str,
    webhook: &'static str,
    metrics: Metrics,
    ask: impl Fn(&[u8]) -> Result<Answer, ReviewError> + Clone + Send + Sync + 'static,
) -> Routes {
    warp::path(path)
        .and(warp::path::end())
        .and(warp::post())
        .and(warp::body::bytes())
        .map(move |review: Bytes| {
            let began = Instant::now();
            let answer = ask(&review);
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
        })
        .boxed()
}

fn tell(webhook: &'static str, answer: &Answer) {
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
