//! The transitions of one entry. Each is safe to repeat: what is already so changes nothing.

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
use crate::units::Timestamp;

/// An answer together with what has to be committed for it to be true.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transition<T> {
    /// The answer.
    pub outcome: T,
    /// To be committed in one write. Empty if nothing changes.
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

/// What a request comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// The owner has it (active or failed), for this attempt.
    Held(Entry),
    /// The controller has to be asked, or asked how far it is.
    Drive(Entry),
    /// It waits in the line.
    Stay(QueueStatus),
    /// It does not fit and did not want to wait: nothing is recorded.
    Rejected(QueueStatus),
    /// It is being given back; ask again when it is gone.
    Leaving(Entry),
}

/// What a release comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// There is nothing to give back.
    Nothing,
    /// It left the line.
    LeftLine,
    /// The controller has to be asked to remove it.
    Drive(Box<Entry>),
}

/// When a call is made: now, and how long at most until its effect is there or never comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallWindow {
    /// The moment of the decision.
    pub now: Timestamp,
    /// How long after it the effect of a call may still come.
    pub settle: Duration,
}

impl CallWindow {
    pub(crate) fn fence(self) -> Timestamp {
        self.now.plus(self.settle)
    }

    /// Refuses a request for the partition `id` that is read after its client gave up, at `not_after`.
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

    /// Whether `fence` lies further off than any call that was begun by now can need, by more than clocks differ: the
    /// clock was put back since it was recorded, and to wait for it would take too long.
    #[must_use]
    pub fn is_beyond(self, fence: Timestamp) -> bool {
        fence > self.fence().plus(CLOCKS_DIFFER)
    }
}

/// By how much the clocks of processes that share a ledger may differ, and fences be moved on besides: five times the
/// second that is asked for.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

