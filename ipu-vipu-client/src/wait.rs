//! Create, reset and remove only start something: these helpers see it through, over any [`VipuController`].

use core::future::Future;
use core::time::Duration;

use ipu_core::{Partition, PartitionId, PartitionState};
use tokio::time::Instant;

use crate::controller::{CreatePartition, PartitionStatus, VipuController};
use crate::error::{Retry, VipuError};

/// How long the controller is polled, and how often.
///
/// The pause between two polls doubles from `first_pause` to `longest_pause`; the first poll is at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitOptions {
    /// The longest to wait in all. The default, two minutes, is PopRun's own (`--vipu-server-timeout`); scripts for large
    /// systems use up to an hour.
    pub deadline: Duration,
    /// The first pause. 5 ms is not noticed by anybody and is a few round trips to a controller nearby.
    pub first_pause: Duration,
    /// The longest pause: the 500 ms with which the one public third-party client polls a real controller.
    pub longest_pause: Duration,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(120),
            first_pause: Duration::from_millis(5),
            longest_pause: Duration::from_millis(500),
        }
    }
}

impl WaitOptions {
    /// The default pauses, and `deadline` in all.
    #[must_use]
    pub fn at_most(deadline: Duration) -> Self {
        Self {
            deadline,
            ..Self::default()
        }
    }
}

/// How long a call that was begun may take even if the deadline of the whole wait is over: a controller that is slow to
/// answer the last poll is still believed.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Whether a partition is removed in spite of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// An error of the hardware stops the removal.
    Regular,
    /// The controller goes on in spite of errors.
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

    fn left(&self) -> Duration {
        self.wait.deadline.saturating_sub(self.started.elapsed())
    }

    /// Waits for one call, no longer than the whole wait may take.
    async fn answer<T>(
        &self,
        id: &PartitionId,
        call: impl Future<Output = Result<T, VipuError>>,
    ) -> Result<T, VipuError> {
        tokio::time::timeout(self.left().max(ANSWER_GRACE), call)
            .await
            .unwrap_or_else(|_| Err(self.slow(id, None)))
    }

    /// Pauses, but not beyond the deadline: the last poll is at the deadline itself.
    async fn pause(&mut self) {
        tokio::time::sleep(self.pause.min(self.left())).await;
        self.pause = self.pause.saturating_mul(2).min(self.wait.longest_pause);
    }

    fn slow(&self, id: &PartitionId, state: Option<PartitionState>) -> VipuError {
        VipuError::Slow {
            id: id.clone(),
            state,
            waited: self.started.elapsed(),
        }
    }

    /// The error to give up with: always one that trying again now cannot help, or any once the time is over.
    fn give_up<T>(&self, error: VipuError) -> Option<Result<T, VipuError>> {
        let again = match error.retry() {
            Retry::Soon | Retry::After(_) => !self.is_over(),
            Retry::Never | Retry::AfterChange => false,
        };
        (!again).then_some(Err(error))
    }
}

/// Waits until partition `id` is active.
///
/// A controller that cannot be reached is asked again until the deadline.
///
/// # Errors
///
/// [`VipuError::PartitionFailed`] if it is in error, [`VipuError::NotFound`] if it is gone, [`VipuError::Slow`] at the
/// deadline, and every other error that trying again cannot help.
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
        match polls.answer(id, controller.partition_status(id)).await {
            Ok(status) => match &status.state {
                PartitionState::Active => return Ok(status),
                PartitionState::Failed { errors } => {
                    return Err(VipuError::PartitionFailed {
                        id: id.clone(),
                        errors: errors.clone(),
                    });
                }
                // Being removed, it will soon be unknown, which ends this.
                state if polls.is_over() => return Err(polls.slow(id, Some(state.clone()))),
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

/// Sees to it that there is no partition `id`: removes it and waits until the controller does not know it. One that is
/// gone already is fine.
///
/// # Guarantees
///
/// `Ok` means that the controller said that it does not know the partition, after every removal that this call started.
///
/// # Errors
///
/// [`VipuError::Slow`] if it is still there at the deadline, and every error that trying again cannot help.
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
        // A controller may refuse to remove what it is removing already: the status tells.
        let refusal = match polls.answer(id, controller.remove_partition(id, force)).await {
            Err(VipuError::NotFound { .. }) => return Ok(()),
            Ok(()) => None,
            Err(error @ VipuError::Refused { .. }) => Some(error),
            Err(error) => match polls.give_up(error) {
                Some(end) => return end,
                None => None,
            },
        };
        if let Some(end) = removed(controller, id, &mut polls, refusal).await {
            return end;
        }
    }
}

