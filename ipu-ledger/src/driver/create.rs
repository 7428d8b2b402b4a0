//! Create and reset calls.

use std::time::Duration;

use ipu_core::{
    ControllerRejection, Entry, EntryState, Location, Operation, PartitionState, Timestamp, TransitionError,
    lost_partition_error,
};
use ipu_vipu_client::{CreatePartition, VipuController, VipuError};

use super::refused_ipus::{are_ipus_chosen, named_ipus};
use super::resume_intent::TakenOver;
use super::{ControllerHandle, Driver};
use crate::error::LedgerError;
use crate::inflight_calls::Calls;
use crate::outcome::{EnsureOutcome, Pending};
use crate::store::LedgerStore;

/// The origin of an intent, which decides whether a call needs a status query first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntentOrigin {
    /// This driver recorded the intent just now, for this call.
    Fresh,
    /// The intent was recorded earlier; another driver may have called already.
    Found,
}

/// The outcome of driving an intent.
pub(crate) enum CreateOutcome {
    /// The outcome for the caller.
    Done(EnsureOutcome),
    /// The controller had no capacity; the entry is queued again.
    NoCapacity,
}

/// The progress of one intent.
struct CreateAttempt {
    entry: Entry,
    intent: IntentOrigin,
    /// The reset found no partition, so the partition is created.
    recreate: bool,
    /// The placement was decided again since then.
    replaced: bool,
    /// The error of the last unanswered call.
    last_error: Option<VipuError>,
}

/// The result of one step.
enum CreateProgress {
    /// Continue with the next step.
    Continue,
    /// The intent has an outcome.
    Finished(CreateOutcome),
    /// Query the status after a pause.
    Unconfirmed,
}

/// The result of one call.
enum CallOutcome {
    /// The controller accepted the call, or the existing partition is fresh.
    Accepted,
    /// A partition exists that may be in use.
    Exists,
    /// The partition to reset does not exist.
    Missing,
    /// The controller did not reply.
    Unconfirmed(VipuError),
    NoCapacity(VipuError),
    /// The controller refused the IPUs that the ledger named.
    RefusedIpus(VipuError),
    Refused(VipuError),
}

/// Reason that a request is queued again instead of being created on the IPUs of its intent.
pub(super) const OUTDATED: &str = "the controller refuses create calls that name IPUs";

