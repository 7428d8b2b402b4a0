//! Giving back.

use std::time::Duration;

use ipu_core::{Entry, EntryState, LedgerState, PartitionState, Timestamp, TransitionError};
use ipu_vipu_client::{VipuController, VipuError};

use super::create::IntentOrigin;
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::inflight_calls::Calls;
use crate::outcome::Released;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Removes the partition of an entry that is being released, as far as it goes within `patience`.
    pub(crate) async fn remove(
        &self,
        entry: Entry,
        intent: IntentOrigin,
        patience: Duration,
    ) -> Result<Released, LedgerError> {
        match self.try_remove(entry, intent, patience).await {
            // A release never goes back: whatever has the id now came after another driver had finished it.
            Err(LedgerError::Illegal(TransitionError::Moved { .. })) => Ok(Released::Gone),
            other => other,
        }
    }

    async fn try_remove(
        &self,
        mut entry: Entry,
        mut intent: IntentOrigin,
        patience: Duration,
    ) -> Result<Released, LedgerError> {
        let at = match self.controller_of(&entry) {
            Ok(at) => at,
            Err(error) => return Ok(later(&error.to_string())),
        };
        if intent == IntentOrigin::Fresh {
            self.book.begin(&entry.id);
        }
        let mut polls = self.polls(patience);
        loop {
            let EntryState::Releasing { fence } = entry.state else {
                return Ok(later("it is not being released any more"));
            };
            let asked = self.book.of(&entry.id, fence).is_some_and(|calls| calls.accepted);
            let detail = if asked || intent == IntentOrigin::Found {
                match self.status(&at, &entry).await {
                    Err(VipuError::NotFound { .. }) => return self.gone(&at, &entry).await,
                    Ok(status) if asked && status.state == PartitionState::Removing => {
                        String::from("the controller is removing it")
                    }
                    Ok(status) => {
                        // It has to be asked, or asked again.
                        entry = self.take_up(&entry).await?;
                        intent = IntentOrigin::Fresh;
                        if !asked {
                            continue;
                        }
                        format!("the controller says {}", status.state.label())
                    }
                    Err(error) => error.to_string(),
                }
            } else {
                intent = IntentOrigin::Found;
                if self.is_late(fence) {
                    // The process was suspended: the effect of a call has to come before the fence.
                    continue;
                }
                match self.ask_to_remove(&at, &entry, fence).await {
                    Ok(()) => continue,
                    Err(VipuError::NotFound { .. }) => return self.gone(&at, &entry).await,
                    Err(error) => error.to_string(),
                }
            };
            if !polls.pause().await {
                return Ok(later(&detail));
            }
        }
    }

    /// Asks once; if the controller refuses because of errors, once more with force.
    async fn ask_to_remove(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
    ) -> Result<(), VipuError> {
        let deadline = self.options.call_deadline;
        let regular = at.controller.remove_partition(&entry.id, false);
        let mut answer = self.views.call(&at.name, deadline, regular).await;
        if let Err(VipuError::Refused { .. } | VipuError::PartitionFailed { .. }) = answer {
            let forced = at.controller.remove_partition(&entry.id, true);
            answer = self.views.call(&at.name, deadline, forced).await;
        }
        let calls = Calls {
            fence,
            accepted: answer.is_ok(),
            answered: answer
                .as_ref()
                .err()
                .is_none_or(|error| !error.may_have_happened()),
        };
        self.book.note(&entry.id, calls);
        answer
    }

    /// The controller does not know the partition.
    async fn gone(&self, at: &ControllerHandle<C>, entry: &Entry) -> Result<Released, LedgerError> {
        self.views.forget(&at.name, &entry.id);
        let (id, answered, now) = (entry.id.clone(), self.book.answered(&entry.id), self.window().now);
        let seen = entry.clone();
        let gone = move |state: &LedgerState| match state.get(&id) {
            Some(_) => state
                .ensure_unchanged(&seen)
                .and_then(|()| state.remove_released(&id, answered, now)),
            None => state.remove_released(&id, answered, now),
        };
        match self.apply(gone).await {
            Ok(()) => {
                self.book.forget(&entry.id);
                Ok(Released::Gone)
            }
            Err(LedgerError::Illegal(illegal @ TransitionError::Unsettled { until, .. })) => {
                if self.window().is_beyond(until) {
                    // The clock was put back: what is waited for counts from now.
                    self.take_up(entry).await?;
                }
                Ok(later(&illegal.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

fn later(detail: &str) -> Released {
    Released::InProgress {
        detail: detail.into(),
    }
}
