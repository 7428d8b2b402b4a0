//! The REST API: proto3 canonical JSON of the same messages, and errors as `google.rpc.Status` in JSON.

/// Combines routes: the first one that matches a request answers it.
macro_rules! any_of {
    ($first:expr $(, $route:expr)+ $(,)?) => {
        $first$(.or($route).unify())+.boxed()
    };
}

mod admin;

use std::convert::Infallible;

use bytes::Bytes;
use http::StatusCode;
use ipu_vipu_client::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Code;
use warp::filters::BoxedFilter;
use warp::reply::{Reply as _, Response};
use warp::{Filter, Rejection};

use crate::api::Api;
use crate::error::SimError;
use crate::faults::Faults;

/// Query parameters in order.
type Query = Vec<(String, String)>;

/// Builds every route outside gRPC.
pub(crate) fn routes(api: &Api, faults: &Faults) -> BoxedFilter<(Response,)> {
    any_of!(
        user_routes(api),
        partition_routes(api),
        admin::routes(api, faults)
    )
    .recover(|rejection: Rejection| async move { Ok::<_, Infallible>(unknown_route(&rejection)) })
    .unify()
    .boxed()
}

/// Injects a clone of `shared` into every request.
pub(crate) fn with<T: Clone + Send + Sync + 'static>(
    shared: &T,
) -> impl Filter<Extract = (T,), Error = Infallible> + Clone + use<T> {
    let shared = shared.clone();
    warp::any().map(move || shared.clone())
}

/// Builds the routes for version, lists and create.
fn user_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let version = warp::path!("v1" / "version")
        .and(warp::get())
        .and(with(api))
        .map(|api: Api| respond(StatusCode::OK, Ok(api.version())));
    let list = warp::path!("v1" / "partitions")
        .and(warp::get())
        .and(query())
        .and(with(api))
        .then(|query: Query, api: Api| async move {
            let request = parse_query(
                query,
                &["allocationId"],
                |request: &mut wire::ListPartitionsRequest, _, value| {
                    request.allocation_id = value;
                    Ok(())
                },
            );
            respond(StatusCode::OK, async { api.list(request?).await }.await)
        });
    let create = warp::path!("v1" / "partitions")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let created = async { api.create(parse_message(&body)?).await };
            respond(StatusCode::ACCEPTED, created.await)
        });
    let attributes = warp::path!("v1" / "ipu-attributes")
        .and(warp::get())
        .and(query())
        .and(with(api))
        .then(|query: Query, api: Api| async move {
            let request = parse_query(
                query,
                &["agents"],
                |request: &mut wire::ListIpuAttributesRequest, _, value| {
                    request.agents.push(value);
                    Ok(())
                },
            );
            respond(StatusCode::OK, async { api.attributes(request?).await }.await)
        });
    any_of!(version, list, create, attributes)
}

/// Builds the routes of a single partition.
fn partition_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let status = warp::path!("v1" / "partitions" / String / "status")
        .and(warp::get())
        .and(with(api))
        .then(|partition_id: String, api: Api| async move {
            respond(
                StatusCode::OK,
                api.status(wire::GetPartitionStatusRequest { partition_id }).await,
            )
        });
    let config = warp::path!("v1" / "partitions" / String / "ipuof-config")
        .and(warp::get())
        .and(query())
        .and(with(api))
        .then(|partition_id: String, query: Query, api: Api| async move {
            let none = wire::GetPartitionIpuofConfigRequest {
                partition_id,
                gcd_id: None,
            };
            let request = parse_query_into(none, query, &["gcdId"], |request, name, value| {
                let id = value
                    .parse()
                    .map_err(|_| SimError::invalid(name, &value, "must be a number"))?;
                request.gcd_id = Some(wire::GcdId { id });
                Ok(())
            });
            respond(StatusCode::OK, async { api.ipuof_config(request?).await }.await)
        });
    let reset = warp::path!("v1" / "partitions" / String / "reset")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|partition_id: String, body: Bytes, api: Api| async move {
            let reset = async { api.reset(reset_request(partition_id, &body)?).await };
            respond(StatusCode::OK, reset.await)
        });
    let remove = warp::path!("v1" / "partitions" / String)
        .and(warp::delete())
        .and(query())
        .and(with(api))
        .then(|partition_id: String, query: Query, api: Api| async move {
            let default = wire::RemovePartitionRequest {
                partition_id,
                force: false,
            };
            let request = parse_query_into(default, query, &["force"], |request, name, value| {
                let rule = "must be true or false";
                request.force = value.parse().map_err(|_| SimError::invalid(name, &value, rule))?;
                Ok(())
            });
            respond(StatusCode::ACCEPTED, async { api.remove(request?).await }.await)
        });
    any_of!(status, config, reset, remove)
}

