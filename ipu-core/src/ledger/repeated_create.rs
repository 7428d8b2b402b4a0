//! Repeated create calls: the free capacity may have changed since the intent was recorded.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::ids::PartitionId;
use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::capacity_snapshot::capacity_snapshots_without;
use crate::ledger::entry::{Entry, EntryState, PlacedBy};
use crate::ledger::transition_error::{TransitionError, moved};
use crate::ledger::transitions::{CallWindow, Transition};
use crate::partition::IpuPlace;
use crate::units::Timestamp;

/// The decision on a repeated create call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatedCreate {
    /// Make the call, for this entry.
    Call(Box<Entry>),
    /// The partition no longer fits at its controller; the entry is back in the queue.
    Requeued,
}

impl LedgerState {
    /// Decides the placement again for an intent whose partition its controller does not list, and advances
    /// its fence like [`claim_call`](Self::claim_call). `snapshot` must be newer than that response of the
    /// controller.
    ///
    /// The recorded IPUs are kept while an earlier call may still create the partition, because it would get
    /// those. An intent without recorded IPUs gets some, if the ledger can choose.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry is no longer an intent. [`TransitionError::Unsettled`] if the
    /// partition does not fit and an earlier call may still create it, so that the entry cannot be requeued
    /// yet.
    pub fn repeat_create(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        snapshot: &ControllersSnapshot,
        window: CallWindow,
    ) -> Result<Transition<RepeatedCreate>, TransitionError> {
        let entry = self.expect(id, "recreated")?;
        let EntryState::Intent { fence, .. } = entry.state else {
            return Err(moved(entry, "recreated"));
        };
        let own_fence = (answered != Some(fence)).then_some(fence);
        let unsettled = own_fence.max(entry.unsettled).filter(|until| *until > window.now);
        let Some(places) = self.places_for_retry(entry, snapshot) else {
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
        let mut retried = self.claim_call(id, answered, window)?.outcome;
        if retried.places.is_empty() && !places.is_empty() && unsettled.is_none() {
            retried.places = places;
            retried.placed = PlacedBy::Ledger;
        }
        Ok(Transition::put(
            &retried,
            RepeatedCreate::Call(Box::new(retried.clone())),
        ))
    }

    /// Returns the IPUs for `entry` at its controller beside all other holders; empty if the controller
    /// chooses, none if there is no capacity. Recorded IPUs are kept even if they are cordoned meanwhile.
    fn places_for_retry(&self, entry: &Entry, snapshot: &ControllersSnapshot) -> Option<Vec<IpuPlace>> {
        let name = entry.controller.as_ref()?;
        let is_placed = !entry.places.is_empty();
        let snapshot = &*self.by_controller(snapshot);
        let capacities = capacity_snapshots_without(self, snapshot, (!is_placed).then_some(&entry.id));
        let name = snapshot.primary(name);
        let mut capacity = capacities.into_iter().find(|capacity| capacity.name == *name)?;
        if capacity.closed_reason().is_some() {
            return None;
        }
        if is_placed {
            let in_conflict = capacity.conflicts.iter().any(|other| other.id == entry.id);
            return (!in_conflict).then(|| entry.places.clone());
        }
        if capacity.current.has(&entry.id) {
            // It exists by now, and the call will report so.
            return Some(Vec::new());
        }
        capacity.place(entry).ok()
    }
}
