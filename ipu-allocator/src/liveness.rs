//! The interface to the system that knows which owners are alive.

use std::sync::Arc;

use async_trait::async_trait;
use ipu_core::PartitionId;
use ipu_core::allocator::{Claim, Entry, OwnerLiveness};

/// Reports whether owners are alive. Return [`OwnerLiveness::Dead`] only if the owner has certainly ended and
/// none of its processes uses the partition. Return [`OwnerLiveness::Unknown`] in all uncertain cases; the
/// allocator releases nothing on it.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::sync::{Arc, Mutex};
///
/// use ipu_allocator::Options;
/// use ipu_core::allocator::{Entry, OwnerLiveness};
///
/// // The running jobs, which the scheduler has read from its own record before it starts the allocator.
/// let running: Arc<Mutex<BTreeSet<String>>> = Arc::default();
/// let mut options = Options::default();
/// options.liveness = Arc::new(move |entry: &Entry| match running.lock() {
///     Ok(running) if running.contains(&entry.holder) => OwnerLiveness::Live,
///     Ok(_) => OwnerLiveness::Dead,
///     Err(_) => OwnerLiveness::Unknown,
/// });
/// ```
#[async_trait]
pub trait Liveness: Send + Sync {
    /// Returns whether the owner of `entry` is alive.
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness;

    /// Returns the partitions of live owners according to their own records, not the allocator's, with the
    /// attempt that uses them now and, if recorded, their controller. Claims rebuild a lost record. The
    /// default has no claims: existing partitions are then quarantined until their owner requests them.
    async fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Called when changes of these entries could not be written: their owners may have tried in vain to show
    /// that they are alive, so that no silence until now counts. Forward it if you wrap another liveness.
    fn forget_silence(&self, _partitions: &[&PartitionId]) {}
}

/// A plain function suffices where no other system is queried.
#[async_trait]
impl<F: Fn(&Entry) -> OwnerLiveness + Send + Sync> Liveness for F {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        self(entry)
    }
}

#[async_trait]
impl Liveness for Arc<dyn Liveness> {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        (**self).liveness_of(entry).await
    }

    async fn claims(&self) -> Vec<Claim> {
        (**self).claims().await
    }

    fn forget_silence(&self, partitions: &[&PartitionId]) {
        (**self).forget_silence(partitions);
    }
}