impl LedgerState {
    /// The owner wants the partition reset for `attempt`, also if it is fresh for it already. One that is being made or
    /// reset just now is fresh anyway.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if it is somebody else's, the attempt is old, or there is nothing to reset.
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
            (EntryState::Intent { .. }, _) => Ok(changed(recorded, entry, |entry| entry)),
            (EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned, Some(controller)) => {
                let entry = entry.with_intent(controller, Operation::Reset, window);
                Ok(Transition::put(&entry, entry.clone()))
            }
            _ => Err(moved(recorded, "reset")),
        }
    }

    /// Before a driver makes a call for an entry that was recorded a while ago or by another driver: moves the fence on,
    /// so that everybody knows that a call may be under way. `answered` is the old fence if the caller made its calls and
    /// had their answers. A fence that lies further off than a call made now could need is a clock's that was put back
    /// since: it counts from now.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if no call is to be made for the entry any more.
    pub fn claim_call(
        &self,
        id: &PartitionId,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Entry>, TransitionError> {
        let mut entry = self.expect(id, "taken up")?.clone();
        entry.carry_unsettled_calls(answered);
        let latest = window.fence();
        let open = |until: Timestamp| {
            (until > window.now).then(|| if window.is_beyond(until) { latest } else { until })
        };
        entry.unsettled = entry.unsettled.and_then(open);
        entry.unsettled_reset = entry.unsettled_reset.and_then(open);
        match &mut entry.state {
            EntryState::Intent { fence, .. } | EntryState::Releasing { fence } => {
                *fence = if window.is_beyond(*fence) {
                    latest
                } else {
                    // Later than before in any case, so that a fence tells who recorded it.
                    latest.max(fence.plus(Duration::from_millis(1)))
                };
            }
            _ => return Err(moved(&entry, "taken up")),
        }
        Ok(Transition::put(&entry, entry.clone()))
    }

    /// The partition existed before the call that was to make it: nobody knows what it was used for, so it is reset.
    /// `fence` is that of the intent for which the call was made, `location` the IPUs that its controller lists.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call: then another driver looks after it.
    pub fn downgrade_to_reset(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        location: Location,
    ) -> Result<Transition<Entry>, TransitionError> {
        let mut entry = self.answered_create(id, fence, "reset")?.clone();
        entry.set_location(location);
        entry.state = EntryState::Intent {
            operation: Operation::Reset,
            fence,
        };
        Ok(Transition::put(&entry, entry.clone()))
    }

    /// Like [`take_up`](Self::take_up), of a partition that was found where another driver was to make one: it is reset.
    /// `location` is the IPUs that its controller lists.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry is no intent any more.
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

    /// The controller says that the partition is ready for `attempt`. `location` is the IPUs that it lists; without any
    /// the recorded ones stay. `answered` is the fence of the intent if the caller made its call and had the answer.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if it was released meanwhile, or is to be reset for a newer attempt. [`TransitionError::Unsettled`] if a
    /// reset may be under way that is not the caller's or was not answered: it could come when the owner's workers run.
    /// [`TransitionError::InUse`] if another owner may use some of its IPUs.
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
                let mut left = entry.clone();
                if !location.ipus.is_empty() {
                    left.set_location(location.clone());
                }
                if let Some(user) = self.user_of(&left, &left.location()) {
                    return Err(TransitionError::InUse {
                        id: id.clone(),
                        by: user.id.clone(),
                    });
                }
                left.carry_unsettled_calls(answered);
                let entry = left.with_state(EntryState::Active, now);
                Ok(Transition::put(&entry, entry.clone()))
            }
            EntryState::Active if entry.attempt == attempt => Ok(Transition::unchanged(entry.clone())),
            _ => Err(moved(entry, "active")),
        }
    }

    /// The controller says that the partition is in error, or (for one that was ready) does not know it any more.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the entry holds nothing any more, or is to be made ready for another attempt.
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
                let mut left = entry.clone();
                left.carry_unsettled_calls(answered);
                let entry = left.with_state(EntryState::Failed { errors }, now);
                Ok(Transition::put(&entry, entry.clone()))
            }
            EntryState::Failed { .. } if entry.attempt == attempt => Ok(Transition::unchanged(entry.clone())),
            _ => Err(moved(entry, "failed")),
        }
    }

    /// The controller answered that it has no room, and no other call is under way: the entry goes back to its place in
    /// the line. `fence` is that of the intent for which the call was made.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call, [`TransitionError::Unsettled`] while an earlier call that
    /// had no answer may still make the partition.
    pub fn reject_create(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        refused: ControllerRejection,
        now: Timestamp,
    ) -> Result<Transition<()>, TransitionError> {
        let entry = self.answered_create(id, fence, "waiting")?;
        if let Some(until) = entry.unsettled.filter(|until| *until > now) {
            return Err(TransitionError::Unsettled {
                id: id.clone(),
                until,
            });
        }
        Ok(Transition::put(&entry.requeued(Some(refused), now), ()))
    }

    /// The controller answered that it never makes such a partition: the entry is dropped; or released, while an earlier
    /// call that had no answer may still make it.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call.
    pub fn refused(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        window: CallWindow,
    ) -> Result<Transition<()>, TransitionError> {
        let entry = self.answered_create(id, fence, "refused")?;
        if entry.unsettled.is_some_and(|until| until > window.now) {
            let changes = entry.released(Some(fence), window).changes;
            return Ok(Transition { outcome: (), changes });
        }
        Ok(Transition::remove(id, ()))
    }

    /// The controller has something else under the id: the entry is dropped.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the intent is no longer the one of the call.
    pub fn taken_by_other(
        &self,
        id: &PartitionId,
        fence: Timestamp,
    ) -> Result<Transition<()>, TransitionError> {
        self.answered_create(id, fence, "refused")?;
        Ok(Transition::remove(id, ()))
    }

    /// The owner gives the partition back, or leaves the line. `attempt` is the newest that the caller knows of, so that
    /// one with an old record takes nothing away from the workers of a newer attempt; none is an order for whatever
    /// attempt. `answered` is the fence of the intent if the caller made its call and had the answer: then nothing of the
    /// intent can be under way any more. What is being given back already goes on whoever asks.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if it is somebody else's, [`TransitionError::StaleAttempt`] if a newer attempt asked for it.
    pub fn release(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        let Some(entry) = self.get(id) else {
            return Ok(Transition::unchanged(Release::Nothing));
        };
        check_owner(entry, owner, entry.instance)?;
        if let (Some(attempt), false) = (attempt, matches!(entry.state, EntryState::Releasing { .. })) {
            check_attempt(entry, attempt)?;
        }
        Ok(entry.released(answered, window))
    }

    /// The owner is alive, and `holder` tells from now on whether it still is.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if it is somebody else's, [`TransitionError::Moved`] if it is being given back, gone, or in quarantine.
    pub fn renew_holder(
        &self,
        id: &PartitionId,
        owner: &Owner,
        holder: &str,
    ) -> Result<Transition<Entry>, TransitionError> {
        let recorded = self.expect(id, "kept alive")?;
        check_owner(recorded, owner, recorded.instance)?;
        if matches!(
            recorded.state,
            EntryState::Releasing { .. } | EntryState::Quarantined
        ) {
            return Err(moved(recorded, "kept alive"));
        }
        let mut entry = recorded.clone();
        entry.holder = String::from(holder);
        Ok(changed(recorded, entry, |entry| entry))
    }

    /// A person orders the removal of a quarantined partition.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if it is not quarantined.
    pub fn release_quarantined(
        &self,
        id: &PartitionId,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        let entry = self.expect(id, "released")?;
        match &entry.state {
            EntryState::Quarantined | EntryState::Releasing { .. } => Ok(entry.released(None, window)),
            _ => Err(moved(entry, "released")),
        }
    }

    /// The controller says that it does not know the partition (any more). `answered` is the fence of the release if the
    /// caller made its calls and had their answers.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Unsettled`] while a call may be under way, [`TransitionError::Moved`] if it is not being released.
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
            return Err(moved(entry, "gone"));
        };
        let own = (answered != Some(*fence)).then_some(*fence);
        match own.max(entry.unsettled) {
            Some(until) if now < until => Err(TransitionError::Unsettled {
                id: id.clone(),
                until,
            }),
            _ => Ok(Transition::remove(id, ())),
        }
    }

    /// Whether the ledger still has the request of `seen` at the controller of `seen`. A driver asks this in the write that
    /// records what it heard from that controller: meanwhile another driver may have sent the request back to the line and
    /// to another controller, of which the first knows nothing.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if not.
    pub fn ensure_unchanged(&self, seen: &Entry) -> Result<(), TransitionError> {
        let entry = self.expect(&seen.id, "the same")?;
        if entry.ticket == seen.ticket && entry.controller == seen.controller {
            return Ok(());
        }
        Err(moved(entry, "the same"))
    }

    pub(crate) fn expect(&self, id: &PartitionId, wanted: &'static str) -> Result<&Entry, TransitionError> {
        self.get(id).ok_or_else(|| TransitionError::Moved {
            id: id.clone(),
            state: "gone",
            wanted,
        })
    }

    fn answered_create(
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
    /// The same entry as an intent at `controller`.
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

    /// Returns the entry at its place in the queue: nothing of it exists at a controller.
    pub(crate) fn requeued(&self, refused: Option<ControllerRejection>, now: Timestamp) -> Self {
        let mut entry = self.with_state(EntryState::Waiting { refused }, now);
        entry.controller = None;
        entry.aliases.clear();
        entry.held_since = None;
        entry.placed = PlacedBy::Controller;
        entry.set_location(Location::default());
        entry
    }

    /// The same entry, once more passed over.
    pub(crate) fn with_overtaken(&self) -> Self {
        let mut entry = self.clone();
        entry.overtaken = entry.overtaken.saturating_add(1);
        entry
    }

    /// What giving this entry back comes to.
    pub(crate) fn released(&self, answered: Option<Timestamp>, window: CallWindow) -> Transition<Release> {
        match &self.state {
            EntryState::Waiting { .. } => return Transition::remove(&self.id, Release::LeftLine),
            EntryState::Releasing { .. } => {
                return Transition::unchanged(Release::Drive(Box::new(self.clone())));
            }
            EntryState::Intent { .. }
            | EntryState::Active
            | EntryState::Failed { .. }
            | EntryState::Orphaned
            | EntryState::Quarantined => {}
        }
        let mut left = self.clone();
        left.carry_unsettled_calls(answered);
        let entry = left.with_state(
            EntryState::Releasing {
                fence: window.fence(),
            },
            window.now,
        );
        Transition::put(&entry, Release::Drive(Box::new(entry.clone())))
    }
}

pub(crate) fn changed<T>(recorded: &Entry, entry: Entry, outcome: fn(Entry) -> T) -> Transition<T> {
    if *recorded == entry {
        Transition::unchanged(outcome(entry))
    } else {
        Transition::put(&entry, outcome(entry.clone()))
    }
}
