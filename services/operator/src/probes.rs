//! `/healthz` and `/readyz`.

use http::StatusCode;
use tracing::warn;
use warp::Filter as _;
use warp::reply::Response;

use crate::health::HealthRegistry;
use crate::webhook_server::{Routes, text};

pub(crate) fn routes(registry: &HealthRegistry) -> Routes {
    let (for_health, for_readiness) = (registry.clone(), registry.clone());
    let health = warp::path!("healthz").map(move || health(&for_health));
    let readiness = warp::path!("readyz").map(move || readiness(&for_readiness));
    warp::get()
        .or(warp::head())
        .unify()
        .and(health.or(readiness).unify())
        .boxed()
}

fn health(registry: &HealthRegistry) -> Response {
    match registry.overdue() {
        None => text(StatusCode::OK, "ok".into()),
        Some((name, delay)) => {
            let message = format!("{name} is overdue by {} s", delay.as_secs());
            warn!(message, "unhealthy");
            text(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

fn readiness(registry: &HealthRegistry) -> Response {
    let pending = registry.pending();
    if pending.is_empty() {
        return text(StatusCode::OK, "ok".into());
    }
    let names: Vec<_> = pending.into_iter().collect();
    text(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("waits for {}", names.join(", ")),
    )
}
