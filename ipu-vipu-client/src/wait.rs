//! Waits for the end of create, reset and remove operations, which a call only starts, over any
//! [`VipuController`].

use core::future::Future;
use core::time::Duration;

use ipu_core::{Partition, PartitionId, PartitionState};
use tokio::time::Instant;

use crate::controller::{CreatePartition, PartitionStatus, VipuController};
use crate::error::{Retry, VipuError};

/// Timeout and pauses of status polls.
///
/// The pause between two polls doubles from `first_pause` to `max_pause`; the first poll is immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitOptions {
    /// Maximum total wait. The default, two minutes, is PopRun's own (`--vipu-server-timeout`); scripts for
    /// large systems use up to an hour.
    pub deadline: Duration,
    /// The first pause. 5 ms is imperceptible, and a few round trips to a nearby controller.
    pub first_pause: Duration,
    /// Maximum pause: the 500 ms with which the one public third-party client polls a real controller.
    pub max_pause: Duration,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(120),
            first_pause: Duration::from_millis(5),
            max_pause: Duration::from_millis(500),
        }
    }
}

impl WaitOptions {
    /// Creates options with the default pauses and the total `deadline`.
    #[must_use]
    pub fn with_deadline(deadline: Duration) -> Self {
        Self {
            deadline,
            ..Self::default()
        }
    }
}

/// Time limit of the last call after the total deadline: the reply of a slow controller to the last poll
/// still counts.
const LAST_CALL_GRACE: Duration = Duration::from_secs(1);

/// Whether a removal continues despite errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// A hardware error stops the removal.
    Regular,
    /// The controller continues despite errors.
    Forced,
}

/// The polls of one wait.
struct PollLoop {
    started: Instant,
    pause: Duration,
    wait: WaitOptions,
}

impl PollLoop {
    fn start(wait: &WaitOptions) -> Self {
        Self {
            started: Instant::now(),
            pause: wait.first_pause,
            wait: *wait,
        }
    }

    fn is_over(&self) -> bool {
        self.started.elapsed() >= self.wait.deadline
    }

    fn remaining(&self) -> Duration {
        self.wait.deadline.saturating_sub(self.started.elapsed())
    }

    /// Waits for one call, up to the total deadline.
    async fn call<T>(
        &self,
        id: &PartitionId,
        call: impl Future<Output = Result<T, VipuError>>,
    ) -> Result<T, VipuError> {
        tokio::time::timeout(self.remaining().max(LAST_CALL_GRACE), call)
            .await
            .unwrap_or_else(|_| Err(self.timeout_error(id, None)))
    }

    /// Pauses up to the deadline: the last poll is at the deadline itself.
    async fn pause(&mut self) {
        tokio::time::sleep(self.pause.min(self.remaining())).await;
        self.pause = self.pause.saturating_mul(2).min(self.wait.max_pause);
    }

    fn timeout_error(&self, id: &PartitionId, state: Option<PartitionState>) -> VipuError {
        VipuError::WaitTimeout {
            id: id.clone(),
            state,
            waited: self.started.elapsed(),
        }
    }

    /// Returns the error if polling must end: an error that a retry cannot help, or any error after the
    /// deadline.
    fn give_up<T>(&self, error: VipuError) -> Option<Result<T, VipuError>> {
        let is_retried = match error.retry() {
            Retry::Soon => !self.is_over(),
            Retry::Never | Retry::AfterChange => false,
        };
        (!is_retried).then_some(Err(error))
    }
}

/// Waits until partition `id` is active.
///
/// An unreachable controller is polled until the deadline.
///
/// # Errors
///
/// [`VipuError::PartitionFailed`] if the partition is in error, [`VipuError::NotFound`] if it does not exist,
/// [`VipuError::WaitTimeout`] at the deadline, and every other error that a retry cannot help.
pub async fn wait_active<C>(
    controller: &C,
    id: &PartitionId,
    wait: &WaitOptions,
) -> Result<PartitionStatus, VipuError>
where
    C: VipuController + ?Sized,
{
    let mut polls = PollLoop::start(wait);
    loop {
        match polls.call(id, controller.partition_status(id)).await {
            Ok(status) => match &status.state {
                PartitionState::Active => return Ok(status),
                PartitionState::Failed { errors } => {
                    return Err(VipuError::PartitionFailed {
                        id: id.clone(),
                        errors: errors.clone(),
                    });
                }
                // A partition that is being removed will soon be unknown, which ends the wait.
                state if polls.is_over() => return Err(polls.timeout_error(id, Some(state.clone()))),
                _ => {}
            },
            Err(error) => {
                if let Some(end) = polls.give_up(error) {
                    return end;
                }
            }
        }
        polls.pause().await;
    }
}

