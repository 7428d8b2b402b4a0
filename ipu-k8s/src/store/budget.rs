//! A limit on written bytes, so that etcd keeps up.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Sustained rate in bytes per second. etcd keeps every version of an object until the API server has it
/// compacted, for up to ten minutes. Beyond its quota, 2 GiB by default, it refuses every write of the
/// cluster. With [`MAX_BURST`], this rate writes 1.4 GiB in ten minutes.
const BYTES_PER_SECOND: u64 = 2 << 20;

/// Time at that rate whose bytes may be written at once after a pause: 256 MiB.
const MAX_BURST: Duration = Duration::from_secs(128);

/// The time at which the bytes written so far have been paid for at [`BYTES_PER_SECOND`].
pub(super) struct WriteBudget(Mutex<Instant>);

impl WriteBudget {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Waits until so many bytes may be written.
    pub(super) async fn spend(&self, bytes: usize) {
        let wait = self.pay(bytes);
        if !wait.is_zero() {
            tracing::debug!(?wait, "the record is written faster than etcd compacts it");
            tokio::time::sleep(wait).await;
        }
    }

    fn pay(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let micros = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(1_000_000) / BYTES_PER_SECOND;
        let mut paid = self.0.lock();
        *paid = (*paid).max(now) + Duration::from_micros(micros);
        paid.saturating_duration_since(now).saturating_sub(MAX_BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_free_and_then_two_mebibytes_a_second_are_written() {
        let budget = WriteBudget::new();
        let begun = Instant::now();
        for _ in 0..256 {
            budget.spend(1 << 20).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            budget.spend(1 << 20).await;
        }
        let elapsed = begun.elapsed();
        assert!((9.9..10.2).contains(&elapsed.as_secs_f64()), "{elapsed:?}");
    }
}
