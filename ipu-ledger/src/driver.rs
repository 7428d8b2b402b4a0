//! The driver: what is recorded first, what is called then, and what is concluded from the answer.
//!
//! - The intent is durable.
//! - The controller is called, under a deadline that ends before the intent's fence.
//! - An answer is believed; no answer is not: then the status is asked.
//! - What came of it is recorded.
//!
//! Two rules keep this safe when a driver dies between any two steps. A partition that is found where one was to be made
//! is reset before it is handed on, unless this very driver made it. And an entry is only forgotten when the controller
//! does not know the partition and no call for it can be under way any more.

pub(crate) mod create;
mod remove;
mod resume_intent;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ipu_core::{
    CallWindow, Change, ControllerName, ControllersSnapshot, Entry, EntryState, LedgerState, Location,
    Operation, PartitionState, QueuePolicy, Timestamp, Transition, TransitionError, lost,
};
use ipu_vipu_client::{ControllerPool, PartitionStatus, VipuController, VipuError};
use tokio::time::Instant;

use crate::error::LedgerError;
use crate::group_commit::Committer;
use crate::inflight_calls::InflightCalls;
use crate::listings::ListingCache;
use crate::options::{Anchor, LedgerOptions};
use crate::outcome::{EnsureOutcome, Grant, Pending};
use crate::queue_scans::QueueScans;
use crate::store::LedgerStore;

/// Everything that the clones of a ledger share.
pub(crate) struct Driver<C: ?Sized, S> {
    pub(crate) views: ListingCache<C>,
    pub(crate) commit: Committer<S>,
    pub(crate) book: InflightCalls,
    pub(crate) turns: QueueScans,
    pub(crate) options: LedgerOptions,
    anchor: Anchor,
    /// The rules of the line: those of the options, with the quotas in force.
    rules: RwLock<Arc<QueuePolicy>>,
}

/// The controller of an entry.
pub(crate) struct ControllerHandle<C: ?Sized> {
    pub(crate) name: ControllerName,
    pub(crate) controller: Arc<C>,
}

/// Pauses between polls: doubling, until the patience is over.
pub(crate) struct PollBackoff {
    until: Instant,
    pause: Duration,
    longest: Duration,
}

