//! The event stream, which resumes after the last event.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::error::ClientError;
use super::request::{ApiRequest, Idempotency};
use super::sse::{Parser, RawEvent};
use super::transport::{MAX_RESPONSE_SIZE, Transport};
use crate::api::{ChangeDocument, PartitionList, Subject};

/// Maximum time without data: three times the keep-alive interval of the proxy.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Header with the last received event id.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Id from which a stream can resume, also with a new client.
    pub id: Option<String>,
    /// Content of the event.
    pub kind: EventKind,
}

/// Content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// All partitions, at the start or if the proxy no longer has the changes since the last event.
    Snapshot(PartitionList),
    /// A change of one partition.
    Change(Box<ChangeDocument>),
    /// A change of another part of the system, and once for each part at the start of a connection.
    Subject(Subject),
}

type Next = Pin<Box<dyn Future<Output = (Reader, Result<Event, ClientError>)> + Send>>;

/// Stream of changes of partitions. It never ends: after a broken connection it reconnects and resumes after
/// the last event. A change may be repeated, but is never lost. An error is returned once the retries are
/// exhausted; the next call retries again.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let settings = vipu_proxy::Settings::simulated("pod16");
/// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
/// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
/// use std::time::Duration;
///
/// use ipu_core::PartitionId;
/// use ipu_proxy_client::{
///     EventKind, HoldState, OnNoCapacity, OwnerDocument, PartitionList, PutPartition,
/// };
///
/// let mut events = proxy.events(None);
/// let first = events.next().await?;
/// assert_eq!(first.kind, EventKind::Snapshot(PartitionList::default()));
///
/// let id = PartitionId::new("training")?;
/// let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
/// proxy.put(&id, &request, OnNoCapacity::Queue(Duration::ZERO)).await?;
/// let change = loop {
///     match events.next().await?.kind {
///         EventKind::Change(change) if change.to == HoldState::Active => break change,
///         _ => {}
///     }
/// };
/// assert_eq!((change.id, change.from), (id, Some(HoldState::Creating)));
/// # Ok(())
/// # }
/// ```
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
            connection: None,
            last_id: after,
            parsed: VecDeque::new(),
        };
        Self(Box::pin(reader.next()))
    }

    /// Returns the next event.
    ///
    /// *Cancel safety*: no event is lost.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        let (reader, event) = self.0.as_mut().await;
        self.0 = Box::pin(reader.next());
        event
    }
}

/// Reads the stream of one connection after the other.
struct Reader {
    transport: Arc<Transport>,
    connection: Option<(Incoming, Parser)>,
    last_id: Option<String>,
    parsed: VecDeque<RawEvent>,
}

impl Reader {
    async fn next(mut self) -> (Self, Result<Event, ClientError>) {
        let mut attempt = 1;
        loop {
            let error = match self.read().await {
                Ok(event) => return (self, Ok(event)),
                Err(error) => error,
            };
            self.connection = None;
            let Some(pause) = self
                .transport
                .options
                .retry
                .pause(attempt, &error, Idempotency::Safe)
            else {
                return (self, Err(error));
            };
            tracing::debug!(attempt, %error, ?pause, "reconnecting the event stream");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn read(&mut self) -> Result<Event, ClientError> {
        loop {
            while let Some(raw) = self.parsed.pop_front() {
                let kind = self.parse_event(&raw)?;
                if raw.id.is_some() {
                    self.last_id.clone_from(&raw.id);
                }
                if let Some(kind) = kind {
                    return Ok(Event { id: raw.id, kind });
                }
            }
            if self.connection.is_none() {
                self.connection = Some((self.connect().await?, Parser::default()));
            }
            self.receive().await?;
        }
    }

    async fn connect(&self) -> Result<Incoming, ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(id) = self.last_id.as_deref().and_then(|id| id.parse().ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        let request = ApiRequest::new(Method::GET, "/v1/events".to_owned(), Idempotency::Safe);
        self.transport.open(&request, &headers).await
    }

    /// Receives and parses the next chunk.
    async fn receive(&mut self) -> Result<(), ClientError> {
        let Some((body, parser)) = self.connection.as_mut() else {
            return Ok(());
        };
        let lost = |detail: &str| self.transport.connection_lost(detail.to_owned());
        let frame = match tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await {
            Err(_) => return Err(lost("the event stream is idle")),
            Ok(None) => return Err(lost("the event stream has ended")),
            Ok(Some(frame)) => frame.map_err(|error| lost(&error.to_string()))?,
        };
        let Some(bytes) = frame.data_ref() else {
            return Ok(());
        };
        parser
            .push(bytes, MAX_RESPONSE_SIZE, &mut self.parsed)
            .map_err(|_| lost("an event is too long"))
    }

    /// Parses the data of an event; none for a kind that this version does not know.
    fn parse_event(&self, raw: &RawEvent) -> Result<Option<EventKind>, ClientError> {
        Ok(match raw.kind.as_str() {
            "snapshot" => Some(EventKind::Snapshot(self.parse(&raw.data)?)),
            "change" => Some(EventKind::Change(Box::new(self.parse(&raw.data)?))),
            kind => {
                let subject = Subject::ALL.into_iter().find(|subject| subject.label() == kind);
                subject.map(EventKind::Subject)
            }
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
