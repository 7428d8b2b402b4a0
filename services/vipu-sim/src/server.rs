//! One listener for gRPC and REST, distinguished by content type, with or without TLS, over HTTP/1.1 or
//! HTTP/2.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Channel, Collected, Full, LengthLimitError, Limited};
use ipu_serve::Handler;
use ipu_vipu_client::wire::user_service_server::UserServiceServer;
use ipu_vipu_client::wire::version_service_server::VersionServiceServer;
use ipu_vipu_client::{ACCESS_KEY_HEADER, USER_ID_HEADER};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::ServiceExt as _;
use tracing::info;
use warp::filters::BoxedFilter;

use crate::api::Api;
use crate::error::SimError;
use crate::faults::{FaultOutcome, Faults, Method};
use crate::rest;
use crate::state::PodState;

/// Maximum size of a REST request body in bytes: an explicit placement of 256 IPUs takes 25 KiB.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Time for which half of a reply may be sent before its connection breaks.
const FLUSH_TIME: Duration = Duration::from_millis(20);

/// State shared by all connections.
pub(crate) struct ServerContext {
    pub(crate) api: Api,
    user: UserServiceServer<Api>,
    version: VersionServiceServer<Api>,
    rest: BoxedFilter<(warp::reply::Response,)>,
    pub(crate) faults: Faults,
    /// Users and their access keys; `None` disables authentication.
    users: Option<BTreeMap<String, String>>,
}

/// An injected fault broke the connection.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a simulated fault breaks the connection")]
pub struct BrokenConnection;

/// A request body, from a connection or from this process.
pub(crate) trait RequestBody:
    hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> RequestBody for B where
    B: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static
{
}

impl ServerContext {
    pub(crate) fn new(api: Api, users: Option<BTreeMap<String, String>>) -> Self {
        let faults = Faults::default();
        Self {
            user: UserServiceServer::new(api.clone()),
            version: VersionServiceServer::new(api.clone()),
            rest: rest::routes(&api, &faults),
            api,
            faults,
            users,
        }
    }

    /// Returns the current state of the IPU-POD.
    pub(crate) fn state(&self) -> Result<PodState, SimError> {
        self.api.store().read(|state| Ok(state.pod()))
    }

    /// Returns whether a fault closes new connections.
    pub(crate) fn refuses_connections(&self) -> bool {
        self.faults.refuses_connections()
    }

    /// Responds to one request.
    ///
    /// # Errors
    ///
    /// [`BrokenConnection`] if a fault breaks the connection.
    pub(crate) async fn respond<B: RequestBody>(
        &self,
        request: Request<B>,
    ) -> Result<Response<Body>, BrokenConnection> {
        let protocol = ApiProtocol::from_headers(request.headers());
        if !self.is_authorized(request.headers()) {
            return Ok(protocol.refuse(&SimError::Unauthenticated));
        }
        let Some(method) = method_from_request(&request) else {
            return Ok(self.dispatch(protocol, request).await);
        };
        let injected = self.faults.inject(method);
        if !injected.latency.is_zero() {
            tokio::time::sleep(injected.latency).await;
        }
        if injected.outcome != FaultOutcome::Normal {
            info!(?method, outcome = ?injected.outcome, "simulated fault");
        }
        match injected.outcome {
            FaultOutcome::Normal => Ok(self.dispatch(protocol, request).await),
            FaultOutcome::Error => Ok(protocol.error(Code::Unavailable, "a simulated fault")),
            FaultOutcome::Refuse => Err(BrokenConnection),
            FaultOutcome::Hang => std::future::pending().await,
            FaultOutcome::DropReply => {
                self.dispatch(protocol, request).await;
                Err(BrokenConnection)
            }
            FaultOutcome::CutReply => Ok(cut(self.dispatch(protocol, request).await).await),
            FaultOutcome::Twice => {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(|_| BrokenConnection)?.to_bytes();
                let delivered = || Request::from_parts(head.clone(), Full::new(body.clone()));
                self.dispatch(protocol, delivered()).await;
                Ok(self.dispatch(protocol, delivered()).await)
            }
        }
    }

    async fn dispatch<B: RequestBody>(&self, protocol: ApiProtocol, request: Request<B>) -> Response<Body> {
        match protocol {
            ApiProtocol::Grpc if request.uri().path().starts_with("/virmgrpc.UserService/") => {
                infallible(self.user.clone().oneshot(request.map(Body::new)).await)
            }
            ApiProtocol::Grpc if request.uri().path().starts_with("/virmgrpc.VersionService/") => {
                infallible(self.version.clone().oneshot(request.map(Body::new)).await)
            }
            ApiProtocol::Grpc => protocol.error(Code::Unimplemented, "unknown service"),
            ApiProtocol::Rest => self.dispatch_rest(request).await,
        }
    }

