//! Requests that are read late: the client gave up long ago, and may have asked again, used the partition and released it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, PartitionId, Request, Timestamp};

use super::hosts::other_ledger;
use super::invariants::{BrokenInvariant, broken};
use super::world::SimWorld;

/// How late a request is read at most, in milliseconds: within the five minutes for which a ledger has to expect it.
const LATEST: u32 = 280_000;

/// Which partitions their owners want: asked for, and not released since.
#[derive(Default)]
pub(super) struct RequestedPartitions(BTreeMap<PartitionId, bool>);

impl RequestedPartitions {
    /// An owner asks for a partition.
    pub(super) fn asks(&mut self, id: &PartitionId) {
        self.0.insert(id.clone(), true);
    }

    /// An owner releases a partition.
    pub(super) fn releases(&mut self, id: &PartitionId) {
        self.0.insert(id.clone(), false);
    }

    /// Whether the owner of a partition has released it, and has not asked again.
    fn is_released(&self, id: &PartitionId) -> bool {
        self.0.get(id) == Some(&false)
    }
}

/// Has another process read `request` late.
pub(super) fn deliver_late(world: &Arc<SimWorld>, mut request: Request) {
    // Its client gives up now, and asks again.
    request.not_after = Some(Timestamp::from_millis(world.millis()));
    let pause = Duration::from_millis(u64::from(world.below(LATEST)));
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
        world.say(
            "world",
            format_args!("a request for {id}, attempt {}, is read", request.attempt),
        );
        // Its client does not wait for the answer any more.
        let _ = other_ledger(&world).await.ensure(request).await;
    });
}

/// A partition is made only for an owner that wants it.
pub(super) fn invariant_what_is_made_is_wanted(
    id: &PartitionId,
    before: Option<&Entry>,
    after: Option<&Entry>,
    wanted: &RequestedPartitions,
) -> Result<(), BrokenInvariant> {
    let is_asked_for = after.is_some_and(|entry| {
        matches!(
            entry.state,
            EntryState::Waiting { .. } | EntryState::Intent { .. }
        )
    });
    if before.is_none() && is_asked_for && wanted.is_released(id) {
        return broken(
            "what_is_made_is_wanted",
            format!("{id} is asked for again by a request that its owner made before it released {id}"),
        );
    }
    Ok(())
}
