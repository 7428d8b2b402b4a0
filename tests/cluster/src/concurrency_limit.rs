//! Limit of concurrent clusters, so that a machine of two cores and some GiB can run all tests of a crate.

use std::sync::{Condvar, Mutex, PoisonError};

/// Maximum number of concurrent private clusters per process, besides the shared one. Each takes half a
/// GiB, and a full core until it is ready.
const MAX_PRIVATE_CLUSTERS: usize = 2;

static USED: Mutex<usize> = Mutex::new(0);
static RELEASED: Condvar = Condvar::new();

/// A permit to run a cluster, released on drop.
pub(crate) struct ClusterSlot(());

impl ClusterSlot {
    /// Waits for a free slot.
    pub(crate) fn wait() -> Self {
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used = RELEASED
            .wait_while(used, |used| *used >= MAX_PRIVATE_CLUSTERS)
            .unwrap_or_else(PoisonError::into_inner);
        *used += 1;
        Self(())
    }
}

impl Drop for ClusterSlot {
    fn drop(&mut self) {
        *USED.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RELEASED.notify_one();
    }
}
