//! The clock that counts the time in which the process or the machine was suspended.

use ipu_core::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_BOOTTIME`, which never steps and counts suspension.
#[must_use]
pub fn boot_time() -> BootTime {
    let time = clock_gettime(ClockId::Boottime);
    let millis = time
        .tv_sec
        .saturating_mul(1000)
        .saturating_add(time.tv_nsec / 1_000_000);
    BootTime::from_millis(u64::try_from(millis).unwrap_or(0))
}