    async fn dispatch_rest<B: RequestBody>(&self, request: Request<B>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body: Bytes = match Limited::new(body, MAX_BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let message = format!("a body has at most {MAX_BODY_BYTES} bytes");
                return rest::error(StatusCode::PAYLOAD_TOO_LARGE, Code::InvalidArgument, &message)
                    .map(Body::new);
            }
            Err(_) => return ApiProtocol::Rest.error(Code::Cancelled, "the body ended early"),
        };
        let request = Request::from_parts(head, Full::new(body));
        infallible(warp::service(self.rest.clone()).oneshot(request).await).map(Body::new)
    }

    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let Some(users) = &self.users else { return true };
        let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let key = value(USER_ID_HEADER).and_then(|user| users.get(user));
        key.is_some_and(|key| value(ACCESS_KEY_HEADER) == Some(key))
    }
}

impl Handler for ServerContext {
    type Body = Body;
    type Error = BrokenConnection;

    async fn handle(
        &self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, BrokenConnection> {
        self.respond(request).await
    }

    fn accepts(&self) -> bool {
        !self.refuses_connections()
    }
}

/// Returns the first half of a reply, whose connection or stream then breaks.
async fn cut(reply: Response<Body>) -> Response<Body> {
    let (mut head, body) = reply.into_parts();
    let whole = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    head.headers.insert(header::CONTENT_LENGTH, whole.len().into());
    let (mut sender, body) = Channel::<Bytes, BrokenConnection>::new(1);
    tokio::spawn(async move {
        let sent = sender.send_data(whole.slice(..whole.len() / 2)).await;
        // The server sends nothing of what it has not yet flushed when the body breaks.
        tokio::time::sleep(FLUSH_TIME).await;
        if sent.is_ok() {
            sender.abort(BrokenConnection);
        }
    });
    Response::from_parts(head, Body::new(body))
}

fn infallible<T>(result: Result<T, std::convert::Infallible>) -> T {
    result.unwrap_or_else(|never| match never {})
}

/// The API that a request targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiProtocol {
    Grpc,
    Rest,
}

impl ApiProtocol {
    /// Detects `application/grpc`, alone or with a message format or parameters; `application/grpc-web` is
    /// not gRPC.
    fn from_headers(headers: &HeaderMap) -> Self {
        let content_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        match content_type.and_then(|value| value.strip_prefix("application/grpc")) {
            Some(rest) if rest.is_empty() || rest.starts_with(['+', ';']) => Self::Grpc,
            _ => Self::Rest,
        }
    }

    fn refuse(self, refusal: &SimError) -> Response<Body> {
        self.error(refusal.code(), &refusal.to_string())
    }

    fn error(self, code: Code, message: &str) -> Response<Body> {
        match self {
            Self::Grpc => Status::new(code, message).into_http(),
            Self::Rest => rest::error(rest::http_status(code), code, message).map(Body::new),
        }
    }
}

/// Returns the controller call of a request, for fault injection. `None` for the administrator routes.
fn method_from_request<B>(request: &Request<B>) -> Option<Method> {
    let path = request.uri().path();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Some(match (request.method().as_str(), parts.as_slice()) {
        (_, ["virmgrpc.VersionService", "GetVersion"]) | ("GET", ["v1", "version"]) => Method::GetVersion,
        (_, ["virmgrpc.UserService", "ListPartitions"]) | ("GET", ["v1", "partitions"]) => {
            Method::ListPartitions
        }
        (_, ["virmgrpc.UserService", "ListIPUAttributes"]) | ("GET", ["v1", "ipu-attributes"]) => {
            Method::ListIpuAttributes
        }
        (_, ["virmgrpc.UserService", "CreatePartition"]) | ("POST", ["v1", "partitions"]) => {
            Method::CreatePartition
        }
        (_, ["virmgrpc.UserService", "RemovePartition"]) | ("DELETE", ["v1", "partitions", _]) => {
            Method::RemovePartition
        }
        (_, ["virmgrpc.UserService", "ResetPartition"]) | ("POST", ["v1", "partitions", _, "reset"]) => {
            Method::ResetPartition
        }
        (_, ["virmgrpc.UserService", "GetPartitionIpuofConfig"])
        | ("GET", ["v1", "partitions", _, "ipuof-config"]) => Method::GetPartitionIpuofConfig,
        (_, ["virmgrpc.UserService", "GetPartitionStatus"]) | ("GET", ["v1", "partitions", _, "status"]) => {
            Method::GetPartitionStatus
        }
        _ => return None,
    })
}
