//! Whether the operator goes on: by the progress of what runs in it, not by whether it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long one piece of work may take unless told otherwise: a call to the API server or the proxy is given up after seconds,
/// and a pass over a job makes dozens of them at most.
pub const WORK_BOUND: Duration = Duration::from_secs(180);

/// A watch that was not said to fail for so long works, and there is nothing to tell: it would be tried again after a minute at
/// most, and a try takes half a minute at most.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// What is under way, what has to be heard of, and what has to be there before the operator is ready. Clones share it.
///
/// ```
/// use ipu_operator::Progress;
///
/// let progress = Progress::default();
/// progress.await_ready("ipujobs");
/// assert!(progress.waits_for().contains("ipujobs"));
/// progress.ready("ipujobs");
///
/// let working = progress.begin("default/mnist");
/// assert_eq!(progress.stuck(), None);
/// drop(working); // The pass over the job ended, whichever way.
/// ```
#[derive(Clone, Debug)]
pub struct HealthRegistry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bound: Duration,
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    next: u64,
    /// What is under way: what, and until when it has to end.
    working: BTreeMap<u64, (String, Instant)>,
    /// Until when each loop has to say that it goes on.
    loops: BTreeMap<&'static str, Instant>,
    /// Watches that cannot be had: since when, and when that was last tried.
    failing: BTreeMap<String, (Instant, Instant)>,
    waits_for: BTreeSet<String>,
}

impl Default for HealthRegistry {
    /// Work may take [`WORK_BOUND`].
    fn default() -> Self {
        Self::new(WORK_BOUND)
    }
}

impl HealthRegistry {
    /// Work that takes longer than `bound` is stuck.
    #[must_use]
    pub fn new(bound: Duration) -> Self {
        Self(Arc::new(Inner {
            bound,
            state: Mutex::default(),
        }))
    }

    /// Work on `what` begins; it ends when the answer is dropped.
    #[must_use = "the work ends when this is dropped"]
    pub fn begin(&self, what: impl Into<String>) -> WorkGuard {
        let due = Instant::now() + self.0.bound;
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.working.insert(number, (what.into(), due));
        WorkGuard {
            progress: self.clone(),
            number,
        }
    }

    /// The loop `name` goes on, and says so again after at most `pause` and the bound of a piece of work.
    pub fn beat(&self, name: &'static str, pause: Duration) {
        self.state()
            .loops
            .insert(name, Instant::now() + pause + self.0.bound);
    }

    /// The loop `name` has ended, and that is right.
    pub fn end(&self, name: &'static str) {
        self.state().loops.remove(name);
    }

    /// The watch `name` cannot be had. It is stuck if that goes on for longer than work may take.
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

    /// The watch `name` hears something.
    pub fn watch_ok(&self, name: &str) {
        self.state().failing.remove(name);
    }

    /// Nothing is watched any more, and that is right.
    pub fn clear_watches(&self) {
        self.state().failing.clear();
    }

    /// The operator is not ready before `what` is.
    pub fn await_ready(&self, what: impl Into<String>) {
        self.state().waits_for.insert(what.into());
    }

    /// `what` is there.
    pub fn ready(&self, what: &str) {
        self.state().waits_for.remove(what);
    }

    /// What is not there yet.
    #[must_use]
    pub fn waits_for(&self) -> BTreeSet<String> {
        self.state().waits_for.clone()
    }

    /// What should have ended or gone on, and by how much it is late; none if all goes on.
    #[must_use]
    pub fn stuck(&self) -> Option<(String, Duration)> {
        let now = Instant::now();
        let state = self.state();
        let work = state.working.values().map(|(what, due)| (what.as_str(), *due));
        let loops = state.loops.iter().map(|(name, due)| (*name, *due));
        let (bound, fresh) = (self.0.bound, |last: Instant| now < last + STALL_TIMEOUT);
        let failing = state.failing.iter();
        let watches = failing.map(|(name, (since, last))| (name.as_str(), *since + bound, *last));
        let watches = watches
            .filter(|(_, due, last)| due < last && fresh(*last))
            .map(|(name, due, _)| (name, due));
        let late = work.chain(loops).chain(watches).filter(|(_, due)| *due < now);
        let (what, due) = late.min_by_key(|(_, due)| *due)?;
        Some((what.to_owned(), now - due))
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn state(&self) -> MutexGuard<'_, HealthState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work that is under way, until this is dropped.
#[derive(Debug)]
pub struct WorkGuard {
    progress: HealthRegistry,
    number: u64,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.progress.state().working.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_is_stuck_and_other_work_on_the_same_thing_does_not_hide_it() {
        let progress = HealthRegistry::new(Duration::from_secs(60));
        let first = progress.begin("default/mnist");
        tokio::time::advance(Duration::from_secs(50)).await;
        let second = progress.begin("default/mnist");
        drop(second);
        tokio::time::advance(Duration::from_secs(20)).await;
        let stuck = progress.stuck().unwrap();
        assert_eq!(stuck, ("default/mnist".to_owned(), Duration::from_secs(10)));
        drop(first);
        assert_eq!(progress.stuck(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_again_and_again_is_stuck_until_it_hears_or_is_quiet() {
        let progress = HealthRegistry::new(Duration::from_secs(60));
        let fail_for = async |seconds: u64| {
            for _ in 0..seconds / 10 {
                progress.watch_failed("the watch");
                tokio::time::advance(Duration::from_secs(10)).await;
            }
        };
        fail_for(60).await;
        // It was mended, and has nothing to tell.
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(progress.stuck(), None);
        tokio::time::advance(STALL_TIMEOUT).await;
        fail_for(60).await;
        assert_eq!(progress.stuck(), None, "that was long ago");
        fail_for(30).await;
        assert_eq!(progress.stuck().unwrap().0, "the watch");
        progress.watch_ok("the watch");
        assert_eq!(progress.stuck(), None);
        fail_for(90).await;
        assert!(progress.stuck().is_some());
        tokio::time::advance(STALL_TIMEOUT).await;
        assert_eq!(progress.stuck(), None);
        fail_for(90).await;
        progress.clear_watches();
        assert_eq!(progress.stuck(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_is_silent_is_stuck_and_one_that_ended_is_not() {
        let progress = HealthRegistry::new(Duration::from_secs(60));
        progress.beat("certificates", Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(69)).await;
        assert_eq!(progress.stuck(), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(progress.stuck().is_some());
        progress.end("certificates");
        assert_eq!(progress.stuck(), None);
    }
}
