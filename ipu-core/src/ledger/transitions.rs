//! The transitions of one entry. Each is idempotent: a repeated transition changes nothing.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ids::{ControllerName, Owner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::change::Change;
use crate::ledger::entry::{ControllerRejection, Entry, EntryState, Operation, PlacedBy};
use crate::ledger::location::Location;
use crate::ledger::queue::QueueStatus;
use crate::ledger::transition_error::{TransitionError, check_attempt, check_owner, moved};
use crate::ledger::unforced_removal::Force;
use crate::units::Timestamp;

/// A result together with the changes that must be committed before it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transition<T> {
    /// The result.
    pub outcome: T,
    /// Changes to commit in one write. Empty if nothing changes.
    pub changes: Vec<Change>,
}

impl<T> Transition<T> {
    pub(crate) const fn unchanged(outcome: T) -> Self {
        Self {
            outcome,
            changes: Vec::new(),
        }
    }

    pub(crate) fn put(entry: &Entry, outcome: T) -> Self {
        Self {
            outcome,
            changes: Vec::from([Change::Put(Arc::new(entry.clone()))]),
        }
    }

    fn remove(id: &PartitionId, outcome: T) -> Self {
        Self {
            outcome,
            changes: Vec::from([Change::Remove(id.clone())]),
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The owner holds the partition (active or failed), for this attempt.
    Held(Entry),
    /// The caller must call the controller, or poll the progress of an earlier call.
    Drive(Entry),
    /// The request waits in the queue.
    Queued(QueueStatus),
    /// The request does not fit and was not to be queued; nothing is recorded.
    Rejected(QueueStatus),
    /// The partition is being released; the owner repeats the request once it is removed.
    Releasing(Entry),
}

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// There was nothing to release.
    NotHeld,
    /// The request updated the queue.
    Dequeued,
    /// The caller must ask the controller to remove the partition.
    Drive(Box<Entry>),
}

/// The time window of a controller call: its start, and the longest time until its effect is visible or can
/// no longer occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallWindow {
    /// Time of the decision.
    pub now: Timestamp,
    /// Longest time after `now` at which a call may still take effect.
    pub settle: Duration,
}

impl CallWindow {
    pub(crate) fn fence(self) -> Timestamp {
        self.now.plus(self.settle)
    }

    /// Rejects a request for partition `id` that is read after its client gave up, at `not_after`.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`].
    pub fn check_not_after(
        self,
        id: &PartitionId,
        not_after: Option<Timestamp>,
    ) -> Result<(), TransitionError> {
        match not_after.filter(|latest| *latest < self.now) {
            None => Ok(()),
            Some(not_after) => Err(TransitionError::TooLate {
                id: id.clone(),
                not_after,
                now: self.now,
            }),
        }
    }

    /// Returns whether `fence` is later than any call started by now can need, beyond the tolerated clock
    /// skew. This happens if the clock was set back after the fence was recorded; waiting for such a fence
    /// takes too long.
    #[must_use]
    pub fn is_beyond(self, fence: Timestamp) -> bool {
        fence > self.fence().plus(MAX_CLOCK_SKEW)
    }
}

/// Tolerated clock skew between processes that share a ledger, including advances of a fence: five times the
/// documented requirement of one second.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(5);

impl LedgerState {
    /// Requests a reset of the partition for `attempt`, even if it is already fresh for that attempt. A
    /// partition that is being created or reset is fresh anyway.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if another owner has the partition, the attempt is stale, or there is nothing to
    /// reset.
    pub fn reset(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: u32,
        window: CallWindow,
    ) -> Result<Transition<Entry>, TransitionError> {
        let recorded = self.expect(id, "reset")?;
        check_owner(recorded, owner, recorded.instance)?;
        check_attempt(recorded, attempt)?;
        let mut entry = recorded.clone();
        entry.attempt = attempt;
        match (&recorded.state, &recorded.controller) {
            (EntryState::Intent { .. }, _) => Ok(put_if_changed(recorded, entry, |entry| entry)),
            (EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned, Some(controller)) => {
                let entry = entry.with_intent(controller, Operation::Reset, window);
                Ok(Transition::put(&entry, entry.clone()))
            }
            _ => Err(moved(recorded, "reset")),
        }
    }

