//! Leases: for owners of whom nothing else tells whether they are alive. They say so themselves, in time.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Entry, Owner, OwnerLiveness, PartitionId, Timestamp, TransitionError};
use ipu_vipu_client::VipuController;
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::liveness::Liveness;
use crate::options::Clock;
use crate::store::LedgerStore;

/// A lease: who holds something under it is alive until it lapses, and longer if it was renewed. As text, which goes into
/// [`ipu_core::Request::holder`]: `lease:<seconds>:<milliseconds since 1970 when it lapses>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    seconds: u32,
    until: Timestamp,
}

/// Why a text is not a lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a lease: a lease is `lease:<1 to 604800 seconds>:<milliseconds since 1970>`")]
#[non_exhaustive]
pub struct LeaseError {
    /// What was given.
    pub text: String,
}

impl Lease {
    /// The longest: a week. Whoever is silent for longer is better looked after by a person.
    pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

    /// A lease of `length` from `now` on: whole seconds, at least one and at most [`LONGEST`](Self::LONGEST).
    #[must_use]
    pub fn of(length: Duration, now: Timestamp) -> Self {
        let seconds = length.as_secs().clamp(1, Self::MAX_DURATION.as_secs());
        Self {
            seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            until: now.plus(Duration::from_secs(seconds)),
        }
    }

    /// How long it is.
    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    /// When it lapses unless it is renewed.
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

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Renews the lease of the owner of `id`: it lasts `length` from now on. The owner should call this three times in every
    /// lease, so that one call may fail. It never creates a lease: a lease that lapses ends a partition, so only the request
    /// for the partition asks for one.
    ///
    /// # Errors
    ///
    /// [`ipu_core::TransitionError::NotTheOwner`] if it is another's, [`ipu_core::TransitionError::Moved`] if there is nothing to be kept any
    /// more, [`ipu_core::TransitionError::NoLease`] if the partition has no lease, and errors of the store.
    pub async fn heartbeat(
        &self,
        id: &PartitionId,
        owner: &Owner,
        length: Duration,
    ) -> Result<Lease, LedgerError> {
        let (id, owner) = (id.clone(), owner.clone());
        let lease = Lease::of(length, self.driver.options.now());
        self.driver
            .apply(move |state| {
                let step = state.renew_holder(&id, &owner, &lease.to_string())?;
                let recorded = state
                    .get(&id)
                    .is_some_and(|entry| entry.holder.parse::<Lease>().is_ok());
                if recorded {
                    Ok(step)
                } else {
                    Err(TransitionError::NoLease { id: id.clone() })
                }
            })
            .await?;
        Ok(lease)
    }
}

/// Judges owners by their leases. Dead is who let his lease lapse, and did not renew it for one whole lease in which this
/// process looked on: so nobody dies because the ledger itself was away, or because a clock was set. Of whoever has no
/// lease nothing is known.
pub struct LeaseLiveness {
    clock: Clock,
    seen: Mutex<BTreeMap<PartitionId, ObservedHeartbeat>>,
}

struct ObservedHeartbeat {
    lease: Lease,
    /// The time for which this process saw the lease unchanged.
    observed: Duration,
    last: Instant,
}

/// How many partitions are remembered before those are forgotten that were not asked for lately.
const REMEMBERED: usize = 4_096;

impl LeaseLiveness {
    /// A judge by this clock, which should be the ledger's.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: Mutex::default(),
        }
    }

    /// Whether the owner of `entry` is alive.
    #[must_use]
    pub fn judge(&self, entry: &Entry) -> OwnerLiveness {
        let Ok(lease) = entry.holder.parse::<Lease>() else {
            return OwnerLiveness::Unknown;
        };
        let now = Instant::now();
        let unchanged = self.unchanged_for(&entry.id, lease, now);
        if (self.clock)() < lease.until {
            OwnerLiveness::Live
        } else if unchanged >= lease.length() {
            OwnerLiveness::Dead
        } else {
            OwnerLiveness::Unknown
        }
    }

    /// Returns the time for which this process has seen this very lease. A gap between two checks counts as half of the
    /// lease at most.
    fn unchanged_for(&self, id: &PartitionId, lease: Lease, now: Instant) -> Duration {
        // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED {
            // Whoever is forgotten is only given more time.
            all.retain(|_, seen| now - seen.last < Lease::MAX_DURATION.min(2 * seen.lease.length()));
        }
        let fresh = || ObservedHeartbeat {
            lease,
            observed: Duration::ZERO,
            last: now,
        };
        let seen = all.entry(id.clone()).or_insert_with(fresh);
        if seen.lease != lease {
            *seen = fresh();
        }
        // A process that was suspended has heartbeats in its sockets that it has not read: no single gap is the end.
        seen.observed += (now - seen.last).min(lease.length() / 2);
        seen.last = now;
        seen.observed
    }
}

impl fmt::Debug for LeaseLiveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseLiveness").finish_non_exhaustive()
    }
}

#[async_trait]
impl Liveness for LeaseLiveness {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        self.judge(entry)
    }
}

#[async_trait]
impl Liveness for Arc<LeaseLiveness> {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        self.judge(entry)
    }
}
