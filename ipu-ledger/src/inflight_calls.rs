//! The calls of this process: which were answered, and which task works on which partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};
use tokio::time::Instant;

/// The calls of one intent or release, identified by its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) fence: Timestamp,
    /// The controller accepted the call; its status shows the progress.
    pub(crate) accepted: bool,
    /// Every call was answered, so no call can take effect later.
    pub(crate) answered: bool,
}

/// Maximum pause before a refused call is repeated. An unanswered call is settled after 30 s by default, and
/// the entry can then be queued again.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The time until which a refused call is not repeated.
#[derive(Clone, Copy, Debug)]
struct CallBackoff {
    until: Instant,
    pause: Duration,
}

/// Calls by partition, and a lock per partition.
#[derive(Default)]
pub(crate) struct InflightCalls {
    calls: Mutex<BTreeMap<PartitionId, Calls>>,
    backoffs: Mutex<BTreeMap<PartitionId, CallBackoff>>,
    locks: Mutex<BTreeMap<PartitionId, Weak<tokio::sync::Mutex<()>>>>,
}

impl InflightCalls {
    /// Returns the calls of the intent or release with this fence.
    pub(crate) fn get(&self, id: &PartitionId, fence: Timestamp) -> Option<Calls> {
        locked(&self.calls)
            .get(id)
            .copied()
            .filter(|calls| calls.fence == fence)
    }

    /// Returns the fence of the latest calls, if all of them were answered.
    pub(crate) fn answered_fence(&self, id: &PartitionId) -> Option<Timestamp> {
        let calls = *locked(&self.calls).get(id)?;
        calls.answered.then_some(calls.fence)
    }

    pub(crate) fn record(&self, id: &PartitionId, calls: Calls) {
        locked(&self.calls).insert(id.clone(), calls);
    }

    /// Clears the calls of `id` after a new intent or release was recorded. If the clock did not advance or
    /// was set back, the new fence may equal the previous one. Earlier calls must not be taken for those of
    /// the new fence.
    pub(crate) fn begin(&self, id: &PartitionId) {
        locked(&self.calls).remove(id);
    }

    pub(crate) fn forget(&self, id: &PartitionId) {
        locked(&self.calls).remove(id);
        locked(&self.backoffs).remove(id);
    }

    /// Backs off after a refused call for `id`: first for `first`, then twice as long each time, at most
    /// [`MAX_BACKOFF`].
    pub(crate) fn back_off(&self, id: &PartitionId, first: Duration) {
        let mut backoffs = locked(&self.backoffs);
        let pause = backoffs
            .get(id)
            .map_or(first, |backoff| backoff.pause.saturating_mul(2));
        let pause = pause.min(MAX_BACKOFF);
        let until = Instant::now() + pause;
        backoffs.insert(id.clone(), CallBackoff { until, pause });
    }

    /// Returns the reason while the call for `id` is in backoff.
    pub(crate) fn backoff_reason(&self, id: &PartitionId) -> Option<String> {
        let backoff = *locked(&self.backoffs).get(id)?;
        (Instant::now() < backoff.until).then(|| {
            String::from("it has no capacity, and an earlier unanswered call may still create the partition")
        })
    }

    /// Waits until no other task of this process works on `id`.
    pub(crate) async fn lock(&self, id: &PartitionId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = locked(&self.locks);
            if let Some(lock) = locks.get(id).and_then(Weak::upgrade) {
                lock
            } else {
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::default();
                locks.insert(id.clone(), Arc::downgrade(&lock));
                lock
            }
        };
        lock.lock_owned().await
    }
}

// The critical sections do not panic, so the content of a poisoned lock is consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_backoff_of_a_call_stays_at_its_limit_after_many_refusals() {
        let (inflight, id) = (InflightCalls::default(), PartitionId::new("p").unwrap());
        for _ in 0..200 {
            inflight.back_off(&id, Duration::from_millis(500));
        }
        assert!(inflight.backoff_reason(&id).is_some());
        tokio::time::advance(MAX_BACKOFF).await;
        assert_eq!(inflight.backoff_reason(&id), None);
    }
}
