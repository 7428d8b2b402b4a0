//! Health of the operator, derived from the progress of its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Default timeout of one work item: each call to the API server or the proxy times out after seconds, and
/// a reconciliation makes a few dozen calls.
const WORK_TIMEOUT: Duration = Duration::from_secs(180);

/// A watch without a reported failure for this long counts as healthy: retries start within a minute, and
/// one attempt takes at most half a minute.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Registry of running work, heartbeats, watches and readiness conditions. Clones share one state.
///
/// ```
/// use ipu_operator::HealthRegistry;
///
/// let health = HealthRegistry::default();
/// health.require("ipujobs");
/// assert!(health.pending().contains("ipujobs"));
/// health.mark_ready("ipujobs");
/// assert_eq!(health.overdue(), None);
/// ```
#[derive(Clone, Debug)]
pub struct HealthRegistry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    timeout: Duration,
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    next_id: u64,
    /// Running work by id: its name and its deadline.
    work_items: BTreeMap<u64, (String, Instant)>,
    /// Deadline of the next heartbeat of each loop.
    loops: BTreeMap<&'static str, Instant>,
    /// Failing watches: time of the first and of the last failure.
    failing: BTreeMap<String, (Instant, Instant)>,
    pending: BTreeSet<String>,
}

impl Default for HealthRegistry {
    /// Creates a registry in which work is overdue after three minutes.
    fn default() -> Self {
        Self::new(WORK_TIMEOUT)
    }
}

impl HealthRegistry {
    /// Creates a registry in which work is overdue after `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            timeout,
            state: Mutex::default(),
        }))
    }

    /// Registers running work; dropping the guard ends it.
    #[must_use = "the work ends when the guard is dropped"]
    pub(crate) fn begin_work(&self, name: impl Into<String>) -> WorkGuard {
        let due = Instant::now() + self.0.timeout;
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.work_items.insert(id, (name.into(), due));
        WorkGuard {
            health: self.clone(),
            id,
        }
    }

    /// Records a heartbeat of loop `name`; the next one is due within `pause` plus the work timeout.
    pub fn heartbeat(&self, name: &'static str, pause: Duration) {
        self.state()
            .loops
            .insert(name, Instant::now() + pause + self.0.timeout);
    }

    /// Records a failure of watch `name`; the watch is overdue if failures continue for longer than the
    /// work timeout.
    pub fn watch_failed(&self, name: &str) {
        let now = Instant::now();
        let mut state = self.state();
        match state.failing.get_mut(name) {
            Some((_, last)) if now < *last + STALL_TIMEOUT => *last = now,
            _ => {
                state.failing.insert(name.to_owned(), (now, now));
            }
        }
    }

    /// Records an event on watch `name`, which ends its failure.
    pub fn watch_ok(&self, name: &str) {
        self.state().failing.remove(name);
    }

    /// Removes all watches after their regular end.
    pub fn clear_watches(&self) {
        self.state().failing.clear();
    }

    /// Adds a readiness condition: the operator is not ready before `condition` is.
    pub fn require(&self, condition: impl Into<String>) {
        self.state().pending.insert(condition.into());
    }

    /// Marks a readiness condition as met.
    pub fn mark_ready(&self, condition: &str) {
        self.state().pending.remove(condition);
    }

    /// Returns the readiness conditions that are not met yet.
    #[must_use]
    pub fn pending(&self) -> BTreeSet<String> {
        self.state().pending.clone()
    }

    /// Returns the most overdue work, loop or watch and its delay; `None` if the operator is healthy.
    #[must_use]
    pub fn overdue(&self) -> Option<(String, Duration)> {
        let now = Instant::now();
        let state = self.state();
        let work = state.work_items.values().map(|(name, due)| (name.as_str(), *due));
        let loops = state.loops.iter().map(|(name, due)| (*name, *due));
        let (timeout, is_recent) = (self.0.timeout, |last: Instant| now < last + STALL_TIMEOUT);
        let failing = state.failing.iter();
        let watches = failing.map(|(name, (since, last))| (name.as_str(), *since + timeout, *last));
        let watches = watches
            .filter(|(_, due, last)| due < last && is_recent(*last))
            .map(|(name, due, _)| (name, due));
        let overdue_items = work.chain(loops).chain(watches).filter(|(_, due)| *due < now);
        let (name, due) = overdue_items.min_by_key(|(_, due)| *due)?;
        Some((name.to_owned(), now - due))
    }
    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.0.state.lock()
    }
}

/// Guard of running work; the work ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct WorkGuard {
    health: HealthRegistry,
    id: u64,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.health.state().work_items.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn endless_work_is_overdue_despite_finished_work_of_the_same_name() {
        let health = HealthRegistry::new(Duration::from_secs(60));
        let first = health.begin_work("default/mnist");
        tokio::time::advance(Duration::from_secs(50)).await;
        let second = health.begin_work("default/mnist");
        drop(second);
        tokio::time::advance(Duration::from_secs(20)).await;
        let overdue = health.overdue().unwrap();
        assert_eq!(overdue, ("default/mnist".to_owned(), Duration::from_secs(10)));
        drop(first);
        assert_eq!(health.overdue(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeatedly_failing_watch_is_overdue_until_an_event_or_silence() {
        let health = HealthRegistry::new(Duration::from_secs(60));
        let fail_for = async |seconds: u64| {
            for _ in 0..seconds / 10 {
                health.watch_failed("the watch");
                tokio::time::advance(Duration::from_secs(10)).await;
            }
        };
        fail_for(60).await;
        // The watch has recovered and is idle.
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(health.overdue(), None);
        tokio::time::advance(STALL_TIMEOUT).await;
        fail_for(60).await;
        assert_eq!(health.overdue(), None, "the failures are not consecutive");
        fail_for(30).await;
        assert_eq!(health.overdue().unwrap().0, "the watch");
        health.watch_ok("the watch");
        assert_eq!(health.overdue(), None);
        fail_for(90).await;
        assert!(health.overdue().is_some());
        tokio::time::advance(STALL_TIMEOUT).await;
        assert_eq!(health.overdue(), None);
        fail_for(90).await;
        health.clear_watches();
        assert_eq!(health.overdue(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_heartbeat_is_overdue() {
        let health = HealthRegistry::new(Duration::from_secs(60));
        health.heartbeat("certificates", Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(69)).await;
        assert_eq!(health.overdue(), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(health.overdue().is_some());
    }
}
