//! Routes of the API: each parses a request, calls the ledger, and renders the response.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipu_core::allocator::{Entry, OnNoCapacity};
use ipu_core::{JobUid, Owner, PartitionId};
use ipu_proxy_client::{
    DeletedDocument, Heartbeat, HoldState, LeaseDocument, PartitionDocument, PartitionList, PutPartition,
    ReadyDocument, ResetPartition, WaitingList,
};
use ipu_serve::Peer;
use serde::Serialize;
use serde_json::json;
use warp::filters::BoxedFilter;
use warp::path::FullPath;
use warp::reply::Response;
use warp::{Filter, Rejection, Reply as _};

use crate::app::App;
use crate::auth::Identity;
use crate::local_holder::local_holder;
use crate::machines::{machines_of, pin_to_machines};
use crate::partition_api::{lease_of, request_of};
use crate::problem::Problem;
use crate::query::{Params, Query, id_of, json_of, requested_id_of};
use crate::router::{Operation, no_such_route};
use crate::{allocations, controllers, cordons, dry_run, events, exposition, ipuof, map, stats};

/// OpenAPI document; the tests validate every response against it.
const DOCUMENT: &str = include_str!("openapi.json");

type RouteResult = Result<Response, Problem>;
type Route = BoxedFilter<(Response,)>;

/// Parts of a request.
struct ApiCall {
    app: Arc<App>,
    operation: &'static Operation,
    identity: Identity,
    peer: Option<Peer>,
    path: FullPath,
    headers: HeaderMap,
    query: Query,
    body: Bytes,
}

impl ApiCall {
    /// Parses the query, which allows these parameters.
    fn params(&mut self, allowed: &[&str]) -> Result<Params, Problem> {
        Params::parse(std::mem::take(&mut self.query), allowed)
    }

    /// Returns the id in the path, percent-encoded as the client has sent it.
    fn id(&self) -> &str {
        self.segment(3)
    }

    fn segment(&self, index: usize) -> &str {
        self.path.as_str().split('/').nth(index).unwrap_or_default()
    }
}

/// Handles every request, whose operation the gateway has found in the table of operations.
pub(crate) fn routes(app: &Arc<App>) -> Route {
    let app = Arc::clone(app);
    warp::ext::get::<&'static Operation>()
        .and(warp::ext::get::<Identity>())
        .and(warp::ext::optional::<Peer>())
        .and(warp::path::full())
        .and(warp::header::headers_cloned())
        .and(warp::query::<Query>())
        .and(warp::body::bytes())
        .map(
            move |operation, identity, peer, path, headers, query, body| ApiCall {
                app: Arc::clone(&app),
                operation,
                identity,
                peer,
                path,
                headers,
                query,
                body,
            },
        )
        .then(|call: ApiCall| async move {
            let result = dispatch(call).await;
            result.unwrap_or_else(|problem| problem_response(&problem))
        })
        .recover(|rejection: Rejection| async move {
            Ok::<_, Rejection>(problem_response(&rejection_problem(&rejection)))
        })
        .unify()
        .boxed()
}