    /// Advances the fence before a driver makes a call for an entry that was recorded a while ago or by
    /// another driver. All drivers know then that a call may be under way.
    ///
    /// `answered` is the old fence if the caller made its calls and received all responses. If the clock was
    /// set back, a fence can be later than a call started now needs; it then counts from now.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry no longer needs a call.
    pub fn claim_call(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Entry>, TransitionError> {
        let entry = self.expect(id, "claimed")?.claimed(answered, window)?;
        Ok(Transition::put(&entry, entry.clone()))
    }

    /// Turns a create into a reset because the partition existed before the create call, and its previous use
    /// is unknown. `fence` is the fence of the intent of that call, `location` the IPUs that the controller
    /// lists.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call; another driver handles it
    /// then.
    pub fn downgrade_to_reset(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        location: Location,
    ) -> Result<Transition<Entry>, TransitionError> {
        let mut entry = self.expect_intent(id, fence, "reset")?.clone();
        entry.set_location(location);
        entry.state = EntryState::Intent {
            operation: Operation::Reset,
            fence,
        };
        Ok(Transition::put(&entry, entry.clone()))
    }

    /// Like [`claim_call`](Self::claim_call), for a partition that exists although another driver was to
    /// create it: it is reset. `location` is the IPUs that its controller lists.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry is no longer an intent.
    pub fn claim_found(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        location: Location,
        window: CallWindow,
    ) -> Result<Transition<Entry>, TransitionError> {
        let mut entry = self.claim_call(id, answered, window)?.outcome;
        entry.set_location(location);
        match &mut entry.state {
            EntryState::Intent { operation, .. } => *operation = Operation::Reset,
            _ => return Err(moved(&entry, "reset")),
        }
        Ok(Transition::put(&entry, entry.clone()))
    }

    /// Records that the controller reports the partition ready for `attempt`. `location` is the IPUs that it
    /// lists; if empty, the recorded ones are kept. `answered` is the fence of the intent if the caller made
    /// its call and received the response.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the partition was released meanwhile, or is to be reset for a newer
    /// attempt. [`TransitionError::Unsettled`] if a reset of another driver, or one without a response, may
    /// be under way: it could take effect while the owner's workers run. [`TransitionError::InUse`] if
    /// another owner may use some of the IPUs.
    pub fn mark_active(
        &self,
        id: &PartitionId,
        attempt: u32,
        location: &Location,
        answered: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Transition<Entry>, TransitionError> {
        let entry = self.expect(id, "active")?;
        match &entry.state {
            EntryState::Intent {
                operation: Operation::Reset,
                fence,
            } if entry.attempt == attempt && answered != Some(*fence) => Err(TransitionError::Unsettled {
                id: id.clone(),
                until: *fence,
            }),
            EntryState::Intent { .. } | EntryState::Failed { .. } if entry.attempt == attempt => {
                if let Some(until) = entry.unsettled_reset.filter(|until| *until > now) {
                    return Err(TransitionError::Unsettled {
                        id: id.clone(),
                        until,
                    });
                }
                let mut updated = entry.clone();
                if !location.ipus.is_empty() {
                    updated.set_location(location.clone());
                }
                if let Some(user) = self.user_of(&updated, &updated.location()) {
                    return Err(TransitionError::InUse {
                        id: id.clone(),
                        by: user.id.clone(),
                    });
                }
                updated.carry_unsettled_calls(answered);
                let entry = updated.with_state(EntryState::Active, now);
                Ok(Transition::put(&entry, entry.clone()))
            }
            EntryState::Active if entry.attempt == attempt => Ok(Transition::unchanged(entry.clone())),
            _ => Err(moved(entry, "active")),
        }
    }

    /// Records that the controller reports an error of the partition, or no longer lists one that was ready.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry holds nothing any more, or is to be made ready for another
    /// attempt.
    pub fn mark_failed(
        &self,
        id: &PartitionId,
        attempt: u32,
        answered: Option<Timestamp>,
        errors: Vec<String>,
        now: Timestamp,
    ) -> Result<Transition<Entry>, TransitionError> {
        let entry = self.expect(id, "failed")?;
        match &entry.state {
            EntryState::Intent { .. } | EntryState::Active if entry.attempt == attempt => {
                let mut updated = entry.clone();
                updated.carry_unsettled_calls(answered);
                let entry = updated.with_state(EntryState::Failed { errors }, now);
                Ok(Transition::put(&entry, entry.clone()))
            }
            EntryState::Failed { .. } if entry.attempt == attempt => Ok(Transition::unchanged(entry.clone())),
            _ => Err(moved(entry, "failed")),
        }
    }

    /// Returns the entry to its position in the queue because the controller has no capacity and no other
    /// call is under way. `fence` is the fence of the intent of the call. Without `refused`, the entry may
    /// start again at once, because its placement does not apply any more.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call.
    /// [`TransitionError::Unsettled`] while an earlier call without a response may still create the
    /// partition.
    pub fn reject_create(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        refused: impl Into<Option<ControllerRejection>>,
        now: Timestamp,
    ) -> Result<Transition<()>, TransitionError> {
        let entry = self.expect_intent(id, fence, "waiting")?;
        if let Some(until) = entry.unsettled.filter(|until| *until > now) {
            return Err(TransitionError::Unsettled {
                id: id.clone(),
                until,
            });
        }
        Ok(Transition::put(&entry.requeued(refused.into(), now), ()))
    }

    /// Drops the entry because the controller permanently refuses such a partition. If an earlier call
    /// without a response may still create it, the entry is released instead.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call.
    pub fn drop_refused(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        window: CallWindow,
    ) -> Result<Transition<()>, TransitionError> {
        let entry = self.expect_intent(id, fence, "refused")?;
        if entry.unsettled.is_some_and(|until| until > window.now) {
            let changes = entry.released(Some(fence), window).changes;
            return Ok(Transition { outcome: (), changes });
        }
        Ok(Transition::remove(id, ()))
    }

    /// Drops the entry because the controller has a different partition under its id.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call.
    pub fn drop_foreign(
        &self,
        id: &PartitionId,
        fence: Timestamp,
    ) -> Result<Transition<()>, TransitionError> {
        self.expect_intent(id, fence, "refused")?;
        Ok(Transition::remove(id, ()))
    }

    /// Releases the partition for its owner, or removes the request from the queue.
    ///
    /// `attempt` is the newest attempt that the caller knows of: a caller with an old record cannot release
    /// the partition of a newer attempt. None releases whatever the attempt is. `answered` is the fence of
    /// the intent if the caller made its call and received the response; no call of the intent can be under
    /// way then. A release that is already under way continues, whatever `attempt` is, and may use force from
    /// now on.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if another owner has the partition, [`TransitionError::StaleAttempt`]
    /// if a newer attempt has requested it.
    pub fn release(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        self.release_with(Force::Allowed, id, owner, attempt, answered, window)
    }

    /// Records that the owner is alive, and `holder` as the evidence to check from now on.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if another owner has the partition. [`TransitionError::Moved`] if it
    /// is being released, removed or quarantined.
    pub fn renew_holder(
        &self,
        id: &PartitionId,
        owner: &Owner,
        holder: &str,
    ) -> Result<Transition<Entry>, TransitionError> {
        let recorded = self.expect(id, "renewed")?;
        check_owner(recorded, owner, recorded.instance)?;
        if matches!(
            recorded.state,
            EntryState::Releasing { .. } | EntryState::Quarantined
        ) {
            return Err(moved(recorded, "renewed"));
        }
        let mut entry = recorded.clone();
        entry.holder = String::from(holder);
        Ok(put_if_changed(recorded, entry, |entry| entry))
    }

    /// Releases a quarantined partition by order of an administrator.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if it is not quarantined.
    pub fn release_quarantined(
        &self,
        id: &PartitionId,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        self.release_quarantined_with(Force::Allowed, id, window)
    }

    /// Removes an entry whose partition the controller does not list any more. `answered` is the fence of the
    /// release if the caller made its calls and received their responses.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Unsettled`] while a call may be under way, [`TransitionError::Moved`] if it is not
    /// being released.
    pub fn remove_released(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Transition<()>, TransitionError> {
        let Some(entry) = self.get(id) else {
            return Ok(Transition::unchanged(()));
        };
        let EntryState::Releasing { fence } = &entry.state else {
            return Err(moved(entry, "removed"));
        };
        let own_fence = (answered != Some(*fence)).then_some(*fence);
        match own_fence.max(entry.unsettled) {
            Some(until) if now < until => Err(TransitionError::Unsettled {
                id: id.clone(),
                until,
            }),
            _ => Ok(Transition::remove(id, ())),
        }
    }

    /// Checks that the ledger still has the request of `observed` at the controller of `observed`. A driver
    /// checks this in the write that records an observation of that controller. Meanwhile another driver may
    /// have requeued the request and started it at another controller.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if not.
    pub fn ensure_unchanged(&self, observed: &Entry) -> Result<(), TransitionError> {
        let entry = self.expect(&observed.id, "unchanged")?;
        if entry.ticket == observed.ticket && entry.controller == observed.controller {
            return Ok(());
        }
        Err(moved(entry, "unchanged"))
    }

    pub(crate) fn expect(&self, id: &PartitionId, wanted: &'static str) -> Result<&Entry, TransitionError> {
        self.get(id).ok_or_else(|| TransitionError::Moved {
            id: id.clone(),
            state: "gone",
            wanted,
        })
    }

    fn expect_intent(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        wanted: &'static str,
    ) -> Result<&Entry, TransitionError> {
        let entry = self.expect(id, wanted)?;
        match &entry.state {
            EntryState::Intent { fence: current, .. } if *current == fence => Ok(entry),
            _ => Err(moved(entry, wanted)),
        }
    }
}

impl Entry {
    /// Returns the entry with an advanced fence, as [`LedgerState::claim_call`] records it.
    pub(crate) fn claimed(
        &self,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Self, TransitionError> {
        let mut entry = self.clone();
        entry.carry_unsettled_calls(answered);
        let latest = window.fence();
        let still_open = |until: Timestamp| {
            (until > window.now).then(|| if window.is_beyond(until) { latest } else { until })
        };
        entry.unsettled = entry.unsettled.and_then(still_open);
        entry.unsettled_reset = entry.unsettled_reset.and_then(still_open);
        match &mut entry.state {
            EntryState::Intent { fence, .. } | EntryState::Releasing { fence } => {
                *fence = if window.is_beyond(*fence) {
                    latest
                } else {
                    // Always later than before, so that a fence identifies its writer.
                    latest.max(fence.plus(Duration::from_millis(1)))
                };
            }
            _ => return Err(moved(&entry, "claimed")),
        }
        Ok(entry)
    }

    /// Returns the entry as an intent at `controller`.
    pub(crate) fn with_intent(
        &self,
        controller: &ControllerName,
        operation: Operation,
        window: CallWindow,
    ) -> Self {
        let fence = window.fence();
        let mut entry = self.with_state(EntryState::Intent { operation, fence }, window.now);
        entry.controller = Some(controller.clone());
        entry.held_since = entry.held_since.or(Some(window.now));
        entry
    }

    /// Returns the entry at its position in the queue; nothing of it exists at a controller.
    pub(crate) fn requeued(&self, refused: Option<ControllerRejection>, now: Timestamp) -> Self {
        let mut entry = self.with_state(EntryState::Waiting { refused }, now);
        entry.controller = None;
        entry.aliases.clear();
        entry.held_since = None;
        entry.preemption = None;
        entry.placed = PlacedBy::Controller;
        entry.set_location(Location::default());
        entry
    }

    /// Returns the entry with one more overtaking counted.
    pub(crate) fn with_overtaken(&self) -> Self {
        let mut entry = self.clone();
        entry.overtaken = entry.overtaken.saturating_add(1);
        entry
    }

    /// Returns the transition that releases this entry.
    pub(crate) fn released(&self, answered: Option<Timestamp>, window: CallWindow) -> Transition<Release> {
        match &self.state {
            EntryState::Waiting { .. } => return Transition::remove(&self.id, Release::Dequeued),
            EntryState::Releasing { .. } => {
                return Transition::unchanged(Release::Drive(Box::new(self.clone())));
            }
            EntryState::Intent { .. }
            | EntryState::Active
            | EntryState::Failed { .. }
            | EntryState::Orphaned
            | EntryState::Quarantined => {}
        }
        let mut updated = self.clone();
        updated.carry_unsettled_calls(answered);
        let entry = updated.with_state(
            EntryState::Releasing {
                fence: window.fence(),
            },
            window.now,
        );
        Transition::put(&entry, Release::Drive(Box::new(entry.clone())))
    }
}

pub(crate) fn put_if_changed<T>(recorded: &Entry, entry: Entry, outcome: fn(Entry) -> T) -> Transition<T> {
    if *recorded == entry {
        Transition::unchanged(outcome(entry))
    } else {
        Transition::put(&entry, outcome(entry.clone()))
    }
}
