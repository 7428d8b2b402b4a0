//! Waits until a partition is ready.

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
    /// Waits until the partition of `request` is ready. `on_wait` is called whenever the queue status
    /// changes.
    ///
    /// *Cancel safety*: if this future is dropped, the request stays queued and may get the partition later;
    /// [`release`](Self::release) ends that. A release also ends this call, with
    /// [`TransitionError::Moved`](ipu_core::TransitionError::Moved): it requests the partition once and never
    /// again after a release.
    ///
    /// # Errors
    ///
    /// [`LedgerError::DoesNotFit`] if the request does not want to wait, [`LedgerError::PartitionFailed`] if
    /// the partition is in error, and the errors of [`ensure`](Self::ensure).
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
                RequestOrigin::New,
                &Expiry::default(),
            )
            .await?;
        self.poll_until_active(request, first, freed, on_wait).await
    }

    /// Continues after `first`, the outcome of [`ensure`](Self::ensure) for `request`, as
    /// [`ensure_active`](Self::ensure_active) would. A release in between ends this call, too.
    ///
    /// # Errors
    ///
    /// As for [`ensure_active`](Self::ensure_active).
    pub async fn wait_active_after(
        &self,
        request: Request,
        first: EnsureOutcome,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<Grant, LedgerError> {
        let mut freed = self.driver.commit.capacity_freed();
        // Capacity that was freed since the first outcome must not be missed.
        freed.mark_changed();
        self.poll_until_active(request, first, freed, on_wait).await
    }

    async fn poll_until_active(
        &self,
        request: Request,
        first: EnsureOutcome,
        mut freed: watch::Receiver<u64>,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<Grant, LedgerError> {
        let options = &self.driver.options;
        let mut reported: Option<QueueStatus> = None;
        let mut pause = options.min_poll_interval;
        let mut origin = RequestOrigin::New;
        let mut outcome = first;
        loop {
            if is_recorded_by(&outcome) {
                origin = RequestOrigin::Resume;
            }
            match outcome {
                EnsureOutcome::Active(grant) => return Ok(grant),
                EnsureOutcome::Refused(waiting) => {
                    return Err(LedgerError::DoesNotFit {
                        id: request.id,
                        waiting: Box::new(waiting),
                    });
                }
                EnsureOutcome::Waiting(waiting) => {
                    if reported.as_ref() != Some(&waiting) {
                        on_wait(&waiting);
                        reported = Some(waiting);
                    }
                    pause = options.min_poll_interval;
                    self.wait_for_turn(&request.id, &mut freed, &mut reported, on_wait)
                        .await?;
                }
                EnsureOutcome::Pending(Pending::Failed { errors }) => {
                    return Err(LedgerError::PartitionFailed {
                        id: request.id,
                        errors,
                    });
                }
                EnsureOutcome::Pending(_) => {
                    tokio::time::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(options.max_poll_interval);
                }
            }
            freed = self.driver.commit.capacity_freed();
            outcome = self
                .ensure_once(&request, options.timeout, origin, &Expiry::default())
                .await?;
        }
    }
}
