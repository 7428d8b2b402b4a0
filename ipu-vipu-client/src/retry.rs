//! Bounded retries with jitter around any controller, only where a retry is safe.

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

/// Default number of attempts. The second bridges a lost connection; the third and fourth, with their pauses
/// of up to 0.1, 0.2 and 0.4 s, bridge a restart of a load balancer. Longer outages are left to the caller.
const DEFAULT_ATTEMPTS: u32 = 4;

/// Default upper bound of the first pause; doubled after every attempt. About one round trip between
/// continents.
const DEFAULT_FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Maximum pause, regardless of the number of attempts or the controller's delay: longer delays are better
/// reported to the caller.
const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(5);

/// Options of retries.
#[derive(Clone)]
#[non_exhaustive]
pub struct RetryOptions {
    /// Number of attempts per call; 1 disables retries. 4 unless set.
    pub attempts: u32,
    /// Upper bound of the pause before the second attempt; 100 ms unless set. It doubles after every attempt.
    pub first_pause: Duration,
    /// Maximum pause; 5 s unless set.
    pub max_pause: Duration,
    /// A source of random numbers for full jitter: each pause is a random part of its upper bound, so that
    /// clients that failed together do not retry together.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            attempts: DEFAULT_ATTEMPTS,
            first_pause: DEFAULT_FIRST_PAUSE,
            max_pause: DEFAULT_MAX_PAUSE,
            // The standard library seeds its hash maps from the system, which is sufficient for jitter.
            random: Arc::new(|| RandomState::new().build_hasher().finish()),
        }
    }
}

impl fmt::Debug for RetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryOptions")
            .field("attempts", &self.attempts)
            .field("first_pause", &self.first_pause)
            .field("max_pause", &self.max_pause)
            .finish_non_exhaustive()
    }
}

impl RetryOptions {
    /// Returns the pause after `error` of attempt number `attempt` (from 1), or `None` if no retry follows.
    fn pause(&self, attempt: u32, error: &VipuError, random: u64) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let longest = match error.retry() {
            Retry::Never | Retry::AfterChange => return None,
            Retry::Soon => self.first_pause.saturating_mul(2_u32.saturating_pow(attempt - 1)),
            // Not before the controller's delay; if the delay exceeds the maximum, no retry.
            Retry::After(delay) => return (delay <= self.max_pause).then_some(delay),
        };
        let longest = longest.min(self.max_pause);
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(random % nanos.saturating_add(1)))
    }
}

/// A controller that retries calls where that is safe.
///
/// # Guarantees
///
/// - Reads are retried after a timeout, a broken connection or a failure of the controller.
/// - Removals are retried; "not found" after an attempt that may have succeeded is success.
/// - Resets are retried unless the partition is being reset already. The caller must not grant the partition
///   before the call returns, because a second reset may follow the first.
/// - Creations are verified by a status query after an attempt that may have succeeded, and retried only if
///   the partition does not exist. A partition of this id with another specification is
///   [`VipuError::AlreadyExists`].
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

    /// Returns the wrapped controller.
    #[must_use]
    pub const fn inner(&self) -> &C {
        &self.inner
    }

    async fn retry_call<T, F>(
        &self,
        method: &'static str,
        mut call: impl FnMut(u32) -> F,
    ) -> Result<T, VipuError>
    where
        F: Future<Output = Result<T, VipuError>>,
    {
        let mut attempt = 1;
        loop {
            match call(attempt).await {
                Ok(value) => return Ok(value),
                Err(error) => self.pause(method, attempt, error).await?,
            }
            attempt += 1;
        }
    }

    /// Pauses before the next attempt; returns `error` if no attempt follows.
    async fn pause(&self, method: &'static str, attempt: u32, error: VipuError) -> Result<(), VipuError> {
        let Some(pause) = self.options.pause(attempt, &error, (self.options.random)()) else {
            return Err(error);
        };
        tracing::debug!(call = method, attempt, error = %error, ?pause, "retrying");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[async_trait]
impl<C: VipuController> VipuController for RetryLayer<C> {
    async fn version(&self) -> Result<String, VipuError> {
        self.retry_call("version", |_| self.inner.version()).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.retry_call("list_partitions", |_| {
            self.inner.list_partitions(allocation.clone())
        })
        .await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        let mut creation = CreateLoop::new(Existing::Refuse);
        let mut attempt = 1;
        loop {
            match creation.attempt(&self.inner, &request).await {
                Ok(()) => return Ok(request.id),
                Err(error) => self.pause("create_partition", attempt, error).await?,
            }
            attempt += 1;
        }
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.retry_call("partition_status", |_| self.inner.partition_status(id))
            .await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.retry_call("ipuof_config", |_| self.inner.ipuof_config(id, gcd))
            .await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.retry_call("reset_partition", |attempt| async move {
            if attempt > 1 && self.inner.partition_status(id).await?.state == PartitionState::Resetting {
                return Ok(());
            }
            self.inner.reset_partition(id).await
        })
        .await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.retry_call("remove_partition", |attempt| async move {
            match self.inner.remove_partition(id, force).await {
                Err(VipuError::NotFound { .. }) if attempt > 1 => Ok(()),
                result => result,
            }
        })
        .await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.retry_call("ipu_attributes", |_| self.inner.ipu_attributes(agents))
            .await
    }
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests;