/// Maximum number of steps for one intent: create, reset because the partition exists, create because it
/// disappeared, and one repetition of each.
const MAX_STEPS: u32 = 6;

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    /// Drives an intent to an outcome, as far as possible within `timeout`.
    pub(crate) async fn drive_intent(
        &self,
        entry: Entry,
        intent: IntentOrigin,
        fingerprint: u64,
        timeout: Duration,
    ) -> Result<CreateOutcome, LedgerError> {
        let at = self.controller_of(&entry)?;
        if intent == IntentOrigin::Fresh {
            self.inflight.begin(&entry.id);
        }
        let mut polls = self.polls(timeout.max(self.options.max_poll_interval));
        let mut work = CreateAttempt {
            entry,
            intent,
            recreate: false,
            replaced: false,
            last_error: None,
        };
        for _ in 0..MAX_STEPS {
            match self.step(&at, &mut work, fingerprint, timeout).await? {
                CreateProgress::Continue => {}
                CreateProgress::Finished(outcome) => return Ok(outcome),
                CreateProgress::Unconfirmed => {
                    if !polls.pause().await {
                        break;
                    }
                }
            }
        }
        Ok(CreateOutcome::Done(match work.last_error {
            Some(error) => unanswered(&at, &error),
            None => EnsureOutcome::Pending(Pending::Creating),
        }))
    }

    /// Runs one step of [`drive_intent`](Self::drive_intent): at most one call that changes the controller.
    async fn step(
        &self,
        at: &ControllerHandle<C>,
        work: &mut CreateAttempt,
        fingerprint: u64,
        timeout: Duration,
    ) -> Result<CreateProgress, LedgerError> {
        let EntryState::Intent { operation, fence } = work.entry.state else {
            return Ok(CreateProgress::Finished(CreateOutcome::Done(
                EnsureOutcome::Pending(Pending::Creating),
            )));
        };
        let before = self.inflight.get(&work.entry.id, fence);
        if before.is_some_and(|calls| calls.accepted) {
            let outcome = self.await_ready(at, work.entry.clone(), timeout).await?;
            return Ok(CreateProgress::Finished(CreateOutcome::Done(outcome)));
        }
        if work.intent == IntentOrigin::Found {
            let called_before = before.is_some();
            return match self.take_over(at, work.entry.clone(), called_before).await? {
                TakenOver::Call(taken) => {
                    work.entry = taken;
                    work.intent = IntentOrigin::Fresh;
                    Ok(CreateProgress::Continue)
                }
                TakenOver::Retry(changed) => {
                    work.entry = changed;
                    Ok(CreateProgress::Continue)
                }
                TakenOver::Requeued => Ok(CreateProgress::Finished(CreateOutcome::NoCapacity)),
                TakenOver::Blocked(outcome) => Ok(CreateProgress::Finished(CreateOutcome::Done(outcome))),
            };
        }
        if self.is_late(fence) {
            // The process was suspended, and another one may have resumed the intent since.
            if operation == Operation::Create {
                work.intent = IntentOrigin::Found;
                return Ok(CreateProgress::Continue);
            }
            if before.is_none() {
                self.record_calls(&work.entry, fence, Answered::Yes, Accepted::No);
            }
            work.entry = self.renew_fence(&work.entry).await?;
            work.recreate = false;
            return Ok(CreateProgress::Continue);
        }
        if work.recreate && !work.replaced {
            // A lost partition is placed again before it is created again.
            return Ok(match self.repeat_create(at, &work.entry).await? {
                TakenOver::Call(entry) | TakenOver::Retry(entry) => {
                    work.entry = entry;
                    work.replaced = true;
                    CreateProgress::Continue
                }
                TakenOver::Requeued => CreateProgress::Finished(CreateOutcome::NoCapacity),
                TakenOver::Blocked(outcome) => CreateProgress::Finished(CreateOutcome::Done(outcome)),
            });
        }
        let create = operation == Operation::Create || work.recreate;
        if create && self.is_outdated(at, &work.entry).await? {
            let outcome = self.requeue(at, &work.entry, fence, None, String::from(OUTDATED));
            return outcome.await.map(CreateProgress::Finished);
        }
        let called = if create {
            self.create(at, &work.entry, before.is_some()).await
        } else {
            self.reset(at, &work.entry).await
        };
        match called {
            CallOutcome::Accepted => self.record_calls(&work.entry, fence, Answered::Yes, Accepted::Yes),
            CallOutcome::Exists if create => {
                work.entry = self.reset_found(at, work.entry.clone(), fence).await?;
                work.recreate = false;
            }
            CallOutcome::Exists => {}
            CallOutcome::Missing => {
                self.record_calls(&work.entry, fence, Answered::Yes, Accepted::No);
                (work.recreate, work.replaced) = (true, false);
            }
            CallOutcome::Unconfirmed(error) => {
                tracing::warn!(id = %work.entry.id, %error, "a call was not answered; querying the status");
                let answered = if error.may_have_executed() {
                    Answered::No
                } else {
                    Answered::Yes
                };
                self.record_calls(&work.entry, fence, answered, Accepted::No);
                work.intent = IntentOrigin::Found;
                work.last_error = Some(error);
                return Ok(CreateProgress::Unconfirmed);
            }
            CallOutcome::NoCapacity(error) => {
                let detail = match &error {
                    VipuError::NoCapacity { detail } => detail.clone(),
                    other => other.to_string(),
                };
                tracing::info!(id = %work.entry.id, controller = %at.name, detail, "the controller has no capacity");
                let rejection = self.rejection(at, fingerprint, detail);
                let outcome = self.requeue(at, &work.entry, fence, Some(rejection), error.to_string());
                return outcome.await.map(CreateProgress::Finished);
            }
            CallOutcome::RefusedIpus(error) => {
                let detail = self.handle_refused_ipus(at, &error).await?;
                let rejection = detail.map(|detail| self.rejection(at, fingerprint, detail));
                let outcome = self.requeue(at, &work.entry, fence, rejection, error.to_string());
                return outcome.await.map(CreateProgress::Finished);
            }
            CallOutcome::Refused(source) => {
                return Err(self.drop_refused(at, work.entry.clone(), fence, source).await);
            }
        }
        Ok(CreateProgress::Continue)
    }

    /// Removes an entry whose partition the controller refuses to create, and returns the error.
    async fn drop_refused(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        fence: Timestamp,
        source: VipuError,
    ) -> LedgerError {
        self.record_calls(&entry, fence, Answered::Yes, Accepted::No);
        let (id, window) = (entry.id.clone(), self.window());
        if let Err(error) = self
            .apply(move |state| state.drop_refused(&id, fence, window))
            .await
        {
            return error;
        }
        self.inflight.forget(&entry.id);
        LedgerError::Refused {
            id: entry.id,
            controller: at.name.clone(),
            source: Box::new(source),
        }
    }

    async fn create(&self, at: &ControllerHandle<C>, entry: &Entry, called_before: bool) -> CallOutcome {
        let request = CreatePartition {
            id: entry.id.clone(),
            spec: entry.spec.clone(),
            ipus: named_ipus(entry).to_vec(),
        };
        let call = at.controller.create_partition(request);
        // The previous call was unanswered, and no partition existed before it.
        let existing_outcome = || {
            if called_before {
                CallOutcome::Accepted
            } else {
                CallOutcome::Exists
            }
        };
        let called = match self
            .listings
            .call(&at.name, self.options.call_deadline, call)
            .await
        {
            Ok(_) => CallOutcome::Accepted,
            Err(VipuError::AlreadyExists { .. }) => existing_outcome(),
            Err(error @ (VipuError::NoCapacity { .. } | VipuError::Denied { .. })) => {
                CallOutcome::NoCapacity(error)
            }
            Err(error) if error.may_have_executed() => CallOutcome::Unconfirmed(error),
            // The IPUs that the ledger selected may be wrong, not the request.
            Err(error) if are_ipus_chosen(entry) => CallOutcome::RefusedIpus(error),
            Err(error) => CallOutcome::Refused(error),
        };
        if !matches!(
            called,
            CallOutcome::NoCapacity(_) | CallOutcome::RefusedIpus(_) | CallOutcome::Refused(_)
        ) {
            return called;
        }
        // The call may have arrived twice, for example through a load balancer that retried. The reply of
        // the first call is then lost, and the second one found its capacity taken by the first.
        match self.status(at, entry).await {
            Err(VipuError::NotFound { .. }) => called,
            Ok(_) => existing_outcome(),
            Err(error) => CallOutcome::Unconfirmed(error),
        }
    }

    async fn reset(&self, at: &ControllerHandle<C>, entry: &Entry) -> CallOutcome {
        let call = at.controller.reset_partition(&entry.id);
        match self
            .listings
            .call(&at.name, self.options.call_deadline, call)
            .await
        {
            Ok(()) => CallOutcome::Accepted,
            Err(VipuError::NotFound { .. }) => CallOutcome::Missing,
            Err(error @ VipuError::Refused { .. }) => match self.status(at, entry).await {
                // The partition is being created or reset already, so no job can have used it since.
                Ok(status)
                    if matches!(status.state, PartitionState::Creating | PartitionState::Resetting) =>
                {
                    CallOutcome::Accepted
                }
                Err(VipuError::NotFound { .. }) => CallOutcome::Missing,
                _ => CallOutcome::Unconfirmed(error),
            },
            Err(error) => CallOutcome::Unconfirmed(error),
        }
    }

    /// Takes over an existing partition of this id after a reset, if it matches the request.
    async fn reset_found(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        fence: Timestamp,
    ) -> Result<Entry, LedgerError> {
        let location = self.check_found(at, &entry, fence).await?;
        let id = entry.id;
        self.apply(move |state| state.downgrade_to_reset(&id, fence, location.clone()))
            .await
    }

    /// Returns the IPUs of an existing partition; empty if the controller does not list them.
    async fn check_found(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
    ) -> Result<Location, LedgerError> {
        let call = at.controller.list_partitions(None);
        let Ok(listed) = self
            .listings
            .call(&at.name, self.options.call_deadline, call)
            .await
        else {
            return Ok(Location::default());
        };
        match listed.into_iter().find(|partition| partition.id == entry.id) {
            Some(partition) if !entry.matches(&partition.spec) => {
                let id = entry.id.clone();
                self.apply(move |state| state.drop_foreign(&id, fence)).await?;
                self.inflight.forget(&entry.id);
                Err(LedgerError::Illegal(TransitionError::Foreign {
                    id: entry.id.clone(),
                    controller: at.name.clone(),
                    found: partition.spec.size.get(),
                }))
            }
            Some(partition) => Ok(self.listings.location_of(&at.name, partition)),
            None => Ok(Location::default()),
        }
    }

    /// Queues the request again, unless an earlier call may still create the partition: `reason` is the
    /// message of the intent then. Without a rejection, the request may start again at once.
    pub(super) async fn requeue(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
        fence: Timestamp,
        rejection: Option<ControllerRejection>,
        reason: String,
    ) -> Result<CreateOutcome, LedgerError> {
        self.record_calls(entry, fence, Answered::Yes, Accepted::No);
        let (id, now) = (entry.id.clone(), self.window().now);
        let moved = self.apply(move |state| state.reject_create(&id, fence, rejection.clone(), now));
        match moved.await {
            Ok(()) => {
                self.inflight.forget(&entry.id);
                Ok(CreateOutcome::NoCapacity)
            }
            Err(LedgerError::Illegal(TransitionError::Unsettled { .. })) => {
                self.inflight.back_off(&entry.id, self.options.max_poll_interval);
                Ok(CreateOutcome::Done(EnsureOutcome::Pending(Pending::Unanswered {
                    controller: at.name.clone(),
                    detail: reason,
                })))
            }
            Err(error) => Err(error),
        }
    }

    fn rejection(&self, at: &ControllerHandle<C>, fingerprint: u64, message: String) -> ControllerRejection {
        ControllerRejection {
            controller: at.name.clone(),
            message,
            fingerprint,
            at: self.window().now,
        }
    }

    /// Polls until the partition is ready or in error, or until the timeout.
    async fn await_ready(
        &self,
        at: &ControllerHandle<C>,
        entry: Entry,
        timeout: Duration,
    ) -> Result<EnsureOutcome, LedgerError> {
        let mut polls = self.polls(timeout);
        loop {
            let pending = match self.status(at, &entry).await {
                Ok(status) => match status.state {
                    PartitionState::Active => return self.mark_ready(at, &entry).await,
                    PartitionState::Failed { errors } => return self.mark_failed(&entry, errors).await,
                    PartitionState::Creating => EnsureOutcome::Pending(Pending::Creating),
                    PartitionState::Resetting => EnsureOutcome::Pending(Pending::Resetting),
                    _ => EnsureOutcome::Pending(Pending::Releasing),
                },
                Err(VipuError::NotFound { .. }) => {
                    return self
                        .mark_failed(&entry, vec![lost_partition_error(&at.name)])
                        .await;
                }
                Err(error) => unanswered(at, &error),
            };
            if !polls.pause().await {
                return Ok(pending);
            }
        }
    }

    pub(super) fn record_calls(
        &self,
        entry: &Entry,
        fence: Timestamp,
        answered: Answered,
        accepted: Accepted,
    ) {
        let calls = Calls {
            fence,
            accepted: accepted == Accepted::Yes,
            answered: answered == Answered::Yes,
        };
        self.inflight.record(&entry.id, calls);
    }
}

/// Records whether every call was answered.
#[derive(PartialEq, Eq)]
pub(super) enum Answered {
    Yes,
    No,
}

/// Records whether the controller accepted the call.
#[derive(PartialEq, Eq)]
pub(super) enum Accepted {
    Yes,
    No,
}

pub(super) fn unanswered<C: ?Sized>(at: &ControllerHandle<C>, error: &VipuError) -> EnsureOutcome {
    EnsureOutcome::Pending(Pending::Unanswered {
        controller: at.name.clone(),
        detail: error.to_string(),
    })
}
