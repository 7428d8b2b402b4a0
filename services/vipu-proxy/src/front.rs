//! The door: bodies are bounded and read in time before a route sees them, and what takes too long is ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use ipu_serve::{BoxError, Handle};
use tower::ServiceExt as _;
use warp::filters::BoxedFilter;

use crate::app::App;
use crate::problem::Problem;
use crate::{routes, table};

/// The largest body of a request: the largest sensible one has a twentieth of it.
pub(crate) const MAX_BODY: usize = 64 * 1024;

/// The body of an answer.
pub type FrontBody = UnsyncBoxBody<Bytes, BoxError>;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The body of a request.
    pub(crate) read: Duration,
    /// The work until the answer begins.
    pub(crate) write: Duration,
}

/// Answers requests, whichever way they come.
pub struct Front {
    routes: BoxedFilter<(warp::reply::Response,)>,
    patience: Patience,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Front {
    pub(crate) fn new(app: &Arc<App>, patience: Patience) -> Self {
        Self {
            routes: routes::routes(app),
            patience,
        }
    }

    /// One request and its answer.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<FrontBody>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let answer = match self.admit(request).await {
            Ok(request) => self.dispatch(request).await,
            Err(problem) => routes::refuse(&problem),
        };
        answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
    }

    /// The request with all of its body, or why it is not let in.
    async fn admit<B>(&self, request: Request<B>) -> Result<Request<Full<Bytes>>, Problem>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let operation = table::find(request.method(), request.uri().path())?;
        tracing::trace!(method = operation.method, path = operation.path, access = ?operation.access, "asked");
        let (head, body) = request.into_parts();
        let read = tokio::time::timeout(self.patience.read, Limited::new(body, MAX_BODY).collect());
        match read.await {
            Ok(Ok(body)) => Ok(Request::from_parts(head, Full::new(body.to_bytes()))),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "BodyTooLarge",
                format!("a body has at most {MAX_BODY} bytes"),
            )),
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
                .with_retry_after(crate::problem::AGAIN_SOON),
            ),
        }
    }
}

impl Handle for Front {
    type Body = FrontBody;
    type Error = Infallible;

    async fn handle(
        &self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<FrontBody>, Infallible> {
        Ok(self.answer(request).await)
    }
}