/// Calls the handler of the operation. A test sends a request to every operation of the table.
async fn dispatch(call: ApiCall) -> RouteResult {
    match (call.operation.method, call.operation.path) {
        ("GET", "/health" | "/livez") => {
            call.app.check_alive()?;
            ok(&json!({"status": "ok"}))
        }
        ("GET", "/readyz") => ok(&ReadyDocument::new(call.app.check_ready().await?)),
        ("GET", "/metrics") => {
            let text = exposition::render(&call.app).await?;
            Ok(warp::reply::with_header(text, CONTENT_TYPE, exposition::FORMAT).into_response())
        }
        ("GET", "/openapi.json") => {
            Ok(warp::reply::with_header(DOCUMENT, CONTENT_TYPE, "application/json").into_response())
        }
        ("GET", "/ui") => Ok(crate::ui::redirect()),
        ("GET", "/ui/" | "/ui/{file}") => crate::ui::file(call.segment(2)).ok_or_else(no_such_route),
        ("GET", "/stats") => ok(&stats::stats(&call.app).await?),
        ("POST", "/query") => ok(&stats::query(&call.app, json_of(&call.body)?).await?),
        ("GET", "/v1/partitions") => list(call).await,
        ("GET", "/v1/partitions/{id}") => get(call).await,
        ("GET", "/v1/partitions/{id}/ipuof-config") => ipuof_config(call).await,
        ("PUT", "/v1/partitions/{id}") => put(call).await,
        ("DELETE", "/v1/partitions/{id}") => delete(call).await,
        ("POST", "/v1/partitions/{id}/reset") => reset(call).await,
        ("POST", "/v1/partitions/{id}/heartbeat") => heartbeat(call).await,
        ("GET", "/v1/allocations/{id}/partitions") => list_allocation(call).await,
        ("DELETE", "/v1/allocations/{id}/partitions") => empty_allocation(call).await,
        ("GET", "/v1/cordons") => cordons(call).await,
        ("POST", "/v1/cordons") => cordon(call).await,
        ("DELETE", "/v1/cordons/{id}") => uncordon(call).await,
        ("GET", "/v1/usage") => usage(call).await,
        ("POST", "/v1/repair") => repair(call).await,
        ("GET", "/v1/waiting") => waiting(call).await,
        ("GET", "/v1/controllers") => controllers(call).await,
        ("GET", "/v1/map") => map(call).await,
        ("POST", "/v1/plan") => plan(call).await,
        ("GET", "/v1/events") => events(call),
        _ => Err(no_such_route()),
    }
}

async fn controllers(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&controllers::controllers(&call.app).await?)
}

async fn map(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    map::with_etag(&map::map(&call.app).await?, &call.headers)
}

async fn plan(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&dry_run::plan(&call.app, json_of(&call.body)?).await?)
}

fn events(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    let last = call.headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok());
    Ok(events::stream(&call.app, last))
}

async fn list(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&PartitionList::new(call.app.partition_documents().await?))
}

async fn waiting(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&WaitingList::new(call.app.queued_documents().await?))
}

async fn list_allocation(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["controller"])?;
    ok(&allocations::list(&call.app, call.id(), params.controller).await?)
}

async fn empty_allocation(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["controller"])?;
    call.identity.may_use_partitions()?;
    call.identity.may_act_for_all()?;
    ok(&allocations::remove(&call.app, call.id(), params.controller).await?)
}

async fn heartbeat(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    let beat: Heartbeat = json_of(&call.body)?;
    let length = lease_of("seconds", beat.seconds)?;
    let id = id_of(call.id())?;
    let owner = owner_of(&call.app, &id, beat.uid).await?;
    call.identity.may_use_partitions_of(&owner)?;
    let lease = call.app.allocator.renew(&id, &owner, length).await?;
    ok(&LeaseDocument::new(id, lease.until()))
}

async fn cordons(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&cordons::list(&call.app).await?)
}

async fn cordon(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&cordons::cordon(&call.app, &call.identity, json_of(&call.body)?).await?)
}

async fn uncordon(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    let id = crate::query::decode(call.id());
    ok(&cordons::uncordon(&call.app, &call.identity, id).await?)
}

async fn usage(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["since", "limit", "continue"])?;
    ok(&stats::usage(&call.app, &params).await?)
}

async fn repair(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    call.identity.may_act_for_all()?;
    ok(&call.app.repair().await?)
}

async fn get(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&call.app.document(&id_of(call.id())?).await?)
}

async fn ipuof_config(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["gcd"])?;
    ok(&ipuof::config(&call.app, &id_of(call.id())?, params.gcd).await?)
}

async fn put(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["wait", "nowait", "notAfter"])?;
    let on_no_capacity = if params.nowait {
        OnNoCapacity::Reject
    } else {
        OnNoCapacity::Queue
    };
    let mut body: PutPartition = json_of(&call.body)?;
    let machines = body.machines.take().map(machines_of).transpose()?;
    let holder = local_holder(&body, call.peer.as_ref())?;
    let mut request = request_of(
        body,
        requested_id_of(call.id())?,
        on_no_capacity,
        ipu_proxy_client::now(),
    )?;
    request.holder = holder.unwrap_or(request.holder);
    request.not_after = params.not_after;
    call.identity.may_use_partitions_of(&request.owner)?;
    let namespaces = call.identity.namespaces().into_iter().flatten();
    request.client_namespaces = namespaces.filter_map(|name| name.parse().ok()).collect();
    if let Some(machines) = machines {
        request.pin = pin_to_machines(&call.app, &request, &machines).await?;
    }
    partition_response(&call.app.ensure(request, params.wait).await?)
}

