//! Making and resetting.

use std::time::Duration;

use ipu_core::{
    ControllerRejection, Entry, EntryState, Location, Operation, PartitionState, PlacedBy, Timestamp,
    TransitionError, lost,
};
use ipu_vipu_client::{CreatePartition, VipuController, VipuError};

use super::resume_intent::TakenOver;
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::inflight_calls::Calls;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

/// Whether a call may be made for an intent without asking the status first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntentOrigin {
    /// It was recorded just now, by this driver, for this call.
    Fresh,
    /// Somebody may have called already.
    Found,
}

/// What an intent came to.
pub(crate) enum CreateOutcome {
    /// This.
    Answer(EnsureOutcome),
    /// The controller had no room: the entry is back in the line.
    NoRoom,
}

/// An intent that is being worked on.
struct CreateAttempt {
    entry: Entry,
    intent: IntentOrigin,
    /// Whether the reset found nothing to reset.
    again: bool,
    /// Whether placement was decided since then.
    replaced: bool,
    /// The last call that had no answer.
    unclear: Option<VipuError>,
}

/// What one step came to.
enum CreateProgress {
    /// The next one.
    On,
    /// There is an answer.
    Over(CreateOutcome),
    /// Look again, after a pause.
    Unclear,
}

/// What one call came to.
enum CallOutcome {
    /// The controller took it on, or something is there that is fresh.
    Accepted,
    /// Something is there that is not known to be fresh.
    Used,
    /// Nothing is there to be reset.
    Nothing,
    /// No answer.
    Unclear(VipuError),
    NoRoom(VipuError),
    Refused(VipuError),
}

