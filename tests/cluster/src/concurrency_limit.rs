//! How many clusters run at a time: a machine of two cores and some GiB has to be enough for all tests of a crate.

use std::sync::{Condvar, Mutex, PoisonError};

/// How many clusters of tests of their own run at a time in one process, besides the shared one: each takes half a GiB, and
/// all of a core until it is ready.
const PLACES: usize = 2;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// The right to run a cluster; it is given back when this is dropped.
pub(crate) struct ClusterSlot(());

impl ClusterSlot {
    /// Waits for one.
    pub(crate) fn wait() -> Self {
        let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = GIVEN_BACK
            .wait_while(taken, |taken| *taken >= PLACES)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self(())
    }
}

impl Drop for ClusterSlot {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN_BACK.notify_one();
    }
}
