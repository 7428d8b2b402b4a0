//! Going on with what somebody asked for, without asking for it anew.
//!
//! What was asked for may have been given back since, by somebody who talks to another process: who then asked in its place
//! would make a partition that nobody wants.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{Entry, EntryState, LedgerState, OnNoCapacity, PartitionId, Request, TransitionError};
use ipu_vipu_client::VipuController;

use crate::caller::Expiry;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Goes on with what `seen` has under way: an intent, a turn in the line that has come, a release. For whoever sees to it
    /// that what others asked for is done. Unlike [`ensure`](Self::ensure) and [`release`](Self::release) this asks for
    /// nothing: if the entry is not there any more, or has something else under way, nothing is done about it.
    ///
    /// # Errors
    ///
    /// As those two.
    pub async fn resume(&self, seen: &Entry) -> Result<(), LedgerError> {
        let Some(request) = request_of(seen) else {
            // What nobody owns is finished by repair.
            return Ok(());
        };
        if !matches!(seen.state, EntryState::Releasing { .. }) {
            return match self
                .ensure_once(
                    &request,
                    Duration::ZERO,
                    RequestOrigin::ToGoOn,
                    &Expiry::default(),
                )
                .await
            {
                Err(LedgerError::Illegal(TransitionError::Moved { state: GONE, .. })) => Ok(()),
                other => other.map(drop),
            };
        }
        let _alone = self.driver.book.lock(&seen.id).await;
        let (driver, id) = (Arc::clone(&self.driver), seen.id.clone());
        let still = move |state: &LedgerState| {
            let entry = state
                .get(&id)
                .filter(|entry| matches!(entry.state, EntryState::Releasing { .. }));
            let Some(attempt) = entry.map(|entry| entry.attempt) else {
                return Err(gone(&id));
            };
            let answered = driver.book.answered(&id);
            state.release(&id, &request.owner, Some(attempt), answered, driver.window())
        };
        match self.give_back(still).await {
            Err(LedgerError::Illegal(TransitionError::Moved { state: GONE, .. })) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Whether a request is one, or only goes on with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    Anew,
    ToGoOn,
}

/// What is told of an entry that is not there any more.
const GONE: &str = "gone";

pub(crate) fn gone(id: &PartitionId) -> TransitionError {
    TransitionError::Moved {
        id: id.clone(),
        state: GONE,
        wanted: "gone on with",
    }
}

/// This request with what the ledger knows of it by now, if it is still what the ledger knows of its partition and no later one:
/// the owner may have asked with another priority since, which whoever only goes on must not take back.
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

/// Whether a request that was answered so is recorded. One that has to wait until what was there before is gone is not.
pub(crate) const fn is_recorded_by(answer: &EnsureOutcome) -> bool {
    matches!(
        answer,
        EnsureOutcome::Waiting(_) | EnsureOutcome::Pending(Pending::Creating | Pending::Resetting)
    )
}

/// The request that would continue `entry`: for adapters that keep no record of their own.
#[must_use]
pub fn request_of(entry: &Entry) -> Option<Request> {
    let mut request = Request::named(entry.id.clone(), entry.owner.clone()?, entry.spec.clone());
    request.instance = entry.instance;
    request.attempt = entry.attempt;
    request.priority = entry.priority;
    request.max_runtime = entry.max_runtime;
    request.account.clone_from(&entry.account);
    request.preemptible = entry.preemptible;
    request.holder.clone_from(&entry.holder);
    request.pin = entry.pin.clone();
    request.line = OnNoCapacity::Queue;
    Some(request)
}