/// How many calls one drive makes: create, then reset because it was there, then create because it was not any more, and
/// a repetition of each.
const ROUNDS: u32 = 6;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Does what an intent says, as far as it goes within `patience`.
    pub(crate) async fn make(
        &self,
        entry: Entry,
        intent: IntentOrigin,
        fingerprint: u64,
        patience: Duration,
    ) -> Result<CreateOutcome, LedgerError> {
        let at = self.controller_of(&entry)?;
        if intent == IntentOrigin::Fresh {
            self.book.begin(&entry.id);
        }
        let mut polls = self.polls(patience.max(self.options.longest_poll));
        let mut work = CreateAttempt {
            entry,
            intent,
            again: false,
            replaced: false,
            unclear: None,
        };
        for _ in 0..ROUNDS {
            match self.round(&at, &mut work, fingerprint, patience).await? {
                CreateProgress::On => {}
                CreateProgress::Over(made) => return Ok(made),
                CreateProgress::Unclear => {
                    if !polls.pause().await {
                        break;
                    }
                }
            }
        }
        Ok(CreateOutcome::Answer(match work.unclear {
            Some(error) => unanswered(&at, &error),
            None => EnsureOutcome::Pending(Pending::Creating),
        }))
    }

    /// One step of [`make`](Self::make): at most one call that changes something.
    async fn round(
        &self,
        at: &ControllerHandle<C>,
        work: &mut CreateAttempt,
        fingerprint: u64,
        patience: Duration,
    ) -> Result<CreateProgress, LedgerError> {
        let EntryState::Intent { operation, fence } = work.entry.state else {
            return Ok(CreateProgress::Over(CreateOutcome::Answer(
                EnsureOutcome::Pending(Pending::Creating),
            )));
        };
        let before = self.book.of(&work.entry.id, fence);
        if before.is_some_and(|calls| calls.accepted) {
            let answer = self.await_ready(at, work.entry.clone(), patience).await?;
            return Ok(CreateProgress::Over(CreateOutcome::Answer(answer)));
        }
        if work.intent == IntentOrigin::Found {
            let called_before = before.is_some();
            return match self.take_over(at, work.entry.clone(), called_before).await? {
                TakenOver::Call(taken) => {
                    work.entry = taken;
                    work.intent = IntentOrigin::Fresh;
                    Ok(CreateProgress::On)
                }
                TakenOver::Again(changed) => {
                    work.entry = changed;
                    Ok(CreateProgress::On)
                }
                TakenOver::Requeued => Ok(CreateProgress::Over(CreateOutcome::NoRoom)),
                TakenOver::NotNow(answer) => Ok(CreateProgress::Over(CreateOutcome::Answer(answer))),
            };
        }
        if self.is_late(fence) {
            // The process was suspended, and another one may have gone on with the intent since.
            if operation == Operation::Create {
                work.intent = IntentOrigin::Found;
                return Ok(CreateProgress::On);
            }
            if before.is_none() {
                self.note(&work.entry, fence, Answered::Yes, Accepted::No);
            }
            work.entry = self.take_up(&work.entry).await?;
            work.again = false;
            return Ok(CreateProgress::On);
        }
        if work.again && !work.replaced {
            // A lost partition is not made again without deciding its placement anew.
            return Ok(match self.repeat_create(at, &work.entry).await? {
                TakenOver::Call(entry) | TakenOver::Again(entry) => {
                    work.entry = entry;
                    work.replaced = true;
                    CreateProgress::On
                }
                TakenOver::Requeued => CreateProgress::Over(CreateOutcome::NoRoom),
                TakenOver::NotNow(answer) => CreateProgress::Over(CreateOutcome::Answer(answer)),
            });
        }
        let create = operation == Operation::Create || work.again;
        let called = if create {
            self.create(at, &work.entry, before.is_some()).await
        } else {
            self.reset(at, &work.entry).await
        };
        match called {
            CallOutcome::Accepted => self.note(&work.entry, fence, Answered::Yes, Accepted::Yes),
            CallOutcome::Used if create => {
                work.entry = self.reset_found(at, work.entry.clone(), fence).await?;
                work.again = false;
            }
            CallOutcome::Used => {}
            CallOutcome::Nothing => {
                self.note(&work.entry, fence, Answered::Yes, Accepted::No);
                (work.again, work.replaced) = (true, false);
            }
            CallOutcome::Unclear(error) => {
                tracing::warn!(id = %work.entry.id, %error, "a call was not answered; asking for the status");
                let answered = if error.may_have_happened() {
                    Answered::No
                } else {
                    Answered::Yes
                };
                self.note(&work.entry, fence, answered, Accepted::No);
                work.intent = IntentOrigin::Found;
                work.unclear = Some(error);
                return Ok(CreateProgress::Unclear);
            }
            CallOutcome::NoRoom(error) => {
                let made = self.back_to_line(at, &work.entry, fence, fingerprint, &error);
                return made.await.map(CreateProgress::Over);
            }
            CallOutcome::Refused(source) => {
                return Err(self.drop_refused(at, work.entry.clone(), fence, source).await);
            }
        }
        Ok(CreateProgress::On)
    }

    /// Drops an entry that the controller never makes, and says so.
    async fn drop_refused(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        fence: Timestamp,
        source: VipuError,
    ) -> LedgerError {
        self.note(&entry, fence, Answered::Yes, Accepted::No);
        let (id, window) = (entry.id.clone(), self.window());
        if let Err(error) = self.apply(move |state| state.refused(&id, fence, window)).await {
            return error;
        }
        self.book.forget(&entry.id);
        LedgerError::Refused {
            id: entry.id,
            controller: at.name.clone(),
            source: Box::new(source),
        }
    }

    async fn create(&self, at: &ControllerHandle<C>, entry: &Entry, called_before: bool) -> CallOutcome {
        let told = entry.placed == PlacedBy::Ledger
            || matches!(
                entry.state,
                EntryState::Intent {
                    operation: Operation::Reset,
                    ..
                }
            );
        let request = CreatePartition {
            id: entry.id.clone(),
            spec: entry.spec.clone(),
            ipus: if told { entry.places.clone() } else { Vec::new() },
        };
        let call = at.controller.create_partition(request);
        // The call before had no answer, and there was nothing before it.
        let there = || {
            if called_before {
                CallOutcome::Accepted
            } else {
                CallOutcome::Used
            }
        };
        let called = match self.views.call(&at.name, self.options.call_deadline, call).await {
            Ok(_) => CallOutcome::Accepted,
            Err(VipuError::AlreadyExists { .. }) => there(),
            Err(error @ (VipuError::NoCapacity { .. } | VipuError::Denied { .. })) => {
                CallOutcome::NoRoom(error)
            }
            Err(error) if error.may_have_happened() => CallOutcome::Unclear(error),
            // It is the IPUs that we chose that may be wrong, not what was asked for.
            Err(error) if entry.placed == PlacedBy::Ledger && entry.pin.ipus.is_empty() => {
                CallOutcome::NoRoom(error)
            }
            Err(error) => CallOutcome::Refused(error),
        };
        if !matches!(called, CallOutcome::NoRoom(_) | CallOutcome::Refused(_)) {
            return called;
        }
        // The call may have arrived twice, such as from a load balancer that tried again: what made the partition is not
        // heard, and the second found the room taken by the first.
        match self.status(at, entry).await {
            Err(VipuError::NotFound { .. }) => called,
            Ok(_) => there(),
            Err(error) => CallOutcome::Unclear(error),
        }
    }

    async fn reset(&self, at: &ControllerHandle<C>, entry: &Entry) -> CallOutcome {
        let call = at.controller.reset_partition(&entry.id);
        match self.views.call(&at.name, self.options.call_deadline, call).await {
            Ok(()) => CallOutcome::Accepted,
            Err(VipuError::NotFound { .. }) => CallOutcome::Nothing,
            Err(error @ VipuError::Refused { .. }) => match self.status(at, entry).await {
                // It is being made or reset already, and nobody can have used it since.
                Ok(status)
                    if matches!(status.state, PartitionState::Creating | PartitionState::Resetting) =>
                {
                    CallOutcome::Accepted
                }
                Err(VipuError::NotFound { .. }) => CallOutcome::Nothing,
                _ => CallOutcome::Unclear(error),
            },
            Err(error) => CallOutcome::Unclear(error),
        }
    }

    /// A partition of this id was there before: it is taken over, after a reset, if it is what was asked for.
    async fn reset_found(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        fence: Timestamp,
    ) -> Result<Entry, LedgerError> {
        let location = self.check_found(at, &entry, fence).await?;
        let id = entry.id;
        self.apply(move |state| state.downgrade_to_reset(&id, fence, location.clone()))
            .await
    }

    /// Returns the IPUs of a partition that was found; none if the controller does not say.
    async fn check_found(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
    ) -> Result<Location, LedgerError> {
        let call = at.controller.list_partitions(None);
        let Ok(listed) = self.views.call(&at.name, self.options.call_deadline, call).await else {
            return Ok(Location::default());
        };
        match listed.into_iter().find(|partition| partition.id == entry.id) {
            Some(partition) if !entry.matches(&partition.spec) => {
                let id = entry.id.clone();
                self.apply(move |state| state.taken_by_other(&id, fence)).await?;
                self.book.forget(&entry.id);
                Err(LedgerError::Illegal(TransitionError::Foreign {
                    id: entry.id.clone(),
                    controller: at.name.clone(),
                    found: partition.spec.size.get(),
                }))
            }
            Some(partition) => Ok(self.views.location_of(&at.name, partition)),
            None => Ok(Location::default()),
        }
    }

    /// The controller has no room: back to the line, unless an earlier call may still make the partition.
    async fn back_to_line(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
        fingerprint: u64,
        error: &VipuError,
    ) -> Result<CreateOutcome, LedgerError> {
        let words = match error {
            VipuError::NoCapacity { detail } => detail.clone(),
            other => other.to_string(),
        };
        tracing::info!(id = %entry.id, controller = %at.name, words, "the controller has no room");
        self.note(entry, fence, Answered::Yes, Accepted::No);
        let now = self.window().now;
        let refused = ControllerRejection {
            controller: at.name.clone(),
            message: words,
            fingerprint,
            at: now,
        };
        let id = entry.id.clone();
        let moved = self.apply(move |state| state.reject_create(&id, fence, refused.clone(), now));
        match moved.await {
            Ok(()) => {
                self.book.forget(&entry.id);
                Ok(CreateOutcome::NoRoom)
            }
            Err(LedgerError::Illegal(TransitionError::Unsettled { .. })) => {
                self.book.rest(&entry.id, self.options.longest_poll);
                Ok(CreateOutcome::Answer(unanswered(at, error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Polls until the partition is ready or in error, or the patience is over.
    async fn await_ready(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        patience: Duration,
    ) -> Result<EnsureOutcome, LedgerError> {
        let mut polls = self.polls(patience);
        loop {
            let pending = match self.status(at, &entry).await {
                Ok(status) => match status.state {
                    PartitionState::Active => return self.ready(at, &entry).await,
                    PartitionState::Failed { errors } => return self.broken(&entry, errors).await,
                    PartitionState::Creating => EnsureOutcome::Pending(Pending::Creating),
                    PartitionState::Resetting => EnsureOutcome::Pending(Pending::Resetting),
                    _ => EnsureOutcome::Pending(Pending::Releasing),
                },
                Err(VipuError::NotFound { .. }) => return self.broken(&entry, vec![lost(&at.name)]).await,
                Err(error) => unanswered(at, &error),
            };
            if !polls.pause().await {
                return Ok(pending);
            }
        }
    }

    pub(super) fn note(&self, entry: &Entry, fence: Timestamp, answered: Answered, accepted: Accepted) {
        let calls = Calls {
            fence,
            accepted: accepted == Accepted::Yes,
            answered: answered == Answered::Yes,
        };
        self.book.note(&entry.id, calls);
    }
}

/// Whether every call was answered.
#[derive(PartialEq, Eq)]
pub(super) enum Answered {
    Yes,
    No,
}

/// Whether the controller took on what was asked.
#[derive(PartialEq, Eq)]
pub(super) enum Accepted {
    Yes,
    No,
}

pub(super) fn unanswered<C: ?Sized>(at: &ControllerHandle<C>, error: &VipuError) -> EnsureOutcome {
    EnsureOutcome::Pending(Pending::Unanswered {
        controller: at.name.clone(),
        detail: error.to_string(),
    })
}
