//! How fast the ledger is written, so that etcd keeps up.
//!
//! etcd keeps every version of the object until the API server has it compacted, which is every five minutes; up to ten
//! minutes of writes are kept. Beyond its quota (2 GiB unless set) it refuses every write of the whole cluster until a person
//! repairs it. A large ledger that is written as fast as it goes would get there. So writes are counted in bytes: many may
//! come at once, and after that no more than so many a second. Requests that wait for the turn share the next write.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many bytes a second are written in the long run: with [`BURST`], 1.4 GiB in ten minutes.
const RATE: f64 = 2.0 * 1024.0 * 1024.0;

/// How many bytes may be written at once after a pause.
const BURST: f64 = 256.0 * 1024.0 * 1024.0;

/// What was written lately.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Level>);

#[derive(Debug)]
struct Level {
    /// Bytes that have not drained yet.
    bytes: f64,
    at: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Level {
            bytes: 0.0,
            at: Instant::now(),
        }))
    }

    /// Counts a write of so many bytes.
    pub(super) fn count(&self, bytes: usize) {
        let mut level = self.level();
        // An object is far smaller than what a float counts exactly.
        level.bytes += u32::try_from(bytes).map_or(BURST, f64::from);
    }

    /// How long the next write has to wait.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs_f64((self.level().bytes - BURST).max(0.0) / RATE)
    }

    /// The level now.
    fn level(&self) -> MutexGuard<'_, Level> {
        // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
        let mut level = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        level.bytes = (level.bytes - (now - level.at).as_secs_f64() * RATE).max(0.0);
        level.at = now;
        level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd takes unless set.
    const QUOTA: usize = 2 << 30;

    /// The largest object that etcd takes.
    const LARGEST: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn ten_minutes_of_writes_as_fast_as_they_go_stay_below_the_quota_of_etcd() {
        for size in [20_000, LARGEST] {
            let pace = Pace::new();
            let begun = Instant::now();
            let mut written = 0;
            while begun.elapsed() < Duration::from_secs(600) {
                tokio::time::sleep(pace.wait()).await;
                pace.count(size);
                written += size;
                // What a write takes.
                tokio::time::advance(Duration::from_millis(2)).await;
            }
            assert!(written < QUOTA * 3 / 4, "{written}");
            assert!(written > QUOTA / 2, "{written}: that would be slow for no reason");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_is_written_now_and_then_never_waits() {
        let pace = Pace::new();
        for _ in 0..10_000 {
            pace.count(LARGEST);
            assert_eq!(pace.wait(), Duration::ZERO);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
