//! The ledger that everything drives partitions through.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    Admission, Change, ControllerName, ControllersSnapshot, DryRun, Entry, EntryState, FreeCapacity,
    IpuCount, LedgerState, OwnerLiveness, PartitionFacts, PartitionId, PartitionSpec, QueueDecision,
    QueuePolicy, QueueStatus, Quotas, Reason, Request, Stats, Timestamp, TransitionError, UsageRecord,
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
use crate::resume::{RequestOrigin, as_recorded, gone};
use crate::store::LedgerStore;
use crate::usage::{UsageLog, UsagePosition};

/// How often a request goes round when controllers say that they have no room although they seemed to: once per
/// controller of the largest known installation, and then it waits.
const ROUNDS: u32 = 16;

/// The ledger. Cheap to clone; clones share everything.
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
    /// The ledger that is kept in `store` and drives the controllers of `pool`. Nothing is read or written yet.
    #[must_use]
    pub fn new(pool: ControllerPool<C>, store: S, options: LedgerOptions) -> Self {
        Self {
            driver: Arc::new(Driver::new(pool, store, options)),
        }
    }

    /// Makes `quotas` those that count from now on, in place of those of the options. What is held already is kept.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.change_rules(|rules| rules.quotas = quotas);
    }

    /// Changes the rules of the queue that are in force. They count from the next request on; what is recorded stays.
    pub fn change_rules(&self, change: impl FnOnce(&mut QueuePolicy)) {
        self.driver.change_rules(change);
    }

    /// The controllers.
    #[must_use]
    pub fn pool(&self) -> &ControllerPool<C> {
        self.driver.views.pool()
    }

    /// The time by the clock of the options: what all times of entries and changes are to be compared with.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.driver.options.now()
    }

    /// One step towards the partition of `request`: records it, lets it go if its turn has come, calls the controller,
    /// and looks once how far it is. Never waits in the line. Safe to repeat, also after a crash: it goes on from what is
    /// recorded.
    ///
    /// # Errors
    ///
    /// [`LedgerError`]. After an error of the store it is not known whether the request was recorded: ask again, or
    /// release.
    pub async fn ensure(&self, request: Request) -> Result<EnsureOutcome, LedgerError> {
        self.ensure_until(request, &Expiry::default()).await
    }

    /// Takes one step as [`ensure`](Self::ensure) does, unless the client has gone away before the request is recorded:
    /// it may have asked again elsewhere, used the partition and released it since.
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
        self.ensure_once(&request, Duration::ZERO, RequestOrigin::Anew, expiry)
            .await
    }

    pub(crate) async fn ensure_once(
        &self,
        request: &Request,
        patience: Duration,
        asks: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        let _alone = self.alone(&request.id, expiry).await?;
        match self.ensure_loop(request, patience, asks, expiry).await {
            // Another driver, such as a repair, went on with it meanwhile.
            Err(LedgerError::Illegal(TransitionError::Moved { state, .. }))
                if !matches!(state, "gone" | "releasing") =>
            {
                Ok(EnsureOutcome::Pending(Pending::Creating))
            }
            other => other,
        }
    }

    /// Takes the lock of the partition `id`, unless the client goes away before its turn.
    pub(crate) async fn alone(
        &self,
        id: &PartitionId,
        expiry: &Expiry,
    ) -> Result<tokio::sync::OwnedMutexGuard<()>, LedgerError> {
        let lock = self.driver.book.lock(id);
        expiry.or_gone(id, || self.driver.options.now(), lock).await
    }

    async fn ensure_loop(
        &self,
        request: &Request,
        patience: Duration,
        mut asks: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<EnsureOutcome, LedgerError> {
        let began = Instant::now();
        let options = &self.driver.options;
        let asked = options.now();
        let mut not_before = began.checked_sub(options.listing_age).unwrap_or(began);
        let mut looked_at_the_dead = false;
        let mut waiting = None;
        for _ in 0..ROUNDS {
            let mut world = self.driver.world(not_before).await;
            if not_before < began && world.find(&request.id).is_some() && !self.holds(&request.id).await? {
                // It was given back just now, or it is one that we do not know of: the newest listing tells.
                not_before = began;
                world = self.driver.world(not_before).await;
            }
            let (admission, intent) = self.admit(request, world.clone(), asks, expiry).await?;
            if !matches!(admission, Admission::Rejected(_)) {
                // It is recorded. Whoever gives it back from now on comes after this request.
                asks = RequestOrigin::ToGoOn;
            }
            waiting = Some(match admission {
                Admission::Held(entry) => return self.driver.refresh_status(entry).await,
                Admission::Drive(entry) => {
                    let listing = entry.controller.as_ref().and_then(|name| world.listing(name));
                    // By an older listing the room may have been another's since: that it was refused says nothing
                    // about what is listed next.
                    let fingerprint = match listing {
                        Some(listing) if listing.requested() >= Some(asked) => listing.fingerprint(),
                        _ => 0,
                    };
                    match self.driver.make(entry, intent, fingerprint, patience).await? {
                        CreateOutcome::Answer(answer) => return Ok(answer),
                        CreateOutcome::NoRoom => {
                            not_before = Instant::now();
                            continue;
                        }
                    }
                }
                Admission::Leaving(entry) => {
                    self.driver.remove(entry, IntentOrigin::Found, patience).await?;
                    return Ok(EnsureOutcome::Pending(Pending::Releasing));
                }
                Admission::Stay(waiting) => EnsureOutcome::Waiting(waiting),
                Admission::Rejected(waiting) => EnsureOutcome::Refused(waiting),
                _ => return Ok(EnsureOutcome::Pending(Pending::Creating)),
            });
            // Before anybody is told to wait, what he waits for has to be true now: by a listing that is not older than
            // his question, and without the dead.
            if not_before < began {
                not_before = began;
            } else if !looked_at_the_dead && self.remove_dead_waiters(&request.id).await? {
                looked_at_the_dead = true;
            } else {
                break;
            }
        }
        waiting.map_or_else(|| Ok(EnsureOutcome::Pending(Pending::Creating)), Ok)
    }

    async fn holds(&self, id: &PartitionId) -> Result<bool, LedgerError> {
        let holds = |state: &LedgerState| state.get(id).is_some_and(|entry| entry.state.holds());
        Ok(self.driver.commit.read(holds).await?)
    }

    /// Takes the request to the ledger. Whether an intent is fresh is seen by comparing with what was recorded before.
    async fn admit(
        &self,
        request: &Request,
        world: ControllersSnapshot,
        asks: RequestOrigin,
        expiry: &Expiry,
    ) -> Result<(Admission, IntentOrigin), LedgerError> {
        let driver = Arc::clone(&self.driver);
        let (request, expiry) = (request.clone(), expiry.clone());
        let decide = move |state: &LedgerState| {
            if asks == RequestOrigin::Anew
                && let Err(illegal) = expiry.check_caller(&request.id, driver.window().now)
            {
                return (Err(illegal), Vec::new());
            }
            let recorded = match asks {
                RequestOrigin::Anew => Some(request.clone()),
                RequestOrigin::ToGoOn => as_recorded(state, request.clone()),
            };
            let Some(request) = recorded else {
                return (Err(gone(&request.id)), Vec::new());
            };
            match state.request(&request, &world, &driver.rules(), driver.window()) {
                Ok(step) => {
                    let before = state.get(&request.id).map(|entry| &entry.state);
                    let intent = match &step.outcome {
                        Admission::Drive(entry) if before != Some(&entry.state) => IntentOrigin::Fresh,
                        _ => IntentOrigin::Found,
                    };
                    (Ok((step.outcome, intent)), step.changes)
                }
                Err(illegal) => (Err(illegal), Vec::<Change>::new()),
            }
        };
        Ok(self.driver.commit.transact(decide).await??)
    }

    /// Takes everybody out of the line who is certainly dead. Answers whether there was anybody.
    pub(crate) async fn remove_dead_waiters(&self, except: &PartitionId) -> Result<bool, LedgerError> {
        let Some(liveness) = &self.driver.options.liveness else {
            return Ok(false);
        };
        let line: Vec<Entry> = self
            .driver
            .commit
            .read(|state| state.queue().into_iter().cloned().collect())
            .await?;
        let mut dead = Vec::new();
        for entry in line.into_iter().filter(|entry| entry.id != *except) {
            if liveness.life_of(&entry).await == OwnerLiveness::Dead {
                tracing::info!(id = %entry.id, "taking a dead request out of the line");
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

    /// What the ledger and the controller know of `id` now, as facts for [`ipu_core::plan`].
    ///
    /// # Errors
    ///
    /// Errors of the store. If the controller does not answer, what is recorded stands.
    pub async fn observe(&self, id: &PartitionId) -> Result<PartitionFacts, LedgerError> {
        let Some(entry) = self.get(id).await? else {
            return Ok(PartitionFacts::Absent);
        };
        let attempt = entry.attempt;
        match &entry.state {
            EntryState::Waiting { .. } => Ok(PartitionFacts::Waiting {
                reason: self.reason_of(id).await?,
                attempt,
            }),
            EntryState::Intent { .. } => Ok(PartitionFacts::Pending { attempt }),
            // It is its owner's again as soon as he asks for it, or gives it back: nobody else will. For whom it was made
            // nobody knows, so what runs on it cannot go on.
            EntryState::Quarantined => Ok(PartitionFacts::Waiting {
                reason: Reason::new(
                    "Quarantined",
                    "the ledger does not know whose the partition is; it is reset for whoever asks for it rightly",
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
            _ => Ok(PartitionFacts::Pending { attempt }),
        }
    }

    async fn reason_of(&self, id: &PartitionId) -> Result<Reason, LedgerError> {
        Ok(match self.judge(id).await? {
            Some(QueueDecision::Wait(waiting)) => waiting.reason,
            _ => QueueStatus::next_in_queue(1).reason,
        })
    }

    /// The entry of `id`.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn get(&self, id: &PartitionId) -> Result<Option<Entry>, LedgerError> {
        Ok(self.driver.commit.read(|state| state.get(id).cloned()).await?)
    }

    /// The entry of `id` as this process last heard of it, without asking the store: what was changed through this ledger or
    /// a clone of it is in there, what other processes changed may not be yet.
    #[must_use]
    pub fn known(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        self.driver.commit.known(id)
    }

    /// All entries, by id: those that hold and those that wait.
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

    /// The waiting line in order, with what each is told now.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn queue(&self) -> Result<Vec<(PartitionId, QueueDecision)>, LedgerError> {
        let options = &self.driver.options;
        let world = self.driver.world(Instant::now()).await;
        let rules = self.driver.rules();
        let judge = |state: &LedgerState| state.evaluate_queue(&world, &rules, options.now());
        Ok(self.driver.commit.read(judge).await?)
    }

    /// Returns the verdict on the queued request `id`; none if it is not queued. Much cheaper than
    /// [`line`](Self::line), which explains all of the queue.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn judge(&self, id: &PartitionId) -> Result<Option<QueueDecision>, LedgerError> {
        let options = &self.driver.options;
        let world = self.driver.world(Instant::now()).await;
        let rules = self.driver.rules();
        let judge = |state: &LedgerState| state.judge(id, &world, &rules, options.now());
        Ok(self.driver.commit.read(judge).await?)
    }

    /// What is left at each controller for partitions of `spec`, or why the controller cannot tell.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn query(
        &self,
        spec: &PartitionSpec,
    ) -> Result<Vec<(ControllerName, Result<FreeCapacity, Reason>)>, LedgerError> {
        let world = self.driver.world(Instant::now()).await;
        Ok(self
            .driver
            .commit
            .read(|state| state.free_capacity(&world, spec))
            .await?)
    }

    /// How many IPUs of the whole system are used and by whom, how many are available, and why the others are not.
    ///
    /// # Errors
    ///
    /// Errors of the store. Controllers that do not answer are named in the answer.
    pub async fn stats(&self) -> Result<Stats, LedgerError> {
        let world = self.driver.world(Instant::now()).await;
        Ok(self.driver.commit.read(|state| state.stats(&world)).await?)
    }

    /// Returns the secondary names of controllers, each with the primary name that takes new partitions.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn aliases(&self) -> Result<BTreeMap<ControllerName, ControllerName>, LedgerError> {
        let now = Instant::now();
        let not_before = now.checked_sub(self.driver.options.listing_age).unwrap_or(now);
        let world = self.driver.world(not_before).await;
        let primaries = |state: &LedgerState| state.by_controller(&world).primaries().clone();
        Ok(self.driver.commit.read(primaries).await?)
    }

    /// Who held what for how long, of all holds that ended at `since` or later, in the order of their end.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NoUsageLog`] if nothing is recorded, and errors of the log.
    pub async fn usage_since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, LedgerError> {
        Ok(self.usage_log()?.since(since).await.map_err(Arc::new)?)
    }

    /// Returns at most `limit` records of holds that ended at `since` or later, from the one after `after` on.
    ///
    /// # Errors
    ///
    /// [`LedgerError::NoUsageLog`] if nothing is recorded, and errors of the log.
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

    /// Hears of every change of the ledger from now on, once and in order, also of those that other processes make. Nothing
    /// is told before it is durable; what is told of others waits until this process looks, at the latest when
    /// [`refresh`](Self::refresh) is called. States that were never committed by themselves are not told: of several steps
    /// in one write only the last.
    ///
    /// Begin to listen first and [`list`](Self::list) then, so that nothing is missed in between. A receiver that is
    /// too slow (by 4,096 changes) gets `Lagged` with the number that it missed, and then what is left: list again.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<LedgerChange> {
        self.driver.commit.changes()
    }

    /// Looks what other processes have written, and tells it to those who listen to [`changes`](Self::changes). To be
    /// called now and then by whoever listens to others' changes.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn refresh(&self) -> Result<(), LedgerError> {
        Ok(self.driver.commit.read(|_| ()).await?)
    }

    /// Where partitions of `sizes` would go, side by side, if those of `ended` were gone. Nothing is recorded.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn dry_run(
        &self,
        sizes: &[IpuCount],
        ended: &[PartitionId],
    ) -> Result<Vec<DryRun>, LedgerError> {
        let world = self.driver.world(Instant::now()).await;
        let look = |state: &LedgerState| state.dry_run(&world, sizes, ended);
        Ok(self.driver.commit.read(look).await?)
    }

    /// Compares ledger, controllers and owners, and does what follows by rule: adopt, finish, release, drop, quarantine.
    /// To be called on start and on a timer, by any number of processes.
    ///
    /// # Errors
    ///
    /// Errors of the store. A controller that does not answer is none: what it holds is kept.
    pub async fn repair(&self, alive: &dyn Liveness) -> Result<RepairReport, LedgerError> {
        crate::repair::repair(&self.driver, alive).await
    }
}
