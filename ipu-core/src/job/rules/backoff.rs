//! Back-off: how long a restart is delayed.
//!
//! Fields: `restartPolicy.backOffSeconds`
//! Source: this project, after the Job controller of Kubernetes
//!
//! | restarts used before | 0 | 1 | 2 | n |
//! |---|---|---|---|---|
//! | pause | b | 2 b | 4 b | 2ⁿ b, at most six minutes |
//!
//! A restart after success (Always) waits b, so that a command that exits immediately does not restart in a
//! busy loop. The instance keeps its partition, which is reset during the back-off.

use core::time::Duration;

/// The maximum back-off, as in the Kubernetes Job controller: long enough for a flapping service to recover,
/// short enough for interactive use.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(360);

/// Returns the delay of a restart after `used` earlier ones. A `base` above [`MAX_BACKOFF`] is an explicit
/// setting of the job and applies unchanged.
pub(crate) fn decide(base: Duration, used: u32) -> Duration {
    let limit = MAX_BACKOFF.max(base);
    let factor = 1_u32.checked_shl(used).unwrap_or(u32::MAX);
    base.saturating_mul(factor).min(limit)
}
