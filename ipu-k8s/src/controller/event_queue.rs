//! Queue of Events that the operator publishes with low priority.
//!
//! An Event costs the API server about as much as a status write. While many jobs start, normal Events wait
//! for an idle moment, for a limited time. Warnings do not wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::ports::{JobEvent, Severity};

/// Longest time for which a normal Event waits for an idle moment.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum queue length; beyond it, the Event that has waited longest is dropped.
const MAX_PENDING_EVENTS: usize = 10_000;

/// An Event to be published.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingEvent {
    /// The job, with the metadata that identify it.
    pub(super) job: Value,
    pub(super) event: JobEvent,
}

/// Events to be published, and the number of reconciles in progress.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    state: Mutex<EventQueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct EventQueueState {
    /// True if a publisher serves the queue.
    open: bool,
    /// Number of reconciles in progress.
    reconciles: usize,
    /// Events by their publication deadline.
    events: BTreeMap<(Instant, u64), PendingEvent>,
    sequence: u64,
}

impl EventQueue {
    fn state(&self) -> MutexGuard<'_, EventQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an Event. Returns it if no publisher serves the queue.
    pub(super) fn put(&self, event: PendingEvent) -> Option<PendingEvent> {
        let mut state = self.state();
        if !state.open {
            return Some(event);
        }
        let delay = match event.event.severity {
            Severity::Normal => PUBLISH_TIMEOUT,
            Severity::Warning => Duration::ZERO,
        };
        let key = (Instant::now() + delay, state.sequence);
        state.sequence += 1;
        state.events.insert(key, event);
        if state.events.len() > MAX_PENDING_EVENTS {
            state.events.pop_first();
        }
        drop(state);
        self.changed.notify_waiters();
        None
    }

    /// Waits for the next Event that is due.
    pub(super) async fn next(&self) -> PendingEvent {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Notifications count from here, not from the first poll.
            changed.as_mut().enable();
            let due = {
                let mut state = self.state();
                let due = state.events.first_key_value().map(|((by, _), _)| *by);
                if due.is_some_and(|by| state.reconciles == 0 || by <= Instant::now())
                    && let Some((_, event)) = state.events.pop_first()
                {
                    return event;
                }
                due
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    /// Marks a reconcile as in progress until the returned guard is dropped.
    pub(super) fn reconcile_guard(&self) -> ReconcileGuard<'_> {
        self.state().reconciles += 1;
        ReconcileGuard(self)
    }

    /// Starts to accept Events.
    pub(super) fn open(&self) {
        self.state().open = true;
    }

    /// Stops to accept Events. Returns those still queued.
    pub(super) fn close(&self) -> Vec<PendingEvent> {
        let mut state = self.state();
        state.open = false;
        std::mem::take(&mut state.events).into_values().collect()
    }
}

/// Marks a reconcile as in progress.
#[derive(Debug)]
pub(super) struct ReconcileGuard<'a>(&'a EventQueue);

impl Drop for ReconcileGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.reconciles -= 1;
        if state.reconciles == 0 {
            drop(state);
            self.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::Timestamp;
    use serde_json::json;

    use super::*;

    fn pending(severity: Severity, reason: &str) -> PendingEvent {
        PendingEvent {
            job: json!({}),
            event: JobEvent {
                severity,
                reason: reason.to_owned(),
                note: "a note".to_owned(),
                at: Timestamp::from_millis(0),
            },
        }
    }

    /// Returns the reason of the next Event, and the time until it was due.
    async fn next(queue: &EventQueue) -> (String, Duration) {
        let started = Instant::now();
        let event = queue.next().await;
        (event.event.reason, started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn normal_events_wait_for_an_idle_moment_and_warnings_do_not() {
        let queue = EventQueue::default();
        queue.open();
        let (first, second) = (queue.reconcile_guard(), queue.reconcile_guard());
        for reason in ["first", "second", "third"] {
            assert_eq!(queue.put(pending(Severity::Normal, reason)), None);
        }
        assert_eq!(queue.put(pending(Severity::Warning, "warning")), None);
        assert_eq!(next(&queue).await, ("warning".to_owned(), Duration::ZERO));
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(second);
        };
        let (reason, ()) = tokio::join!(next(&queue), end);
        assert_eq!(reason, ("first".to_owned(), Duration::from_secs(2)));
        assert_eq!(next(&queue).await, ("second".to_owned(), Duration::ZERO));
        let busy = queue.reconcile_guard();
        let (reason, passed) = next(&queue).await;
        assert_eq!(
            (reason.as_str(), passed),
            ("third", PUBLISH_TIMEOUT - Duration::from_secs(2))
        );
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_put_into_an_empty_queue_is_published_immediately() {
        let queue = EventQueue::default();
        queue.open();
        let put = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            assert_eq!(queue.put(pending(Severity::Normal, "it")), None);
        };
        let (reason, ()) = tokio::join!(next(&queue), put);
        assert_eq!(reason, ("it".to_owned(), Duration::from_secs(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_returns_the_event() {
        let queue = EventQueue::default();
        let event = pending(Severity::Normal, "it");
        assert_eq!(queue.put(event.clone()), Some(event.clone()));
        queue.open();
        assert_eq!(queue.put(event.clone()), None);
        assert_eq!(queue.close(), std::slice::from_ref(&event));
        assert_eq!(queue.put(event.clone()), Some(event));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_drops_the_oldest_event() {
        let queue = EventQueue::default();
        queue.open();
        for reason in 0..=MAX_PENDING_EVENTS {
            let _ = queue.put(pending(Severity::Normal, &reason.to_string()));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(next(&queue).await.0, "1");
        assert_eq!(queue.close().len(), MAX_PENDING_EVENTS - 1);
    }
}
