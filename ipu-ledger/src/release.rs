//! Releases and resets.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    CallWindow, LedgerState, Owner, PartitionId, Release, Timestamp, Transition, TransitionError,
};
use ipu_vipu_client::VipuController;

use crate::caller::Expiry;
use crate::driver::create::{CreateOutcome, IntentOrigin};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::outcome::{EnsureOutcome, Pending, Released};
use crate::store::LedgerStore;

/// A transition that releases the partition of an owner.
type ReleaseTransition = fn(
    &LedgerState,
    &PartitionId,
    &Owner,
    Option<u32>,
    Option<Timestamp>,
    CallWindow,
) -> Result<Transition<Release>, TransitionError>;

/// A transition that releases a quarantined partition.
type QuarantinedTransition =
    fn(&LedgerState, &PartitionId, CallWindow) -> Result<Transition<Release>, TransitionError>;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Releases the partition `id` of `owner`, or removes the request from the queue. The release is durable
    /// before the controller is called. Safe to repeat.
    ///
    /// `attempt` is the newest attempt that the caller knows. A driver with an old record must not release
    /// the partition under the workers of a newer attempt. `None` releases any attempt, for example on an
    /// administrator's order.
    ///
    /// *Assumption*: no process of `attempt` or an earlier one uses the partition any more.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if the partition has another owner, [`TransitionError::StaleAttempt`]
    /// if a newer attempt requested it, and errors of the store. A controller that does not reply is no
    /// error: [`Released::InProgress`].
    pub async fn release(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
    ) -> Result<Released, LedgerError> {
        self.release_until(id, owner, attempt, &Expiry::default()).await
    }

    /// Releases as [`release`](Self::release) does, unless the client has timed out or disconnected before
    /// the release is recorded. By then the owner may have the partition again, for the same attempt.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`], and the errors of [`release`](Self::release).
    pub async fn release_until(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        expiry: &Expiry,
    ) -> Result<Released, LedgerError> {
        self.release_by(LedgerState::release, id, owner, attempt, expiry)
            .await
    }

    /// Releases as [`release_until`](Self::release_until) does, but never forces the controller to remove the
    /// partition. If the controller refuses, the result is [`Released::InProgress`], the partition keeps its
    /// IPUs, and [`Entry::removal_reason`](ipu_core::Entry::removal_reason) has the reason. The controller is
    /// called again after [`RETRY_INTERVAL`](ipu_core::RemovalRefusal::RETRY_INTERVAL), and at each
    /// repetition of this call. [`release`](Self::release) then removes the partition with force.
    ///
    /// # Errors
    ///
    /// The errors of [`release_until`](Self::release_until).
    pub async fn release_without_force_until(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        expiry: &Expiry,
    ) -> Result<Released, LedgerError> {
        self.release_by(LedgerState::release_without_force, id, owner, attempt, expiry)
            .await
    }

    async fn release_by(
        &self,
        release: ReleaseTransition,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        expiry: &Expiry,
    ) -> Result<Released, LedgerError> {
        let _lock = self.lock_partition(id, expiry).await?;
        let (driver, wanted, owner) = (Arc::clone(&self.driver), id.clone(), owner.clone());
        let expiry = expiry.clone();
        self.commit_release(move |state: &LedgerState| {
            let window = driver.window();
            window.check_not_after(&wanted, expiry.not_after)?;
            expiry.check_caller(&wanted, window.now)?;
            let answered = driver.inflight.answered_fence(&wanted);
            release(state, &wanted, &owner, attempt, answered, driver.window())
        })
        .await
    }

    /// Releases a quarantined partition on an administrator's order.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if it is not quarantined, and errors of the store.
    pub async fn release_quarantined(&self, id: &PartitionId) -> Result<Released, LedgerError> {
        self.release_quarantined_by(LedgerState::release_quarantined, id)
            .await
    }

    /// Releases a quarantined partition as [`release_quarantined`](Self::release_quarantined) does, but never
    /// forces the controller: see [`release_without_force_until`](Self::release_without_force_until).
    ///
    /// # Errors
    ///
    /// The errors of [`release_quarantined`](Self::release_quarantined).
    pub async fn release_quarantined_without_force(&self, id: &PartitionId) -> Result<Released, LedgerError> {
        self.release_quarantined_by(LedgerState::release_quarantined_without_force, id)
            .await
    }

    async fn release_quarantined_by(
        &self,
        release: QuarantinedTransition,
        id: &PartitionId,
    ) -> Result<Released, LedgerError> {
        let _lock = self.driver.inflight.lock(id).await;
        let (driver, wanted) = (Arc::clone(&self.driver), id.clone());
        self.commit_release(move |state: &LedgerState| release(state, &wanted, driver.window()))
            .await
    }

    pub(crate) async fn commit_release<F>(&self, mut release: F) -> Result<Released, LedgerError>
    where
        F: FnMut(&LedgerState) -> Result<Transition<Release>, TransitionError> + Send + 'static,
    {
        let decide = move |state: &LedgerState| match release(state) {
            Ok(step) => {
                let intent = if step.changes.is_empty() {
                    IntentOrigin::Found
                } else {
                    IntentOrigin::Fresh
                };
                (Ok((step.outcome, intent)), step.changes)
            }
            Err(illegal) => (Err(illegal), Vec::new()),
        };
        match self.driver.commit.transact(decide).await?? {
            (Release::Drive(entry), intent) => {
                self.driver
                    .remove(*entry, intent, self.driver.options.timeout)
                    .await
            }
            (Release::Dequeued, _) => Ok(Released::Dequeued),
            _ => Ok(Released::NotFound),
        }
    }

    /// Resets the partition `id` of `owner` for `attempt`, even if it is already fresh for that attempt.
    ///
    /// # Errors
    ///
    /// [`TransitionError`] if the partition has another owner, the attempt is old or there is no partition to
    /// reset, and errors of the store.
    pub async fn reset(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: u32,
    ) -> Result<EnsureOutcome, LedgerError> {
        self.reset_until(id, owner, attempt, &Expiry::default()).await
    }

    /// Resets as [`reset`](Self::reset) does, unless the client has timed out or disconnected before the
    /// reset is recorded. Otherwise workers that started after a repeated request would lose their IPUs.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`], and the errors of [`reset`](Self::reset).
    pub async fn reset_until(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: u32,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        let _lock = self.lock_partition(id, expiry).await?;
        let (driver, wanted, owner) = (Arc::clone(&self.driver), id.clone(), owner.clone());
        let expiry = expiry.clone();
        let reset = move |state: &LedgerState| {
            let window = driver.window();
            window.check_not_after(&wanted, expiry.not_after)?;
            expiry.check_caller(&wanted, window.now)?;
            state.reset(&wanted, &owner, attempt, window)
        };
        let wanted = id.clone();
        let decide = move |state: &LedgerState| match reset(state) {
            Ok(step) => {
                let before = state.get(&wanted).map(|entry| &entry.state);
                let fresh = before != Some(&step.outcome.state);
                (
                    Ok((
                        step.outcome,
                        if fresh {
                            IntentOrigin::Fresh
                        } else {
                            IntentOrigin::Found
                        },
                    )),
                    step.changes,
                )
            }
            Err(illegal) => (Err(illegal), Vec::new()),
        };
        let (entry, intent) = self.driver.commit.transact(decide).await??;
        match self.driver.drive_intent(entry, intent, 0, Duration::ZERO).await? {
            CreateOutcome::Done(outcome) => Ok(outcome),
            CreateOutcome::NoCapacity => Ok(EnsureOutcome::Pending(Pending::Resetting)),
        }
    }
}
