//! Remove calls.

use std::time::Duration;

use ipu_core::{Entry, EntryState, LedgerState, PartitionState, RemovalRefusal, Timestamp, TransitionError};
use ipu_vipu_client::{VipuController, VipuError};

use super::create::IntentOrigin;
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::inflight_calls::Calls;
use crate::outcome::Released;
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Removes the partition of an entry that is being released, as far as possible within `timeout`.
    pub(crate) async fn remove(
        &self,
        entry: Entry,
        intent: IntentOrigin,
        timeout: Duration,
    ) -> Result<Released, LedgerError> {
        match self.try_remove(entry, intent, timeout).await {
            // A release is final: an entry with this id was created after another driver had finished the
            // release.
            Err(LedgerError::Illegal(TransitionError::Moved { .. })) => Ok(Released::Removed),
            other => other,
        }
    }

    async fn try_remove(
        &self,
        mut entry: Entry,
        mut intent: IntentOrigin,
        timeout: Duration,
    ) -> Result<Released, LedgerError> {
        let at = match self.controller_of(&entry) {
            Ok(at) => at,
            Err(error) => return Ok(in_progress(&error.to_string())),
        };
        if intent == IntentOrigin::Fresh {
            self.inflight.begin(&entry.id);
        } else if let Some(detail) = self.recent_refusal(&entry) {
            return Ok(in_progress(&detail));
        }
        let mut polls = self.polls(timeout);
        loop {
            let EntryState::Releasing { fence } = entry.state else {
                return Ok(in_progress("the partition is no longer being released"));
            };
            let requested = self
                .inflight
                .get(&entry.id, fence)
                .is_some_and(|calls| calls.accepted);
            let detail = if requested || intent == IntentOrigin::Found {
                match self.status(&at, &entry).await {
                    Err(VipuError::NotFound { .. }) => return self.finish(&at, &entry).await,
                    Ok(status) if requested && status.state == PartitionState::Removing => {
                        String::from("the controller is removing the partition")
                    }
                    Ok(status) => {
                        // The removal must be requested, possibly again.
                        entry = self.renew_fence(&entry).await?;
                        intent = IntentOrigin::Fresh;
                        if !requested {
                            continue;
                        }
                        format!("the controller reports {}", status.state.label())
                    }
                    Err(error) => error.to_string(),
                }
            } else {
                intent = IntentOrigin::Found;
                if self.is_late(fence) {
                    // The process was suspended, and a call must take effect before its fence.
                    continue;
                }
                match self.request_removal(&at, &entry, fence).await {
                    Ok(()) => continue,
                    Err(VipuError::NotFound { .. }) => return self.finish(&at, &entry).await,
                    Err(error) if entry.unforced.is_some() && needs_force(&error) => {
                        return self.record_refusal(&entry, fence, &error).await;
                    }
                    Err(error) => error.to_string(),
                }
            };
            if !polls.pause().await {
                return Ok(in_progress(&detail));
            }
        }
    }

    /// Returns the reason that the controller is not called now: it refused to remove the partition without
    /// force a moment ago.
    fn recent_refusal(&self, entry: &Entry) -> Option<String> {
        let refusal = entry.removal_refusal()?;
        let reason = entry.removal_reason()?;
        refusal.is_recent(self.window().now).then_some(reason.message)
    }

    /// Records that the controller refuses to remove the partition without force.
    async fn record_refusal(
        &self,
        entry: &Entry,
        fence: Timestamp,
        error: &VipuError,
    ) -> Result<Released, LedgerError> {
        tracing::warn!(id = %entry.id, %error, "the controller refuses to remove the partition without force");
        let refusal = RemovalRefusal::new(&error.to_string(), self.window().now);
        let id = entry.id.clone();
        let record = move |state: &LedgerState| state.refuse_removal(&id, fence, refusal.clone());
        match self.apply_to(entry, record).await {
            Ok(entry) => {
                let reason = entry.removal_reason();
                Ok(in_progress(
                    &reason.map_or_else(String::new, |reason| reason.message),
                ))
            }
            // Another driver continues the release, or it may use force now.
            Err(LedgerError::Illegal(TransitionError::Moved { .. })) => Ok(in_progress(&error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Requests the removal once. If the controller refuses because of errors, requests it again with force,
    /// unless the release must not use it.
    async fn request_removal(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
    ) -> Result<(), VipuError> {
        let deadline = self.options.call_deadline;
        let regular = at.controller.remove_partition(&entry.id, false);
        let mut result = self.listings.call(&at.name, deadline, regular).await;
        if entry.unforced.is_none() && result.as_ref().is_err_and(needs_force) {
            let forced = at.controller.remove_partition(&entry.id, true);
            result = self.listings.call(&at.name, deadline, forced).await;
        }
        let calls = Calls {
            fence,
            accepted: result.is_ok(),
            answered: result
                .as_ref()
                .err()
                .is_none_or(|error| !error.may_have_executed()),
        };
        self.inflight.record(&entry.id, calls);
        result
    }

    /// Removes the entry after the controller reported that the partition does not exist.
    async fn finish(&self, at: &ControllerHandle<C>, entry: &Entry) -> Result<Released, LedgerError> {
        self.listings.forget(&at.name, &entry.id);
        let (id, answered, now) = (
            entry.id.clone(),
            self.inflight.answered_fence(&entry.id),
            self.window().now,
        );
        let expected = entry.clone();
        let remove = move |state: &LedgerState| match state.get(&id) {
            Some(_) => state
                .ensure_unchanged(&expected)
                .and_then(|()| state.remove_released(&id, answered, now)),
            None => state.remove_released(&id, answered, now),
        };
        match self.apply(remove).await {
            Ok(()) => {
                self.inflight.forget(&entry.id);
                Ok(Released::Removed)
            }
            Err(LedgerError::Illegal(illegal @ TransitionError::Unsettled { until, .. })) => {
                if self.window().is_beyond(until) {
                    // The clock was set back: the remaining wait counts from now.
                    self.renew_fence(entry).await?;
                }
                Ok(in_progress(&illegal.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether the controller may remove the partition with force although it returned `error`.
const fn needs_force(error: &VipuError) -> bool {
    matches!(
        error,
        VipuError::Refused { .. } | VipuError::PartitionFailed { .. }
    )
}

fn in_progress(detail: &str) -> Released {
    Released::InProgress {
        detail: detail.into(),
    }
}
