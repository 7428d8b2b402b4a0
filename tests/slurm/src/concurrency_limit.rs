//! Limit of concurrent beds, so that a machine of two cores can run all tests of a crate.

use std::sync::{Condvar, Mutex, PoisonError};

/// Maximum number of concurrent beds per process. An idle bed takes 60 MiB and no processor time.
const MAX_BEDS: usize = 4;

static USED: Mutex<usize> = Mutex::new(0);
static RELEASED: Condvar = Condvar::new();

/// A permit to run a bed, released on drop.
#[derive(Debug)]
pub(crate) struct BedSlot(());

impl BedSlot {
    /// Waits for a free slot.
    pub(crate) fn wait() -> Self {
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut used = RELEASED
            .wait_while(used, |used| *used >= MAX_BEDS)
            .unwrap_or_else(PoisonError::into_inner);
        *used += 1;
        Self(())
    }
}

impl Drop for BedSlot {
    fn drop(&mut self) {
        *USED.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RELEASED.notify_one();
    }
}
