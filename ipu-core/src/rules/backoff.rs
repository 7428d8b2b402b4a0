//! Back-off: how long a restart waits.
//!
//! Fields: `restartPolicy.backOffSeconds`
//! Source: ours, after the Job controller of Kubernetes
//!
//! | restarts used before | 0 | 1 | 2 | n |
//! |---|---|---|---|---|
//! | pause | b | 2 b | 4 b | 2ⁿ b, at most six minutes |
//!
//! A restart after success (Always) waits b, so that a command that ends at once does not spin. The partition is kept
//! and made ready during the pause.

use core::time::Duration;

/// The longest pause: the bound of the Kubernetes Job controller, long enough for a flapping service to come back and
/// short enough that somebody who watches does not give up.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(360);

/// The pause before a restart if `used` were used before it. A base beyond [`LONGEST`] is the job's own wish and kept.
pub(crate) fn decide(base: Duration, used: u32) -> Duration {
    let longest = MAX_BACKOFF.max(base);
    let factor = 1_u32.checked_shl(used).unwrap_or(u32::MAX);
    base.saturating_mul(factor).min(longest)
}
