//! Bounded retries with jitter around any controller, only where trying again is safe.

use core::fmt;
use core::future::Future;
use core::time::Duration;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, Partition, PartitionId, PartitionState};

use crate::controller::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController};
use crate::error::{Retry, VipuError};
use crate::wait::{CreateLoop, Existing};

/// How often a call is tried in all: the first bridges nothing, the second a lost connection, the third and fourth, with
/// their pauses of up to 0.1, 0.2 and 0.4 s, a restart of a load balancer. What takes longer is the caller's to decide.
const ATTEMPTS: u32 = 4;

/// The longest first pause; doubled with every attempt. Of the order of a round trip between continents.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause, whatever the number of attempts or the controller's wish: longer, and the caller is better told.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often and how fast a failed call is tried again.
#[derive(Clone)]
#[non_exhaustive]
pub struct RetryOptions {
    /// How often a call is tried in all; 1 never tries again. 4 unless set.
    pub attempts: u32,
    /// The longest pause before the second attempt; 100 ms unless set. It doubles with every attempt.
    pub first_pause: Duration,
    /// The longest pause of all; 5 s unless set.
    pub longest_pause: Duration,
    /// A source of random numbers, for full jitter: every pause is a random part of its longest, so that clients that
    /// failed together do not come back together.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            attempts: ATTEMPTS,
            first_pause: PAUSE_FIRST,
            longest_pause: PAUSE_MAX,
            // The standard library seeds its hash maps from the system; jitter needs no more than that.
            random: Arc::new(|| RandomState::new().build_hasher().finish()),
        }
    }
}

impl fmt::Debug for RetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryOptions")
            .field("attempts", &self.attempts)
            .field("first_pause", &self.first_pause)
            .field("longest_pause", &self.longest_pause)
            .finish_non_exhaustive()
    }
}

impl RetryOptions {
    /// How long to pause after `error` of attempt number `attempt` (from 1), if it makes sense to try again.
    fn pause(&self, attempt: u32, error: &VipuError, random: u64) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let longest = match error.retry() {
            Retry::Never | Retry::AfterChange => return None,
            Retry::Soon => self.first_pause.saturating_mul(2_u32.saturating_pow(attempt - 1)),
            // Not before the controller's wish, and if that is long, not at all.
            Retry::After(wish) => return (wish <= self.longest_pause).then_some(wish),
        };
        let longest = longest.min(self.longest_pause);
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(random % nanos.saturating_add(1)))
    }
}

/// A controller whose calls are tried again where that is safe.
///
/// # Guarantees
///
/// - What only reads is tried again after a timeout, a broken connection or a failure of the controller.
/// - Remove is tried again; "not found" after an attempt that may have succeeded is success.
/// - Reset is tried again, unless the partition is being reset already. The caller must not hand the partition on before
///   the call returned: a second reset may follow the first.
/// - Create is settled by asking for the partition after an attempt that may have succeeded, and only tried again if it is
///   not there. A partition of that id that is not as asked is [`VipuError::AlreadyExists`].
#[derive(Clone, Debug)]
pub struct RetryLayer<C> {
    inner: C,
    options: RetryOptions,
}

impl<C> RetryLayer<C> {
    /// Wraps `inner`.
    #[must_use]
    pub const fn new(inner: C, options: RetryOptions) -> Self {
        Self { inner, options }
    }

    /// The controller inside.
    #[must_use]
    pub const fn inner(&self) -> &C {
        &self.inner
    }

    async fn again<T, F>(&self, what: &'static str, mut call: impl FnMut(u32) -> F) -> Result<T, VipuError>
    where
        F: Future<Output = Result<T, VipuError>>,
    {
        let mut attempt = 1;
        loop {
            match call(attempt).await {
                Ok(value) => return Ok(value),
                Err(error) => self.pause(what, attempt, error).await?,
            }
            attempt += 1;
        }
    }

    /// Pauses before the next attempt; gives `error` back if there is to be none.
    async fn pause(&self, what: &'static str, attempt: u32, error: VipuError) -> Result<(), VipuError> {
        let Some(pause) = self.options.pause(attempt, &error, (self.options.random)()) else {
            return Err(error);
        };
        tracing::debug!(call = what, attempt, error = %error, ?pause, "try again");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[async_trait]
impl<C: VipuController> VipuController for RetryLayer<C> {
    async fn version(&self) -> Result<String, VipuError> {
        self.again("version", |_| self.inner.version()).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.again("list_partitions", |_| {
            self.inner.list_partitions(allocation.clone())
        })
        .await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let mut making = CreateLoop::new(Existing::Refuse);
        let mut attempt = 1;
        loop {
            match making.attempt(&self.inner, &request).await {
                Ok(()) => return Ok(request.id),
                Err(error) => self.pause("create_partition", attempt, error).await?,
            }
            attempt += 1;
        }
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.again("partition_status", |_| self.inner.partition_status(id))
            .await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.again("ipuof_config", |_| self.inner.ipuof_config(id, gcd))
            .await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.again("reset_partition", |attempt| async move {
            if attempt > 1 && self.inner.partition_status(id).await?.state == PartitionState::Resetting {
                return Ok(());
            }
            self.inner.reset_partition(id).await
        })
        .await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.again("remove_partition", |attempt| async move {
            match self.inner.remove_partition(id, force).await {
                Err(VipuError::NotFound { .. }) if attempt > 1 => Ok(()),
                answer => answer,
            }
        })
        .await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.again("ipu_attributes", |_| self.inner.ipu_attributes(agents))
            .await
    }
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests;
