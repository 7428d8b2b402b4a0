//! Clients that wait for the reply to a request and may disconnect.

use ipu_core::{PartitionId, Timestamp, TransitionError};
use tokio::sync::watch;

use crate::error::LedgerError;

/// Keeps a request valid: its client counts as connected while this guard exists.
#[derive(Debug)]
pub struct CallerGuard(#[expect(dead_code, reason = "it counts by being dropped")] watch::Sender<()>);

/// The client of a request that is served by a separate task.
#[derive(Clone, Debug)]
pub struct Caller(watch::Receiver<()>);

impl Caller {
    /// Returns a client that stays connected until the guard is dropped.
    #[must_use]
    pub fn new() -> (CallerGuard, Self) {
        let (guard, caller) = watch::channel(());
        (CallerGuard(guard), Self(caller))
    }

    /// Returns whether the client has disconnected.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Waits until the client has disconnected.
    pub async fn disconnected(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// The deadline of a request that is not recorded yet. A later request of the same client may have replaced
/// it.
#[derive(Clone, Debug, Default)]
pub struct Expiry {
    /// The time at which the client gives up, if the client declares one.
    pub not_after: Option<Timestamp>,
    /// The client, if its disconnection can be observed.
    pub caller: Option<Caller>,
}

impl Expiry {
    /// Refuses the request for the partition `id` if its client has disconnected.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`].
    pub(crate) fn check_caller(&self, id: &PartitionId, now: Timestamp) -> Result<(), TransitionError> {
        match &self.caller {
            Some(caller) if caller.is_disconnected() => Err(too_late(id, now)),
            _ => Ok(()),
        }
    }

    /// Returns the value of `work`, unless the client disconnects first.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`] if the client disconnects first.
    pub(crate) async fn unless_disconnected<T>(
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
