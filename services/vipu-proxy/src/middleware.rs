//! Gateway of the API: authentication, limits, timeouts and request bodies, before a route handles a request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use ipu_serve::{BoxError, GuardedBody, Handler, Peer, UnboundedBody};
use tokio::time::Instant;
use tower::ServiceExt as _;
use warp::filters::BoxedFilter;

use crate::app::App;
use crate::auth::{Authenticator, Credentials, Identity};
use crate::problem::{Problem, RETRY_SOON_SECS};
use crate::query;
use crate::router::{self, Access, Operation};
use crate::routes;
use crate::settings::ReadAccess;
use crate::shares::{Client, Shares, SlotGuard, Turns};
use crate::site;

/// Maximum size of a request body in bytes: twenty times the largest sensible one.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;

/// Time in which the server detects that the client has closed the connection. Timers fire after the runtime
/// has processed socket events, so that any time is enough.
const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of event streams: each takes a connection and a task for an unlimited time.
const MAX_EVENT_STREAMS: usize = 128;

/// Maximum bytes of responses that clients have not read: a quarter of the memory limit in the shipped
/// manifests.
pub(crate) const MAX_UNSENT_BYTES: usize = 64 << 20;

/// Body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Timeouts of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Timeout of the request body.
    pub(crate) read: Duration,
    /// Timeout of the operation until the response starts.
    pub(crate) write: Duration,
}

/// Authentication and limits of clients.
pub(crate) struct AccessPolicy {
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) reading: ReadAccess,
    /// Maximum number of concurrent requests.
    pub(crate) max_requests: usize,
    /// Maximum bytes of responses that clients have not read.
    pub(crate) max_unsent: usize,
    /// True if the connection identifies the client, so that reads without a token are identified, too.
    pub(crate) local: bool,
    /// True if clients can be identified, so that anonymous ones have a share of each limit.
    pub(crate) split: bool,
    /// True if the listen address is a loopback address.
    pub(crate) loopback: bool,
    /// True for the plain HTTP address of a proxy with TLS, which serves documented reads only.
    pub(crate) plain: bool,
}

/// Entry point of all requests, with or without a connection.
pub struct Gateway {
    routes: BoxedFilter<(warp::reply::Response,)>,
    timeouts: Timeouts,
    policy: AccessPolicy,
    concurrency: Arc<Shares>,
    streams: Arc<Shares>,
    /// Slots of tenant requests that wait for their partitions.
    waits: Arc<Shares>,
    /// Bytes of unsent responses.
    unsent: Arc<Shares>,
    /// Turns for costly reads.
    turns: Turns,
    app: Arc<App>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    pub(crate) fn new(app: &Arc<App>, timeouts: Timeouts, policy: AccessPolicy) -> Self {
        Self {
            routes: routes::routes(app),
            timeouts,
            concurrency: Shares::new(policy.max_requests, policy.split),
            streams: Shares::new(MAX_EVENT_STREAMS, policy.split),
            waits: Shares::new(policy.max_requests.div_ceil(2), policy.split),
            unsent: Shares::new(policy.max_unsent, policy.split),
            turns: Turns::default(),
            policy,
            app: Arc::clone(app),
        }
    }

