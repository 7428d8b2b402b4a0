//! The event stream: what became of which partition, as server-sent events that a client can go on with after a break.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipu_ledger::LedgerChange;
use ipu_proxy_client::{ChangeDocument, HoldState, PartitionList};
use ipu_serve::Endless;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use warp::sse::Event;

use crate::app::App;
use crate::partition_api::document;

/// Changes that are kept for clients that come back: a minute or so of a busy system.
const HISTORY_LEN: usize = 4096;
/// How often a stream says that it is still there, so that what lies between does not cut it off.
const ALIVE: Duration = Duration::from_secs(15);

/// The changes of late, for those who come back.
pub(crate) struct EventLog {
    /// Tells this process's numbers from those of others.
    epoch: u64,
    late: Mutex<VecDeque<LedgerChange>>,
}

/// Where a client was when its stream broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EventId {
    epoch: u64,
    seq: u64,
}

impl EventId {
    fn parse(text: &str) -> Option<Self> {
        let (epoch, seq) = text.split_once('-')?;
        Some(Self {
            epoch: epoch.parse().ok()?,
            seq: seq.parse().ok()?,
        })
    }
}

impl EventLog {
    /// A feed of these changes; it is kept by a task that ends with the ledger.
    pub(crate) fn of(mut changes: broadcast::Receiver<LedgerChange>, epoch: u64) -> Arc<Self> {
        let feed = Arc::new(Self {
            epoch,
            late: Mutex::default(),
        });
        let kept = Arc::downgrade(&feed);
        tokio::spawn(async move {
            loop {
                let change = changes.recv().await;
                let Some(feed) = kept.upgrade() else { return };
                let mut late = feed.late.lock().unwrap_or_else(PoisonError::into_inner);
                match change {
                    Ok(change) => {
                        if late.len() == HISTORY_LEN {
                            late.pop_front();
                        }
                        late.push_back(change);
                    }
                    // What follows does not join what is kept.
                    Err(RecvError::Lagged(_)) => late.clear(),
                    Err(RecvError::Closed) => return,
                }
            }
        });
        feed
    }

    /// The changes after `place`, if all of them are still there.
    fn since(&self, place: EventId) -> Option<Vec<LedgerChange>> {
        if place.epoch != self.epoch {
            return None;
        }
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (late.front()?.seq, late.back()?.seq);
        // A number that was never told here would hide what comes next.
        (first <= place.seq.saturating_add(1) && place.seq <= last).then(|| {
            late.iter()
                .filter(|change| change.seq > place.seq)
                .cloned()
                .collect()
        })
    }

    fn last(&self) -> u64 {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.back().map_or(0, |change| change.seq)
    }
}

/// A stream of events, from where the client was or from a snapshot on.
pub(crate) fn stream(app: &Arc<App>, last_event_id: Option<&str>) -> warp::reply::Response {
    // One event waits for the client, so that a client that does not read holds at most one more snapshot.
    let (send, receive) = mpsc::channel(1);
    let from = last_event_id.and_then(EventId::parse);
    tokio::spawn(
        Stream {
            app: Arc::clone(app),
            send,
            seen: 0,
        }
        .run(from),
    );
    let events = warp::sse::keep_alive()
        .interval(ALIVE)
        .stream(ReceiverStream::new(receive));
    let mut response = warp::Reply::into_response(warp::sse::reply(events));
    response.extensions_mut().insert(Endless);
    response
}

/// One client's stream.
struct Stream {
    app: Arc<App>,
    send: mpsc::Sender<Result<Event, Infallible>>,
    /// The last change that the client knows of.
    seen: u64,
}

/// The client is gone, or nothing can be told it any more.
struct StreamClosed;

impl Stream {
    async fn run(mut self, from: Option<EventId>) {
        let mut stopping = self.app.stopping();
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => {}
            _ = self.tell(from) => {}
        }
    }

    async fn tell(&mut self, from: Option<EventId>) -> Result<(), StreamClosed> {
        // Before anything is read, so that nothing falls between.
        let mut changes = self.app.ledger.changes();
        match from.and_then(|place| Some((place, self.app.feed.since(place)?))) {
            Some((place, missed)) => {
                self.seen = place.seq;
                for change in missed {
                    self.change(change).await?;
                }
            }
            None => self.snapshot().await?,
        }
        loop {
            let next = tokio::select! {
                next = changes.recv() => next,
                () = self.send.closed() => return Err(StreamClosed),
            };
            match next {
                Ok(change) => self.change(change).await?,
                Err(RecvError::Lagged(_)) => self.snapshot().await?,
                Err(RecvError::Closed) => return Err(StreamClosed),
            }
        }
    }

    /// All partitions as they are now.
    async fn snapshot(&mut self) -> Result<(), StreamClosed> {
        self.seen = self.app.feed.last();
        let documents = self.app.documents().await.map_err(|_| StreamClosed)?;
        self.event("snapshot", &PartitionList::new(documents)).await
    }

    async fn change(&mut self, change: LedgerChange) -> Result<(), StreamClosed> {
        if change.seq <= self.seen {
            return Ok(());
        }
        self.seen = change.seq;
        let mut told = match &change.to {
            Some(entry) => ChangeDocument::to(change.at, document(entry, None, &self.app.ledger)),
            None => ChangeDocument::gone(change.at, change.id),
        };
        told.from = change.from.as_ref().map(|entry| HoldState::from(&entry.state));
        self.event("change", &told).await
    }

    async fn event(&self, kind: &str, data: &impl Serialize) -> Result<(), StreamClosed> {
        let id = format!("{}-{}", self.app.feed.epoch, self.seen);
        let data = serde_json::to_string(data).map_err(|_| StreamClosed)?;
        let event = Event::default().id(id).event(kind).data(data);
        self.send.send(Ok(event)).await.map_err(|_| StreamClosed)
    }
}
