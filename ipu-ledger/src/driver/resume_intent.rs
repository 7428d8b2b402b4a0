//! Going on with an intent that somebody may have called for already: a driver that died, or one that is still at it.

use ipu_core::{Entry, EntryState, Operation, RepeatedCreate, TransitionError};
use ipu_vipu_client::{VipuController, VipuError};
use tokio::time::Instant;

use super::create::{Accepted, Answered, unanswered};
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

/// What looking after somebody else's intent came to.
pub(super) enum TakenOver {
    /// The call may be made now.
    Call(Entry),
    /// Look at it again: it has changed, or it was accepted already.
    Again(Entry),
    /// It does not fit any more, and is back in the queue.
    Requeued,
    /// Nothing is to be done for now.
    NotNow(EnsureOutcome),
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Takes an intent over; `called_before` says that it was this process that called.
    pub(super) async fn take_over(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        called_before: bool,
    ) -> Result<TakenOver, LedgerError> {
        let EntryState::Intent { operation, fence } = entry.state else {
            return Ok(TakenOver::Again(entry));
        };
        if operation == Operation::Reset {
            // Another driver's reset may be under way: a second one would not make it come earlier, and whoever lives
            // finishes it himself.
            let window = self.window();
            if !called_before && fence > window.now && !window.is_beyond(fence) {
                return Ok(TakenOver::NotNow(EnsureOutcome::Pending(Pending::Resetting)));
            }
            if let (true, Some(rest)) = (called_before, self.resting(at, &entry)) {
                return Ok(rest);
            }
        } else {
            match self.status(at, &entry).await {
                Ok(_) if called_before => {
                    self.note(&entry, fence, Answered::No, Accepted::Yes);
                    return Ok(TakenOver::Again(entry));
                }
                Ok(_) => {
                    let location = match self.locate(at, &entry).await {
                        Ok(Some(location)) => location,
                        Ok(None) => return Ok(TakenOver::NotNow(EnsureOutcome::Pending(Pending::Creating))),
                        Err(error) => return Ok(TakenOver::NotNow(unanswered(at, &error))),
                    };
                    let (id, answered, window) =
                        (entry.id.clone(), self.book.answered(&entry.id), self.windows());
                    let found = self.apply_to(&entry, move |state| {
                        state.claim_found(&id, answered, location.clone(), window())
                    });
                    return Ok(TakenOver::Call(found.await?));
                }
                Err(VipuError::NotFound { .. }) => {
                    // It was refused, and an earlier call is not settled: it need not be asked all the time.
                    if let (true, Some(rest)) = (called_before, self.resting(at, &entry)) {
                        return Ok(rest);
                    }
                    let taken = self.repeat_create(at, &entry).await?;
                    if let TakenOver::Call(entry) = &taken {
                        self.note_repeated(entry, called_before);
                    }
                    return Ok(taken);
                }
                Err(error) => return Ok(TakenOver::NotNow(unanswered(at, &error))),
            }
        }
        let entry = self.take_up(&entry).await?;
        self.note_repeated(&entry, called_before);
        Ok(TakenOver::Call(entry))
    }

    /// A call of this process for an earlier fence had no answer.
    fn note_repeated(&self, entry: &Entry, called_before: bool) {
        if let EntryState::Intent { fence, .. } = entry.state
            && called_before
        {
            self.note(entry, fence, Answered::No, Accepted::No);
        }
    }

    /// The answer while a refused call for `entry` is not repeated.
    fn resting(&self, at: &ControllerHandle<C>, entry: &Entry) -> Option<TakenOver> {
        let detail = self.book.rests(&entry.id)?;
        Some(TakenOver::NotNow(EnsureOutcome::Pending(Pending::Unanswered {
            controller: at.name.clone(),
            detail,
        })))
    }

    /// Decides placement again before a create call is repeated: the free capacity may have changed since the intent.
    pub(super) async fn repeat_create(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<TakenOver, LedgerError> {
        let world = self.world(Instant::now()).await;
        let view = world.controllers.iter().find(|view| view.name == at.name);
        if let Some(Err(reason)) = view.map(|view| &view.listing) {
            return Ok(TakenOver::NotNow(EnsureOutcome::Pending(Pending::Unanswered {
                controller: at.name.clone(),
                detail: reason.message.clone(),
            })));
        }
        let (id, answered, window) = (entry.id.clone(), self.book.answered(&entry.id), self.windows());
        let repeated = self.apply_to(entry, move |state| {
            state.repeat_create(&id, answered, &world, window())
        });
        match repeated.await {
            Ok(RepeatedCreate::Call(entry)) => Ok(TakenOver::Call(*entry)),
            Ok(RepeatedCreate::Requeued) => {
                self.book.forget(&entry.id);
                Ok(TakenOver::Requeued)
            }
            Err(LedgerError::Illegal(unsettled @ TransitionError::Unsettled { .. })) => {
                self.book.rest(&entry.id, self.options.longest_poll);
                Ok(TakenOver::NotNow(EnsureOutcome::Pending(Pending::Unanswered {
                    controller: at.name.clone(),
                    detail: format!("it does not fit any more, and {unsettled}"),
                })))
            }
            Err(error) => Err(error),
        }
    }
}
