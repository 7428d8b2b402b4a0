//! The door: bodies are bounded and read in time before a route sees them, and what takes too long is ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use ipu_serve::{BoxError, Endless, GuardedBody, Handler, Peer};
use tokio::time::Instant;
use tower::ServiceExt as _;
use warp::filters::BoxedFilter;

use crate::app::App;
use crate::auth::{Authenticator, Credentials, Identity};
use crate::kept;
use crate::problem::{Problem, RETRY_SOON_SECS};
use crate::query;
use crate::router::{self, Access, Operation};
use crate::routes;
use crate::settings::ReadAccess;
use crate::shares::{Client, Shares, SlotGuard};
use crate::site;

/// The largest body of a request: the largest sensible one has a twentieth of it.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// Time in which the server reads that the client has closed the connection, if it has. Timers fire after the events of
/// sockets were read, so that any time is enough.
const NOTICE_CLOSED: Duration = Duration::from_millis(1);

/// Most event streams at a time: each costs a connection and a task for as long as the client likes.
const STREAMS: usize = 128;

/// Most bytes of answers that wait for their clients: a quarter of the memory that the shipped manifests give the proxy.
pub(crate) const UNSENT: usize = 64 << 20;

/// The body of an answer.
pub type FrontBody = UnsyncBoxBody<Bytes, BoxError>;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// The body of a request.
    pub(crate) read: Duration,
    /// The work until the answer begins.
    pub(crate) write: Duration,
}

/// Who is let in.
pub(crate) struct AccessPolicy {
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) reading: ReadAccess,
    /// Most requests that are worked on at a time.
    pub(crate) concurrency: usize,
    /// Most bytes of answers that wait for their clients to read them.
    pub(crate) unsent: usize,
    /// Whether the connection tells who the client is, so that reads without a token are identified, too.
    pub(crate) local: bool,
    /// Whether clients can be identified, and anonymous ones have a share of all limits.
    pub(crate) split: bool,
    /// Whether only this host reaches the proxy: it listens on a loopback address.
    pub(crate) loopback: bool,
    /// Whether the proxy speaks TLS elsewhere, so that only documented reads are answered here.
    pub(crate) plain: bool,
}

/// Answers requests, whichever way they come.
pub struct Gateway {
    routes: BoxedFilter<(warp::reply::Response,)>,
    patience: Timeouts,
    guard: AccessPolicy,
    concurrency: Arc<Shares>,
    streams: Arc<Shares>,
    /// Requests of tenants that wait for their partitions.
    waits: Arc<Shares>,
    /// Bytes of answers that are not sent.
    unsent: Arc<Shares>,
    app: Arc<App>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Gateway {
    pub(crate) fn new(app: &Arc<App>, patience: Timeouts, guard: AccessPolicy) -> Self {
        Self {
            routes: routes::routes(app),
            patience,
            concurrency: Shares::new(guard.concurrency, guard.split),
            streams: Shares::new(STREAMS, guard.split),
            waits: Shares::new(guard.concurrency.div_ceil(2), guard.split),
            unsent: Shares::new(guard.unsent, guard.split),
            guard,
            app: Arc::clone(app),
        }
    }

    /// One request and its answer.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<FrontBody>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let began = Instant::now();
        let operation = router::find(request.method(), request.uri().path());
        match operation {
            Ok(operation) => {
                let answer = self.work_on(operation, request).await;
                let answer = answer.unwrap_or_else(|problem| free(routes::refuse(&problem)));
                let status = answer.status().as_u16();
                self.app
                    .metrics
                    .request(operation.method, operation.path, status, began.elapsed());
                answer
            }
            Err(problem) => free(routes::refuse(&problem)),
        }
    }

