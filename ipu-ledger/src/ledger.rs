//! The ledger: the interface through which every component drives partitions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, CapacityBySize, Change, ControllerName, ControllersSnapshot, DryRun, Entry, EntryState,
    FreeCapacity, IpuCount, LedgerState, OwnerLiveness, PartitionFacts, PartitionId, PartitionSpec,
    Preemption, QueueDecision, QueuePolicy, QueueStatus, Quotas, Reason, Request, Stats, Timestamp,
    TransitionError, UsageRecord,
};
use ipu_vipu_client::{ControllerPool, VipuController};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::caller::Expiry;
use crate::change_feed::LedgerChange;
use crate::driver::Driver;
use crate::driver::create::{CreateOutcome, IntentOrigin};
use crate::error::LedgerError;
use crate::liveness::Liveness;
use crate::options::LedgerOptions;
use crate::outcome::{EnsureOutcome, Pending, RepairReport};
use crate::preemption::new_demands;
use crate::resume::{RequestOrigin, as_recorded, entry_removed};
use crate::store::LedgerStore;
use crate::usage::{UsageLog, UsagePosition};

/// Maximum number of placement attempts when controllers refuse capacity that they listed: one per controller
/// of the largest known installation. After them the request is queued.
const MAX_PLACEMENT_ATTEMPTS: u32 = 16;

/// The ledger. Cheap to clone; clones share all state.
pub struct Ledger<C: ?Sized, S> {
    pub(crate) driver: Arc<Driver<C, S>>,
}

impl<C: ?Sized, S> Clone for Ledger<C, S> {
    fn clone(&self) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
        }
    }
}

