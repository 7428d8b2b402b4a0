//! The event stream, which goes on where it broke off.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{ACCEPT, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio_stream::Stream;

use super::error::ClientError;
use super::request::{ApiRequest, Idempotency};
use super::sse::{Parser, RawEvent};
use super::transport::{ANSWER_MAX, Transport};
use crate::api::{ChangeDocument, PartitionList};

/// Three times what the proxy lets pass without a sign of life.
const SILENCE: Duration = Duration::from_secs(45);

/// Where the client was.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What to ask the proxy for what happened later with, also with a new client.
    pub id: Option<String>,
    /// What.
    pub told: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// These are all partitions: the beginning, or the proxy does not know any more what happened since the last event.
    Snapshot(PartitionList),
    /// This became of one of them.
    Change(Box<ChangeDocument>),
}

type Next = Pin<Box<dyn Future<Output = (Reader, Result<Event, ClientError>)> + Send>>;

/// What happens to partitions. It never ends: if the connection breaks it is made again, and the stream goes on after the last
/// event. A partition may be told of twice, and is never left out. What cannot be mended is an error; whoever asks for more
/// afterwards has it tried again.
pub struct Events(Next);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(transport: Arc<Transport>, after: Option<String>) -> Self {
        let reader = Reader {
            transport,
            open: None,
            last: after,
            ready: VecDeque::new(),
        };
        Self(Box::pin(reader.next()))
    }

    /// The next event.
    ///
    /// *Cancel safety*: whoever drops this loses nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, ClientError>> {
        self.0.as_mut().poll(context).map(|(reader, told)| {
            self.0 = Box::pin(reader.next());
            told
        })
    }
}

impl Stream for Events {
    type Item = Result<Event, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context).map(Some)
    }
}

/// Reads one stream after the other.
struct Reader {
    transport: Arc<Transport>,
    open: Option<(Incoming, Parser)>,
    last: Option<String>,
    ready: VecDeque<RawEvent>,
}

impl Reader {
    async fn next(mut self) -> (Self, Result<Event, ClientError>) {
        let mut attempt = 1;
        loop {
            let error = match self.read().await {
                Ok(event) => return (self, Ok(event)),
                Err(error) => error,
            };
            self.open = None;
            let Some(pause) = self
                .transport
                .options
                .retry
                .pause(attempt, &error, Idempotency::Safe)
            else {
                return (self, Err(error));
            };
            tracing::debug!(attempt, %error, ?pause, "open the event stream again");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn read(&mut self) -> Result<Event, ClientError> {
        loop {
            while let Some(raw) = self.ready.pop_front() {
                let told = self.told(&raw)?;
                if raw.id.is_some() {
                    self.last.clone_from(&raw.id);
                }
                if let Some(told) = told {
                    return Ok(Event { id: raw.id, told });
                }
            }
            if self.open.is_none() {
                self.open = Some((self.connect().await?, Parser::default()));
            }
            self.more().await?;
        }
    }

    async fn connect(&self) -> Result<Incoming, ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(last) = self.last.as_deref().and_then(|last| last.parse().ok()) {
            headers.insert(LAST_EVENT_ID, last);
        }
        let ask = ApiRequest::new(Method::GET, "/v1/events".to_owned(), Idempotency::Safe);
        self.transport.open(&ask, &headers).await
    }

    /// Waits for more of the stream.
    async fn more(&mut self) -> Result<(), ClientError> {
        let Some((body, parser)) = self.open.as_mut() else {
            return Ok(());
        };
        let broken = |detail: &str| self.transport.broken(detail.to_owned());
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Err(_) => return Err(broken("the event stream is silent")),
            Ok(None) => return Err(broken("the event stream has ended")),
            Ok(Some(frame)) => frame.map_err(|error| broken(&error.to_string()))?,
        };
        let Some(bytes) = frame.data_ref() else {
            return Ok(());
        };
        parser
            .push(bytes, ANSWER_MAX, &mut self.ready)
            .map_err(|_| broken("an event is too long"))
    }

    /// What an event says; none for a kind that this version does not know.
    fn told(&self, raw: &RawEvent) -> Result<Option<EventKind>, ClientError> {
        Ok(match raw.kind.as_str() {
            "snapshot" => Some(EventKind::Snapshot(self.parse(&raw.data)?)),
            "change" => Some(EventKind::Change(Box::new(self.parse(&raw.data)?))),
            _ => None,
        })
    }

    fn parse<T: DeserializeOwned>(&self, data: &str) -> Result<T, ClientError> {
        serde_json::from_str(data).map_err(|error| ClientError::InvalidResponse {
            url: self.transport.url().to_owned(),
            status: 200,
            detail: error.to_string(),
        })
    }
}