/// Polls while the partition is being removed. `None` if it has to be removed again.
async fn removed<C>(
    controller: &C,
    id: &PartitionId,
    polls: &mut PollLoop,
    refusal: Option<VipuError>,
) -> Option<Result<(), VipuError>>
where
    C: VipuController + ?Sized,
{
    loop {
        match polls.answer(id, controller.partition_status(id)).await {
            Err(VipuError::NotFound { .. }) => return Some(Ok(())),
            Err(error) => {
                if let Some(end) = polls.give_up(error) {
                    return Some(end);
                }
            }
            Ok(status) if status.state == PartitionState::Removing => {
                if polls.is_over() {
                    return Some(Err(polls.slow(id, Some(status.state))));
                }
            }
            Ok(status) => {
                let busy = matches!(status.state, PartitionState::Creating | PartitionState::Resetting);
                match refusal {
                    // What is under way may have to end first.
                    Some(refusal) if !busy || polls.is_over() => return Some(Err(refusal)),
                    None if polls.is_over() => return Some(Err(polls.slow(id, Some(status.state)))),
                    Some(_) | None => {}
                }
                polls.pause().await;
                return None;
            }
        }
        polls.pause().await;
    }
}

/// Sees to it that the partition of `request` is there, active or on its way. A partition of that id that exists already
/// and is what was asked for is fine: an earlier call whose reply was lost made it.
///
/// # Errors
///
/// [`VipuError::AlreadyExists`] if a partition of that id exists and is not what was asked for or is being removed, and
/// every error of [`VipuController::create_partition`] that trying again cannot help.
pub async fn ensure_present<C>(
    controller: &C,
    request: &CreatePartition,
    wait: &WaitOptions,
) -> Result<(), VipuError>
where
    C: VipuController + ?Sized,
{
    let mut polls = PollLoop::start(wait);
    let mut making = CreateLoop::new(Existing::Adopt);
    loop {
        let error = match polls
            .answer(&request.id, making.attempt(controller, request))
            .await
        {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if let Some(end) = polls.give_up(error) {
            return end;
        }
        polls.pause().await;
    }
}

/// What to do with a partition that exists before anything was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Take it, if it is as asked.
    Adopt,
    /// Say that it exists.
    Refuse,
}

/// The attempts at making one partition, and what is not known about them.
#[derive(Debug)]
pub(crate) struct CreateLoop {
    existing: Existing,
    /// The first error that leaves open whether the partition was made. From then on no answer but the partition's
    /// status is believed: a lost attempt may have taken the room that the next one does not find.
    unclear: Option<VipuError>,
}

impl CreateLoop {
    pub(crate) const fn new(existing: Existing) -> Self {
        Self {
            existing,
            unclear: None,
        }
    }

    /// Creates; what is unclear is settled by asking.
    pub(crate) async fn attempt<C>(
        &mut self,
        controller: &C,
        request: &CreatePartition,
    ) -> Result<(), VipuError>
    where
        C: VipuController + ?Sized,
    {
        let error = match controller.create_partition(request.clone()).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let exists = matches!(error, VipuError::AlreadyExists { .. });
        if self.unclear.is_none() && error.may_have_happened() {
            self.unclear = Some(error.clone());
        }
        let adopt = exists && self.existing == Existing::Adopt;
        if self.unclear.is_none() && !adopt {
            return Err(error);
        }
        match is_present(controller, request).await {
            Ok(true) => Ok(()),
            Ok(false) if exists => Err(VipuError::Failed {
                detail: format!("partition {} was said to exist, and then not to", request.id),
            }),
            Ok(false) => Err(error),
            Err(exists @ VipuError::AlreadyExists { .. }) => Err(exists),
            Err(other) => Err(self.unclear.clone().unwrap_or(other)),
        }
    }
}

/// Whether the partition exists as it is asked for; [`VipuError::AlreadyExists`] if another one does.
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
        // It is not the one that is asked for, and will be gone.
        Ok(status) if status.state == PartitionState::Removing => return Err(other()),
        Ok(_) => {}
    }
    // The status does not say what the partition is made of: the listing does.
    let partitions = controller.list_partitions(None).await?;
    let found = partitions.iter().find(|partition| partition.id == request.id);
    if found.is_some_and(|partition| is_as_asked(partition, request)) {
        Ok(true)
    } else {
        Err(other())
    }
}

/// Whether `partition` is what `request` asks for; where the request leaves the choice to the controller, anything is.
fn is_as_asked(partition: &Partition, request: &CreatePartition) -> bool {
    let (found, asked) = (&partition.spec, &request.spec);
    partition.id == request.id
        && found.size == asked.size
        && found.gcds == asked.gcds
        && found.replicas == asked.replicas
        && found.reconfigurable == asked.reconfigurable
        && (asked.allocation.is_none() || found.allocation == asked.allocation)
        && (request.ipus.is_empty() || partition.ipus == request.ipus)
}

#[cfg(test)]
#[cfg(feature = "mock")]
mod tests;
