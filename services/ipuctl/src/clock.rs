//! Reads the system clock for the core, which has none.

use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
