//! Waits for a condition of a test.

use std::time::{Duration, Instant};

/// Maximum time until a condition of a test holds: many times the need of an idle machine, for a loaded one.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Interval of polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `read` returns a value, at most [`TIMEOUT`].
pub(crate) fn poll<T>(mut read: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = read() {
            return Some(value);
        }
        if started.elapsed() > TIMEOUT {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
