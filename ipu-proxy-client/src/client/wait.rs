//! Waiting for what takes longer than one request may.

use std::time::Duration;

use ipu_core::PartitionId;
use tokio::time::Instant;

use super::error::ClientError;
use super::{DeletePartition, MAX_WAIT, OnNoCapacity, ProxyClient};
use crate::api::{
    BlockerDocument, CordonRequest, DeletedDocument, HoldState, PartitionDocument, PutPartition,
};

/// How long one of several requests waits: so often is heard what has changed about the wait.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after the first look that did not wait by itself.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How to look.
#[derive(Clone, Copy)]
enum PollResult<'a> {
    /// Ask for it, which makes it if need be.
    Ask(&'a PutPartition),
    /// See how far it is.
    See,
}

/// Pauses between looks: none before the first, then doubling, until the patience is over.
struct PollLoop {
    began: Instant,
    patience: Duration,
    pause: Duration,
}

impl PollLoop {
    fn new(patience: Duration) -> Self {
        Self {
            began: Instant::now(),
            patience,
            pause: PAUSE_FIRST,
        }
    }

    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.began.elapsed())
    }

    /// Waits for the next look, unless the last one took long enough by itself; an error if there is to be none.
    async fn pause(&mut self, looked: Instant, what: impl FnOnce() -> String) -> Result<(), ClientError> {
        let left = self.left();
        if left.is_zero() {
            return Err(ClientError::Late {
                what: what(),
                waited: self.patience,
            });
        }
        let pause = self.pause.saturating_sub(looked.elapsed()).min(left);
        self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl ProxyClient {
    /// Asks for a partition until it is ready, for at most `patience`. `on_wait` hears of every answer that it is not. Nobody
    /// is told before the first look, which comes at once; later looks wait at the proxy.
    ///
    /// *Cancel safety*: whoever drops this stays in the line and may get the partition later; [`delete`](Self::delete)
    /// ends that.
    ///
    /// # Errors
    ///
    /// [`ClientError::StartupDelay`] if it is not ready in time, [`ClientError::PartitionFailed`] if it is in error, and what
    /// [`put`](Self::put) answers.
    pub async fn ensure_active(
        &self,
        id: &PartitionId,
        wanted: &PutPartition,
        patience: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        self.until_active(id, PollResult::Ask(wanted), patience, on_wait)
            .await
    }

    /// Waits until a partition is ready that somebody has asked for, for at most `patience`. The first look comes at once,
    /// the others after pauses that grow.
    ///
    /// # Errors
    ///
    /// [`ClientError::StartupDelay`] if it is not ready in time, [`ClientError::PartitionFailed`] if it is in error, and what
    /// [`partition`](Self::partition) answers.
    pub async fn wait_active(
        &self,
        id: &PartitionId,
        patience: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        self.until_active(id, PollResult::See, patience, on_wait).await
    }

    async fn until_active(
        &self,
        id: &PartitionId,
        look: PollResult<'_>,
        patience: Duration,
        on_wait: &mut (dyn FnMut(&PartitionDocument) + Send),
    ) -> Result<PartitionDocument, ClientError> {
        let mut looks = PollLoop::new(patience);
        let mut wait = Duration::ZERO;
        loop {
            let looked = Instant::now();
            let answer = match look {
                PollResult::Ask(wanted) => {
                    self.put(id, wanted, OnNoCapacity::Join(wait.min(looks.left())))
                        .await
                }
                PollResult::See => self.partition(id).await,
            };
            wait = POLL_INTERVAL;
            let partition = answer.map_err(|error| failed(error, id))?;
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
            let why = || match &partition.reason {
                Some(reason) => format!("partition {id} is {}: {}", partition.state, reason.message),
                None => format!("partition {id} is {}", partition.state),
            };
            looks.pause(looked, why).await?;
        }
    }

    /// Gives a partition back until it is gone, for at most `patience`; that of `how` is not used. `on_wait` hears of every
    /// answer that it is not.
    ///
    /// # Errors
    ///
    /// [`ClientError::StartupDelay`] if it is not gone in time: the proxy goes on by itself. And what [`delete`](Self::delete)
    /// answers.
    pub async fn wait_released(
        &self,
        id: &PartitionId,
        how: &DeletePartition,
        patience: Duration,
        on_wait: &mut (dyn FnMut(&DeletedDocument) + Send),
    ) -> Result<(), ClientError> {
        let mut looks = PollLoop::new(patience);
        let mut how = how.clone();
        loop {
            let looked = Instant::now();
            how.wait = POLL_INTERVAL.min(looks.left()).min(MAX_WAIT);
            let left = self.delete(id, &how).await?;
            if left.state == HoldState::Gone {
                return Ok(());
            }
            on_wait(&left);
            let why = || format!("partition {id} is {}", left.state);
            looks.pause(looked, why).await?;
        }
    }

    /// Cordons something and waits until nobody holds anything there, for at most `patience`. It stays cordoned, also if that
    /// is not so in time. `on_wait` hears who still does.
    ///
    /// # Errors
    ///
    /// [`ClientError::StartupDelay`] if somebody holds something for longer, and what [`cordon`](Self::cordon) answers.
    pub async fn drain(
        &self,
        what: &CordonRequest,
        patience: Duration,
        on_wait: &mut (dyn FnMut(&[BlockerDocument]) + Send),
    ) -> Result<(), ClientError> {
        let mut looks = PollLoop::new(patience);
        loop {
            let looked = Instant::now();
            let cordoned = self.cordon(what).await?;
            if cordoned.holders.is_empty() {
                return Ok(());
            }
            on_wait(&cordoned.holders);
            let why = || format!("{} partitions are still held there", cordoned.holders.len());
            looks.pause(looked, why).await?;
        }
    }
}

/// That the partition is in error is the same whether it is shown so or said to be so.
fn failed(error: ClientError, id: &PartitionId) -> ClientError {
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
    async fn the_first_look_comes_at_once_and_the_others_after_pauses_that_grow() {
        let mut looks = PollLoop::new(Duration::from_secs(10));
        let mut pauses = Vec::new();
        loop {
            let looked = Instant::now();
            if looks.pause(looked, String::new).await.is_err() {
                break;
            }
            pauses.push(u64::try_from(looked.elapsed().as_millis()).unwrap());
        }
        assert_eq!(pauses[..7], [50, 100, 200, 400, 800, 1600, 2000]);
        assert_eq!(pauses.iter().sum::<u64>(), 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_waited_by_itself_is_followed_by_the_next() {
        let mut looks = PollLoop::new(Duration::MAX);
        let looked = Instant::now();
        tokio::time::sleep(POLL_INTERVAL).await;
        looks.pause(looked, String::new).await.unwrap();
        assert_eq!(looked.elapsed(), POLL_INTERVAL);
    }
}
