//! `/healthz` and `/readyz`.

use http::StatusCode;
use tracing::warn;
use warp::Filter as _;
use warp::reply::Response;

use crate::health::HealthRegistry;
use crate::webhook_server::{Routes, text};

pub(crate) fn routes(progress: &HealthRegistry) -> Routes {
    let (alive, ready) = (progress.clone(), progress.clone());
    let health = warp::path!("healthz").map(move || health(&alive));
    let readiness = warp::path!("readyz").map(move || readiness(&ready));
    warp::get()
        .or(warp::head())
        .unify()
        .and(health.or(readiness).unify())
        .boxed()
}

fn health(progress: &HealthRegistry) -> Response {
    match progress.stuck() {
        None => text(StatusCode::OK, "ok".into()),
        Some((what, late)) => {
            let words = format!("{what} should have gone on {} s ago", late.as_secs());
            warn!(words, "not healthy");
            text(StatusCode::SERVICE_UNAVAILABLE, words)
        }
    }
}

fn readiness(progress: &HealthRegistry) -> Response {
    let waits_for = progress.waits_for();
    if waits_for.is_empty() {
        return text(StatusCode::OK, "ok".into());
    }
    let names: Vec<_> = waits_for.into_iter().collect();
    text(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("waits for {}", names.join(", ")),
    )
}
