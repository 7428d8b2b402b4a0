//! The driver: records an intent, calls the controller, and records the result.
//!
//! - The intent becomes durable.
//! - The driver calls the controller, under a deadline that ends before the intent's fence.
//! - The driver trusts a reply. Without a reply it queries the status.
//! - The driver records the result.
//!
//! Two rules keep this safe if a driver dies between any two steps. A partition that exists before its create
//! call is reset before it is granted, unless this driver created it. An entry is removed only when the
//! controller does not know the partition and no call for it can be in flight.

pub(crate) mod create;
mod refused_ipus;
mod remove;
mod resume_intent;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ipu_core::{
    CallWindow, Change, ControllerName, ControllersSnapshot, Entry, EntryState, LedgerState, Location,
    Operation, PartitionState, QueuePolicy, Timestamp, Transition, TransitionError, lost_partition_error,
};
use ipu_vipu_client::{ControllerPool, PartitionStatus, VipuController, VipuError};
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::group_commit::Committer;
use crate::inflight_calls::InflightCalls;
use crate::listings::ListingCache;
use crate::options::{Anchor, LedgerOptions};
use crate::outcome::{EnsureOutcome, Grant, Pending};
use crate::preemption::PreemptionCounter;
use crate::queue_scans::QueueScans;
use crate::store::LedgerStore;

/// The state that all clones of a ledger share.
pub(crate) struct Driver<C: ?Sized, S> {
    pub(crate) listings: ListingCache<C>,
    pub(crate) commit: Committer<S>,
    pub(crate) inflight: InflightCalls,
    pub(crate) queue_scans: QueueScans,
    pub(crate) preemptions: PreemptionCounter,
    pub(crate) options: LedgerOptions,
    anchor: Anchor,
    /// The queue policy in force: the one of the options, with the current quotas.
    rules: RwLock<Arc<QueuePolicy>>,
}

/// The controller of an entry.
pub(crate) struct ControllerHandle<C: ?Sized> {
    pub(crate) name: ControllerName,
    pub(crate) controller: Arc<C>,
}

/// Exponentially growing pauses between polls, until a timeout.
pub(crate) struct PollBackoff {
    until: Instant,
    pause: Duration,
    longest: Duration,
}