    /// Handles one request.
    pub async fn respond<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let started = Instant::now();
        let operation = router::find(request.method(), request.uri().path());
        let mut response = match operation {
            Ok(operation) => {
                let response = self.handle_operation(operation, request).await;
                let response =
                    response.unwrap_or_else(|problem| unguarded(routes::problem_response(&problem)));
                let status = response.status().as_u16();
                self.app
                    .metrics
                    .record_request(operation.method, operation.path, status, started.elapsed());
                response
            }
            Err(problem) => unguarded(routes::problem_response(&problem)),
        };
        // Clients learn this clock from it. Hyper's own date stands still after a clock has stepped back.
        let date = httpdate::fmt_http_date(std::time::SystemTime::now());
        if let Ok(date) = HeaderValue::from_str(&date) {
            response.headers_mut().insert(header::DATE, date);
        }
        response
    }

    async fn handle_operation<B>(
        &self,
        operation: &'static Operation,
        mut request: Request<B>,
    ) -> Result<Response<ResponseBody>, Problem>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        site::check_host(&request, self.policy.loopback)?;
        if !operation.is_page() {
            site::check_origin(&request)?;
        }
        if self.policy.plain && !operation.is_plain() {
            return Err(needs_tls());
        }
        if operation.access == Access::Write {
            site::check_write(request.headers(), request.body().is_end_stream())?;
        }
        // Authenticated before a slot is taken, so that slow anonymous requests do not crowd out identified
        // clients.
        let identity = self.identify(operation.access, &request).await?;
        let peer = request.extensions().get::<Peer>();
        if let Some(peer) = peer.filter(|_| identity.is_some()) {
            peer.identify();
        }
        let client = Client::new(identity.as_ref(), peer);
        // Probes need no slot, so that an overloaded proxy answers them.
        let slot = match operation.access {
            Access::Open => None,
            Access::Read | Access::Write => Some(self.take_slot(operation, &client)?),
        };
        let wait_slot = self.take_wait_slot(operation, request.uri(), &client)?;
        let identity = identity.unwrap_or_else(|| Identity::new("anonymous"));
        let path = request.uri().path().to_owned();
        request.extensions_mut().insert(operation);
        request.extensions_mut().insert(identity.clone());
        let request = self.read_body(request).await?;
        if operation.access == Access::Write && !query::has_deadline(request.uri()) {
            // The server drops this request if its client has closed the connection. The sockets of a process
            // that was suspended contain requests of clients that have timed out.
            tokio::time::sleep(DISCONNECT_CHECK_INTERVAL).await;
        }
        let slots = (slot, wait_slot);
        let response = self.dispatch(operation, &client, request).await;
        if operation.access == Access::Write {
            let (client, status) = (identity.name(), response.status().as_u16());
            tracing::info!(client, method = operation.method, path, status, "write request");
        }
        match operation.access {
            Access::Read => self.limit_unsent(&client, slots, response),
            // A write has taken effect, so that its small response is never refused.
            Access::Open | Access::Write => Ok(guarded(response, slots)),
        }
    }

    /// Returns the identity of the client, or none if it is anonymous and the operation allows that.
    async fn identify<B>(&self, access: Access, request: &Request<B>) -> Result<Option<Identity>, Problem> {
        let credentials = Credentials::of(request.headers(), request.extensions().get());
        let allows_anonymous = match access {
            Access::Open => return Ok(None),
            Access::Read => self.policy.reading == ReadAccess::Open,
            Access::Write => false,
        };
        if allows_anonymous && !credentials.are_present() && !self.policy.local {
            return Ok(None);
        }
        match self.policy.authenticator.authenticate(credentials).await {
            Ok(identity) => Ok(Some(identity)),
            Err(_) if allows_anonymous => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a slot for a request, or for an event stream.
    fn take_slot(&self, operation: &Operation, client: &Client) -> Result<SlotGuard, Problem> {
        if operation.is_stream {
            let detail = "too many event streams are open";
            self.streams
                .take(client.clone(), 1)
                .ok_or_else(|| overloaded(detail))
        } else {
            let detail = "too many concurrent requests";
            self.concurrency
                .take(client.clone(), 1)
                .ok_or_else(|| overloaded(detail))
        }
    }

    /// Takes a slot for a request of a tenant that waits for its partition, so that waits leave the tenant
    /// slots for other requests.
    fn take_wait_slot(
        &self,
        operation: &Operation,
        uri: &http::Uri,
        client: &Client,
    ) -> Result<Option<SlotGuard>, Problem> {
        let Client::Tenant(namespaces) = client else {
            return Ok(None);
        };
        if operation.method != "PUT" || !query::has_wait(uri) {
            return Ok(None);
        }
        let slot = self.waits.take(client.clone(), 1);
        slot.map(Some)
            .ok_or_else(|| too_many_waits(namespaces, &self.waits))
    }

    /// Returns the response of a read, which keeps its slots and counts its bytes until it is sent.
    fn limit_unsent(
        &self,
        client: &Client,
        slots: impl Send + Sync + 'static,
        response: warp::reply::Response,
    ) -> Result<Response<ResponseBody>, Problem> {
        if response.extensions().get::<UnboundedBody>().is_some() {
            let (unsent, client) = (Arc::clone(&self.unsent), client.clone());
            return Ok(response.map(|body| {
                let counted = GuardedBody::with_frame_guards(body, move |size| {
                    unsent
                        .take(client.clone(), size)
                        .ok_or_else(|| BoxError::from(TOO_MANY_UNSENT))
                });
                GuardedBody::new(counted, slots).boxed_unsync()
            }));
        }
        let size = hyper::body::Body::size_hint(response.body()).lower();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let unsent = self.unsent.take(client.clone(), size);
        let unsent = unsent.ok_or_else(|| overloaded(TOO_MANY_UNSENT))?;
        Ok(guarded(response, (slots, unsent)))
    }

    /// Reads the body of the request.
    async fn read_body<B>(&self, request: Request<B>) -> Result<Request<Full<Bytes>>, Problem>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        // A declared size beyond the limit is refused before the body is read.
        if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(too_large());
        }
        let read = tokio::time::timeout(self.timeouts.read, Limited::new(body, MAX_BODY_BYTES).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "BodyCutOff",
                "the connection closed before the end of the body",
            )),
            Err(_) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "BodyTooSlow",
                format!(
                    "the body did not arrive within {} s",
                    self.timeouts.read.as_secs()
                ),
            )),
        }
    }

    async fn dispatch(
        &self,
        operation: &Operation,
        client: &Client,
        request: Request<Full<Bytes>>,
    ) -> warp::reply::Response {
        let response = async {
            let _turn = if operation.is_costly() {
                self.turns.take(client).await
            } else {
                None
            };
            warp::service(self.routes.clone()).oneshot(request).await
        };
        match tokio::time::timeout(self.timeouts.write, response).await {
            Ok(response) => response.unwrap_or_else(|never| match never {}),
            Err(_) => routes::problem_response(
                &Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "TooSlow",
                    format!(
                        "the operation did not complete within {} s",
                        self.timeouts.write.as_secs()
                    ),
                )
                .with_retry_after(RETRY_SOON_SECS),
            ),
        }
    }
}