/// Ensures that partition `id` does not exist: removes it and waits until the controller no longer knows it.
/// Succeeds if it does not exist.
///
/// # Guarantees
///
/// `Ok` means that the controller reported the partition as unknown, after every removal that this call
/// started.
///
/// # Errors
///
/// [`VipuError::WaitTimeout`] if the partition still exists at the deadline, and every error that a retry
/// cannot help.
pub async fn ensure_absent<C>(
    controller: &C,
    id: &PartitionId,
    removal: Removal,
    wait: &WaitOptions,
) -> Result<(), VipuError>
where
    C: VipuController + ?Sized,
{
    let mut polls = PollLoop::start(wait);
    let force = removal == Removal::Forced;
    loop {
        // A controller may refuse to remove a partition that it is already removing: the status decides.
        let refusal = match polls.call(id, controller.remove_partition(id, force)).await {
            Err(VipuError::NotFound { .. }) => return Ok(()),
            Ok(()) => None,
            Err(error @ VipuError::Refused { .. }) => Some(error),
            Err(error) => match polls.give_up(error) {
                Some(end) => return end,
                None => None,
            },
        };
        if let Some(end) = poll_removal(controller, id, &mut polls, refusal).await {
            return end;
        }
    }
}

/// Polls while the partition is being removed. Returns `None` if it must be removed again.
async fn poll_removal<C>(
    controller: &C,
    id: &PartitionId,
    polls: &mut PollLoop,
    refusal: Option<VipuError>,
) -> Option<Result<(), VipuError>>
where
    C: VipuController + ?Sized,
{
    loop {
        match polls.call(id, controller.partition_status(id)).await {
            Err(VipuError::NotFound { .. }) => return Some(Ok(())),
            Err(error) => {
                if let Some(end) = polls.give_up(error) {
                    return Some(end);
                }
            }
            Ok(status) if status.state == PartitionState::Removing => {
                if polls.is_over() {
                    return Some(Err(polls.timeout_error(id, Some(status.state))));
                }
            }
            Ok(status) => {
                let busy = matches!(status.state, PartitionState::Creating | PartitionState::Resetting);
                match refusal {
                    // Another operation in flight may have to end first.
                    Some(refusal) if !busy || polls.is_over() => return Some(Err(refusal)),
                    None if polls.is_over() => return Some(Err(polls.timeout_error(id, Some(status.state)))),
                    Some(_) | None => {}
                }
                polls.pause().await;
                return None;
            }
        }
        polls.pause().await;
    }
}

/// Ensures that the partition of `request` exists, active or in creation. An existing partition that matches
/// the request is success: an earlier call with a lost reply created it.
///
/// # Errors
///
/// [`VipuError::AlreadyExists`] if the partition exists and differs from the request or is being removed, and
/// every error of [`VipuController::create_partition`] that a retry cannot help.
pub async fn ensure_present<C>(
    controller: &C,
    request: &CreatePartition,
    wait: &WaitOptions,
) -> Result<(), VipuError>
where
    C: VipuController + ?Sized,
{
    let mut polls = PollLoop::start(wait);
    // The first error after which the partition may exist. From then on only the partition's status counts: a
    // lost attempt may have taken the capacity that the next one misses.
    let mut uncertain = None;
    loop {
        let attempt = create(controller, request, &mut uncertain);
        let error = match polls.call(&request.id, attempt).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if let Some(end) = polls.give_up(error) {
            return end;
        }
        polls.pause().await;
    }
}

/// Creates the partition, and resolves an uncertain result by a status query.
async fn create<C>(
    controller: &C,
    request: &CreatePartition,
    uncertain: &mut Option<VipuError>,
) -> Result<(), VipuError>
where
    C: VipuController + ?Sized,
{
    let error = match controller.create_partition(request.clone()).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let exists = matches!(error, VipuError::AlreadyExists { .. });
    if uncertain.is_none() && error.may_have_executed() {
        *uncertain = Some(error.clone());
    }
    if uncertain.is_none() && !exists {
        return Err(error);
    }
    match is_present(controller, request).await {
        Ok(true) => Ok(()),
        Ok(false) if exists => Err(VipuError::Failed {
            detail: format!(
                "partition {} was reported as existing, and then as unknown",
                request.id
            ),
        }),
        Ok(false) => Err(error),
        Err(exists @ VipuError::AlreadyExists { .. }) => Err(exists),
        Err(other) => Err(uncertain.clone().unwrap_or(other)),
    }
}

/// Returns whether the partition exists and matches the request; [`VipuError::AlreadyExists`] if another one
/// exists.
async fn is_present<C>(controller: &C, request: &CreatePartition) -> Result<bool, VipuError>
where
    C: VipuController + ?Sized,
{
    let other = || VipuError::AlreadyExists {
        id: request.id.clone(),
    };
    match controller.partition_status(&request.id).await {
        Err(VipuError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
        // The existing partition is not the requested one, and will be removed.
        Ok(status) if status.state == PartitionState::Removing => return Err(other()),
        Ok(_) => {}
    }
    // The status does not contain the specification; the listing does.
    let partitions = controller.list_partitions(None).await?;
    let found = partitions.iter().find(|partition| partition.id == request.id);
    if found.is_some_and(|partition| matches_request(partition, request)) {
        Ok(true)
    } else {
        Err(other())
    }
}

/// Returns whether `partition` matches `request`. Fields that the request leaves to the controller match any
/// value.
fn matches_request(partition: &Partition, request: &CreatePartition) -> bool {
    let (found, requested) = (&partition.spec, &request.spec);
    partition.id == request.id
        && found.size == requested.size
        && found.gcds == requested.gcds
        && found.replicas == requested.replicas
        && found.reconfigurable == requested.reconfigurable
        && (requested.allocation.is_none() || found.allocation == requested.allocation)
        && (request.ipus.is_empty() || partition.ipus == request.ipus)
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests;
