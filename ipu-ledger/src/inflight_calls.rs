//! What this process knows of the calls that it made: which were answered, and which task works on which partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};
use tokio::time::Instant;

/// The calls of one intent or release, known by its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) fence: Timestamp,
    /// The controller took on what was asked: its status tells the rest.
    pub(crate) accepted: bool,
    /// Every call was answered, so that none can have effect later.
    pub(crate) answered: bool,
}

/// The longest pause before a refused call is repeated: an unanswered call is settled after 30 s by default, and the
/// entry can go back to the queue then.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Until when a call is not repeated that was refused.
#[derive(Clone, Copy, Debug)]
struct CallBackoff {
    until: Instant,
    pause: Duration,
}

/// Calls by partition, and a lock per partition.
#[derive(Default)]
pub(crate) struct InflightCalls {
    calls: Mutex<BTreeMap<PartitionId, Calls>>,
    rests: Mutex<BTreeMap<PartitionId, CallBackoff>>,
    locks: Mutex<BTreeMap<PartitionId, Weak<tokio::sync::Mutex<()>>>>,
}

impl InflightCalls {
    /// What is known of the calls of the intent or release that has this fence.
    pub(crate) fn of(&self, id: &PartitionId, fence: Timestamp) -> Option<Calls> {
        locked(&self.calls)
            .get(id)
            .copied()
            .filter(|calls| calls.fence == fence)
    }

    /// The fence of the latest calls, if all of them were answered.
    pub(crate) fn answered(&self, id: &PartitionId) -> Option<Timestamp> {
        let calls = *locked(&self.calls).get(id)?;
        calls.answered.then_some(calls.fence)
    }

    pub(crate) fn note(&self, id: &PartitionId, calls: Calls) {
        locked(&self.calls).insert(id.clone(), calls);
    }

    /// An intent or a release of `id` was recorded just now: no call was made for it yet. What is known of calls before
    /// must not be taken for its own if the clock stood still or was put back, so that it has the same fence.
    pub(crate) fn begin(&self, id: &PartitionId) {
        locked(&self.calls).remove(id);
    }

    pub(crate) fn forget(&self, id: &PartitionId) {
        locked(&self.calls).remove(id);
        locked(&self.rests).remove(id);
    }

    /// The call for `id` was refused and has to be repeated: after `first`, and each time after twice as long, at most
    /// [`MAX_BACKOFF`].
    pub(crate) fn rest(&self, id: &PartitionId, first: Duration) {
        let mut rests = locked(&self.rests);
        let pause = rests.get(id).map_or(first, |rest| rest.pause.saturating_mul(2));
        let pause = pause.min(MAX_BACKOFF);
        let until = Instant::now() + pause;
        rests.insert(id.clone(), CallBackoff { until, pause });
    }

    /// Why the call for `id` is not repeated now; none if it may be.
    pub(crate) fn rests(&self, id: &PartitionId) -> Option<String> {
        let rest = *locked(&self.rests).get(id)?;
        (Instant::now() < rest.until).then(|| {
            String::from("it has no room, and an earlier call without an answer may still make the partition")
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

// Nothing panics while it is locked, so that what a poisoned lock holds is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_back_off_of_a_refused_call_stays_below_its_limit_however_often_it_is_refused() {
        let (book, id) = (InflightCalls::default(), PartitionId::new("p").unwrap());
        for _ in 0..200 {
            book.rest(&id, Duration::from_millis(500));
        }
        assert!(book.rests(&id).is_some());
        tokio::time::advance(MAX_BACKOFF).await;
        assert_eq!(book.rests(&id), None);
    }
}