impl PollBackoff {
    /// Waits for the next poll; `false` if the patience is over.
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
            views: ListingCache::new(pool),
            commit: Committer::new(store, Arc::clone(&options.clock), options.usage.clone()),
            book: InflightCalls::default(),
            turns: QueueScans::default(),
            anchor: Anchor::new(&options.clock),
            rules: RwLock::new(Arc::new(options.queue.clone())),
            options,
        }
    }

    /// All controllers, none seen longer ago than `not_before` unless it is slow.
    pub(crate) async fn world(&self, not_before: Instant) -> ControllersSnapshot {
        let mut world = self.views.world(&self.options, not_before).await;
        self.record_aliases(&mut world).await;
        world
    }

    /// Records the pairs of names in `world` that belong to one controller by their partitions.
    pub(crate) async fn record_aliases(&self, world: &mut ControllersSnapshot) {
        let found = world.new_aliases(|id| self.commit.known(id));
        if found.is_empty() {
            return;
        }
        for (name, alias) in &found {
            tracing::warn!(%name, %alias, "two names of one controller: only one of them takes new partitions");
        }
        let shown = world.clone();
        let record = move |state: &LedgerState| ((), state.record_aliases(&shown));
        if let Err(error) = self.commit.transact(record).await {
            tracing::warn!(%error, "the names of a controller are not recorded");
        }
        world.aliases.extend(found);
    }

    /// The window of a call that is decided on now.
    pub(crate) fn window(&self) -> CallWindow {
        self.windows()()
    }

    /// Returns the windows for a transition. The transition asks for its window when it decides: the process may wait for
    /// the store or be suspended before, and an older window would take the fence of another process for one of a clock
    /// that was put back, and move it back.
    pub(crate) fn windows(&self) -> impl Fn() -> CallWindow + Send + 'static {
        let (anchor, clock, settle) = (self.anchor, Arc::clone(&self.options.clock), self.options.settle);
        move || anchor.window(&clock, settle)
    }

    /// The rules of the line that are in force.
    pub(crate) fn rules(&self) -> Arc<QueuePolicy> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&rules)
    }

    pub(crate) fn change_rules(&self, change: impl FnOnce(&mut QueuePolicy)) {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut rules));
    }

    pub(crate) fn polls(&self, patience: Duration) -> PollBackoff {
        PollBackoff {
            until: Instant::now() + patience,
            pause: self.options.first_poll,
            longest: self.options.longest_poll,
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

    /// Commits a transition of `seen` that follows from what its controller said.
    pub(crate) async fn apply_to<T, F>(&self, seen: &Entry, mut transition: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnMut(&LedgerState) -> Result<Transition<T>, TransitionError> + Send + 'static,
    {
        let seen = seen.clone();
        self.apply(move |state| {
            state.ensure_unchanged(&seen)?;
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
        match self.views.pool().get(name) {
            Some(controller) => Ok(ControllerHandle {
                name: name.clone(),
                controller,
            }),
            None => Err(unknown(name.to_string())),
        }
    }

    /// Whether `fence` was set too long ago to begin a call now: the effect of a call has to come before its fence. The
    /// process may have been suspended since, also while it waited for the reply to the commit of `fence`.
    pub(crate) fn is_late(&self, fence: Timestamp) -> bool {
        let window = self.window();
        window.now.plus(window.settle).since(fence) > self.options.call_deadline / 2
    }

    /// Moves the fence of an entry on, before a call for it.
    pub(crate) async fn take_up(&self, entry: &Entry) -> Result<Entry, LedgerError> {
        let (id, answered, window) = (entry.id.clone(), self.book.answered(&entry.id), self.windows());
        self.apply_to(entry, move |state| state.claim_call(&id, answered, window()))
            .await
    }

    pub(crate) async fn status(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<PartitionStatus, VipuError> {
        let call = at.controller.partition_status(&entry.id);
        self.views.call(&at.name, self.options.call_deadline, call).await
    }

    /// How a partition is that its owner has, by one look at the controller.
    pub(crate) async fn refresh_status(&self, entry: Entry) -> Result<EnsureOutcome, LedgerError> {
        let at = match self.controller_of(&entry) {
            Ok(at) => at,
            Err(error) => return recorded(&entry).ok_or(error),
        };
        let errors = match self.status(&at, &entry).await {
            Ok(status) => match status.state {
                PartitionState::Active => return self.ready(&at, &entry).await,
                PartitionState::Creating => return Ok(EnsureOutcome::Pending(Pending::Creating)),
                PartitionState::Resetting => return Ok(EnsureOutcome::Pending(Pending::Resetting)),
                PartitionState::Failed { errors } => errors,
                _ => vec![format!(
                    "somebody else has controller {} remove the partition",
                    at.name
                )],
            },
            Err(VipuError::NotFound { .. }) => vec![lost(&at.name)],
            // What the ledger says stands: nobody else can have it.
            Err(error) => {
                tracing::debug!(id = %entry.id, %error, "the status is not known");
                return recorded(&entry).ok_or_else(|| LedgerError::UnknownController {
                    id: entry.id.clone(),
                    controller: at.name.clone(),
                });
            }
        };
        self.broken(&entry, errors).await
    }

    /// Records that a partition is ready, with its IPUs in the same write.
    pub(crate) async fn ready(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<EnsureOutcome, LedgerError> {
        // A create call with explicit IPUs makes the partition on those or not at all. What was there before a reset
        // may have been made by another call.
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
        let (answered, now) = (self.book.answered(&id), self.window().now);
        match self
            .apply_to(entry, move |state| {
                state.mark_active(&id, attempt, &location, answered, now)
            })
            .await
        {
            Ok(entry) => Ok(EnsureOutcome::Active(Grant::of(&entry, &at.name))),
            // It is ready, and a reset may still come.
            Err(LedgerError::Illegal(TransitionError::Unsettled { .. })) => {
                Ok(EnsureOutcome::Pending(Pending::Resetting))
            }
            Err(LedgerError::Illegal(in_use @ TransitionError::InUse { .. })) => {
                self.broken(entry, vec![in_use.to_string()]).await
            }
            Err(error) => Err(error),
        }
    }

    /// The IPUs that the controller lists for the partition of `entry`; none if it does not list the partition.
    pub(crate) async fn locate(
        &self,
        at: &ControllerHandle<C>,
        entry: &Entry,
    ) -> Result<Option<Location>, VipuError> {
        let call = at.controller.list_partitions(None);
        let listed = self
            .views
            .call(&at.name, self.options.call_deadline, call)
            .await?;
        let found = listed.into_iter().find(|partition| partition.id == entry.id);
        Ok(found.map(|partition| self.views.location_of(&at.name, partition)))
    }

    pub(crate) async fn broken(
        &self,
        entry: &Entry,
        errors: Vec<String>,
    ) -> Result<EnsureOutcome, LedgerError> {
        tracing::warn!(id = %entry.id, ?errors, "a partition is in error");
        let (id, attempt) = (entry.id.clone(), entry.attempt);
        let (answered, now) = (self.book.answered(&id), self.options.now());
        let told = errors.clone();
        let broken = move |state: &LedgerState| state.mark_failed(&id, attempt, answered, told.clone(), now);
        self.apply_to(entry, broken).await?;
        Ok(EnsureOutcome::Pending(Pending::Failed { errors }))
    }
}

/// What the ledger says of an entry whose controller does not answer.
fn recorded(entry: &Entry) -> Option<EnsureOutcome> {
    let controller = entry.controller.as_ref()?;
    match &entry.state {
        EntryState::Active => Some(EnsureOutcome::Active(Grant::of(entry, controller))),
        EntryState::Failed { errors } => Some(EnsureOutcome::Pending(Pending::Failed {
            errors: errors.clone(),
        })),
        _ => None,
    }
}
