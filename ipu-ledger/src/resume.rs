//! Resumes recorded requests without making new ones.
//!
//! The owner may have released the partition since, through another process. A new request in its place would
//! create a partition without a user.

use std::time::Duration;

use ipu_core::{Entry, EntryState, LedgerState, OnNoCapacity, PartitionId, Request, TransitionError};
use ipu_vipu_client::VipuController;

use crate::caller::Expiry;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Resumes the operation of `expected` that is in flight: an intent, a queued request whose turn has
    /// come, a release. For components that finish the requests of other clients. Unlike
    /// [`ensure`](Self::ensure) and [`release`](Self::release), this makes no new request: if the entry is
    /// missing or has another operation in flight, it does nothing.
    ///
    /// # Errors
    ///
    /// As for [`ensure`](Self::ensure) and [`release`](Self::release).
    pub async fn resume(&self, expected: &Entry) -> Result<(), LedgerError> {
        let Some(request) = request_of(expected) else {
            // Repair finishes entries without an owner.
            return Ok(());
        };
        if !matches!(expected.state, EntryState::Releasing { .. }) {
            return match self
                .ensure_once(
                    &request,
                    Duration::ZERO,
                    RequestOrigin::Resume,
                    &Expiry::default(),
                )
                .await
            {
                Err(LedgerError::Illegal(TransitionError::Moved {
                    state: REMOVED_STATE, ..
                })) => Ok(()),
                other => other.map(drop),
            };
        }
        let _lock = self.driver.inflight.lock(&expected.id).await;
        let id = expected.id.clone();
        let still = move |state: &LedgerState| {
            let is_releasing = |entry: &Entry| matches!(entry.state, EntryState::Releasing { .. });
            if !state.get(&id).is_some_and(is_releasing) {
                return Err(entry_removed(&id));
            }
            state.resume_release(&id, &request.owner)
        };
        match self.commit_release(still).await {
            Err(LedgerError::Illegal(TransitionError::Moved {
                state: REMOVED_STATE, ..
            })) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// The origin of a call: a new request, or the resumption of a recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    New,
    Resume,
}

/// The state label of an entry that does not exist.
const REMOVED_STATE: &str = "gone";

pub(crate) fn entry_removed(id: &PartitionId) -> TransitionError {
    TransitionError::Moved {
        id: id.clone(),
        state: REMOVED_STATE,
        wanted: "resumed",
    }
}

/// Returns this request with the recorded values, if the ledger records it and no later one for its
/// partition. The owner may have changed the priority since, and a resumption must not revert that.
pub(crate) fn as_recorded(state: &LedgerState, mut request: Request) -> Option<Request> {
    let entry = state
        .get(&request.id)
        .filter(|entry| entry.owner.as_ref() == Some(&request.owner) && entry.attempt == request.attempt)?;
    request.priority = entry.priority;
    request.max_runtime = entry.max_runtime;
    request.account.clone_from(&entry.account);
    request.preemptible = entry.preemptible;
    request.not_after = None;
    Some(request)
}

/// Returns whether a request with this outcome is recorded. A request that waits for the release of the
/// previous partition is not.
pub(crate) const fn is_recorded_by(outcome: &EnsureOutcome) -> bool {
    matches!(
        outcome,
        EnsureOutcome::Waiting(_) | EnsureOutcome::Pending(Pending::Creating | Pending::Resetting)
    )
}

/// Returns the request that would continue `entry`, for adapters without their own records.
#[must_use]
pub fn request_of(entry: &Entry) -> Option<Request> {
    let mut request = Request::with_id(entry.id.clone(), entry.owner.clone()?, entry.spec.clone());
    request.instance = entry.instance;
    request.attempt = entry.attempt;
    request.priority = entry.priority;
    request.max_runtime = entry.max_runtime;
    request.account.clone_from(&entry.account);
    request.preemptible = entry.preemptible;
    request.holder.clone_from(&entry.holder);
    request.pin = entry.pin.clone();
    request.on_no_capacity = OnNoCapacity::Queue;
    Some(request)
}
