//! What users are to be told of their jobs, in a line behind what is urgent.
//!
//! An Event costs the API server about as much as a status. While many jobs are on their way, what says that all is as it
//! should be waits until there is nothing else to do, a while at most; a warning does not wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::ports::{JobEvent, Severity};

/// How long what is as it should be waits for a moment in which nothing else is done.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);
/// How much may wait; beyond that, what has waited longest is not told.
const MAX_PENDING_EVENTS: usize = 10_000;

/// Something that users of a job are to be told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PendingEvent {
    /// The job, with as much of its metadata as names it.
    pub(super) job: Value,
    pub(super) event: JobEvent,
}

/// What is to be told, and whether there is something more urgent.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    state: Mutex<EventQueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct EventQueueState {
    /// Whether somebody tells what is in the line.
    open: bool,
    /// How many passes are under way.
    passes: usize,
    /// By when it is to be told at the latest.
    line: BTreeMap<(Instant, u64), PendingEvent>,
    came: u64,
}

impl EventQueue {
    fn state(&self) -> MutexGuard<'_, EventQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something into the line; answers it if nobody tells what is there.
    pub(super) fn put(&self, telling: PendingEvent) -> Option<PendingEvent> {
        let mut state = self.state();
        if !state.open {
            return Some(telling);
        }
        let wait = match telling.event.severity {
            Severity::Normal => PUBLISH_TIMEOUT,
            Severity::Warning => Duration::ZERO,
        };
        let place = (Instant::now() + wait, state.came);
        state.came += 1;
        state.line.insert(place, telling);
        if state.line.len() > MAX_PENDING_EVENTS {
            state.line.pop_first();
        }
        drop(state);
        self.changed.notify_waiters();
        None
    }

    /// Waits for the next that is to be told now.
    pub(super) async fn next(&self) -> PendingEvent {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From now on, not from when it is first waited for.
            changed.as_mut().enable();
            let due = {
                let mut state = self.state();
                let due = state.line.first_key_value().map(|((by, _), _)| *by);
                if due.is_some_and(|by| state.passes == 0 || by <= Instant::now())
                    && let Some((_, telling)) = state.line.pop_first()
                {
                    return telling;
                }
                due
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    /// Something more urgent is under way until this is dropped.
    pub(super) fn reconcile_guard(&self) -> ReconcileGuard<'_> {
        self.state().passes += 1;
        ReconcileGuard(self)
    }

    /// From now on what is put into the line will be told.
    pub(super) fn open(&self) {
        self.state().open = true;
    }

    /// Nobody tells what is in the line any more; what is there.
    pub(super) fn close(&self) -> Vec<PendingEvent> {
        let mut state = self.state();
        state.open = false;
        std::mem::take(&mut state.line).into_values().collect()
    }
}

/// A pass over a job.
#[derive(Debug)]
pub(super) struct ReconcileGuard<'a>(&'a EventQueue);

impl Drop for ReconcileGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.passes -= 1;
        if state.passes == 0 {
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

    fn telling(severity: Severity, what: &str) -> PendingEvent {
        PendingEvent {
            job: json!({}),
            event: JobEvent {
                severity,
                reason: what.to_owned(),
                note: "a note".to_owned(),
                at: Timestamp::from_millis(0),
            },
        }
    }

    /// What is to be told next, and after how long.
    async fn next(news: &EventQueue) -> (String, Duration) {
        let begun = Instant::now();
        let told = news.next().await;
        (told.event.reason, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_as_it_should_be_is_told_when_nothing_else_is_done_and_a_warning_at_once() {
        let news = EventQueue::default();
        news.open();
        let (one, other) = (news.reconcile_guard(), news.reconcile_guard());
        for what in ["first", "second", "third"] {
            assert_eq!(news.put(telling(Severity::Normal, what)), None);
        }
        assert_eq!(news.put(telling(Severity::Warning, "warning")), None);
        assert_eq!(next(&news).await, ("warning".to_owned(), Duration::ZERO));
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(one);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(other);
        };
        let (told, ()) = tokio::join!(next(&news), end);
        assert_eq!(told, ("first".to_owned(), Duration::from_secs(2)));
        assert_eq!(next(&news).await, ("second".to_owned(), Duration::ZERO));
        let busy = news.reconcile_guard();
        let (told, passed) = next(&news).await;
        assert_eq!(
            (told.as_str(), passed),
            ("third", PUBLISH_TIMEOUT - Duration::from_secs(2))
        );
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_put_into_an_empty_line_is_told_at_once() {
        let news = EventQueue::default();
        news.open();
        let put = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            assert_eq!(news.put(telling(Severity::Normal, "it")), None);
        };
        let (told, ()) = tokio::join!(next(&news), put);
        assert_eq!(told, ("it".to_owned(), Duration::from_secs(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_would_tell_comes_back() {
        let news = EventQueue::default();
        let it = telling(Severity::Normal, "it");
        assert_eq!(news.put(it.clone()), Some(it.clone()));
        news.open();
        assert_eq!(news.put(it.clone()), None);
        assert_eq!(news.close(), std::slice::from_ref(&it));
        assert_eq!(news.put(it.clone()), Some(it));
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_than_can_be_kept_the_oldest_is_not_told() {
        let news = EventQueue::default();
        news.open();
        for what in 0..=MAX_PENDING_EVENTS {
            let _ = news.put(telling(Severity::Normal, &what.to_string()));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(next(&news).await.0, "1");
        assert_eq!(news.close().len(), MAX_PENDING_EVENTS - 1);
    }
}
