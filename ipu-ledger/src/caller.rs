//! Clients that wait for the answer to a request, and may go away.

use ipu_core::{PartitionId, Timestamp, TransitionError};
use tokio::sync::watch;

use crate::error::LedgerError;

/// Keeps a request valid: its client waits as long as this is there.
#[derive(Debug)]
pub struct CallerGuard(#[expect(dead_code, reason = "it counts by being dropped")] watch::Sender<()>);

/// The client of a request that a task of its own serves.
#[derive(Clone, Debug)]
pub struct Caller(watch::Receiver<()>);

impl Caller {
    /// A client that waits until the guard is dropped.
    #[must_use]
    pub fn new() -> (CallerGuard, Self) {
        let (guard, caller) = watch::channel(());
        (CallerGuard(guard), Self(caller))
    }

    /// Whether the client has gone away.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Waits until the client has gone away.
    pub async fn disconnected(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// The end of a request that is not recorded: a later one of the same client may have taken its place since.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The time at which the client gives up, if it says so.
    pub not_after: Option<Timestamp>,
    /// The client, if it can be seen to go away.
    pub caller: Option<Caller>,
}

impl Expiry {
    /// Refuses the request for the partition `id` if its client has gone away.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`].
    pub(crate) fn check_caller(&self, id: &PartitionId, now: Timestamp) -> Result<(), TransitionError> {
        match &self.caller {
            Some(caller) if caller.is_gone() => Err(too_late(id, now)),
            _ => Ok(()),
        }
    }

    /// Returns the value of `work`, unless the client goes away before it is there.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`] if it does.
    pub(crate) async fn or_gone<T>(
        &self,
        id: &PartitionId,
        now: impl Fn() -> Timestamp,
        work: impl Future<Output = T>,
    ) -> Result<T, LedgerError> {
        let Some(mut caller) = self.caller.clone() else {
            return Ok(work.await);
        };
        tokio::select! {
            biased;
            () = caller.disconnected() => Err(too_late(id, now()).into()),
            done = work => Ok(done),
        }
    }
}

fn too_late(id: &PartitionId, now: Timestamp) -> TransitionError {
    TransitionError::TooLate {
        id: id.clone(),
        not_after: now,
        now,
    }
}