/// Parses a reset body, which may be empty; its partition id must match the path.
fn reset_request(partition_id: String, body: &[u8]) -> Result<wire::ResetPartitionRequest, SimError> {
    let request: wire::ResetPartitionRequest = if body.is_empty() {
        wire::ResetPartitionRequest::default()
    } else {
        parse_message(body)?
    };
    if !request.partition_id.is_empty() && request.partition_id != partition_id {
        let rule = "must be absent, or equal the id in the path";
        return Err(SimError::invalid("partitionId", request.partition_id, rule));
    }
    Ok(wire::ResetPartitionRequest {
        partition_id,
        ..request
    })
}

fn query() -> impl Filter<Extract = (Query,), Error = Rejection> + Copy {
    warp::query::<Query>()
}

/// Builds a request from query parameters alone.
fn parse_query<T: Default>(
    query: Query,
    allowed: &[&'static str],
    set: impl Fn(&mut T, &'static str, String) -> Result<(), SimError>,
) -> Result<T, SimError> {
    parse_query_into(T::default(), query, allowed, set)
}

/// Applies query parameters to a request; an unknown parameter is an error.
fn parse_query_into<T>(
    mut request: T,
    query: Query,
    allowed: &[&'static str],
    set: impl Fn(&mut T, &'static str, String) -> Result<(), SimError>,
) -> Result<T, SimError> {
    for (name, value) in query {
        let Some(name) = allowed.iter().find(|allowed| **allowed == name) else {
            return Err(SimError::invalid(
                "query",
                name,
                format!("allowed parameters: {}", allowed.join(", ")),
            ));
        };
        set(&mut request, name, value)?;
    }
    Ok(request)
}

/// Parses the JSON of a message.
fn parse_message<T: DeserializeOwned>(body: &[u8]) -> Result<T, SimError> {
    wire::json::from_slice(body).map_err(|error| invalid_body(&error))
}

/// Parses a JSON body.
pub(crate) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, SimError> {
    serde_json::from_slice(body).map_err(|error| invalid_body(&error))
}

fn invalid_body(error: &serde_json::Error) -> SimError {
    SimError::invalid("body", "not valid JSON for this request", error.to_string())
}

/// Serializes a message as JSON, or the error.
pub(crate) fn respond<T: Serialize>(status: StatusCode, result: Result<T, SimError>) -> Response {
    match result {
        Ok(message) => warp::reply::with_status(warp::reply::json(&message), status).into_response(),
        Err(refusal) => refuse(&refusal),
    }
}

/// Serializes an error as JSON, with the HTTP status of gRPC's mapping.
pub(crate) fn refuse(refusal: &SimError) -> Response {
    error(http_status(refusal.code()), refusal.code(), &refusal.to_string())
}

/// Serializes a `google.rpc.Status` as JSON.
pub(crate) fn error(status: StatusCode, code: Code, message: &str) -> Response {
    #[derive(Serialize)]
    struct Status<'a> {
        code: i32,
        message: &'a str,
        details: [(); 0],
    }
    let body = Status {
        code: code.into(),
        message,
        details: [],
    };
    warp::reply::with_status(warp::reply::json(&body), status).into_response()
}

/// Responds to a request without a route. The code is UNIMPLEMENTED, never NOT_FOUND, which means a missing
/// partition.
fn unknown_route(rejection: &Rejection) -> Response {
    if rejection.find::<warp::reject::InvalidQuery>().is_some() {
        return error(
            StatusCode::BAD_REQUEST,
            Code::InvalidArgument,
            "the query string cannot be parsed",
        );
    }
    if rejection.find::<warp::reject::MethodNotAllowed>().is_some() {
        return error(
            StatusCode::METHOD_NOT_ALLOWED,
            Code::Unimplemented,
            "no such method of this route",
        );
    }
    error(StatusCode::NOT_FOUND, Code::Unimplemented, "no such route")
}

/// Maps a gRPC code to an HTTP status, as `google/rpc/code.proto` does.
pub(crate) const fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
