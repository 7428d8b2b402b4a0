//! Resumes an intent for which another driver may have called already, dead or alive.

use ipu_core::{Entry, EntryState, Operation, RepeatedCreate, Timestamp, TransitionError};
use ipu_vipu_client::{VipuController, VipuError};
use tokio::time::Instant;

use super::create::{Accepted, Answered, CreateOutcome, OUTDATED, unanswered};
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

/// The result of taking over another driver's intent.
pub(super) enum TakenOver {
    /// The call may be made now.
    Call(Entry),
    /// The entry changed, or its call was accepted already: evaluate it again.
    Retry(Entry),
    /// The partition does not fit any more, and its request is queued again.
    Requeued,
    /// The intent cannot proceed now.
    Blocked(EnsureOutcome),
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Takes an intent over. `called_before` means that this process made the call.
    pub(super) async fn take_over(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        called_before: bool,
    ) -> Result<TakenOver, LedgerError> {
        let EntryState::Intent { operation, fence } = entry.state else {
            return Ok(TakenOver::Retry(entry));
        };
        if operation == Operation::Reset {
            // A reset of another driver may be in flight. A second reset would not finish earlier, and a
            // live driver finishes its own.
            let window = self.window();
            if !called_before && fence > window.now && !window.is_beyond(fence) {
                return Ok(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Resetting)));
            }
            if let (true, Some(blocked)) = (called_before, self.backoff_outcome(at, &entry)) {
                return Ok(blocked);
            }
        } else {
            match self.status(at, &entry).await {
                Ok(_) if called_before => {
                    self.record_calls(&entry, fence, Answered::No, Accepted::Yes);
                    return Ok(TakenOver::Retry(entry));
                }
                Ok(_) => {
                    let location = match self.locate(at, &entry).await {
                        Ok(Some(location)) => location,
                        Ok(None) => return Ok(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Creating))),
                        Err(error) => return Ok(TakenOver::Blocked(unanswered(at, &error))),
                    };
                    let (id, answered, window) = (
                        entry.id.clone(),
                        self.inflight.answered_fence(&entry.id),
                        self.windows(),
                    );
                    let found = self.apply_to(&entry, move |state| {
                        state.claim_found(&id, answered, location.clone(), window())
                    });
                    return Ok(TakenOver::Call(found.await?));
                }
                Err(VipuError::NotFound { .. }) => {
                    // The controller refused the call, and an earlier call is not settled: back off before
                    // the next one.
                    if let (true, Some(blocked)) = (called_before, self.backoff_outcome(at, &entry)) {
                        return Ok(blocked);
                    }
                    if self.is_outdated(at, &entry).await? {
                        return self.requeue_outdated(at, &entry, fence).await;
                    }
                    let taken = self.repeat_create(at, &entry).await?;
                    if let TakenOver::Call(entry) = &taken {
                        self.record_repeated(entry, called_before);
                    }
                    return Ok(taken);
                }
                Err(error) => return Ok(TakenOver::Blocked(unanswered(at, &error))),
            }
        }
        let entry = self.renew_fence(&entry).await?;
        self.record_repeated(&entry, called_before);
        Ok(TakenOver::Call(entry))
    }

    /// Queues a request again whose create call would name IPUs that its controller refuses. There is no call
    /// to make, so the fence is not renewed: two processes would otherwise wait for the fences of each other.
    async fn requeue_outdated(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
    ) -> Result<TakenOver, LedgerError> {
        let is_answered = self.inflight.answered_fence(&entry.id) == Some(fence);
        let window = self.window();
        if !is_answered && fence > window.now && !window.is_beyond(fence) {
            return Ok(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Unanswered {
                controller: at.name.clone(),
                detail: String::from(OUTDATED),
            })));
        }
        let requeued = self.requeue(at, entry, fence, None, String::from(OUTDATED));
        Ok(match requeued.await? {
            CreateOutcome::NoCapacity => TakenOver::Requeued,
            CreateOutcome::Done(outcome) => TakenOver::Blocked(outcome),
        })
    }

    /// Records that a call of this process for an earlier fence was unanswered.
    fn record_repeated(&self, entry: &Entry, called_before: bool) {
        if let EntryState::Intent { fence, .. } = entry.state
            && called_before
        {
            self.record_calls(entry, fence, Answered::No, Accepted::No);
        }
    }

    /// Returns the outcome while a refused call for `entry` is in backoff.
    fn backoff_outcome(&self, at: &ControllerHandle<C>, entry: &Entry) -> Option<TakenOver> {
        let detail = self.inflight.backoff_reason(&entry.id)?;
        Some(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Unanswered {
            controller: at.name.clone(),
            detail,
        })))
    }

    /// Decides the placement again before a create call is repeated: the free capacity may have changed since
    /// the intent.
    pub(super) async fn repeat_create(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<TakenOver, LedgerError> {
        let snapshot = self.snapshot(Instant::now()).await;
        let view = snapshot.controllers.iter().find(|view| view.name == at.name);
        if let Some(Err(reason)) = view.map(|view| &view.listing) {
            return Ok(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Unanswered {
                controller: at.name.clone(),
                detail: reason.message.clone(),
            })));
        }
        let (id, answered, window) = (
            entry.id.clone(),
            self.inflight.answered_fence(&entry.id),
            self.windows(),
        );
        let repeated = self.apply_to(entry, move |state| {
            state.repeat_create(&id, answered, &snapshot, window())
        });
        match repeated.await {
            Ok(RepeatedCreate::Call(entry)) => Ok(TakenOver::Call(*entry)),
            Ok(RepeatedCreate::Requeued) => {
                self.inflight.forget(&entry.id);
                Ok(TakenOver::Requeued)
            }
            Err(LedgerError::Illegal(unsettled @ TransitionError::Unsettled { .. })) => {
                self.inflight.back_off(&entry.id, self.options.max_poll_interval);
                Ok(TakenOver::Blocked(EnsureOutcome::Pending(Pending::Unanswered {
                    controller: at.name.clone(),
                    detail: format!("the partition does not fit any more, and {unsettled}"),
                })))
            }
            Err(error) => Err(error),
        }
    }
}
