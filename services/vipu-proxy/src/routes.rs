//! Routes of the API: each parses a request, calls the ledger, and renders the response.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use ipu_core::allocator::OnNoCapacity;
use ipu_core::{Owner, PartitionId};
use ipu_proxy_client::{
    DeletedDocument, Heartbeat, HoldState, LeaseDocument, PartitionDocument, PartitionList, PutPartition,
    ReadyDocument, ResetPartition, WaitingList,
};
use ipu_serve::Peer;
use serde::Serialize;
use serde_json::json;
use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter, Rejection, Reply as _};

use crate::app::App;
use crate::auth::Identity;
use crate::local_holder::local_holder;
use crate::machines::{machines_of, pin_to_machines};
use crate::partition_api::{lease_of, request_of};
use crate::problem::Problem;
use crate::query::{Params, Query, id_of, json_of, requested_id_of};
use crate::{allocations, controllers, cordons, dry_run, events, exposition, ipuof, map, stats};

/// OpenAPI document; the tests validate every response against it.
const DOCUMENT: &str = include_str!("openapi.json");

type RouteResult = Result<Response, Problem>;
type Route = BoxedFilter<(Response,)>;

/// Parts of a request.
struct ApiCall {
    app: Arc<App>,
    identity: Identity,
    peer: Option<Peer>,
    query: Query,
    body: Bytes,
}

impl ApiCall {
    /// Parses the query, which allows these parameters.
    fn params(&mut self, allowed: &[&str]) -> Result<Params, Problem> {
        Params::parse(std::mem::take(&mut self.query), allowed)
    }
}

/// All routes.
pub(crate) fn routes(app: &Arc<App>) -> Route {
    let routes = probe_routes(app)
        .or(page_routes())
        .unify()
        .or(documented_routes(app))
        .unify()
        .or(list_routes(app))
        .unify()
        .or(partition_routes(app))
        .unify()
        .or(allocation_routes(app))
        .unify()
        .or(admin_routes(app))
        .unify();
    routes
        .recover(|rejection: Rejection| async move {
            Ok::<_, Rejection>(problem_response(&rejection_problem(&rejection)))
        })
        .unify()
        .boxed()
}

fn api_call(app: &Arc<App>) -> impl Filter<Extract = (ApiCall,), Error = Rejection> + Clone + use<> {
    let app = Arc::clone(app);
    warp::ext::get::<Identity>()
        .and(warp::ext::optional::<Peer>())
        .and(warp::query::<Query>())
        .and(warp::body::bytes())
        .map(move |identity, peer, query, body| ApiCall {
            app: Arc::clone(&app),
            identity,
            peer,
            query,
            body,
        })
}

/// Routes of probes, metrics and the OpenAPI document.
fn probe_routes(app: &Arc<App>) -> Route {
    let alive = |call: ApiCall| into_response(call.app.check_alive().and_then(|()| ok_status()));
    let health = warp::path!("health")
        .and(warp::get())
        .and(api_call(app))
        .map(alive);
    let livez = warp::path!("livez")
        .and(warp::get())
        .and(api_call(app))
        .map(alive);
    let readyz = warp::path!("readyz")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move {
            into_response(
                call.app
                    .check_ready()
                    .await
                    .and_then(|status| ok(&ReadyDocument::new(status))),
            )
        });
    let metrics =
        warp::path!("metrics")
            .and(warp::get())
            .and(api_call(app))
            .then(|call: ApiCall| async move {
                let text = exposition::render(&call.app).await;
                into_response(text.map(|text| {
                    warp::reply::with_header(text, CONTENT_TYPE, exposition::FORMAT).into_response()
                }))
            });
    let document = warp::path!("openapi.json")
        .and(warp::get())
        .map(|| warp::reply::with_header(DOCUMENT, CONTENT_TYPE, "application/json").into_response());
    health
        .or(livez)
        .unify()
        .or(readyz)
        .unify()
        .or(metrics)
        .unify()
        .or(document)
        .unify()
        .boxed()
}

/// Routes of the page.
fn page_routes() -> Route {
    let file = |name: &str| {
        let response = crate::ui::file(name);
        into_response(response.ok_or_else(no_such_route))
    };
    let index = warp::path("ui")
        .and(warp::path::full())
        .and(warp::path::end())
        .and(warp::get())
        .map(move |path: warp::path::FullPath| {
            if path.as_str().ends_with('/') {
                file("")
            } else {
                crate::ui::redirect()
            }
        });
    let named = warp::path!("ui" / String)
        .and(warp::get())
        .map(move |name: String| file(&name));
    index.or(named).unify().boxed()
}

fn no_such_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NoSuchRoute", "no such route").with_fix("see /openapi.json")
}

