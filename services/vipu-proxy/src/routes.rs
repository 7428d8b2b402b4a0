//! The routes of the API: each parses, asks, and prints.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use ipu_core::{LinePolicy, Owner, PartitionId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use warp::filters::BoxedFilter;
use warp::reply::Response;
use warp::{Filter, Rejection, Reply as _};

use crate::app::App;
use crate::params::{Params, Query, id_of, json_of};
use crate::partition::{PartitionDocument, PutPartition};
use crate::problem::Problem;
use crate::stats;

type Answer = Result<Response, Problem>;
type Route = BoxedFilter<(Response,)>;

/// All routes.
pub(crate) fn routes(app: &Arc<App>) -> Route {
    let routes = documented(app)
        .or(partitions(app))
        .unify()
        .or(partition(app))
        .unify();
    routes
        .recover(|rejection: Rejection| async move { Ok::<_, Rejection>(refuse(&no_route(&rejection))) })
        .unify()
        .boxed()
}

fn with(
    app: &Arc<App>,
) -> impl Filter<Extract = (Arc<App>,), Error = std::convert::Infallible> + Clone + use<> {
    let app = Arc::clone(app);
    warp::any().map(move || Arc::clone(&app))
}

fn query() -> impl Filter<Extract = (Query,), Error = Rejection> + Copy {
    warp::query::<Query>()
}

/// `/health`, `/stats`, `/query`: what the documentation of the original knows.
fn documented(app: &Arc<App>) -> Route {
    let health = warp::path!("health")
        .and(warp::get())
        .map(|| print(ok(&json!({"status": "ok"}))));
    let stats = warp::path!("stats")
        .and(warp::get())
        .and(with(app))
        .then(|app: Arc<App>| async move { print(stats::stats(&app).await.and_then(|usage| ok(&usage))) });
    let fits = warp::path!("query")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(app))
        .then(|body: Bytes, app: Arc<App>| async move {
            print(async { ok(&stats::query(&app, json_of(&body)?).await?) }.await)
        });
    health.or(stats).unify().or(fits).unify().boxed()
}

/// All partitions, and the line.
fn partitions(app: &Arc<App>) -> Route {
    let list = warp::path!("v1" / "partitions")
        .and(warp::get())
        .and(query())
        .and(with(app))
        .then(|query: Query, app: Arc<App>| async move {
            print(
                async {
                    Params::parse(query, &[])?;
                    ok(&json!({"partitions": app.documents().await?}))
                }
                .await,
            )
        });
    let waiting = warp::path!("v1" / "waiting")
        .and(warp::get())
        .and(query())
        .and(with(app))
        .then(|query: Query, app: Arc<App>| async move {
            print(
                async {
                    Params::parse(query, &[])?;
                    ok(&json!({"waiting": app.waiting().await?}))
                }
                .await,
            )
        });
    list.or(waiting).unify().boxed()
}

/// One partition.
fn partition(app: &Arc<App>) -> Route {
    let get = warp::path!("v1" / "partitions" / String)
        .and(warp::get())
        .and(query())
        .and(with(app))
        .then(|id: String, query: Query, app: Arc<App>| async move { print(get(&app, &id, query).await) });
    let put = warp::path!("v1" / "partitions" / String)
        .and(warp::put())
        .and(query())
        .and(warp::body::bytes())
        .and(with(app))
        .then(
            |id: String, query: Query, body: Bytes, app: Arc<App>| async move {
                print(put(&app, &id, query, &body).await)
            },
        );
    let delete = warp::path!("v1" / "partitions" / String)
        .and(warp::delete())
        .and(query())
        .and(with(app))
        .then(|id: String, query: Query, app: Arc<App>| async move { print(delete(&app, &id, query).await) });
    let reset = warp::path!("v1" / "partitions" / String / "reset")
        .and(warp::post())
        .and(query())
        .and(warp::body::bytes())
        .and(with(app))
        .then(
            |id: String, query: Query, body: Bytes, app: Arc<App>| async move {
                print(reset(&app, &id, query, &body).await)
            },
        );
    get.or(put).unify().or(delete).unify().or(reset).unify().boxed()
}

async fn get(app: &App, id: &str, query: Query) -> Answer {
    Params::parse(query, &[])?;
    ok(&app.document(&id_of(id)?, None).await?)
}

async fn put(app: &Arc<App>, id: &str, query: Query, body: &[u8]) -> Answer {
    let params = Params::parse(query, &["wait", "nowait"])?;
    let line = if params.nowait {
        LinePolicy::Refuse
    } else {
        LinePolicy::Wait
    };
    let request = json_of::<PutPartition>(body)?.parse(id_of(id)?, line)?;
    shown(&app.ensure(request, params.wait).await?)
}

async fn delete(app: &Arc<App>, id: &str, query: Query) -> Answer {
    let params = Params::parse(query, &["wait", "uid", "attempt"])?;
    let id = id_of(id)?;
    let Some(owner) = owner_of(app, &id, params.uid).await? else {
        return ok(&json!({"id": id, "state": "gone"}));
    };
    let deleted = app.delete(id, owner, params.attempt, params.wait).await?;
    let status = if deleted.state == "gone" {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    json(status, &deleted)
}

/// The body of a reset; all of it may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Reset {
    attempt: Option<u32>,
    uid: Option<String>,
}

async fn reset(app: &Arc<App>, id: &str, query: Query, body: &[u8]) -> Answer {
    Params::parse(query, &[])?;
    let asked: Reset = if body.is_empty() {
        Reset::default()
    } else {
        json_of(body)?
    };
    let id = id_of(id)?;
    let attempt = match asked.attempt {
        Some(attempt) => attempt,
        None => app.entry(&id).await?.attempt,
    };
    let Some(owner) = owner_of(app, &id, asked.uid).await? else {
        return Err(app.entry(&id).await.err().unwrap_or_else(|| quarantined(&id)));
    };
    shown(&app.reset(id, owner, attempt).await?)
}

/// The owner that the ledger knows, with the uid that the caller says; none if there is no entry.
async fn owner_of(app: &App, id: &PartitionId, uid: Option<String>) -> Result<Option<Owner>, Problem> {
    let Some(entry) = app.ledger.get(id).await? else {
        return Ok(None);
    };
    let mut owner = entry.owner.ok_or_else(|| quarantined(id))?;
    if let Some(uid) = uid {
        owner.job.uid = crate::partition::named("uid", uid)?;
    }
    Ok(Some(owner))
}

fn quarantined(id: &PartitionId) -> Problem {
    let detail = format!("partition {id} was found and nobody owns it");
    Problem::new(StatusCode::CONFLICT, "Quarantined", detail)
        .with_fix("make sure that nothing uses it, then delete it with ?quarantined=true")
}

/// A partition: 200 if it is ready, 202 if that takes longer.
fn shown(document: &PartitionDocument) -> Answer {
    let status = if document.state == "active" {
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
