//! Waiting until a partition is ready.

use ipu_core::{QueueStatus, Request};
use ipu_vipu_client::VipuController;
use tokio::sync::watch;

use crate::caller::Expiry;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::outcome::{EnsureOutcome, Grant, Pending};
use crate::resume::{RequestOrigin, is_recorded_by};
use crate::store::LedgerStore;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Waits until the partition of `request` is ready. `on_wait` hears whenever what is to be said of the wait changes.
    ///
    /// *Cancel safety*: whoever drops this stays in the line and may get the partition later; [`release`](Self::release)
    /// ends that. A release also ends this, with [`TransitionError::Moved`](ipu_core::Illegal::Moved): it asks once, and does not
    /// ask again for what was given back meanwhile.
    ///
    /// # Errors
    ///
    /// [`LedgerError::DoesNotFit`] if the request does not want to wait, [`LedgerError::PartitionFailed`] if the
    /// partition is in error, and what [`ensure`](Self::ensure) answers.
    pub async fn ensure_active(
        &self,
        request: Request,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<Grant, LedgerError> {
        let freed = self.driver.commit.capacity_freed();
        let first = self
            .ensure_once(
                &request,
                self.driver.options.timeout,
                RequestOrigin::Anew,
                &Expiry::default(),
            )
            .await?;
        self.go_on_until_active(request, first, freed, on_wait).await
    }

    /// Goes on from `first`, what [`ensure`](Self::ensure) answered to `request` just now, as
    /// [`ensure_active`](Self::ensure_active) would: a release in between ends this, too.
    ///
    /// # Errors
    ///
    /// As [`ensure_active`](Self::ensure_active).
    pub async fn active_after(
        &self,
        request: Request,
        first: EnsureOutcome,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<Grant, LedgerError> {
        let mut freed = self.driver.commit.capacity_freed();
        // What was freed since that answer is not missed.
        freed.mark_changed();
        self.go_on_until_active(request, first, freed, on_wait).await
    }

    async fn go_on_until_active(
        &self,
        request: Request,
        first: EnsureOutcome,
        mut freed: watch::Receiver<u64>,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<Grant, LedgerError> {
        let options = &self.driver.options;
        let mut told: Option<QueueStatus> = None;
        let mut pause = options.first_poll;
        let mut asks = RequestOrigin::Anew;
        let mut answer = first;
        loop {
            if is_recorded_by(&answer) {
                asks = RequestOrigin::ToGoOn;
            }
            match answer {
                EnsureOutcome::Active(grant) => return Ok(grant),
                EnsureOutcome::Refused(waiting) => {
                    return Err(LedgerError::DoesNotFit {
                        id: request.id,
                        waiting: Box::new(waiting),
                    });
                }
                EnsureOutcome::Waiting(waiting) => {
                    if told.as_ref() != Some(&waiting) {
                        on_wait(&waiting);
                        told = Some(waiting);
                    }
                    pause = options.first_poll;
                    self.turn_of(&request.id, &mut freed, &mut told, on_wait).await?;
                }
                EnsureOutcome::Pending(Pending::Failed { errors }) => {
                    return Err(LedgerError::PartitionFailed {
                        id: request.id,
                        errors,
                    });
                }
                EnsureOutcome::Pending(_) => {
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(options.longest_poll);
                }
            }
            freed = self.driver.commit.capacity_freed();
            answer = self
                .ensure_once(&request, options.timeout, asks, &Expiry::default())
                .await?;
        }
    }
}
