//! The clock of the operating system, which the core does not read.

use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;

/// Returns the current time; 0 if the clock is set before 1970.
#[must_use]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(0).plus(since)
}
