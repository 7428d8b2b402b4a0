//! The routes of the API: each parses, asks, and prints.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use ipu_core::{OnNoCapacity, Owner, PartitionId};
use ipu_proxy_client::{
    DeletedDocument, Heartbeat, HoldState, LeaseDocument, PartitionDocument, PartitionList, ResetPartition,
    WaitingList,
};
use serde::Serialize;
use serde_json::json;
use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter, Rejection, Reply as _};

use crate::app::App;
use crate::auth::Identity;
use crate::partition_api::{lease_of, request_of};
use crate::problem::Problem;
use crate::query::{Params, Query, id_of, json_of, requested_id_of};
use crate::{controllers, cordons, dry_run, events, metrics, stats};

/// The API as a document; the tests hold every answer against it.
const DOCUMENT: &str = include_str!("openapi.json");

type Answer = Result<Response, Problem>;
type Route = BoxedFilter<(Response,)>;

/// A request, taken apart.
struct ApiCall {
    app: Arc<App>,
    who: Identity,
    query: Query,
    body: Bytes,
}

impl ApiCall {
    /// The parameters of the query, of which these are known.
    fn params(&mut self, known: &[&str]) -> Result<Params, Problem> {
        Params::parse(std::mem::take(&mut self.query), known)
    }
}

/// All routes.
pub(crate) fn routes(app: &Arc<App>) -> Route {
    let routes = probes(app)
        .or(documented(app))
        .unify()
        .or(lists(app))
        .unify()
        .or(partition(app))
        .unify()
        .or(admin_routes(app))
        .unify();
    routes
        .recover(|rejection: Rejection| async move { Ok::<_, Rejection>(refuse(&no_route(&rejection))) })
        .unify()
        .boxed()
}

fn asked(app: &Arc<App>) -> impl Filter<Extract = (ApiCall,), Error = Rejection> + Clone + use<> {
    let app = Arc::clone(app);
    warp::ext::get::<Identity>()
        .and(warp::query::<Query>())
        .and(warp::body::bytes())
        .map(move |who, query, body| ApiCall {
            app: Arc::clone(&app),
            who,
            query,
            body,
        })
}

/// Whether the proxy works.
fn probes(app: &Arc<App>) -> Route {
    let alive = |asked: ApiCall| print(asked.app.health.check_alive().and_then(|()| healthy()));
    let health = warp::path!("health").and(warp::get()).and(asked(app)).map(alive);
    let livez = warp::path!("livez").and(warp::get()).and(asked(app)).map(alive);
    let readyz = warp::path!("readyz")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(asked.app.check_ready().await.and_then(|()| healthy())) });
    let metrics =
        warp::path!("metrics")
            .and(warp::get())
            .and(asked(app))
            .then(|asked: ApiCall| async move {
                let text = metrics::render(&asked.app).await;
                print(text.map(|text| {
                    warp::reply::with_header(text, CONTENT_TYPE, metrics::FORMAT).into_response()
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

fn healthy() -> Answer {
    ok(&json!({"status": "ok"}))
}

/// `/stats` and `/query`: what the documentation of the original knows.
fn documented(app: &Arc<App>) -> Route {
    let stats =
        warp::path!("stats")
            .and(warp::get())
            .and(asked(app))
            .then(|asked: ApiCall| async move {
                print(stats::stats(&asked.app).await.and_then(|usage| ok(&usage)))
            });
    let fits = warp::path!("query")
        .and(warp::post())
        .and(asked(app))
        .then(|asked: ApiCall| async move {
            print(async { ok(&stats::query(&asked.app, json_of(&asked.body)?).await?) }.await)
        });
    stats.or(fits).unify().boxed()
}

/// All partitions, and the line.
fn lists(app: &Arc<App>) -> Route {
    let list = warp::path!("v1" / "partitions")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(list(asked).await) });
    let waiting = warp::path!("v1" / "waiting")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(waiting(asked).await) });
    let controllers = warp::path!("v1" / "controllers")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(controllers(asked).await) });
    let plan = warp::path!("v1" / "plan")
        .and(warp::post())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(plan(asked).await) });
    let events = warp::path!("v1" / "events")
        .and(warp::get())
        .and(asked(app))
        .and(warp::header::optional::<String>("last-event-id"))
        .map(|asked: ApiCall, last: Option<String>| print(events(asked, last.as_deref())));
    list.or(waiting)
        .unify()
        .or(controllers)
        .unify()
        .or(plan)
        .unify()
        .or(events)
        .unify()
        .boxed()
}

async fn controllers(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&controllers::controllers(&asked.app).await?)
}

async fn plan(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&dry_run::plan(&asked.app, json_of(&asked.body)?).await?)
}

