//! A create call that is made again: the free capacity may have changed since the intent was recorded.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::ids::PartitionId;
use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::capacity_snapshot::overlays_without;
use crate::ledger::entry::{Entry, EntryState, PlacedBy};
use crate::ledger::transition_error::{TransitionError, moved};
use crate::ledger::transitions::{CallWindow, Transition};
use crate::partition::IpuPlace;
use crate::units::Timestamp;

/// The decision on a create call that is to be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatedCreate {
    /// It may be made, for this entry.
    Call(Box<Entry>),
    /// It does not fit at its controller any more: the entry is back in the queue.
    Requeued,
}

impl LedgerState {
    /// Decides placement again for an intent whose partition its controller does not know, and moves its fence on like
    /// [`take_up`](Self::take_up). `world` must be newer than that answer of the controller.
    ///
    /// The recorded IPUs stay while an earlier call may still make the partition, because it would get those. An intent
    /// without recorded IPUs gets some, if the ledger can choose.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry is no intent any more. [`TransitionError::Unsettled`] if the partition does not fit and an
    /// earlier call may still make it, so that the entry cannot go back to the queue yet.
    pub fn repeat_create(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        world: &ControllersSnapshot,
        window: CallWindow,
    ) -> Result<Transition<RepeatedCreate>, TransitionError> {
        let entry = self.expect(id, "created again")?;
        let EntryState::Intent { fence, .. } = entry.state else {
            return Err(moved(entry, "created again"));
        };
        let own = (answered != Some(fence)).then_some(fence);
        let unsettled = own.max(entry.unsettled).filter(|until| *until > window.now);
        let Some(places) = self.room_for_again(entry, world) else {
            return match unsettled {
                Some(until) => Err(TransitionError::Unsettled {
                    id: id.clone(),
                    until,
                }),
                None => Ok(Transition::put(
                    &entry.requeued(None, window.now),
                    RepeatedCreate::Requeued,
                )),
            };
        };
        let mut again = self.claim_call(id, answered, window)?.outcome;
        if again.places.is_empty() && !places.is_empty() && unsettled.is_none() {
            again.places = places;
            again.placed = PlacedBy::Ledger;
        }
        Ok(Transition::put(
            &again,
            RepeatedCreate::Call(Box::new(again.clone())),
        ))
    }

    /// The IPUs for `entry` at its controller beside all other holders; empty if the controller chooses, none if there
    /// is no room. Recorded IPUs are kept if they are cordoned meanwhile.
    fn room_for_again(&self, entry: &Entry, world: &ControllersSnapshot) -> Option<Vec<IpuPlace>> {
        let name = entry.controller.as_ref()?;
        let is_placed = !entry.places.is_empty();
        let world = &*self.by_controller(world);
        let overlays = overlays_without(self, world, (!is_placed).then_some(&entry.id));
        let name = world.primary(name);
        let mut overlay = overlays.into_iter().find(|overlay| overlay.name == *name)?;
        if overlay.closed().is_some() {
            return None;
        }
        if is_placed {
            let in_conflict = overlay.conflicts.iter().any(|other| other.id == entry.id);
            return (!in_conflict).then(|| entry.places.clone());
        }
        if overlay.now.has(&entry.id) {
            // It is there by now, and the call will say so.
            return Some(Vec::new());
        }
        overlay.now.reserve(&entry.id, &entry.spec, &entry.pin.ipus).ok()
    }
}
