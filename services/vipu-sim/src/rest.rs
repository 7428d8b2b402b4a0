//! The REST face: proto3 canonical JSON of the same messages, and errors as `google.rpc.Status` in JSON.

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

/// Query parameters in their order.
type Query = Vec<(String, String)>;

/// Every route that is not gRPC.
pub(crate) fn routes(api: &Api, faults: &Faults) -> BoxedFilter<(Response,)> {
    user_routes(api)
        .or(partition_routes(api))
        .unify()
        .or(crate::admin::routes(api, faults))
        .unify()
        .recover(|rejection: Rejection| async move { Ok::<_, Infallible>(no_such_route(&rejection)) })
        .unify()
        .boxed()
}

/// The same for every request to come: the API.
pub(crate) fn with<T: Clone + Send + Sync + 'static>(
    shared: &T,
) -> impl Filter<Extract = (T,), Error = Infallible> + Clone + use<T> {
    let shared = shared.clone();
    warp::any().map(move || shared.clone())
}

/// Version, lists and create.
fn user_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let version = warp::path!("v1" / "version")
        .and(warp::get())
        .and(with(api))
        .map(|api: Api| answer(StatusCode::OK, Ok(api.version())));
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
            match request {
                Ok(request) => answer(StatusCode::OK, api.list(request).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    let create = warp::path!("v1" / "partitions")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            match parse_body(&body) {
                Ok(request) => answer(StatusCode::ACCEPTED, api.create(request).await),
                Err(refusal) => refuse(&refusal),
            }
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
            match request {
                Ok(request) => answer(StatusCode::OK, api.attributes(request).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    version
        .or(list)
        .unify()
        .or(create)
        .unify()
        .or(attributes)
        .unify()
        .boxed()
}

/// What is done with one partition.
fn partition_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let status = warp::path!("v1" / "partitions" / String / "status")
        .and(warp::get())
        .and(with(api))
        .then(|partition_id: String, api: Api| async move {
            answer(
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
            match request {
                Ok(request) => answer(StatusCode::OK, api.ipuof_config(request).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    let reset = warp::path!("v1" / "partitions" / String / "reset")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|partition_id: String, body: Bytes, api: Api| async move {
            match reset_request(partition_id, &body) {
                Ok(request) => answer(StatusCode::OK, api.reset(request).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    let remove = warp::path!("v1" / "partitions" / String)
        .and(warp::delete())
        .and(query())
        .and(with(api))
        .then(|partition_id: String, query: Query, api: Api| async move {
            let gently = wire::RemovePartitionRequest {
                partition_id,
                force: false,
            };
            let request = parse_query_into(gently, query, &["force"], |request, name, value| {
                let rule = "must be true or false";
                request.force = value.parse().map_err(|_| SimError::invalid(name, &value, rule))?;
                Ok(())
            });
            match request {
                Ok(request) => answer(StatusCode::ACCEPTED, api.remove(request).await),
                Err(refusal) => refuse(&refusal),
            }
        });
    status
        .or(config)
        .unify()
        .or(reset)
        .unify()
        .or(remove)
        .unify()
        .boxed()
}

/// The body of a reset may be empty; a partition id in it must be that of the path.
fn reset_request(partition_id: String, body: &[u8]) -> Result<wire::ResetPartitionRequest, SimError> {
    let given: wire::ResetPartitionRequest = if body.is_empty() {
        wire::ResetPartitionRequest::default()
    } else {
        parse_body(body)?
    };
    if !given.partition_id.is_empty() && given.partition_id != partition_id {
        let rule = "must be left out, or be the id of the path";
        return Err(SimError::invalid("partitionId", given.partition_id, rule));
    }
    Ok(wire::ResetPartitionRequest {
        partition_id,
        ..given
    })
}

fn query() -> impl Filter<Extract = (Query,), Error = Rejection> + Copy {
    warp::query::<Query>()
}

/// A request of query parameters alone.
fn parse_query<T: Default>(
    query: Query,
    known: &[&'static str],
    put: impl Fn(&mut T, &'static str, String) -> Result<(), SimError>,
) -> Result<T, SimError> {
    parse_query_into(T::default(), query, known, put)
}

/// Puts query parameters into a request; one that is not known is an error.
fn parse_query_into<T>(
    mut request: T,
    query: Query,
    known: &[&'static str],
    put: impl Fn(&mut T, &'static str, String) -> Result<(), SimError>,
) -> Result<T, SimError> {
    for (name, value) in query {
        let Some(name) = known.iter().find(|known| **known == name) else {
            return Err(SimError::invalid(
                "query",
                name,
                format!("known parameters: {}", known.join(", ")),
            ));
        };
        put(&mut request, name, value)?;
    }
    Ok(request)
}

/// A JSON body; unknown fields are errors.
pub(crate) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, SimError> {
    serde_json::from_slice(body)
        .map_err(|error| SimError::invalid("body", "not understood", error.to_string()))
}

/// A message as JSON, or why there is none.
pub(crate) fn answer<T: Serialize>(status: StatusCode, answer: Result<T, SimError>) -> Response {
    match answer {
        Ok(message) => warp::reply::with_status(warp::reply::json(&message), status).into_response(),
        Err(refusal) => refuse(&refusal),
    }
}

/// A refusal as JSON, with the HTTP status that gRPC's mapping gives.
pub(crate) fn refuse(refusal: &SimError) -> Response {
    error(http_status(refusal.code()), refusal.code(), &refusal.to_string())
}

/// An error as `google.rpc.Status` in JSON.
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

/// No route takes the request. The code is UNIMPLEMENTED, never NOT_FOUND, which tells that a partition is gone.
fn no_such_route(rejection: &Rejection) -> Response {
    if rejection.find::<warp::reject::InvalidQuery>().is_some() {
        return error(
            StatusCode::BAD_REQUEST,
            Code::InvalidArgument,
            "the query string cannot be understood",
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

/// The HTTP status of a gRPC code, as `google/rpc/code.proto` maps them.
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
