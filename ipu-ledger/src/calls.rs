//! What this process knows of the calls that it made: which were answered, and which task works on which partition.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ipu_core::{PartitionId, Timestamp};

/// The calls of one intent or release, known by its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) fence: Timestamp,
    /// The controller took on what was asked: its status tells the rest.
    pub(crate) accepted: bool,
    /// Every call was answered, so that none can have effect later.
    pub(crate) answered: bool,
}

/// Calls by partition, and a lock per partition.
#[derive(Default)]
pub(crate) struct CallBook {
    calls: Mutex<BTreeMap<PartitionId, Calls>>,
    locks: Mutex<BTreeMap<PartitionId, Weak<tokio::sync::Mutex<()>>>>,
}

impl CallBook {
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

    pub(crate) fn forget(&self, id: &PartitionId) {
        locked(&self.calls).remove(id);
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