impl PollBackoff {
    /// Waits for the next poll; returns `false` after the timeout.
    pub(crate) async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = self.pause.saturating_mul(2).min(self.longest);
        true
    }
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Driver<C, S> {
    pub(crate) fn new(pool: ControllerPool<C>, store: S, options: LedgerOptions) -> Self {
        Self {
            listings: ListingCache::new(pool),
            commit: Committer::new(store, Arc::clone(&options.clock), options.usage.clone()),
            inflight: InflightCalls::default(),
            queue_scans: QueueScans::default(),
            preemptions: PreemptionCounter::default(),
            anchor: Anchor::new(&options.clock),
            rules: RwLock::new(Arc::new(options.queue.clone())),
            options,
        }
    }

    /// Returns a snapshot of all controllers. Listings are not older than `not_before`, except those of slow
    /// controllers.
    pub(crate) async fn snapshot(&self, not_before: Instant) -> ControllersSnapshot {
        let mut snapshot = self.listings.snapshot(&self.options, not_before).await;
        self.record_aliases(&mut snapshot).await;
        snapshot
    }

    /// Records the pairs of names in `snapshot` that their partitions identify as one controller.
    pub(crate) async fn record_aliases(&self, snapshot: &mut ControllersSnapshot) {
        let found = snapshot.new_aliases(|id| self.commit.cached(id));
        if found.is_empty() {
            return;
        }
        for (name, alias) in &found {
            tracing::warn!(%name, %alias, "two names belong to one controller; only one takes new partitions");
        }
        let observed = snapshot.clone();
        let record = move |state: &LedgerState| ((), state.record_aliases(&observed));
        if let Err(error) = self.commit.transact(record).await {
            tracing::warn!(%error, "failed to record the names of a controller");
        }
        snapshot.aliases.extend(found);
    }

    /// Returns the window of a call that is decided on now.
    pub(crate) fn window(&self) -> CallWindow {
        self.windows()()
    }

    /// Returns a source of windows for a transition. The transition takes its window when it decides, because
    /// the process may wait for the store or be suspended before. With an older window, the fence of another
    /// process would look like one from before a clock step, and the transition would move it back.
    pub(crate) fn windows(&self) -> impl Fn() -> CallWindow + Send + 'static {
        let (anchor, clock, settle) = (self.anchor, Arc::clone(&self.options.clock), self.options.settle);
        move || anchor.window(&clock, settle)
    }

    /// Returns the queue policy in force.
    pub(crate) fn rules(&self) -> Arc<QueuePolicy> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&rules)
    }

    pub(crate) fn change_rules(&self, change: impl FnOnce(&mut QueuePolicy)) {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut rules));
    }

    pub(crate) fn polls(&self, timeout: Duration) -> PollBackoff {
        PollBackoff {
            until: Instant::now() + timeout,
            pause: self.options.min_poll_interval,
            longest: self.options.max_poll_interval,
        }
    }

    /// Commits a transition.
    pub(crate) async fn apply<T, F>(&self, mut transition: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnMut(&LedgerState) -> Result<Transition<T>, TransitionError> + Send + 'static,
    {
        let decide = move |state: &LedgerState| match transition(state) {
            Ok(step) => (Ok(step.outcome), step.changes),
            Err(illegal) => (Err(illegal), Vec::<Change>::new()),
        };
        Ok(self.commit.transact(decide).await??)
    }

    /// Commits a transition of `expected` that follows from a reply of its controller.
    pub(crate) async fn apply_to<T, F>(&self, expected: &Entry, mut transition: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnMut(&LedgerState) -> Result<Transition<T>, TransitionError> + Send + 'static,
    {
        let expected = expected.clone();
        self.apply(move |state| {
            state.ensure_unchanged(&expected)?;
            transition(state)
        })
        .await
    }

    pub(crate) fn controller_of(&self, entry: &Entry) -> Result<ControllerHandle<C>, LedgerError> {
        let unknown = |name: String| {
            let controller = ControllerName::new(name).unwrap_or_else(|error| {
                unreachable!("a name that is not empty and printable: {error}");
            });
            LedgerError::UnknownController {
                id: entry.id.clone(),
                controller,
            }
        };
        let Some(name) = &entry.controller else {
            return Err(unknown("none".into()));
        };
        match self.listings.pool().get(name) {
            Some(controller) => Ok(ControllerHandle {
                name: name.clone(),
                controller,
            }),
            None => Err(unknown(name.to_string())),
        }
    }

    /// Returns whether `fence` is too old to start a call now: a call must take effect before its fence. The
    /// process may have been suspended, also while it waited for the commit of `fence`.
    pub(crate) fn is_late(&self, fence: Timestamp) -> bool {
        let window = self.window();
        window.now.plus(window.settle).since(fence) > self.options.call_deadline / 2
    }

    /// Renews the fence of an entry before a call for it.
    pub(crate) async fn renew_fence(&self, entry: &Entry) -> Result<Entry, LedgerError> {
        let (id, answered, window) = (
            entry.id.clone(),
            self.inflight.answered_fence(&entry.id),
            self.windows(),
        );
        self.apply_to(entry, move |state| state.claim_call(&id, answered, window()))
            .await
    }

    pub(crate) async fn status(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<PartitionStatus, VipuError> {
        let call = at.controller.partition_status(&entry.id);
        self.listings
            .call(&at.name, self.options.call_deadline, call)
            .await
    }

    /// Queries the controller once and returns the state of a held partition.
    pub(crate) async fn refresh_status(&self, entry: Entry) -> Result<EnsureOutcome, LedgerError> {
        let at = match self.controller_of(&entry) {
            Ok(at) => at,
            Err(error) => return recorded_outcome(&entry).ok_or(error),
        };
        let errors = match self.status(&at, &entry).await {
            Ok(status) => match status.state {
                PartitionState::Active => return self.mark_ready(&at, &entry).await,
                PartitionState::Creating => return Ok(EnsureOutcome::Pending(Pending::Creating)),
                PartitionState::Resetting => return Ok(EnsureOutcome::Pending(Pending::Resetting)),
                PartitionState::Failed { errors } => errors,
                _ => vec![format!(
                    "controller {} is removing the partition for another client",
                    at.name
                )],
            },
            Err(VipuError::NotFound { .. }) => vec![lost_partition_error(&at.name)],
            // The recorded state stands: no other owner can have the partition.
            Err(error) => {
                tracing::debug!(id = %entry.id, %error, "the status query failed; using the recorded state");
                return recorded_outcome(&entry).ok_or_else(|| LedgerError::UnknownController {
                    id: entry.id.clone(),
                    controller: at.name.clone(),
                });
            }
        };
        self.mark_failed(&entry, errors).await
    }

    /// Records that a partition is ready, with its IPUs in the same write.
    pub(crate) async fn mark_ready(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<EnsureOutcome, LedgerError> {
        // A create call with explicit IPUs creates the partition on those IPUs or fails. A partition that
        // is being reset may come from another create call.
        let is_placed = match entry.state {
            EntryState::Active => true,
            EntryState::Intent {
                operation: Operation::Create,
                ..
            } => !entry.places.is_empty(),
            _ => false,
        };
        let location = if is_placed {
            Location::default()
        } else {
            match self.locate(at, entry).await {
                Ok(Some(location)) => location,
                Ok(None) => return Ok(EnsureOutcome::Pending(Pending::Creating)),
                Err(error) => return Ok(create::unanswered(at, &error)),
            }
        };
        let (id, attempt) = (entry.id.clone(), entry.attempt);
        let (answered, now) = (self.inflight.answered_fence(&id), self.window().now);
        match self
            .apply_to(entry, move |state| {
                state.mark_active(&id, attempt, &location, answered, now)
            })
            .await
        {
            Ok(entry) => Ok(EnsureOutcome::Active(Grant::of(&entry, &at.name))),
            // The partition is ready, but a reset may still take effect.
            Err(LedgerError::Illegal(TransitionError::Unsettled { .. })) => {
                Ok(EnsureOutcome::Pending(Pending::Resetting))
            }
            Err(LedgerError::Illegal(in_use @ TransitionError::InUse { .. })) => {
                self.mark_failed(entry, vec![in_use.to_string()]).await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the IPUs that the controller lists for the partition of `entry`; `None` if it does not list
    /// the partition.
    pub(crate) async fn locate(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<Option<Location>, VipuError> {
        let call = at.controller.list_partitions(None);
        let listed = self
            .listings
            .call(&at.name, self.options.call_deadline, call)
            .await?;
        let found = listed.into_iter().find(|partition| partition.id == entry.id);
        Ok(found.map(|partition| self.listings.location_of(&at.name, partition)))
    }

    pub(crate) async fn mark_failed(
        &self,
        entry: &Entry,
        errors: Vec<String>,
    ) -> Result<EnsureOutcome, LedgerError> {
        tracing::warn!(id = %entry.id, ?errors, "a partition is in error");
        let (id, attempt) = (entry.id.clone(), entry.attempt);
        let (answered, now) = (self.inflight.answered_fence(&id), self.options.now());
        let recorded_errors = errors.clone();
        let mark_failed = move |state: &LedgerState| {
            state.mark_failed(&id, attempt, answered, recorded_errors.clone(), now)
        };
        self.apply_to(entry, mark_failed).await?;
        Ok(EnsureOutcome::Pending(Pending::Failed { errors }))
    }
}

/// Returns the recorded outcome of an entry whose controller does not reply.
fn recorded_outcome(entry: &Entry) -> Option<EnsureOutcome> {
    let controller = entry.controller.as_ref()?;
    match &entry.state {
        EntryState::Active => Some(EnsureOutcome::Active(Grant::of(entry, controller))),
        EntryState::Failed { errors } => Some(EnsureOutcome::Pending(Pending::Failed {
            errors: errors.clone(),
        })),
        _ => None,
    }
}
