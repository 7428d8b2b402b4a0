//! Late requests: their client timed out long ago, and may have retried, used the partition and released it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, PartitionId, Request, Timestamp};

use super::hosts::other_ledger;
use super::invariants::{BrokenInvariant, broken};
use super::world::SimWorld;

/// Maximum delay of a request, in milliseconds: within the five minutes that a ledger must allow for.
const MAX_DELAY_MS: u32 = 280_000;

/// Partitions that their owners have requested, and whether they released them since.
#[derive(Default)]
pub(super) struct RequestedPartitions(BTreeMap<PartitionId, bool>);

impl RequestedPartitions {
    /// Records a request of an owner.
    pub(super) fn request(&mut self, id: &PartitionId) {
        self.0.insert(id.clone(), true);
    }

    /// Records a release by an owner.
    pub(super) fn release(&mut self, id: &PartitionId) {
        self.0.insert(id.clone(), false);
    }

    /// Returns whether the owner of a partition has released it and not requested it again.
    fn is_released(&self, id: &PartitionId) -> bool {
        self.0.get(id) == Some(&false)
    }
}

/// Lets another process receive `request` late.
pub(super) fn deliver_late(world: &Arc<SimWorld>, mut request: Request) {
    // Its client times out now, and retries.
    request.not_after = Some(Timestamp::from_millis(world.millis()));
    let pause = Duration::from_millis(u64::from(world.below(MAX_DELAY_MS)));
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        if world.state().broken.is_some() {
            return;
        }
        let id = request.id.clone();
        let event = if world.state().wanted.is_released(&id) {
            "request read after its owner released the partition"
        } else {
            "request read late"
        };
        world.count_event(event);
        world.log(
            "world",
            format_args!("a late request for {id}, attempt {}, arrives", request.attempt),
        );
        // Its client no longer waits for the reply.
        let _ = other_ledger(&world).await.ensure(request).await;
    });
}

/// Checks that a partition is created only for an owner that requests it.
pub(super) fn invariant_partitions_are_created_only_on_request(
    id: &PartitionId,
    before: Option<&Entry>,
    after: Option<&Entry>,
    wanted: &RequestedPartitions,
) -> Result<(), BrokenInvariant> {
    let is_requested = after.is_some_and(|entry| {
        matches!(
            entry.state,
            EntryState::Waiting { .. } | EntryState::Intent { .. }
        )
    });
    if before.is_none() && is_requested && wanted.is_released(id) {
        return broken(
            "partitions_are_created_only_on_request",
            format!("{id} is requested again by a request that its owner made before it released {id}"),
        );
    }
    Ok(())
}