fn ok_status() -> RouteResult {
    ok(&json!({"status": "ok"}))
}

/// Routes `/stats` and `/query` of the Graphcore proxy.
fn documented_routes(app: &Arc<App>) -> Route {
    let stats = warp::path!("stats")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move {
            into_response(stats::stats(&call.app).await.and_then(|usage| ok(&usage)))
        });
    let query = warp::path!("query")
        .and(warp::post())
        .and(api_call(app))
        .then(|call: ApiCall| async move {
            into_response(async { ok(&stats::query(&call.app, json_of(&call.body)?).await?) }.await)
        });
    stats.or(query).unify().boxed()
}

/// Routes of lists: partitions, queue, controllers, dry run and events.
fn list_routes(app: &Arc<App>) -> Route {
    let list = warp::path!("v1" / "partitions")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(list(call).await) });
    let waiting = warp::path!("v1" / "waiting")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(waiting(call).await) });
    let controllers = warp::path!("v1" / "controllers")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(controllers(call).await) });
    let map = warp::path!("v1" / "map")
        .and(warp::get())
        .and(api_call(app))
        .and(warp::header::headers_cloned())
        .then(|call: ApiCall, headers: HeaderMap| async move { into_response(map(call, &headers).await) });
    let plan = warp::path!("v1" / "plan")
        .and(warp::post())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(plan(call).await) });
    let events = warp::path!("v1" / "events")
        .and(warp::get())
        .and(api_call(app))
        .and(warp::header::optional::<String>("last-event-id"))
        .map(|call: ApiCall, last: Option<String>| into_response(events(call, last.as_deref())));
    list.or(waiting)
        .unify()
        .or(controllers)
        .unify()
        .or(map)
        .unify()
        .or(plan)
        .unify()
        .or(events)
        .unify()
        .boxed()
}

async fn controllers(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&controllers::controllers(&call.app).await?)
}

async fn map(mut call: ApiCall, headers: &HeaderMap) -> RouteResult {
    call.params(&[])?;
    map::with_etag(&map::map(&call.app).await?, headers)
}

async fn plan(mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&dry_run::plan(&call.app, json_of(&call.body)?).await?)
}

fn events(mut call: ApiCall, last: Option<&str>) -> RouteResult {
    call.params(&[])?;
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

/// Routes of one partition.
fn partition_routes(app: &Arc<App>) -> Route {
    let get = warp::path!("v1" / "partitions" / String)
        .and(warp::get())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(get(&id, call).await) });
    let put = warp::path!("v1" / "partitions" / String)
        .and(warp::put())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(put(&id, call).await) });
    let delete = warp::path!("v1" / "partitions" / String)
        .and(warp::delete())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(delete(&id, call).await) });
    let reset = warp::path!("v1" / "partitions" / String / "reset")
        .and(warp::post())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(reset(&id, call).await) });
    let ipuof = warp::path!("v1" / "partitions" / String / "ipuof-config")
        .and(warp::get())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(ipuof_config(&id, call).await) });
    get.or(put)
        .unify()
        .or(delete)
        .unify()
        .or(reset)
        .unify()
        .or(ipuof)
        .unify()
        .boxed()
}

/// Routes of an allocation.
fn allocation_routes(app: &Arc<App>) -> Route {
    let list = warp::path!("v1" / "allocations" / String / "partitions")
        .and(warp::get())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(list_allocation(&id, call).await) });
    let remove = warp::path!("v1" / "allocations" / String / "partitions")
        .and(warp::delete())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(empty_allocation(&id, call).await) });
    list.or(remove).unify().boxed()
}

async fn list_allocation(id: &str, mut call: ApiCall) -> RouteResult {
    let params = call.params(&["controller"])?;
    ok(&allocations::list(&call.app, id, params.controller).await?)
}

async fn empty_allocation(id: &str, mut call: ApiCall) -> RouteResult {
    let params = call.params(&["controller"])?;
    call.identity.may_use_partitions()?;
    call.identity.may_act_for_all()?;
    ok(&allocations::remove(&call.app, id, params.controller).await?)
}

/// Routes of leases, cordons, usage and repair.
fn admin_routes(app: &Arc<App>) -> Route {
    let heartbeat = warp::path!("v1" / "partitions" / String / "heartbeat")
        .and(warp::post())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(heartbeat(&id, call).await) });
    let cordons = warp::path!("v1" / "cordons")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(cordons(call).await) });
    let cordon = warp::path!("v1" / "cordons")
        .and(warp::post())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(cordon(call).await) });
    let uncordon = warp::path!("v1" / "cordons" / String)
        .and(warp::delete())
        .and(api_call(app))
        .then(|id: String, call: ApiCall| async move { into_response(uncordon(&id, call).await) });
    let usage = warp::path!("v1" / "usage")
        .and(warp::get())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(usage(call).await) });
    let repair = warp::path!("v1" / "repair")
        .and(warp::post())
        .and(api_call(app))
        .then(|call: ApiCall| async move { into_response(repair(call).await) });
    heartbeat
        .or(cordons)
        .unify()
        .or(cordon)
        .unify()
        .or(uncordon)
        .unify()
        .or(usage)
        .unify()
        .or(repair)
        .unify()
        .boxed()
}

