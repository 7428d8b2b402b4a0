//! Waits of queued requests: one walk of the queue serves all waiters of a process.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{PartitionId, QueueDecision, QueueStatus};
use ipu_vipu_client::VipuController;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

/// The latest walk of the queue, which all waiters read.
#[derive(Debug, Default)]
pub(crate) struct QueueScans {
    latest: Mutex<Option<QueueDecisions>>,
}

/// The verdicts on all queued requests.
#[derive(Clone, Debug)]
struct QueueDecisions {
    /// When the walk began.
    began: Instant,
    /// The number of commits that freed something before the walk.
    capacity_freed: u64,
    verdicts: Arc<BTreeMap<PartitionId, QueueDecision>>,
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Waits until the queued request `id` can take a step: its turn has come, or it is not queued any more.
    /// `on_wait` receives each new reason, beginning with one that differs from `reported`.
    ///
    /// A commit of this process that frees something wakes all waiters at once. Changes of other processes and of
    /// controllers are noticed after at most twice [`line_poll`](crate::LedgerOptions::queue_poll_interval).
    pub(crate) async fn turn_of(
        &self,
        id: &PartitionId,
        freed: &mut watch::Receiver<u64>,
        reported: &mut Option<QueueStatus>,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<(), LedgerError> {
        loop {
            tokio::select! {
                // So that a test on virtual time runs the same way every time.
                biased;
                _ = freed.changed() => {}
                () = tokio::time::sleep(self.driver.options.queue_poll_interval) => {}
            }
            let seen = *freed.borrow_and_update();
            let verdicts = self.walked(id, seen).await?;
            let Some(QueueDecision::Wait(waiting)) = verdicts.get(id) else {
                return Ok(());
            };
            if reported.as_ref() != Some(waiting) {
                on_wait(waiting);
                *reported = Some(waiting.clone());
            }
        }
    }

    /// Returns the verdicts of a walk that began within the last `line_poll` and after the commit number `freed`. The
    /// first waiter that finds none walks, and the others wait for its result.
    async fn walked(
        &self,
        id: &PartitionId,
        freed: u64,
    ) -> Result<Arc<BTreeMap<PartitionId, QueueDecision>>, LedgerError> {
        let mut latest = self.driver.turns.latest.lock().await;
        let began = Instant::now();
        if let Some(walked) = &*latest
            && walked.capacity_freed >= freed
            && began.duration_since(walked.began) < self.driver.options.queue_poll_interval
        {
            return Ok(Arc::clone(&walked.verdicts));
        }
        self.remove_dead_waiters(id).await?;
        let freed = *self.driver.commit.capacity_freed().borrow();
        let verdicts = Arc::new(self.queue().await?.into_iter().collect());
        *latest = Some(QueueDecisions {
            began,
            capacity_freed: freed,
            verdicts: Arc::clone(&verdicts),
        });
        Ok(verdicts)
    }
}
