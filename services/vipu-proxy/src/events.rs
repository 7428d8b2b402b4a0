//! The event stream: changes of partitions, queue, cordons and controllers as server-sent events. After a
//! disconnect, a client can resume it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ipu_allocator::EntryChange;
use ipu_proxy_client::{ChangeDocument, HoldState, PartitionList, Subject};
use ipu_serve::UnboundedBody;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use warp::sse::Event;

use crate::app::App;
use crate::event_log::EventId;
use crate::{partition_api, subjects};

/// Interval between two comments on an idle stream, so that intermediaries do not close it.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Starts a stream of events, after the last event of the client or from a snapshot.
pub(crate) fn stream(app: &Arc<App>, last_event_id: Option<&str>) -> warp::reply::Response {
    // The channel has one slot, so that a client that does not read holds at most one more snapshot.
    let (send, receive) = mpsc::channel(1);
    let last = last_event_id.and_then(EventId::parse);
    tokio::spawn(
        Stream {
            app: Arc::clone(app),
            send,
            last_seq: 0,
        }
        .run(last),
    );
    let events = warp::sse::keep_alive()
        .interval(KEEP_ALIVE_INTERVAL)
        .stream(ReceiverStream::new(receive));
    let mut response = warp::Reply::into_response(warp::sse::reply(events));
    response.extensions_mut().insert(UnboundedBody);
    response
}

/// Stream of one client.
struct Stream {
    app: Arc<App>,
    send: mpsc::Sender<Result<Event, Infallible>>,
    /// Sequence number of the last change that was sent.
    last_seq: u64,
}

/// The client has disconnected, or no further event can be sent.
struct StreamClosed;

impl Stream {
    async fn run(mut self, last: Option<EventId>) {
        let mut stopping = self.app.stopping();
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => {}
            _ = self.send_events(last) => {}
        }
    }

    async fn send_events(&mut self, last: Option<EventId>) -> Result<(), StreamClosed> {
        // Subscribed before the snapshot, so that no change is missed.
        let mut subjects = self.app.subjects.subscribe();
        let mut versions = *subjects.borrow_and_update();
        let mut changes = self.app.allocator.changes();
        match last.and_then(|last| Some((last, self.app.event_log.since(last)?))) {
            Some((last, missed)) => {
                self.last_seq = last.seq;
                for change in missed {
                    self.send_change(change).await?;
                }
            }
            None => self.send_snapshot().await?,
        }
        // A client that resumes may have missed a change of each subject.
        for subject in Subject::ALL {
            self.send_subject(subject).await?;
        }
        loop {
            let next = tokio::select! {
                next = changes.recv() => next,
                changed = subjects.changed() => {
                    changed.map_err(|_| StreamClosed)?;
                    let newest = *subjects.borrow_and_update();
                    for subject in subjects::changed(&versions, &newest) {
                        self.send_subject(subject).await?;
                    }
                    versions = newest;
                    continue;
                }
                () = self.send.closed() => return Err(StreamClosed),
            };
            match next {
                Ok(change) => self.send_change(change).await?,
                Err(RecvError::Lagged(_)) => self.send_snapshot().await?,
                Err(RecvError::Closed) => return Err(StreamClosed),
            }
        }
    }

    /// Sends a snapshot of all partitions.
    async fn send_snapshot(&mut self) -> Result<(), StreamClosed> {
        self.last_seq = self.app.event_log.last_seq();
        let documents = self.app.partition_documents().await.map_err(|_| StreamClosed)?;
        self.send_event("snapshot", &PartitionList::new(documents)).await
    }

    async fn send_change(&mut self, change: EntryChange) -> Result<(), StreamClosed> {
        if change.seq <= self.last_seq {
            return Ok(());
        }
        self.last_seq = change.seq;
        let mut document = match &change.to {
            Some(entry) => ChangeDocument::to(
                change.at,
                partition_api::document(entry, None, &self.app.allocator),
            ),
            None => ChangeDocument::deleted(change.at, change.id),
        };
        document.from = change.from.as_ref().map(|entry| HoldState::from(&entry.phase));
        self.send_event("change", &document).await
    }

    /// Sends the name of a subject that has changed. The event has no id, so that it does not change where a
    /// client resumes.
    async fn send_subject(&self, subject: Subject) -> Result<(), StreamClosed> {
        let event = Event::default().event(subject.label()).data("{}");
        self.send.send(Ok(event)).await.map_err(|_| StreamClosed)
    }

    async fn send_event(&self, kind: &str, data: &impl Serialize) -> Result<(), StreamClosed> {
        let id = format!("{}-{}", self.app.event_log.epoch, self.last_seq);
        let data = serde_json::to_string(data).map_err(|_| StreamClosed)?;
        let event = Event::default().id(id).event(kind).data(data);
        self.send.send(Ok(event)).await.map_err(|_| StreamClosed)
    }
}
