//! Queue scans: one scan of the queue serves all waiters of a process.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{PartitionId, QueueDecision, QueueStatus};
use ipu_vipu_client::VipuController;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::store::LedgerStore;

/// The latest scan of the queue, which all waiters read.
#[derive(Debug, Default)]
pub(crate) struct QueueScans {
    latest: Mutex<Option<QueueDecisions>>,
}

/// The decisions on all queued requests.
#[derive(Clone, Debug)]
struct QueueDecisions {
    /// The start of the scan.
    started: Instant,
    /// The number of commits that freed capacity before the scan.
    capacity_freed: u64,
    decisions: Arc<BTreeMap<PartitionId, QueueDecision>>,
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Waits until the queued request `id` can take a step: it is its turn, or it is no longer queued.
    /// `on_wait` receives each new reason, beginning with one that differs from `reported`.
    ///
    /// A commit of this process that frees capacity wakes all waiters at once. Changes of other processes and
    /// of controllers are observed after at most twice
    /// [`queue_poll_interval`](crate::LedgerOptions::queue_poll_interval).
    pub(crate) async fn wait_for_turn(
        &self,
        id: &PartitionId,
        freed: &mut watch::Receiver<u64>,
        reported: &mut Option<QueueStatus>,
        on_wait: &mut (dyn FnMut(&QueueStatus) + Send),
    ) -> Result<(), LedgerError> {
        loop {
            tokio::select! {
                // A fixed order keeps tests on virtual time deterministic.
                biased;
                _ = freed.changed() => {}
                () = tokio::time::sleep(self.driver.options.queue_poll_interval) => {}
            }
            let seen_commits = *freed.borrow_and_update();
            let decisions = self.scan(id, seen_commits).await?;
            let Some(QueueDecision::Wait(waiting)) = decisions.get(id) else {
                return Ok(());
            };
            if reported.as_ref() != Some(waiting) {
                on_wait(waiting);
                *reported = Some(waiting.clone());
            }
        }
    }

    /// Returns the decisions of a scan that started within the last `queue_poll_interval` and after the
    /// commit number `freed`. The first waiter without such a scan runs one, and the others wait for its
    /// result.
    async fn scan(
        &self,
        id: &PartitionId,
        freed: u64,
    ) -> Result<Arc<BTreeMap<PartitionId, QueueDecision>>, LedgerError> {
        let mut latest = self.driver.queue_scans.latest.lock().await;
        let started = Instant::now();
        if let Some(scan) = &*latest
            && scan.capacity_freed >= freed
            && started.duration_since(scan.started) < self.driver.options.queue_poll_interval
        {
            return Ok(Arc::clone(&scan.decisions));
        }
        self.remove_dead_waiters(id).await?;
        let freed = *self.driver.commit.capacity_freed().borrow();
        let decisions = Arc::new(self.queue().await?.into_iter().collect());
        *latest = Some(QueueDecisions {
            started,
            capacity_freed: freed,
            decisions: Arc::clone(&decisions),
        });
        Ok(decisions)
    }
}