async fn heartbeat(id: &str, mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    let beat: Heartbeat = json_of(&call.body)?;
    let length = lease_of("seconds", beat.seconds)?;
    let id = id_of(id)?;
    let owner = match owner_of(&call.app, &id, beat.uid).await? {
        OwnerLookup::Owner(owner) => owner,
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
        OwnerLookup::NoPartition => {
            return Err(call
                .app
                .entry(&id)
                .await
                .err()
                .unwrap_or_else(|| quarantined(&id)));
        }
    };
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

async fn uncordon(id: &str, mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    let id = crate::query::decode(id);
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

async fn get(id: &str, mut call: ApiCall) -> RouteResult {
    call.params(&[])?;
    ok(&call.app.document(&id_of(id)?).await?)
}

async fn ipuof_config(id: &str, mut call: ApiCall) -> RouteResult {
    let params = call.params(&["gcd"])?;
    ok(&ipuof::config(&call.app, &id_of(id)?, params.gcd).await?)
}

async fn put(id: &str, mut call: ApiCall) -> RouteResult {
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
        requested_id_of(id)?,
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

async fn delete(id: &str, mut call: ApiCall) -> RouteResult {
    let params = call.params(&["wait", "uid", "attempt", "quarantined", "force", "notAfter"])?;
    let id = id_of(id)?;
    let deleted = match owner_of(&call.app, &id, params.uid.clone()).await? {
        OwnerLookup::NoPartition => return ok(&DeletedDocument::deleted(id)),
        OwnerLookup::Owner(owner) => {
            call.identity.may_act_for(&owner)?;
            call.app.delete(id, Some(owner), &params).await?
        }
        OwnerLookup::Quarantined if params.quarantined => {
            call.identity.may_act_for_all()?;
            call.app.delete(id, None, &params).await?
        }
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
    };
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

async fn reset(id: &str, mut call: ApiCall) -> RouteResult {
    let not_after = call.params(&["notAfter"])?.not_after;
    let body = if call.body.is_empty() {
        ResetPartition::default()
    } else {
        json_of(&call.body)?
    };
    let id = id_of(id)?;
    let attempt = match body.attempt {
        Some(attempt) => attempt,
        None => call.app.entry(&id).await?.attempt,
    };
    let owner = match owner_of(&call.app, &id, body.uid).await? {
        OwnerLookup::Owner(owner) => owner,
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
        OwnerLookup::NoPartition => return partition_response(&call.app.document(&id).await?),
    };
    call.identity.may_use_partitions_of(&owner)?;
    partition_response(&call.app.reset(&id, &owner, attempt, not_after).await?)
}

/// Result of the search for the owner of a partition.
enum OwnerLookup {
    NoPartition,
    Owner(Owner),
    /// The partition was found at a controller and has no owner.
    Quarantined,
}

/// Returns the recorded owner, with the uid of the request if there is one.
async fn owner_of(app: &App, id: &PartitionId, uid: Option<String>) -> Result<OwnerLookup, Problem> {
    let uid = uid
        .map(|uid| crate::partition_api::parse_name("uid", uid))
        .transpose()?;
    let Some(entry) = app.allocator.get(id).await? else {
        return Ok(OwnerLookup::NoPartition);
    };
    let Some(mut owner) = entry.owner.clone() else {
        return Ok(OwnerLookup::Quarantined);
    };
    if let Some(uid) = uid {
        owner.job.uid = uid;
    }
    Ok(OwnerLookup::Owner(owner))
}

fn quarantined(id: &PartitionId) -> Problem {
    let detail = format!("partition {id} was found at a controller and has no owner");
    Problem::new(StatusCode::CONFLICT, "Quarantined", detail)
        .with_fix("make sure that nothing uses it, then delete it with ?quarantined=true")
}

/// Response with a partition: 200 if it is active, 202 otherwise.
fn partition_response(document: &PartitionDocument) -> RouteResult {
    let status = if crate::app::is_active(document) {
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

fn into_response(result: RouteResult) -> Response {
    result.unwrap_or_else(|problem| problem_response(&problem))
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

/// Problem of a request that is in the table of operations and matches no route.
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
