//! The door of every listener: bodies are bounded and read in time before a route sees them.

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
use warp::reply::Response as Answer;

/// The routes of a listener.
pub(crate) type Routes = BoxedFilter<(Answer,)>;

/// How long the body of a request may take; the API server gives up a webhook after at most 30 s.
const READ: Duration = Duration::from_secs(10);
/// How long an answer may take.
const WRITE: Duration = Duration::from_secs(30);
/// Most requests at a time that are read and worked on.
const PLACES: usize = 64;

/// How much of bodies is held at a time, so that they do not fill the memory.
#[derive(Clone, Copy)]
struct BodyBudget {
    /// Up to so many bytes a body is small: as many of them as there are places are held in any case.
    small: usize,
    /// The most bytes of larger ones, all together.
    large: usize,
    /// How long a larger one waits for its bytes; less than the API server waits for a webhook (10 s as it is shipped).
    patience: Duration,
}

impl BodyBudget {
    /// For bodies of at most `max_body` bytes: two of the largest at a time.
    const fn of(max_body: usize) -> Self {
        Self {
            small: 64 << 10,
            large: 2 * max_body,
            patience: Duration::from_secs(5),
        }
    }
}

pub(crate) struct WebhookServer {
    routes: Routes,
    max_body: usize,
    room: BodyBudget,
    places: Semaphore,
    bytes: Semaphore,
}

impl WebhookServer {
    pub(crate) fn new(routes: Routes, max_body: usize) -> Self {
        Self::with_room(routes, max_body, BodyBudget::of(max_body))
    }

    fn with_room(routes: Routes, max_body: usize, room: BodyBudget) -> Self {
        Self {
            routes,
            max_body,
            room,
            places: Semaphore::new(PLACES),
            bytes: Semaphore::new(room.large),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        // Whoever waits for this keeps no place from small ones.
        let _bytes = match self.reserve(request.body()).await {
            Ok(bytes) => bytes,
            Err(refusal) => return refusal,
        };
        // Never closed.
        let _place = self.places.acquire().await;
        let request = match self.read(request).await {
            Ok(request) => request,
            Err((status, detail)) => return text(status, detail),
        };
        let answer = warp::service(self.routes.clone()).oneshot(request);
        match tokio::time::timeout(WRITE, answer).await {
            Ok(answer) => answer.unwrap_or_else(|never| match never {}),
            Err(_) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "there is no answer in time".into(),
            ),
        }
    }

    /// The bytes of `body`, kept from others until its answer is there; none of a small one. What does not say how large it is counts
    /// as the largest.
    async fn reserve(&self, body: &Incoming) -> Result<Option<SemaphorePermit<'_>>, Answer> {
        let size = body.size_hint();
        // What says how large it is need not be sent.
        if size.lower() > self.max_body as u64 {
            return Err(text(StatusCode::PAYLOAD_TOO_LARGE, self.too_large()));
        }
        let most = self.max_body as u64;
        let bytes = size.upper().unwrap_or(most).min(most);
        if bytes <= self.room.small as u64 {
            return Ok(None);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let reserved = tokio::time::timeout(self.room.patience, self.bytes.acquire_many(bytes)).await;
        // Never closed.
        reserved.map(Result::ok).map_err(|_| {
            let BodyBudget { small, large, patience } = self.room;
            let detail = format!(
                "bodies of more than {small} bytes have at most {large} bytes together, and within {} s there was no room for one of {bytes}; try again",
                patience.as_secs()
            );
            let refusal = text(StatusCode::SERVICE_UNAVAILABLE, detail);
            // Clients of Kubernetes take it for an invitation to try again.
            warp::reply::with_header(refusal, header::RETRY_AFTER, "1").into_response()
        })
    }

    fn too_large(&self) -> String {
        format!("a body has at most {} bytes", self.max_body)
    }

    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, (StatusCode, String)> {
        let (head, body) = request.into_parts();
        let read = tokio::time::timeout(READ, Limited::new(body, self.max_body).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Err((StatusCode::PAYLOAD_TOO_LARGE, self.too_large()))
            }
            Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the body ended early".into())),
            Err(_) => Err((
                StatusCode::REQUEST_TIMEOUT,
                "the body did not come in time".into(),
            )),
        }
    }
}

impl Handler for WebhookServer {
    type Body = UnsyncBoxBody<Bytes, BoxError>;
    type Error = Infallible;

    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Self::Body>, Infallible> {
        let answer = self.answer(request).await;
        Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }
}

/// An answer in words.
pub(crate) fn text(status: StatusCode, mut words: String) -> Answer {
    words.push('\n');
    warp::reply::with_status(words, status).into_response()
}

#[cfg(test)]
mod tests;