impl<C: ?Sized, S> std::fmt::Debug for Ledger<C, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl<C: VipuController + ?Sized + 'static, S: LedgerStore> Ledger<C, S> {
    /// Creates a ledger that is kept in `store` and drives the controllers of `pool`. Reads and writes
    /// nothing yet.
    #[must_use]
    pub fn new(pool: ControllerPool<C>, store: S, options: LedgerOptions) -> Self {
        Self {
            driver: Arc::new(Driver::new(pool, store, options)),
        }
    }

    /// Replaces the quotas of the options by `quotas`. Existing partitions are kept.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.change_rules(|rules| rules.quotas = quotas);
    }

    /// Changes the queue policy in force. The change applies from the next request on; recorded entries are
    /// kept.
    pub fn change_rules(&self, change: impl FnOnce(&mut QueuePolicy)) {
        self.driver.change_rules(change);
    }

    /// Returns the controllers.
    #[must_use]
    pub fn pool(&self) -> &ControllerPool<C> {
        self.driver.listings.pool()
    }

    /// Returns the time of the configured clock, to which all times of entries and changes refer.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.driver.options.now()
    }

    /// Takes one step towards the partition of `request`: records it, starts it if it is its turn, calls the
    /// controller, and queries the status once. Never waits in the queue. Safe to repeat, also after a crash:
    /// it resumes from the recorded state.
    ///
    /// # Errors
    ///
    /// [`LedgerError`]. After a store error the request may or may not be recorded: call `ensure` again, or
    /// release.
    pub async fn ensure(&self, request: Request) -> Result<EnsureOutcome, LedgerError> {
        self.ensure_until(request, &Expiry::default()).await
    }

    /// Takes one step as [`ensure`](Self::ensure) does, unless the client has disconnected before the request
    /// is recorded. The client may have sent the request elsewhere, used the partition and released it since.
    ///
    /// # Errors
    ///
    /// [`TransitionError::TooLate`], and the errors of [`ensure`](Self::ensure).
    pub async fn ensure_until(
        &self,
        mut request: Request,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        request.not_after = expiry.not_after.or(request.not_after);
        self.ensure_once(&request, Duration::ZERO, RequestOrigin::New, expiry)
            .await
    }

    pub(crate) async fn ensure_once(
        &self,
        request: &Request,
        timeout: Duration,
        origin: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        let _lock = self.lock_partition(&request.id, expiry).await?;
        match self.ensure_loop(request, timeout, origin, expiry).await {
            // Another driver, such as a repair, moved the entry meanwhile.
            Err(LedgerError::Illegal(TransitionError::Moved { state, .. }))
                if !matches!(state, "gone" | "releasing") =>
            {
                Ok(EnsureOutcome::Pending(Pending::Creating))
            }
            other => other,
        }
    }

    /// Locks the partition `id`, unless the client disconnects while it waits for the lock.
    pub(crate) async fn lock_partition(
        &self,
        id: &PartitionId,
        expiry: &Expiry,
    ) -> Result<tokio::sync::OwnedMutexGuard<()>, LedgerError> {
        let lock = self.driver.inflight.lock(id);
        expiry
            .unless_disconnected(id, || self.driver.options.now(), lock)
            .await
    }

    async fn ensure_loop(
        &self,
        request: &Request,
        timeout: Duration,
        mut origin: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        let started = Instant::now();
        let options = &self.driver.options;
        let requested_at = options.now();
        let mut not_before = started.checked_sub(options.listing_age).unwrap_or(started);
        let mut dead_removed = false;
        let mut waiting = None;
        for _ in 0..MAX_PLACEMENT_ATTEMPTS {
            let mut snapshot = self.driver.snapshot(not_before).await;
            if not_before < started
                && snapshot.find(&request.id).is_some()
                && !self.is_held(&request.id).await?
            {
                // The partition was released just now, or is unknown to the ledger: the newest listing
                // decides.
                not_before = started;
                snapshot = self.driver.snapshot(not_before).await;
            }
            let (admission, intent, fingerprint) =
                self.admit(request, snapshot.clone(), origin, expiry).await?;
            if !matches!(admission, Admission::Rejected(_)) {
                // The request is recorded. A release from now on is newer than this request.
                origin = RequestOrigin::Resume;
            }
            waiting = Some(match admission {
                Admission::Held(entry) => return self.driver.refresh_status(entry).await,
                Admission::Drive(entry) => {
                    let listing = entry.controller.as_ref().and_then(|name| snapshot.listing(name));
                    // With an older listing, another request may have taken the capacity since. The
                    // refusal then does not apply to the next listing.
                    let is_new = listing.is_some_and(|listing| listing.requested() >= Some(requested_at));
                    let fingerprint = if is_new { fingerprint } else { 0 };
                    match self
                        .driver
                        .drive_intent(entry, intent, fingerprint, timeout)
                        .await?
                    {
                        CreateOutcome::Done(outcome) => return Ok(outcome),
                        CreateOutcome::NoCapacity => {
                            not_before = Instant::now();
                            continue;
                        }
                    }
                }
                Admission::Releasing(entry) => {
                    self.driver.remove(entry, IntentOrigin::Found, timeout).await?;
                    return Ok(EnsureOutcome::Pending(Pending::Releasing));
                }
                Admission::Queued(waiting) => EnsureOutcome::Waiting(waiting),
                Admission::Rejected(waiting) => EnsureOutcome::Refused(waiting),
            });
            // Before a request waits, its status must be current: based on a listing that is not older
            // than the call, and without dead requests in the queue.
            if not_before < started {
                not_before = started;
            } else if !dead_removed && self.remove_dead_waiters(&request.id).await? {
                dead_removed = true;
            } else {
                break;
            }
        }
        waiting.map_or_else(|| Ok(EnsureOutcome::Pending(Pending::Creating)), Ok)
    }

    async fn is_held(&self, id: &PartitionId) -> Result<bool, LedgerError> {
        let holds = |state: &LedgerState| state.get(id).is_some_and(|entry| entry.state.holds());
        Ok(self.driver.commit.read(holds).await?)
    }

    /// Commits the request to the ledger. Compares with the previous entry to find out whether an intent is
    /// fresh. Returns the fingerprint of the capacity that the decision is based on, too; 0 if there is none.
    async fn admit(
        &self,
        request: &Request,
        snapshot: ControllersSnapshot,
        origin: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<(Admission, IntentOrigin, u64), LedgerError> {
        let driver = Arc::clone(&self.driver);
        let (request, expiry) = (request.clone(), expiry.clone());
        let decide = move |state: &LedgerState| {
            if origin == RequestOrigin::New
                && let Err(illegal) = expiry.check_caller(&request.id, driver.window().now)
            {
                return ((Err(illegal), Vec::new()), Vec::new());
            }
            let recorded = match origin {
                RequestOrigin::New => Some(request.clone()),
                RequestOrigin::Resume => as_recorded(state, request.clone()),
            };
            let Some(request) = recorded else {
                return ((Err(entry_removed(&request.id)), Vec::new()), Vec::new());
            };
            match state.request(&request, &snapshot, &driver.rules(), driver.window()) {
                Ok(step) => {
                    let before = state.get(&request.id).map(|entry| &entry.state);
                    let intent = match &step.outcome {
                        Admission::Drive(entry) if before != Some(&entry.state) => IntentOrigin::Fresh,
                        _ => IntentOrigin::Found,
                    };
                    let fingerprint = match &step.outcome {
                        Admission::Drive(Entry {
                            controller: Some(name),
                            ..
                        }) => state.capacity_fingerprint(&snapshot, name).unwrap_or(0),
                        _ => 0,
                    };
                    let demands = new_demands(state, &step.changes);
                    ((Ok((step.outcome, intent, fingerprint)), demands), step.changes)
                }
                Err(illegal) => ((Err(illegal), Vec::new()), Vec::<Change>::new()),
            }
        };
        let (admitted, demands) = self.driver.commit.transact(decide).await?;
        self.driver.preemptions.record(&demands);
        Ok(admitted?)
    }

    /// Removes requests of dead owners from the queue. Returns whether there were any.
    pub(crate) async fn remove_dead_waiters(&self, except: &PartitionId) -> Result<bool, LedgerError> {
        let Some(liveness) = &self.driver.options.liveness else {
            return Ok(false);
        };
        let queue: Vec<Entry> = self
            .driver
            .commit
            .read(|state| state.queue().into_iter().cloned().collect())
            .await?;
        let mut dead = Vec::new();
        for entry in queue.into_iter().filter(|entry| entry.id != *except) {
            if liveness.liveness_of(&entry).await == OwnerLiveness::Dead {
                tracing::info!(id = %entry.id, "removing the request of a dead owner from the queue");
                dead.push(entry);
            }
        }
        let any = !dead.is_empty();
        if any {
            let drop = move |state: &LedgerState| {
                let same = |entry: &&Entry| state.get(&entry.id) == Some(*entry);
                let changes = dead
                    .iter()
                    .filter(same)
                    .map(|entry| Change::Remove(entry.id.clone()));
                ((), changes.collect())
            };
            self.driver.commit.transact(drop).await?;
        }
        Ok(any)
    }

    /// Returns the facts about `id` for [`ipu_core::plan`], from the ledger and the controller.
    ///
    /// # Errors
    ///
    /// Errors of the store. If the controller does not reply, the recorded state stands.
    pub async fn observe(&self, id: &PartitionId) -> Result<PartitionFacts, LedgerError> {
        let Some(entry) = self.get(id).await? else {
            return Ok(PartitionFacts::Absent);
        };
        let attempt = entry.attempt;
        match &entry.state {
            EntryState::Waiting { .. } => Ok(PartitionFacts::Waiting {
                reason: self.queue_reason(id).await?,
                attempt,
            }),
            EntryState::Intent { .. } => Ok(PartitionFacts::Pending { attempt }),
            // The owner gets the partition back when it requests or releases it. The attempt that created
            // it is unknown, so its workers cannot continue.
            EntryState::Quarantined => Ok(PartitionFacts::Waiting {
                reason: Reason::new(
                    "Quarantined",
                    "the partition has no known owner; it is reset when its owner requests it",
                ),
                attempt,
            }),
            EntryState::Releasing { .. } => Ok(PartitionFacts::Releasing),
            EntryState::Active | EntryState::Failed { .. } | EntryState::Orphaned => {
                match self.driver.refresh_status(entry).await {
                    Ok(EnsureOutcome::Active(grant)) => Ok(PartitionFacts::Active {
                        attempt: grant.attempt,
                        since: grant.since,
                        controller: grant.controller,
                    }),
                    Ok(EnsureOutcome::Pending(Pending::Failed { errors })) => {
                        Ok(PartitionFacts::Failed { attempt, errors })
                    }
                    Ok(_) | Err(LedgerError::Illegal(_)) => Ok(PartitionFacts::Pending { attempt }),
                    Err(error) => Err(error),
                }
            }
        }
    }

    async fn queue_reason(&self, id: &PartitionId) -> Result<Reason, LedgerError> {
        Ok(match self.queue_decision(id).await? {
            Some(QueueDecision::Wait(waiting)) => waiting.reason,
            _ => QueueStatus::next_in_queue(1).reason,
        })
    }

    /// Returns the demand of a queued request of higher priority that the owner of `id` releases its
    /// partition; `None` without one. See [`QueuePolicy::preemption`].
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn preemption_of(&self, id: &PartitionId) -> Result<Option<Preemption>, LedgerError> {
        Ok(self
            .driver
            .commit
            .read(|state| state.preemption_of(id).cloned())
            .await?)
    }

    /// Returns the entry of `id`.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn get(&self, id: &PartitionId) -> Result<Option<Entry>, LedgerError> {
        Ok(self.driver.commit.read(|state| state.get(id).cloned()).await?)
    }

    /// Returns the entry of `id` as this process last observed it, without a store access. Changes through
    /// this ledger and its clones are included. Changes of other processes may be missing.
    #[must_use]
    pub fn cached(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        self.driver.commit.cached(id)
    }

    /// Returns all entries, by id: held and queued ones.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn list(&self) -> Result<Vec<Entry>, LedgerError> {
        Ok(self
            .driver
            .commit
            .read(|state| state.entries().cloned().collect())
            .await?)
    }

    /// Returns the queue in order, with the current decision on each request.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn queue(&self) -> Result<Vec<(PartitionId, QueueDecision)>, LedgerError> {
        let options = &self.driver.options;
        let snapshot = self.driver.snapshot(Instant::now()).await;
        let rules = self.driver.rules();
        let judge = |state: &LedgerState| state.evaluate_queue(&snapshot, &rules, options.now());
        Ok(self.driver.commit.read(judge).await?)
    }

    /// Returns the decision on the queued request `id`; `None` if it is not queued. Much cheaper than
    /// [`queue`](Self::queue), which evaluates the whole queue.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn queue_decision(&self, id: &PartitionId) -> Result<Option<QueueDecision>, LedgerError> {
        let options = &self.driver.options;
        let snapshot = self.driver.snapshot(Instant::now()).await;
        let rules = self.driver.rules();
        let judge = |state: &LedgerState| state.evaluate(id, &snapshot, &rules, options.now());
        Ok(self.driver.commit.read(judge).await?)
    }

    /// Returns the free capacity of each controller for partitions of `spec`, or why the controller cannot
    /// report it.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn query(
        &self,
        spec: &PartitionSpec,
    ) -> Result<Vec<(ControllerName, Result<FreeCapacity, Reason>)>, LedgerError> {
        let snapshot = self.driver.snapshot(Instant::now()).await;
        Ok(self
            .driver
            .commit
            .read(|state| state.free_capacity(&snapshot, spec))
            .await?)
    }

    /// Returns the free capacity of each controller for every partition size, or why the controller cannot
    /// report it.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn capacity_by_size(
        &self,
    ) -> Result<Vec<(ControllerName, Result<CapacityBySize, Reason>)>, LedgerError> {
        let snapshot = self.driver.snapshot(Instant::now()).await;
        let capacities = |state: &LedgerState| state.capacity_by_size(&snapshot);
        Ok(self.driver.commit.read(capacities).await?)
    }

    /// Returns the IPUs of the whole system: how many are used and by which owners, how many are available,
    /// and why the others are not.
    ///
    /// # Errors
    ///
    /// Errors of the store. The result names controllers that do not reply.
    pub async fn stats(&self) -> Result<Stats, LedgerError> {
        let snapshot = self.driver.snapshot(Instant::now()).await;
        Ok(self.driver.commit.read(|state| state.stats(&snapshot)).await?)
    }

    /// Returns the secondary names of controllers, each with the primary name that takes new partitions.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn aliases(&self) -> Result<BTreeMap<ControllerName, ControllerName>, LedgerError> {
        let now = Instant::now();
        let not_before = now.checked_sub(self.driver.options.listing_age).unwrap_or(now);
        let snapshot = self.driver.snapshot(not_before).await;
        let primaries = |state: &LedgerState| state.by_controller(&snapshot).primaries().clone();
        Ok(self.driver.commit.read(primaries).await?)
    }

    /// Returns the usage records of all holds that ended at `since` or later, in the order of their end.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NoUsageLog`] if no usage log is configured, and errors of the log.
    pub async fn usage_since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, LedgerError> {
        Ok(self.usage_log()?.since(since).await.map_err(Arc::new)?)
    }

    /// Returns at most `limit` records of holds that ended at `since` or later, from the one after `after`
    /// on.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NoUsageLog`] if no usage log is configured, and errors of the log.
    pub async fn usage_page(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, LedgerError> {
        let page = self.usage_log()?.page(since, after, limit);
        Ok(page.await.map_err(Arc::new)?)
    }

    fn usage_log(&self) -> Result<&dyn UsageLog, LedgerError> {
        let log = self.driver.options.usage.as_deref();
        log.ok_or(LedgerError::NoUsageLog)
    }

    /// Subscribes to every change of the ledger from now on, once and in order, including changes of other
    /// processes. A change is published after it is durable. Changes of other processes are published at the
    /// next load, at the latest by [`refresh`](Self::refresh). Intermediate states are not published: of
    /// several steps in one write, only the last is.
    ///
    /// Subscribe first and call [`list`](Self::list) afterwards, so that no change is missed in between. A
    /// receiver that lags by more than 4,096 changes gets `Lagged` with the number of missed changes, and
    /// then the remaining ones: list again.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<LedgerChange> {
        self.driver.commit.changes()
    }

    /// Loads the writes of other processes and publishes them to subscribers of [`changes`](Self::changes).
    /// Subscribers that need changes of other processes call this periodically.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn refresh(&self) -> Result<(), LedgerError> {
        Ok(self.driver.commit.read(|_| ()).await?)
    }

    /// Returns the placements of partitions of `sizes`, side by side, as if the partitions of `ended` were
    /// released. Records nothing.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn dry_run(
        &self,
        sizes: &[IpuCount],
        ended: &[PartitionId],
    ) -> Result<Vec<DryRun>, LedgerError> {
        let snapshot = self.driver.snapshot(Instant::now()).await;
        let decide = |state: &LedgerState| state.dry_run(&snapshot, sizes, ended);
        Ok(self.driver.commit.read(decide).await?)
    }

    /// Compares ledger, controllers and owners, and applies the resulting actions: adopt, finish, release,
    /// drop, quarantine. Call this on start and on a timer, from any number of processes.
    ///
    /// # Errors
    ///
    /// Errors of the store. A controller that does not reply is no error: its partitions are kept.
    pub async fn repair(&self, alive: &dyn Liveness) -> Result<RepairReport, LedgerError> {
        crate::repair::repair(&self.driver, alive).await
    }
}
