//! Going on with an intent that somebody may have called for already: a driver that died, or one that is still at it.

use ipu_core::{Entry, EntryState, Operation};
use ipu_vipu_client::{VipuController, VipuError};

use super::make::{Accepted, Answered, unanswered};
use super::{At, Driver};
use crate::answer::{Answer, Pending};
use crate::error::LedgerError;
use crate::store::LedgerStore;

/// What looking after somebody else's intent came to.
pub(super) enum TakenOver {
    /// The call may be made now.
    Call(Entry),
    /// Look at it again: it has changed, or it was accepted already.
    Again(Entry),
    /// Nothing is to be done for now.
    NotNow(Answer),
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Takes an intent over; `called_before` says that it was this process that called.
    pub(super) async fn take_over(
        &self,
        at: &At<C>,
        entry: Entry,
        called_before: bool,
    ) -> Result<TakenOver, LedgerError> {
        let EntryState::Intent { operation, fence } = entry.state else {
            return Ok(TakenOver::Again(entry));
        };
        if operation == Operation::Reset {
            // Another driver's reset may be under way: a second one would not make it come earlier, and whoever lives
            // finishes it himself.
            if !called_before && fence > self.options.now() && !self.options.window().is_beyond(fence) {
                return Ok(TakenOver::NotNow(Answer::Pending(Pending::Resetting)));
            }
        } else {
            match self.status(at, &entry).await {
                Ok(_) if called_before => {
                    self.note(&entry, fence, Answered::No, Accepted::Yes);
                    return Ok(TakenOver::Again(entry));
                }
                Ok(_) => {
                    let (id, answered, window) = (
                        entry.id.clone(),
                        self.book.answered(&entry.id),
                        self.options.window(),
                    );
                    let found =
                        self.apply_to(&entry, move |state| state.take_up_found(&id, answered, window));
                    return Ok(TakenOver::Call(found.await?));
                }
                Err(VipuError::NotFound { .. }) => {
                    // It was refused, and an earlier call is not settled: it need not be asked all the time.
                    if let (true, Some(detail)) = (called_before, self.book.rests(&entry.id)) {
                        return Ok(TakenOver::NotNow(Answer::Pending(Pending::Unanswered {
                            controller: at.name.clone(),
                            detail,
                        })));
                    }
                }
                Err(error) => return Ok(TakenOver::NotNow(unanswered(at, &error))),
            }
        }
        let entry = self.take_up(&entry).await?;
        if let EntryState::Intent { fence, .. } = entry.state
            && called_before
        {
            self.note(&entry, fence, Answered::No, Accepted::No);
        }
        Ok(TakenOver::Call(entry))
    }
}