fn too_large() -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "BodyTooLarge",
        format!("the body must have at most {MAX_BODY_BYTES} bytes"),
    )
}

fn needs_tls() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "TlsRequired",
        "this plain HTTP address serves /stats, /query, /metrics and probes only",
    )
    .with_fix("send the request to the TLS address of the proxy")
}

const TOO_MANY_UNSENT: &str = "too many responses wait for their clients to read them";

fn overloaded(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Overloaded", detail).with_retry_after(RETRY_SOON_SECS)
}

fn too_many_waits(namespaces: &str, waits: &Shares) -> Problem {
    let (tenant, tenants) = waits.tenant_limits();
    let detail = format!(
        "too many requests with wait are open for namespace {namespaces}: at most {tenant} for one set of namespaces and \
         {tenants} for all tenants"
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "TooManyWaits", detail)
        .with_retry_after(RETRY_SOON_SECS)
        .with_fix(
            "send the request without wait and read GET /v1/partitions/{id} or the event stream; an administrator can raise max-requests",
        )
}

/// Converts a response without a guard.
fn unguarded(response: warp::reply::Response) -> Response<ResponseBody> {
    response.map(|body| body.map_err(BoxError::from).boxed_unsync())
}

/// Converts a response that keeps `guard` until it is sent.
fn guarded(response: warp::reply::Response, guard: impl Send + Sync + 'static) -> Response<ResponseBody> {
    response.map(|body| GuardedBody::new(body, guard).boxed_unsync())
}

impl Handler for Gateway {
    type Body = ResponseBody;
    type Error = Infallible;

    async fn handle(
        &self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        Ok(self.respond(request).await)
    }
}

#[cfg(test)]
mod tests;
