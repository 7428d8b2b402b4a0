//! The door of every listener: bodies are bounded and read in time before a route sees them.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use ipu_serve::{BoxError, Handle};
use tokio::sync::Semaphore;
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
/// Most requests at a time that are read and worked on, so that bodies do not fill the memory.
const PLACES: usize = 64;

pub(crate) struct Door {
    routes: Routes,
    max_body: usize,
    places: Semaphore,
}

impl Door {
    pub(crate) fn new(routes: Routes, max_body: usize) -> Self {
        Self {
            routes,
            max_body,
            places: Semaphore::new(PLACES),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
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

    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, (StatusCode, String)> {
        let (head, body) = request.into_parts();
        let too_large = || {
            let detail = format!("a body has at most {} bytes", self.max_body);
            (StatusCode::PAYLOAD_TOO_LARGE, detail)
        };
        // What says how large it is need not be sent.
        if body.size_hint().lower() > self.max_body as u64 {
            return Err(too_large());
        }
        let read = tokio::time::timeout(READ, Limited::new(body, self.max_body).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the body ended early".into())),
            Err(_) => Err((
                StatusCode::REQUEST_TIMEOUT,
                "the body did not come in time".into(),
            )),
        }
    }
}

impl Handle for Door {
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