    async fn work_on<B>(
        &self,
        operation: &Operation,
        mut request: Request<B>,
    ) -> Result<Response<FrontBody>, Problem>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        site::check(&request, self.guard.loopback)?;
        if self.guard.plain && !operation.is_plain() {
            return Err(needs_tls());
        }
        if operation.access == Access::Write {
            site::check_write(request.headers(), request.body().is_end_stream())?;
        }
        // Before a place is taken: requests that prove nothing and do not end do not crowd out identified clients.
        let identity = self.identify(operation.access, &request).await?;
        let peer = request.extensions().get::<Peer>();
        if let Some(peer) = peer.filter(|_| identity.is_some()) {
            peer.identify();
        }
        let client = Client::new(identity.as_ref(), peer);
        // What tells whether the proxy works is answered also when it has too much to do.
        let place = match operation.access {
            Access::Open => None,
            Access::Read | Access::Write => Some(self.take_place(operation, &client)?),
        };
        let wait = self.take_wait(operation, request.uri(), &client)?;
        let identity = identity.unwrap_or_else(|| Identity::new("anonymous"));
        if operation.access == Access::Write {
            self.app.health.check_may_change().await?;
        }
        let path = request.uri().path().to_owned();
        request.extensions_mut().insert(identity.clone());
        let request = self.read(request).await?;
        if operation.access == Access::Write && !query::expires(request.uri()) {
            // The server drops this request meanwhile if its client has closed the connection. A process that was
            // suspended finds requests in its sockets whose clients have given up.
            tokio::time::sleep(NOTICE_CLOSED).await;
        }
        // The task of a write outlives a client that goes away, and keeps its places.
        let place = Arc::new((place, wait));
        let answer = kept::scope(Arc::clone(&place) as _, self.dispatch(request)).await;
        if operation.access == Access::Write {
            let (who, status) = (identity.name(), answer.status().as_u16());
            tracing::info!(
                who,
                method = operation.method,
                path,
                status,
                "asked to change something"
            );
        }
        match operation.access {
            Access::Read => self.bounded(&client, place, answer),
            // A write is done, so that its answer, which is small, is never refused.
            Access::Open | Access::Write => Ok(held(answer, place)),
        }
    }

    /// The client, or none if it is anonymous and may be.
    async fn identify<B>(&self, access: Access, request: &Request<B>) -> Result<Option<Identity>, Problem> {
        let credentials = Credentials::of(request.headers(), request.extensions().get());
        let free = match access {
            Access::Open => return Ok(None),
            Access::Read => self.guard.reading == ReadAccess::Open,
            Access::Write => false,
        };
        if free && !credentials.are_shown() && !self.guard.local {
            return Ok(None);
        }
        match self.guard.authenticator.authenticate(credentials).await {
            Ok(identity) => Ok(Some(identity)),
            Err(_) if free => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a place for a request, or for an event stream.
    fn take_place(&self, operation: &Operation, client: &Client) -> Result<SlotGuard, Problem> {
        if operation.endless {
            let detail = "too many event streams are open";
            self.streams
                .take(client.clone(), 1)
                .ok_or_else(|| overloaded(detail))
        } else {
            let detail = "too many requests are being worked on";
            self.concurrency
                .take(client.clone(), 1)
                .ok_or_else(|| overloaded(detail))
        }
    }

    /// Takes a place for a request of a tenant that waits for its partition, so that waits leave the tenant places for
    /// other requests.
    fn take_wait(
        &self,
        operation: &Operation,
        uri: &http::Uri,
        client: &Client,
    ) -> Result<Option<SlotGuard>, Problem> {
        let Client::Tenant(namespaces) = client else {
            return Ok(None);
        };
        if operation.method != "PUT" || !query::waits(uri) {
            return Ok(None);
        }
        let place = self.waits.take(client.clone(), 1);
        place
            .map(Some)
            .ok_or_else(|| too_many_waits(namespaces, &self.waits))
    }

    /// Returns the answer to a read, which keeps its place and counts its bytes until it is sent.
    fn bounded(
        &self,
        client: &Client,
        place: impl Send + Sync + 'static,
        answer: warp::reply::Response,
    ) -> Result<Response<FrontBody>, Problem> {
        if answer.extensions().get::<Endless>().is_some() {
            let (unsent, client) = (Arc::clone(&self.unsent), client.clone());
            return Ok(answer.map(|body| {
                let counted = GuardedBody::each_frame(body, move |size| {
                    unsent
                        .take(client.clone(), size)
                        .ok_or_else(|| BoxError::from(TOO_MUCH_UNSENT))
                });
                GuardedBody::new(counted, place).boxed_unsync()
            }));
        }
        let size = hyper::body::Body::size_hint(answer.body()).lower();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let unsent = self.unsent.take(client.clone(), size);
        let unsent = unsent.ok_or_else(|| overloaded(TOO_MUCH_UNSENT))?;
        Ok(held(answer, (place, unsent)))
    }

    /// The request with all of its body.
    async fn read<B>(&self, request: Request<B>) -> Result<Request<Full<Bytes>>, Problem>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        // What says how large it is need not be sent.
        if body.size_hint().lower() > MAX_BODY as u64 {
            return Err(too_large());
        }
        let read = tokio::time::timeout(self.patience.read, Limited::new(body, MAX_BODY).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "BodyCutOff",
                "the body ended early",
            )),
            Err(_) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "BodyTooSlow",
                format!("the body did not come within {} s", self.patience.read.as_secs()),
            )),
        }
    }

    async fn dispatch(&self, request: Request<Full<Bytes>>) -> warp::reply::Response {
        let answer = warp::service(self.routes.clone()).oneshot(request);
        match tokio::time::timeout(self.patience.write, answer).await {
            Ok(answer) => answer.unwrap_or_else(|never| match never {}),
            Err(_) => routes::refuse(
                &Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "TooSlow",
                    format!("there is no answer within {} s", self.patience.write.as_secs()),
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
        format!("a body has at most {MAX_BODY} bytes"),
    )
}

fn needs_tls() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "TlsRequired",
        "this address speaks plain HTTP and answers /stats, /query, /metrics and probes only",
    )
    .with_fix("send the request to the address of the proxy that speaks TLS")
}

const TOO_MUCH_UNSENT: &str = "too many answers wait for their clients to read them";

fn overloaded(detail: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Overloaded", detail).with_retry_after(RETRY_SOON_SECS)
}

fn too_many_waits(namespaces: &str, waits: &Shares) -> Problem {
    let (tenant, tenants) = waits.of_tenants();
    let detail = format!(
        "too many requests with wait are held for namespace {namespaces}: at most {tenant} for one set of namespaces and \
         {tenants} for all tenants"
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "TooManyWaits", detail)
        .with_retry_after(RETRY_SOON_SECS)
        .with_fix(
            "ask without wait and read GET /v1/partitions/{id} or the event stream; an administrator can raise max-requests",
        )
}

/// An answer that holds nothing.
fn free(answer: warp::reply::Response) -> Response<FrontBody> {
    answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
}

/// An answer that keeps `guard` until it is sent.
fn held(answer: warp::reply::Response, guard: impl Send + Sync + 'static) -> Response<FrontBody> {
    answer.map(|body| GuardedBody::new(body, guard).boxed_unsync())
}

impl Handler for Gateway {
    type Body = FrontBody;
    type Error = Infallible;

    async fn handle(
        &self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<FrontBody>, Infallible> {
        Ok(self.answer(request).await)
    }
}

#[cfg(test)]
mod tests;