fn events(mut asked: ApiCall, last: Option<&str>) -> Answer {
    asked.params(&[])?;
    Ok(events::stream(&asked.app, last))
}

async fn list(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&PartitionList::new(asked.app.documents().await?))
}

async fn waiting(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&WaitingList::new(asked.app.waiting().await?))
}

/// One partition.
fn partition(app: &Arc<App>) -> Route {
    let get = warp::path!("v1" / "partitions" / String)
        .and(warp::get())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(get(&id, asked).await) });
    let put = warp::path!("v1" / "partitions" / String)
        .and(warp::put())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(put(&id, asked).await) });
    let delete = warp::path!("v1" / "partitions" / String)
        .and(warp::delete())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(delete(&id, asked).await) });
    let reset = warp::path!("v1" / "partitions" / String / "reset")
        .and(warp::post())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(reset(&id, asked).await) });
    get.or(put).unify().or(delete).unify().or(reset).unify().boxed()
}

/// Leases, cordons, and what was used.
fn admin_routes(app: &Arc<App>) -> Route {
    let heartbeat = warp::path!("v1" / "partitions" / String / "heartbeat")
        .and(warp::post())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(heartbeat(&id, asked).await) });
    let cordons = warp::path!("v1" / "exclusions")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(cordons(asked).await) });
    let cordon = warp::path!("v1" / "exclusions")
        .and(warp::post())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(cordon(asked).await) });
    let uncordon = warp::path!("v1" / "exclusions" / String)
        .and(warp::delete())
        .and(asked(app))
        .then(|id: String, asked: ApiCall| async move { print(uncordon(&id, asked).await) });
    let usage = warp::path!("v1" / "usage")
        .and(warp::get())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(usage(asked).await) });
    let repair = warp::path!("v1" / "repair")
        .and(warp::post())
        .and(asked(app))
        .then(|asked: ApiCall| async move { print(repair(asked).await) });
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

async fn heartbeat(id: &str, mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    let beat: Heartbeat = json_of(&asked.body)?;
    let length = lease_of("seconds", beat.seconds)?;
    let id = id_of(id)?;
    let owner = match owner_of(&asked.app, &id, beat.uid).await? {
        OwnerLookup::By(owner) => owner,
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
        OwnerLookup::Nothing => {
            return Err(asked
                .app
                .entry(&id)
                .await
                .err()
                .unwrap_or_else(|| quarantined(&id)));
        }
    };
    asked.who.may_act_for(&owner)?;
    let lease = asked.app.ledger.heartbeat(&id, &owner, length).await?;
    ok(&LeaseDocument::new(id, lease.until()))
}

async fn cordons(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&cordons::list(&asked.app).await?)
}

async fn cordon(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&cordons::cordon(&asked.app, &asked.who, json_of(&asked.body)?).await?)
}

async fn uncordon(id: &str, mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    let id = crate::query::decoded(id);
    ok(&cordons::lift(&asked.app, &asked.who, id).await?)
}

async fn usage(mut asked: ApiCall) -> Answer {
    let params = asked.params(&["since", "limit", "continue"])?;
    ok(&stats::usage(&asked.app, &params).await?)
}

async fn repair(mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    asked.who.may_act_for_all()?;
    ok(&asked.app.repair().await?)
}

async fn get(id: &str, mut asked: ApiCall) -> Answer {
    asked.params(&[])?;
    ok(&asked.app.document_with_places(&id_of(id)?).await?)
}

async fn put(id: &str, mut asked: ApiCall) -> Answer {
    let params = asked.params(&["wait", "nowait", "notAfter"])?;
    let line = if params.nowait {
        OnNoCapacity::Reject
    } else {
        OnNoCapacity::Queue
    };
    let mut request = request_of(
        json_of(&asked.body)?,
        requested_id_of(id)?,
        line,
        crate::app::now(),
    )?;
    request.not_after = params.not_after;
    asked.who.may_act_for(&request.owner)?;
    let namespaces = asked.who.namespaces().into_iter().flatten();
    request.client_namespaces = namespaces.filter_map(|name| name.parse().ok()).collect();
    partition_response(&asked.app.ensure(request, params.wait).await?)
}

