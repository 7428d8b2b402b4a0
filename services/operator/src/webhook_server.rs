//! Request handling of every listener: bodies are limited in size and time before a route receives them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use ipu_serve::{BoxError, Handler};
use tokio::sync::{Semaphore, SemaphorePermit};
use tower::ServiceExt as _;
use warp::Reply as _;
use warp::filters::BoxedFilter;
use warp::reply::Response as WarpResponse;

/// Routes of a listener.
pub(crate) type Routes = BoxedFilter<(WarpResponse,)>;

/// Timeout for a request body; the API server abandons a webhook call after at most 30 s.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 64;

/// Memory limits for request bodies.
#[derive(Clone, Copy)]
struct BodyBudget {
    /// Maximum size of a small body, in bytes. Small bodies are limited only by the number of requests.
    small: usize,
    /// Maximum total size of all larger bodies, in bytes.
    large: usize,
    /// Maximum wait of a larger body for its memory; shorter than the API server's default webhook timeout
    /// (10 s).
    timeout: Duration,
}

impl BodyBudget {
    /// Creates limits for bodies of at most `max_body` bytes: two of the largest fit at a time.
    const fn for_max_body(max_body: usize) -> Self {
        Self {
            small: 64 << 10,
            large: 2 * max_body,
            timeout: Duration::from_secs(5),
        }
    }
}

pub(crate) struct WebhookServer {
    routes: Routes,
    max_body: usize,
    budget: BodyBudget,
    permits: Semaphore,
    bytes: Semaphore,
}

impl WebhookServer {
    pub(crate) fn new(routes: Routes, max_body: usize) -> Self {
        Self::with_budget(routes, max_body, BodyBudget::for_max_body(max_body))
    }

    fn with_budget(routes: Routes, max_body: usize, budget: BodyBudget) -> Self {
        Self {
            routes,
            max_body,
            budget,
            permits: Semaphore::new(MAX_CONCURRENT_REQUESTS),
            bytes: Semaphore::new(budget.large),
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> WarpResponse {
        // Memory is reserved before a permit, so that waiting large bodies do not block small ones.
        let _bytes = match self.reserve(request.body()).await {
            Ok(bytes) => bytes,
            Err(rejection) => return rejection,
        };
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let request = match self.read(request).await {
            Ok(request) => request,
            Err((status, detail)) => return text(status, detail),
        };
        let response = warp::service(self.routes.clone()).oneshot(request);
        match tokio::time::timeout(RESPONSE_TIMEOUT, response).await {
            Ok(response) => response.unwrap_or_else(|never| match never {}),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the response timed out".into()),
        }
    }

    /// Reserves memory for `body` until its response is sent; small bodies need none. A body of unknown
    /// size counts as the largest.
    async fn reserve(&self, body: &Incoming) -> Result<Option<SemaphorePermit<'_>>, WarpResponse> {
        let size = body.size_hint();
        // A declared size over the limit is rejected before the body is read.
        if size.lower() > self.max_body as u64 {
            return Err(text(StatusCode::PAYLOAD_TOO_LARGE, self.too_large()));
        }
        let max = self.max_body as u64;
        let bytes = size.upper().unwrap_or(max).min(max);
        if bytes <= self.budget.small as u64 {
            return Ok(None);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let reserved = tokio::time::timeout(self.budget.timeout, self.bytes.acquire_many(bytes)).await;
        // The semaphore is never closed.
        reserved.map(Result::ok).map_err(|_| {
            let BodyBudget { small, large, timeout } = self.budget;
            let detail = format!(
                "bodies over {small} bytes share {large} bytes; within {} s there was no capacity for one of {bytes}; try again",
                timeout.as_secs()
            );
            let rejection = text(StatusCode::SERVICE_UNAVAILABLE, detail);
            // Kubernetes clients retry on this header.
            warp::reply::with_header(rejection, header::RETRY_AFTER, "1").into_response()
        })
    }

    fn too_large(&self) -> String {
        format!("the body exceeds {} bytes", self.max_body)
    }

    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, (StatusCode, String)> {
        let (head, body) = request.into_parts();
        let read = tokio::time::timeout(READ_TIMEOUT, Limited::new(body, self.max_body).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Err((StatusCode::PAYLOAD_TOO_LARGE, self.too_large()))
            }
            Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the body ended early".into())),
            Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "the body timed out".into())),
        }
    }
}

impl Handler for WebhookServer {
    type Body = UnsyncBoxBody<Bytes, BoxError>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Self::Body>, Infallible> {
        let response = self.respond(request).await;
        Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }
}

/// Returns a plain-text response.
pub(crate) fn text(status: StatusCode, mut message: String) -> WarpResponse {
    message.push('\n');
    warp::reply::with_status(message, status).into_response()
}

#[cfg(test)]
mod tests;
