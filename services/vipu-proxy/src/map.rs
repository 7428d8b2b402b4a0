//! The `/v1/map` endpoint: the hardware with its holders.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher as _};

use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipu_core::allocator::ControllerMap;
use ipu_core::{ControllerName, ErrorChain};
use ipu_proxy_client::{
    ControllerHealth, ControllerMapDocument, LinkDomainDocument, MapDocument, QuotaDocument,
};
use ipu_vipu_client::{Member, MemberState};
use serde::Serialize;
use warp::reply::{Reply as _, Response};

use crate::app::App;
use crate::controllers::versions;
use crate::problem::Problem;

/// Handles `GET /v1/map`.
pub(crate) async fn map(app: &App) -> Result<MapDocument, Problem> {
    let _permit = app.acquire_read().await;
    let view = app.allocator.fresh_view().await?;
    let mut maps: HashMap<ControllerName, ControllerMap> = view
        .map()
        .into_iter()
        .map(|map| (map.name.clone(), map))
        .collect();
    let pool = app.allocator.pool();
    let members: Vec<_> = pool.members().into_iter().chain(pool.draining()).collect();
    let answering = members
        .iter()
        .filter(|member| view.hardware().listing(&member.name).is_some());
    let mut versions: BTreeMap<ControllerName, String> =
        versions(&answering.cloned().collect::<Vec<_>>()).await;
    let document = |member: Member| {
        let error = view.hardware().listing_error(&member.name);
        let health = match (error, member.state) {
            (Some(_), _) if member.same_as.is_some() => ControllerHealth::Alias,
            (Some(_), _) => ControllerHealth::Silent,
            (None, MemberState::Draining) => ControllerHealth::Draining,
            (None, MemberState::Listed) => ControllerHealth::Available,
        };
        let mut document = ControllerMapDocument::new(member.name.clone(), health);
        if health == ControllerHealth::Silent {
            document.silent_since = Some(app.time_of(member.health.last_success));
            document.error = error.map(|reason| reason.message.clone());
        }
        document.version = versions.remove(&member.name);
        if let Some(map) = maps.remove(&member.name) {
            let domains = map.link_domains.into_iter();
            document.link_domains = domains.map(LinkDomainDocument::from).collect();
            document.unplaced = map.unplaced.into_iter().collect();
        }
        document
    };
    let controllers = members.into_iter().map(document).collect();
    let quotas = view.quota_usage().into_iter().map(QuotaDocument::from);
    Ok(MapDocument::new(controllers, quotas.collect()))
}

/// Renders a document with its digest as `ETag`, or 304 if the client has it already.
pub(crate) fn with_etag(document: &impl Serialize, headers: &HeaderMap) -> Result<Response, Problem> {
    let body = serde_json::to_vec(document).map_err(|error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "LedgerError",
            ErrorChain(&error).to_string(),
        )
    })?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&body);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| {
        known
            .split(',')
            .any(|one| one.trim().trim_start_matches("W/") == tag)
    });
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        warp::reply::with_header(body, "content-type", "application/json").into_response()
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}