async fn delete(mut call: ApiCall) -> RouteResult {
    let params = call.params(&["wait", "uid", "attempt", "quarantined", "force", "notAfter"])?;
    let id = id_of(call.id())?;
    let uid = uid_of(params.uid.clone())?;
    let Some(entry) = call.app.allocator.get(&id).await? else {
        return ok(&DeletedDocument::deleted(id));
    };
    let owner = owner_with(&entry, uid);
    match &owner {
        Some(owner) => call.identity.may_act_for(owner)?,
        None if params.quarantined => call.identity.may_act_for_all()?,
        None => return Err(quarantined(&id)),
    }
    let deleted = call.app.delete(id, owner, &params).await?;
    delete_response(&deleted)
}

/// Response of a delete: 200 if the partition is deleted, 202 if the release continues.
fn delete_response(deleted: &DeletedDocument) -> RouteResult {
    let status = if deleted.state == HoldState::Gone {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    json(status, deleted)
}

async fn reset(mut call: ApiCall) -> RouteResult {
    let not_after = call.params(&["notAfter"])?.not_after;
    let body = if call.body.is_empty() {
        ResetPartition::default()
    } else {
        json_of(&call.body)?
    };
    let id = id_of(call.id())?;
    let attempt = match body.attempt {
        Some(attempt) => attempt,
        None => call.app.entry(&id).await?.attempt,
    };
    let owner = owner_of(&call.app, &id, body.uid).await?;
    call.identity.may_use_partitions_of(&owner)?;
    partition_response(&call.app.reset(&id, &owner, attempt, not_after).await?)
}

/// Returns the recorded owner of a partition, with the uid of the request if there is one.
async fn owner_of(app: &App, id: &PartitionId, uid: Option<String>) -> Result<Owner, Problem> {
    let uid = uid_of(uid)?;
    let entry = app.entry(id).await?;
    owner_with(&entry, uid).ok_or_else(|| quarantined(id))
}

fn uid_of(uid: Option<String>) -> Result<Option<JobUid>, Problem> {
    uid.map(|uid| crate::partition_api::parse_name("uid", uid))
        .transpose()
}

/// Returns the owner of `entry`, none if it is quarantined.
fn owner_with(entry: &Entry, uid: Option<JobUid>) -> Option<Owner> {
    let mut owner = entry.owner.clone()?;
    if let Some(uid) = uid {
        owner.job.uid = uid;
    }
    Some(owner)
}

fn quarantined(id: &PartitionId) -> Problem {
    let detail = format!("partition {id} was found at a controller and has no owner");
    Problem::new(StatusCode::CONFLICT, "Quarantined", detail)
        .with_fix("make sure that nothing uses it, then delete it with ?quarantined=true")
}

/// Response with a partition: 200 if it is active, 202 otherwise.
fn partition_response(document: &PartitionDocument) -> RouteResult {
    let status = if document.state == HoldState::Active {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    json(status, document)
}

fn ok(value: &impl Serialize) -> RouteResult {
    json(StatusCode::OK, value)
}

fn json(status: StatusCode, value: &impl Serialize) -> RouteResult {
    Ok(warp::reply::with_status(warp::reply::json(value), status).into_response())
}

/// Renders a problem as a response.
pub(crate) fn problem_response(problem: &Problem) -> Response {
    let mut response = warp::reply::with_status(warp::reply::json(problem), problem.status()).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = problem.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if matches!(problem.code(), "Standby" | "Stopping") {
        // Behind a Service, the next connection may lead to the proxy that has the ledger.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if problem.status() == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(allow) = problem.allow().and_then(|text| text.parse().ok()) {
        headers.insert(ALLOW, allow);
    }
    tracing::debug!(code = problem.code(), status = %problem.status(), "request refused");
    response
}

/// Problem of a request whose parts the routes cannot read.
fn rejection_problem(rejection: &Rejection) -> Problem {
    if rejection.find::<warp::reject::InvalidQuery>().is_some() {
        return Problem::new(
            StatusCode::BAD_REQUEST,
            "InvalidQuery",
            "the query string is invalid",
        );
    }
    no_such_route()
}
