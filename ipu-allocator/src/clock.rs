//! The time of day.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ipu_core::Timestamp;

/// A source of the time of day.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Returns the clock of the operating system.
pub(crate) fn system_clock() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    })
}
