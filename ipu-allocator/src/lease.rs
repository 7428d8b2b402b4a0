//! Leases: for owners whose liveness no other system reports. The owner renews its lease periodically.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::allocator::{Entry, OwnerLiveness};
use ipu_core::{PartitionId, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::liveness::Liveness;

/// A lease: its holder is alive until the lease expires, and longer if it was renewed. The text form is the
/// value of [`ipu_core::allocator::Request::holder`]: `lease:<seconds>:<milliseconds since 1970 when it
/// expires>`.
///
/// ```
/// use std::time::Duration;
///
/// use ipu_allocator::Lease;
/// use ipu_core::Timestamp;
///
/// let lease = Lease::of(Duration::from_secs(60), Timestamp::from_millis(0));
/// assert_eq!(lease.to_string().parse(), Ok(lease));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    seconds: u32,
    until: Timestamp,
}

/// The error for a text that is not a lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a lease: a lease is `lease:<1 to 604800 seconds>:<milliseconds since 1970>`")]
#[non_exhaustive]
pub struct LeaseError {
    /// The rejected text.
    pub text: String,
}

impl Lease {
    /// Maximum duration: one week. A longer silence calls for an administrator.
    pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Creates a lease of `length` from `now` on: whole seconds, at least one and at most
    /// [`MAX_DURATION`](Self::MAX_DURATION).
    #[must_use]
    pub fn of(length: Duration, now: Timestamp) -> Self {
        let seconds = length.as_secs().clamp(1, Self::MAX_DURATION.as_secs());
        Self {
            seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            until: now.plus(Duration::from_secs(seconds)),
        }
    }

    /// Returns the duration of the lease.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    /// Returns the time at which the lease expires unless it is renewed.
    #[must_use]
    pub const fn until(&self) -> Timestamp {
        self.until
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease:{}:{}", self.seconds, self.until.as_millis())
    }
}

impl FromStr for Lease {
    type Err = LeaseError;

    fn from_str(text: &str) -> Result<Self, LeaseError> {
        let parsed = || {
            let (seconds, until) = text.strip_prefix("lease:")?.split_once(':')?;
            let seconds: u32 = seconds.parse().ok()?;
            let until = Timestamp::from_millis(until.parse().ok()?);
            let in_range = seconds >= 1 && u64::from(seconds) <= Self::MAX_DURATION.as_secs();
            in_range.then_some(Self { seconds, until })
        };
        parsed().ok_or_else(|| LeaseError { text: text.into() })
    }
}

/// Judges owners by their leases. An owner is dead if its lease expired and was not renewed for one full
/// lease that this process observed. An outage of the ledger or a clock step therefore ends no owner. An
/// owner without a lease is [`OwnerLiveness::Unknown`].
///
/// ```
/// use std::sync::Arc;
///
/// use ipu_allocator::{LeaseLiveness, Options};
///
/// let mut options = Options::default();
/// options.liveness = Arc::new(LeaseLiveness::new(Arc::clone(&options.clock)));
/// ```
pub struct LeaseLiveness {
    clock: Clock,
    observed: Mutex<BTreeMap<PartitionId, ObservedHeartbeat>>,
}

struct ObservedHeartbeat {
    lease: Lease,
    /// Start of the phase of the entry.
    since: Timestamp,
    /// The time for which this process observed the lease unchanged.
    observed: Duration,
    last: Instant,
}

/// Maximum number of remembered partitions before those without recent checks are forgotten.
const MAX_REMEMBERED_LEASES: usize = 4_096;

/// Shortest time for which a lease is remembered: longer than the interval of comparisons.
const MIN_MEMORY: Duration = Duration::from_secs(600);

impl LeaseLiveness {
    /// Creates a judge with this clock, which should be the ledger's.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            observed: Mutex::default(),
        }
    }

    /// Returns whether the owner of `entry` is alive.
    #[must_use]
    pub fn judge(&self, entry: &Entry) -> OwnerLiveness {
        let Ok(lease) = entry.holder.parse::<Lease>() else {
            return OwnerLiveness::Unknown;
        };
        let now = Instant::now();
        let unchanged = self.unchanged_for(entry, lease, now);
        // A lease that ends later than it can is of a clock that has stepped back since.
        let left = lease.until.since((self.clock)());
        if !left.is_zero() && left <= lease.length() {
            OwnerLiveness::Live
        } else if unchanged >= lease.length() {
            OwnerLiveness::Dead
        } else {
            OwnerLiveness::Unknown
        }
    }

    /// Returns the time for which this process has observed the current lease. A gap between two checks
    /// counts as at most half of the lease.
    fn unchanged_for(&self, entry: &Entry, lease: Lease, now: Instant) -> Duration {
        let mut all = self.observed.lock();
        if all.len() >= MAX_REMEMBERED_LEASES {
            // A forgotten lease only gets more time.
            all.retain(|_, observed| {
                now - observed.last < (2 * observed.lease.length()).clamp(MIN_MEMORY, Lease::MAX_DURATION)
            });
        }
        let fresh = || ObservedHeartbeat {
            lease,
            since: entry.since,
            observed: Duration::ZERO,
            last: now,
        };
        let observed = all.entry(entry.id.clone()).or_insert_with(fresh);
        // A later request may have an equal lease. A refusal puts the entry back into the queue.
        let is_later = observed.since != entry.since && entry.refusals.is_empty();
        if observed.lease != lease || is_later {
            *observed = fresh();
        }
        // A process that was suspended has unread heartbeats in its sockets: a single gap must not end the
        // lease.
        observed.observed += (now - observed.last).min(lease.length() / 2);
        observed.last = now;
        observed.observed
    }
}

impl fmt::Debug for LeaseLiveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLiveness").finish_non_exhaustive()
    }
}

#[async_trait]
impl Liveness for LeaseLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        self.judge(entry)
    }

    fn forget_silence(&self, partitions: &[&PartitionId]) {
        let mut observed = self.observed.lock();
        for id in partitions {
            observed.remove(*id);
        }
    }
}

#[cfg(test)]
mod tests;
