//! The allocation of a job with the machines of its hosts, and the partition in it.

use std::time::Duration;

use ipu_core::AgentId;
use ipu_proxy_client::ProxyClient;
use ipu_slurm::RunStart;
use tokio::time::Instant;

use super::acquire::{Acquired, Acquisition};
use super::acquire_error::AcquireError;
use super::admin_comment::AdminCommentWriter;
use crate::host_map::Allocations;

/// First pause between two attempts to create the allocation; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The allocation of a start.
pub(super) struct Allocate<'a> {
    pub(super) allocations: &'a Allocations<'a>,
    pub(super) cluster: &'a str,
    pub(super) start: &'a RunStart,
    pub(super) machines: &'a [AgentId],
}

impl Allocate<'_> {
    /// Waits until the allocation exists and the partition in it is active.
    pub(super) async fn run(
        &self,
        acquisition: &mut Acquisition<'_>,
        comment: &mut AdminCommentWriter<'_>,
    ) -> Result<Acquired, AcquireError> {
        let deadline = acquisition.deadline;
        let mut pause = MIN_PAUSE;
        loop {
            let created =
                self.allocations
                    .create(&acquisition.proxy, self.cluster, self.start, self.machines);
            let sentence = match created.await {
                Ok(allocation) => {
                    acquisition.request.allocation = Some(allocation.to_string());
                    break;
                }
                Err(obstacle) => obstacle.0,
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(AcquireError::TimedOut(sentence));
            }
            comment.write(&sentence).await;
            tokio::time::sleep(pause.min(remaining)).await;
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
        acquisition.run_on_machines(comment).await
    }

    /// Removes the allocation of a hook that got no partition. The agent repeats a removal that fails.
    pub(super) async fn remove(&self, proxy: &ProxyClient, error: &AcquireError) {
        // A later hook may have taken over the allocation too.
        if !matches!(error, AcquireError::Superseded(_)) {
            let _ = self.allocations.remove(proxy, self.cluster, self.start).await;
        }
    }
}