async fn delete(id: &str, mut asked: ApiCall) -> Answer {
    let params = asked.params(&["wait", "uid", "attempt", "quarantined", "notAfter"])?;
    let id = id_of(id)?;
    // Mostly its owner is known, and then the release itself finds out whether he still is.
    if let Some(owner) = known_owner(&asked.app, &id, params.uid.as_deref())
        && asked.who.may_act_for(&owner).is_ok()
    {
        match asked.app.delete(id.clone(), owner, &params).await {
            Err(problem) if problem.status() == StatusCode::CONFLICT && problem.code() != "TooLate" => {}
            deleted => return delete_response(&deleted?),
        }
    }
    let deleted = match owner_of(&asked.app, &id, params.uid.clone()).await? {
        OwnerLookup::Nothing => return ok(&DeletedDocument::gone(id)),
        OwnerLookup::By(owner) => {
            asked.who.may_act_for(&owner)?;
            asked.app.delete(id, owner, &params).await?
        }
        OwnerLookup::Quarantined if params.quarantined => {
            asked.who.may_act_for_all()?;
            asked.app.delete_quarantined(id).await?
        }
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
    };
    delete_response(&deleted)
}

/// What became of a delete: 200 if it is done, 202 if that takes longer.
fn delete_response(deleted: &DeletedDocument) -> Answer {
    let status = if deleted.state == HoldState::Gone {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    json(status, deleted)
}

async fn reset(id: &str, mut asked: ApiCall) -> Answer {
    let not_after = asked.params(&["notAfter"])?.not_after;
    let wanted = if asked.body.is_empty() {
        ResetPartition::default()
    } else {
        json_of(&asked.body)?
    };
    let id = id_of(id)?;
    let attempt = match wanted.attempt {
        Some(attempt) => attempt,
        None => asked.app.entry(&id).await?.attempt,
    };
    let owner = match owner_of(&asked.app, &id, wanted.uid).await? {
        OwnerLookup::By(owner) => owner,
        OwnerLookup::Quarantined => return Err(quarantined(&id)),
        OwnerLookup::Nothing => return partition_response(&asked.app.document(&id, None).await?),
    };
    asked.who.may_act_for(&owner)?;
    partition_response(&asked.app.reset(id, owner, attempt, not_after).await?)
}

/// Whose a partition is.
enum OwnerLookup {
    Nothing,
    By(Owner),
    /// It was found and nobody owns it.
    Quarantined,
}

/// The owner that this process has heard of last, if his uid is the one that the caller says.
fn known_owner(app: &App, id: &PartitionId, uid: Option<&str>) -> Option<Owner> {
    let owner = app.ledger.known(id)?.owner.clone()?;
    uid.is_none_or(|uid| uid == owner.job.uid.as_str())
        .then_some(owner)
}

/// The owner that the ledger knows, with the uid that the caller says.
async fn owner_of(app: &App, id: &PartitionId, uid: Option<String>) -> Result<OwnerLookup, Problem> {
    let uid = uid
        .map(|uid| crate::partition_api::named("uid", uid))
        .transpose()?;
    let Some(entry) = app.ledger.get(id).await? else {
        return Ok(OwnerLookup::Nothing);
    };
    let Some(mut owner) = entry.owner else {
        return Ok(OwnerLookup::Quarantined);
    };
    if let Some(uid) = uid {
        owner.job.uid = uid;
    }
    Ok(OwnerLookup::By(owner))
}

fn quarantined(id: &PartitionId) -> Problem {
    let detail = format!("partition {id} was found and nobody owns it");
    Problem::new(StatusCode::CONFLICT, "Quarantined", detail)
        .with_fix("make sure that nothing uses it, then delete it with ?quarantined=true")
}

/// A partition: 200 if it is ready, 202 if that takes longer.
fn partition_response(document: &PartitionDocument) -> Answer {
    let status = if document.state == HoldState::Active {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    json(status, document)
}

fn ok(value: &impl Serialize) -> Answer {
    json(StatusCode::OK, value)
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    Ok(warp::reply::with_status(warp::reply::json(value), status).into_response())
}

fn print(answer: Answer) -> Response {
    answer.unwrap_or_else(|problem| refuse(&problem))
}

/// A problem as an answer.
pub(crate) fn refuse(problem: &Problem) -> Response {
    let mut response = warp::reply::with_status(warp::reply::json(problem), problem.status()).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = problem.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if problem.status() == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(allow) = problem.allow().and_then(|text| text.parse().ok()) {
        headers.insert(ALLOW, allow);
    }
    tracing::debug!(code = problem.code(), status = %problem.status(), "refused");
    response
}

/// What is in the table of operations and no route takes after all.
fn no_route(rejection: &Rejection) -> Problem {
    if rejection.find::<warp::reject::InvalidQuery>().is_some() {
        return Problem::new(
            StatusCode::BAD_REQUEST,
            "InvalidQuery",
            "the query string is not understood",
        );
    }
    Problem::new(StatusCode::NOT_FOUND, "NoSuchRoute", "there is no such route").with_fix("see /openapi.json")
}
