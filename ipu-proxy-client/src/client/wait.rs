//! Waits that take several requests.

use std::time::Duration;

use ipu_core::PartitionId;
use tokio::time::Instant;

use super::error::ClientError;
use super::{DeletePartition, MAX_WAIT, OnNoCapacity, ProxyClient};
use crate::api::{
    BlockerDocument, CordonRequest, DeletedDocument, HoldState, PartitionDocument, PutPartition,
};

/// Wait of one request at the proxy, and so the interval of updates.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// First pause between two polls that return immediately.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Maximum pause between two polls.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Request of a poll.
#[derive(Clone, Copy)]
enum PollRequest<'a> {
    /// Requests the partition, which creates it if necessary.
    Put(&'a PutPartition),
    /// Reads the state of the partition.
    Get,
}

/// Pauses between polls: none before the first, then doubling, until the timeout.
struct PollLoop {
    started: Instant,
    timeout: Duration,
    pause: Duration,
}

impl PollLoop {
    fn new(timeout: Duration) -> Self {
        Self {
            started: Instant::now(),
            timeout,
            pause: MIN_PAUSE,
        }
    }

    fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Pauses until the next poll, unless the last one, which started at `polled`, took long enough.
    ///
    /// # Errors
    ///
    /// [`ClientError::TimedOut`] after the timeout.
    async fn pause(&mut self, polled: Instant, what: impl FnOnce() -> String) -> Result<(), ClientError> {
        let remaining = self.remaining();
        if remaining.is_zero() {
            return Err(ClientError::TimedOut {
                what: what(),
                waited: self.timeout,
            });
        }
        let pause = self.pause.saturating_sub(polled.elapsed()).min(remaining);
        self.pause = self.pause.saturating_mul(2).min(MAX_PAUSE);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl ProxyClient {
    /// Requests a partition and waits until it is active, for at most `timeout`. The first request returns
    /// immediately, later ones wait at the proxy. `on_wait` is called with each response in which the
    /// partition is not active.
    ///
    /// *Cancel safety*: after a cancellation the request stays queued and may be granted later;
    /// [`delete`](Self::delete) withdraws it.
    ///
    /// # Errors
    ///
    /// [`ClientError::TimedOut`] after the timeout, [`ClientError::PartitionFailed`] if the partition failed,
    /// and the errors of [`put`](Self::put).
    pub async fn ensure_active(
        &self,
        id: &PartitionId,
        request: &PutPartition,
        timeout: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        self.poll_until_active(id, PollRequest::Put(request), timeout, on_wait)
            .await
    }

    /// Waits until a requested partition is active, for at most `timeout`. Polls immediately, then after
    /// growing pauses.
    ///
    /// # Errors
    ///
    /// [`ClientError::TimedOut`] after the timeout, [`ClientError::PartitionFailed`] if the partition failed,
    /// and the errors of [`partition`](Self::partition).
    pub async fn wait_active(
        &self,
        id: &PartitionId,
        timeout: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        self.poll_until_active(id, PollRequest::Get, timeout, on_wait)
            .await
    }

    async fn poll_until_active(
        &self,
        id: &PartitionId,
        request: PollRequest<'_>,
        timeout: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        let mut polls = PollLoop::new(timeout);
        let mut wait = Duration::ZERO;
        loop {
            let polled = Instant::now();
            let response = match request {
                PollRequest::Put(request) => {
                    self.put(id, request, OnNoCapacity::Queue(wait.min(polls.remaining())))
                        .await
                }
                PollRequest::Get => self.partition(id).await,
            };
            wait = POLL_INTERVAL;
            let partition = response.map_err(|error| unify_failure(error, id))?;
            match partition.state {
                HoldState::Active => return Ok(partition),
                HoldState::Failed => {
                    return Err(ClientError::PartitionFailed {
                        id: id.clone(),
                        errors: partition.errors,
                    });
                }
                _ => on_wait(&partition),
            }
            let what = || match &partition.reason {
                Some(reason) => format!("partition {id} is {}: {}", partition.state, reason.message),
                None => format!("partition {id} is {}", partition.state),
            };
            polls.pause(polled, what).await?;
        }
    }

    /// Releases a partition and waits until it is removed, for at most `timeout`; the wait of `options` is
    /// not used. `on_wait` is called with each response in which the partition is not removed.
    ///
    /// # Errors
    ///
    /// [`ClientError::TimedOut`] after the timeout; the proxy still completes the release.
    /// [`ClientError::RemovalRefused`] if the controller refuses a release without force. And the errors of
    /// [`delete`](Self::delete).
    pub async fn wait_released(
        &self,
        id: &PartitionId,
        options: &DeletePartition,
        timeout: Duration,
        on_wait: &mut (dyn FnMut(&DeletedDocument) + Send),
    ) -> Result<(), ClientError> {
        let mut polls = PollLoop::new(timeout);
        let mut options = options.clone();
        loop {
            let polled = Instant::now();
            options.wait = POLL_INTERVAL.min(polls.remaining()).min(MAX_WAIT);
            let deleted = self.delete(id, &options).await?;
            if deleted.state == HoldState::Gone {
                return Ok(());
            }
            on_wait(&deleted);
            if let Some(reason) = deleted.refusal {
                return Err(ClientError::RemovalRefused {
                    id: id.clone(),
                    reason,
                });
            }
            let what = || format!("partition {id} is {}", deleted.state);
            polls.pause(polled, what).await?;
        }
    }

    /// Cordons hardware and waits until no partition uses it, for at most `timeout`. The cordon remains, also
    /// after the timeout. `on_wait` is called with the partitions that still use the hardware.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let settings = vipu_proxy::Settings::simulated("pod16");
    /// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
    /// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
    /// use std::time::Duration;
    ///
    /// use ipu_core::PartitionId;
    /// use ipu_proxy_client::{CordonRequest, OwnerDocument, PutPartition};
    ///
    /// let id = PartitionId::new("training")?;
    /// let request = PutPartition::new(OwnerDocument::new("IPUJob", "default", "mnist", "1"), 4);
    /// proxy.ensure_active(&id, &request, Duration::from_secs(60), &mut |_| ()).await?;
    ///
    /// let controller = proxy.controllers().await?.controllers.remove(0).controller.name;
    /// let cordon = CordonRequest::new("firmware", controller.as_str(), "new firmware");
    /// let mut holders = Vec::new();
    /// let on_wait = &mut |held: &[_]| holders = held.to_vec();
    /// let error = proxy.drain(&cordon, Duration::ZERO, on_wait).await.unwrap_err();
    /// assert_eq!(error.to_string(), "timed out after 0 s: 1 partition still uses the hardware");
    /// assert_eq!(holders[0].id, id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError::TimedOut`] after the timeout, and the errors of [`cordon`](Self::cordon).
    pub async fn drain(
        &self,
        request: &CordonRequest,
        timeout: Duration,
        on_wait: &mut (dyn FnMut(&[BlockerDocument]) + Send),
    ) -> Result<(), ClientError> {
        let mut polls = PollLoop::new(timeout);
        loop {
            let polled = Instant::now();
            let cordoned = self.cordon(request).await?;
            if cordoned.holders.is_empty() {
                return Ok(());
            }
            on_wait(&cordoned.holders);
            let what = || match cordoned.holders.len() {
                1 => "1 partition still uses the hardware".to_owned(),
                count => format!("{count} partitions still use the hardware"),
            };
            polls.pause(polled, what).await?;
        }
    }
}

/// Converts a problem with the code `PartitionFailed` to the error of a partition in the state failed.
fn unify_failure(error: ClientError, id: &PartitionId) -> ClientError {
    match error {
        ClientError::Refused { problem, .. } if problem.code == "PartitionFailed" => {
            let id = id.clone();
            let errors = problem.errors;
            ClientError::PartitionFailed { id, errors }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_poll_is_immediate_and_later_ones_follow_after_growing_pauses() {
        let mut polls = PollLoop::new(Duration::from_secs(10));
        let mut pauses = Vec::new();
        loop {
            let polled = Instant::now();
            if polls.pause(polled, String::new).await.is_err() {
                break;
            }
            pauses.push(u64::try_from(polled.elapsed().as_millis()).unwrap());
        }
        assert_eq!(pauses[..7], [50, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!(pauses.iter().sum::<u64>(), 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_that_waited_is_followed_immediately_by_the_next() {
        let mut polls = PollLoop::new(Duration::MAX);
        let polled = Instant::now();
        tokio::time::sleep(POLL_INTERVAL).await;
        polls.pause(polled, String::new).await.unwrap();
        assert_eq!(polled.elapsed(), POLL_INTERVAL);
    }
}
