//! The handle of an allocator.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use ipu_core::allocator::{
    Cordon, CordonEffect, Ended, Entry, Event, MachinesError, OnNoCapacity, Outcome, OwnerLiveness, Owners,
    Phase, PlacementConstraint, Policy, QueueStatus, Release, Request, UsageRecord,
};
use ipu_core::hardware::Partition;
use ipu_core::placement::PlacementMode;
use ipu_core::render::IpuofConfig;
use ipu_core::{
    AgentId, ControllerName, CordonId, CordonOwner, Owner, PartitionId, Reason, ReasonCode, Timestamp,
};
use ipu_vipu_client::{ControllerPool, VipuError};
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::comparison::Comparison;
use crate::engine::{Engine, is_in_progress, is_same_request};
use crate::error::AllocatorError;
use crate::lease::Lease;
use crate::listings::{Listings, unavailable};
use crate::message::{Done, Message};
use crate::options::Options;
use crate::runner::call_within;
use crate::shared::{EndedRequests, EntryChange, Shared};
use crate::store::{Revision, Store, StoreError, StoreFill};
use crate::usage::UsagePosition;
use crate::view::View;

/// Length of the inbox: clients wait while it is full.
const INBOX_LEN: usize = 1_024;

/// Time after the start in which a command waits for the record.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a command waits for the first comparison after a start: enough if one controller is silent.
const FIRST_COMPARISON_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that a request for a partition that is active already waits for its status.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of owners whose liveness is asked for at once.
const MAX_JUDGED_AT_ONCE: usize = 32;

/// Time after which the liveness of owners that was not answered counts as unknown.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Age of listings that views for people may have.
const LISTING_AGE: Duration = Duration::from_millis(250);

/// The result of a request for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnsureOutcome {
    /// The entry: its phase shows whether the partition is active, queued, in progress or failed.
    Entry(Arc<Entry>),
    /// The request does not fit and was not to be queued; nothing is recorded.
    Rejected(QueueStatus),
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// There is no such partition or request any more.
    Gone,
    /// The release is recorded, and goes on by itself.
    InProgress(Arc<Entry>),
}

/// An allocator: a cheap handle of the task that owns the state. Clones share it; the task ends when all of
/// them are dropped.
#[derive(Clone)]
pub struct Allocator {
    inner: Arc<Inner>,
}

struct Inner {
    inbox: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    pool: ControllerPool,
    options: Arc<Options>,
    listings: Arc<Listings>,
    started: Instant,
    compare: Arc<Notify>,
    /// Held by the comparison under way: the partition whose owner was the last to be judged.
    comparing: tokio::sync::Mutex<Option<PartitionId>>,
    last_comparison: watch::Sender<Option<Instant>>,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    result: watch::Receiver<Option<Result<(), Arc<StoreError>>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.listings.stop();
        let tasks = self.tasks.get_mut();
        tasks.drain(..).for_each(|task| task.abort());
    }
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocator").finish_non_exhaustive()
    }
}

impl Allocator {
    /// Starts an allocator that is kept in `store` and drives the controllers of `pool`. Returns at once: the
    /// allocator stands by until the store lets this process be the only writer.
    #[must_use]
    pub fn start(options: Options, store: Arc<dyn Store>, pool: ControllerPool) -> Self {
        let options = Arc::new(options);
        let (inbox, receiver) = mpsc::channel(INBOX_LEN);
        let shared = Arc::new(Shared::new(Arc::clone(&store), Arc::clone(&options.clock)));
        let listings = Listings::new(pool.clone(), Arc::clone(&options));
        let engine = Engine::new(
            Arc::clone(&shared),
            Arc::clone(&store),
            pool.clone(),
            Arc::clone(&options),
            Arc::clone(&listings),
            receiver,
        );
        let (ended, result) = watch::channel(None);
        let (engine_shared, closed) = (Arc::clone(&shared), Arc::clone(&store));
        tokio::spawn(async move {
            // After a panic of the store, the clock or an observer, it is not known what was written.
            let result = AssertUnwindSafe(engine.run()).catch_unwind().await;
            let result = result.unwrap_or_else(|_| {
                tracing::error!("the task of the allocator panicked");
                let basis = Revision::new("of a task that panicked");
                Err(StoreError::Conflict { basis })
            });
            engine_shared.set_ended();
            closed.close().await;
            ended.send_replace(Some(result.map_err(Arc::new)));
        });
        let compare = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            inbox: inbox.clone(),
            shared,
            store,
            pool,
            options,
            listings: Arc::clone(&listings),
            started: Instant::now(),
            compare: Arc::clone(&compare),
            comparing: tokio::sync::Mutex::default(),
            last_comparison: watch::Sender::new(None),
            tasks: parking_lot::Mutex::default(),
            result,
        });
        let weak = Arc::downgrade(&inner);
        let comparing = tokio::spawn(async move {
            // The handle is not kept during the pause.
            while let Some(pause) = compare_once(&weak).await {
                tokio::select! {
                    () = compare.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        });
        let listing = tokio::spawn(listings.run(inbox));
        let mut tasks = inner.tasks.lock();
        tasks.extend([comparing, listing]);
        drop(tasks);
        Self { inner }
    }

    /// Waits until the allocator has ended, because another process took over or the store is unusable.
    ///
    /// # Errors
    ///
    /// The error of the store.
    pub async fn ended(&self) -> Result<(), Arc<StoreError>> {
        let mut result = self.inner.result.clone();
        match result.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Ok(()),
        }
    }

    /// Ends the allocator, and lets another process take over at once. Operations under way are left to it.
    pub async fn stop(&self) {
        // An error means that the allocator has ended.
        let _ = self.inner.inbox.send(Message::Stop).await;
        let _ = self.ended().await;
    }

    /// Returns whether this process has the record, and its changes.
    #[must_use]
    pub fn leading(&self) -> watch::Receiver<bool> {
        self.inner.shared.leading()
    }

    /// Returns an error unless this process has the record and may answer from its memory.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Standby`], [`AllocatorError::Ended`], or the error of opening the store.
    pub fn check_leading(&self) -> Result<(), AllocatorError> {
        self.inner.shared.check_leading()
    }

    /// Returns an error before record, controllers and owners were compared. Waits for a moment.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Starting`], and the errors of [`check_leading`](Self::check_leading).
    pub async fn check_ready(&self) -> Result<(), AllocatorError> {
        // A process that has just started may be opening the record.
        let mut leading = self.leading();
        let opened = leading.wait_for(|leading| *leading);
        let _ = tokio::time::timeout_at(self.inner.started + OPEN_TIMEOUT, opened).await;
        self.check_leading()?;
        let mut compared = self.inner.shared.compared();
        let first = compared.wait_for(|compared| *compared);
        match tokio::time::timeout(FIRST_COMPARISON_TIMEOUT, first).await {
            Ok(_) => Ok(()),
            Err(_) => Err(AllocatorError::Starting),
        }
    }

    /// Calls `observer` after each commit with the number of changes and the duration.
    pub fn observe_commits(&self, observer: impl Fn(usize, Duration) + Send + Sync + 'static) {
        self.inner.shared.observe_commits(Box::new(observer));
    }

    /// Calls `observer` after each comparison of record, controllers and owners.
    pub fn observe_comparisons(&self, observer: impl Fn(&Comparison) + Send + Sync + 'static) {
        self.inner.shared.observe_comparisons(Box::new(observer));
    }

    /// Returns the controllers.
    #[must_use]
    pub fn pool(&self) -> &ControllerPool {
        &self.inner.pool
    }

    /// Returns the time of the configured clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.inner.options.clock)()
    }

    /// Returns the placement mode of the controller `name`.
    #[must_use]
    pub fn placement_of(&self, name: &ControllerName) -> PlacementMode {
        self.inner.options.placement_of(name)
    }

    /// Replaces the policy. Existing entries are kept.
    pub async fn set_policy(&self, policy: Policy) {
        // An error means that the allocator has ended.
        let _ = self.inner.inbox.send(Message::SetPolicy(Arc::new(policy))).await;
    }

    async fn command(&self, event: Event) -> Result<Done, AllocatorError> {
        self.check_ready().await?;
        let (send, answer) = oneshot::channel();
        let sent = self.inner.inbox.send(Message::Command(event, send)).await;
        sent.map_err(|_| AllocatorError::Ended)?;
        answer.await.unwrap_or(Err(AllocatorError::Ended))
    }

    /// Requests the partition of `request`, and waits until it is active, failed or rejected, but no longer
    /// than `until`, an instant of tokio. Safe to repeat.
    ///
    /// Except after a rejection, the request is recorded then, queued or failed ones too: who no longer wants
    /// it calls [`release`](Self::release).
    ///
    /// If the caller drops the future before the request is recorded, it is not recorded.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`]. After a store error nothing was recorded.
    pub async fn ensure(&self, request: Request, until: Instant) -> Result<EnsureOutcome, AllocatorError> {
        let (id, owner) = (request.id.clone(), request.owner.clone());
        let mut changed = self.inner.shared.watch(&id);
        let is_new = self.inner.shared.get(&id).is_none();
        if is_new && request.spec.allocation.is_some() {
            // An allocation may have been made a moment ago, for this request.
            self.inner.listings.reread_hardware();
            self.observe_since(Instant::now()).await;
        }
        if request.on_no_capacity != OnNoCapacity::Queue {
            self.observe().await;
        }
        let mut entry = match self.request(&request, &changed).await? {
            EnsureOutcome::Entry(entry) => entry,
            rejected @ EnsureOutcome::Rejected(_) => return Ok(rejected),
        };
        if matches!(entry.phase, Phase::Active | Phase::Failed { .. }) {
            self.verify(&id).await;
            return match self.inner.shared.get(&id) {
                Some(current) if is_same_request(&current, &entry) => Ok(EnsureOutcome::Entry(current)),
                _ => Err(gone(&id, &owner, &changed)),
            };
        }
        // The previous partition of this id is being removed: the request is not recorded yet.
        let mut is_previous = matches!(entry.phase, Phase::Releasing { .. });
        while is_in_progress(&entry.phase) && Instant::now() < until {
            match tokio::time::timeout_at(until, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(AllocatorError::Ended),
                Err(_) => break,
            }
            entry = match self.inner.shared.get(&id) {
                Some(current) if current.owner.as_ref() == Some(&owner) => {
                    is_previous &= matches!(current.phase, Phase::Releasing { .. });
                    current
                }
                _ if is_previous => match self.request(&request, &changed).await? {
                    EnsureOutcome::Entry(entry) => {
                        is_previous = matches!(entry.phase, Phase::Releasing { .. });
                        entry
                    }
                    rejected @ EnsureOutcome::Rejected(_) => return Ok(rejected),
                },
                _ => return Err(gone(&id, &owner, &changed)),
            };
        }
        Ok(EnsureOutcome::Entry(entry))
    }

    /// Records the request. A listing that is in its way is renewed once.
    async fn request(
        &self,
        request: &Request,
        changed: &watch::Receiver<EndedRequests>,
    ) -> Result<EnsureOutcome, AllocatorError> {
        let mut done = self.command(Event::Ensure(request.clone())).await;
        if let Err(AllocatorError::Refused(ipu_core::allocator::RequestError::Foreign { .. })) = done {
            self.observe_since(Instant::now()).await;
            done = self.command(Event::Ensure(request.clone())).await;
        }
        let done = done?;
        match (done.outcome, done.entry) {
            (Outcome::Rejected(status), _) => Ok(EnsureOutcome::Rejected(status)),
            (_, Some(entry)) => Ok(EnsureOutcome::Entry(entry)),
            (_, None) => Err(gone(&request.id, &request.owner, changed)),
        }
    }

    /// Queries the status of a partition, and waits for a moment until it is known.
    async fn verify(&self, id: &PartitionId) {
        let (send, done) = oneshot::channel();
        if self
            .inner
            .inbox
            .send(Message::Verify(id.clone(), send))
            .await
            .is_ok()
        {
            // Without an answer the recorded phase stands.
            let _ = tokio::time::timeout(VERIFY_TIMEOUT, done).await;
        }
    }

    /// Resets a partition for `attempt`, even if it is fresh for that attempt already.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn reset(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: u32,
        not_after: Option<Timestamp>,
    ) -> Result<Arc<Entry>, AllocatorError> {
        let event = Event::Reset {
            id: id.clone(),
            owner: owner.clone(),
            attempt,
            not_after,
        };
        let entry = self.command(event).await?.entry;
        entry.ok_or_else(|| gone(id, owner, &self.inner.shared.watch(id)))
    }

    /// Releases a partition, or removes the request from the queue, and waits until it is gone, at most until
    /// `until`. The release is durable when this returns, and goes on by itself.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn release(&self, release: Release, until: Instant) -> Result<ReleaseOutcome, AllocatorError> {
        let id = release.id.clone();
        self.release_by(Event::Release(release), &id, until).await
    }

    /// Removes a partition that is not recorded, such as one made by hand, by order of an administrator. A
    /// recorded one is left alone.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn remove_foreign(
        &self,
        partition: Partition,
        controller: ControllerName,
        until: Instant,
    ) -> Result<ReleaseOutcome, AllocatorError> {
        let id = partition.id.clone();
        let event = Event::RemoveForeign {
            partition,
            controller,
        };
        self.release_by(event, &id, until).await
    }

    async fn release_by(
        &self,
        event: Event,
        id: &PartitionId,
        until: Instant,
    ) -> Result<ReleaseOutcome, AllocatorError> {
        let mut changed = self.inner.shared.watch(id);
        let done = self.command(event).await?;
        let (Outcome::Releasing, Some(mut entry)) = (done.outcome, done.entry) else {
            return Ok(ReleaseOutcome::Gone);
        };
        while entry.removal_refusal().is_none() && Instant::now() < until {
            if !matches!(
                tokio::time::timeout_at(until, changed.changed()).await,
                Ok(Ok(()))
            ) {
                break;
            }
            match self.inner.shared.get(id) {
                Some(current)
                    if is_same_request(&current, &entry)
                        && matches!(current.phase, Phase::Releasing { .. }) =>
                {
                    entry = current;
                }
                _ => return Ok(ReleaseOutcome::Gone),
            }
        }
        Ok(ReleaseOutcome::InProgress(entry))
    }

    /// Renews the lease of the owner of `id`: it lasts `length` from now on. Call this three times per lease,
    /// so that one call may fail. A heartbeat never creates a lease.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn renew(
        &self,
        id: &PartitionId,
        owner: &Owner,
        length: Duration,
    ) -> Result<Lease, AllocatorError> {
        let recorded = self.get(id).await?;
        if recorded.is_some_and(|entry| entry.holder.parse::<Lease>().is_err()) {
            return Err(ipu_core::allocator::RequestError::NoLease { id: id.clone() }.into());
        }
        let lease = Lease::of(length, self.now());
        let event = Event::Renew {
            id: id.clone(),
            owner: owner.clone(),
            holder: lease.to_string(),
        };
        self.command(event).await.map(|_| lease)
    }

    /// Excludes the hardware of `cordon` from new placements. Holders keep their partitions, and are listed
    /// in the result. Idempotent.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn cordon(&self, cordon: Cordon) -> Result<CordonEffect, AllocatorError> {
        self.observe().await;
        match self.command(Event::Cordon(cordon)).await?.outcome {
            Outcome::Cordoned(effect) => Ok(*effect),
            _ => Err(AllocatorError::Ended),
        }
    }

    /// Lifts the cordon `id` of `owner` and returns it; none if there is none. Idempotent.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn uncordon(
        &self,
        id: &CordonId,
        owner: &CordonOwner,
    ) -> Result<Option<Cordon>, AllocatorError> {
        let event = Event::Uncordon {
            id: id.clone(),
            owner: owner.clone(),
        };
        match self.command(event).await?.outcome {
            Outcome::Uncordoned(lifted) => Ok(lifted.map(|lifted| *lifted)),
            _ => Err(AllocatorError::Ended),
        }
    }

    /// Returns the published state. Listings may be as old as the interval of listings.
    ///
    /// # Errors
    ///
    /// Those of [`check_ready`](Self::check_ready): nothing is answered from an old memory.
    ///
    /// ```
    /// use ipu_allocator::{Allocator, AllocatorError};
    ///
    /// /// Prints why each queued request waits.
    /// async fn print_queue(allocator: &Allocator) -> Result<(), AllocatorError> {
    ///     for (id, status) in allocator.view().await?.queue() {
    ///         println!("{id} is number {} and waits: {}", status.position, status.reason);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn view(&self) -> Result<Arc<View>, AllocatorError> {
        self.check_ready().await?;
        Ok(self.inner.shared.view())
    }

    /// Returns the published state with listings of now.
    ///
    /// # Errors
    ///
    /// As [`view`](Self::view).
    pub async fn fresh_view(&self) -> Result<Arc<View>, AllocatorError> {
        self.check_ready().await?;
        self.observe().await;
        self.view().await
    }

    /// Returns the entry of `id`.
    ///
    /// # Errors
    ///
    /// As [`view`](Self::view).
    pub async fn get(&self, id: &PartitionId) -> Result<Option<Arc<Entry>>, AllocatorError> {
        self.check_ready().await?;
        Ok(self.inner.shared.get(id))
    }

    /// Returns the entry of `id` as it was published last, whether or not this process has the record.
    #[must_use]
    pub fn cached(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        self.inner.shared.get(id)
    }

    /// Returns the number of the published state, and its changes: each time, a [`view`](Self::view) may
    /// differ in entries, cordons, policy or controllers.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<u64> {
        self.inner.shared.generation()
    }

    /// Subscribes to every change from now on, once and in order. Subscribe first and take a view afterwards,
    /// so that no change is missed. A receiver that lags by more than 4,096 changes gets `Lagged`: take a
    /// view again.
    ///
    /// ```
    /// use ipu_allocator::Allocator;
    /// use tokio::sync::broadcast::error::RecvError;
    ///
    /// /// Prints all partitions, and then every change.
    /// async fn watch(allocator: &Allocator) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut changes = allocator.changes();
    ///     loop {
    ///         for entry in allocator.view().await?.state().entries() {
    ///             println!("{} {}", entry.id, entry.phase);
    ///         }
    ///         let lagged = loop {
    ///             match changes.recv().await {
    ///                 Ok(change) => println!("{change:?}"),
    ///                 Err(lagged) => break lagged,
    ///             }
    ///         };
    ///         if lagged == RecvError::Closed {
    ///             return Ok(());
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<EntryChange> {
        self.inner.shared.changes()
    }

    /// Returns the number of holders that were asked to release their partitions.
    #[must_use]
    pub fn preemption_count(&self) -> u64 {
        self.inner.shared.preemptions()
    }

    /// Returns the fill of the store; none if it has no limit of its own.
    #[must_use]
    pub fn store_fill(&self) -> Option<StoreFill> {
        self.inner.store.fill()
    }

    /// Waits until the controllers were listed a moment ago; at most until an unresponsive controller is
    /// late.
    async fn observe(&self) {
        let now = Instant::now();
        self.observe_since(now.checked_sub(LISTING_AGE).unwrap_or(now))
            .await;
    }

    async fn observe_since(&self, since: Instant) {
        let timeout = self.inner.options.listing_timeout;
        self.inner.listings.wait_since(since, timeout).await;
        // A listing is delivered before it is published.
        let (send, published) = oneshot::channel();
        if self.inner.inbox.send(Message::Barrier(send)).await.is_ok() {
            let _ = published.await;
        }
    }

    /// Compares record, controllers and owners now.
    ///
    /// # Errors
    ///
    /// [`AllocatorError`].
    pub async fn compare(&self) -> Result<Comparison, AllocatorError> {
        self.check_leading()?;
        compare(&self.inner).await
    }

    /// Compares record, controllers and owners soon, because the list of controllers has changed.
    pub fn compare_soon(&self) {
        self.inner.compare.notify_one();
    }

    /// Returns the time since the last comparison, or before the first since this process has the record;
    /// none before that.
    #[must_use]
    pub fn last_comparison(&self) -> Option<Duration> {
        self.inner.last_comparison.borrow().map(|at| at.elapsed())
    }

    /// Returns a page of records of ended holds: at most `limit` from the one after `after` on.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, AllocatorError> {
        self.check_leading()?;
        Ok(self.inner.store.usage(since, after, limit).await?)
    }

    /// Returns the constraint of `request` with which its partition lies on `machines`, of the controller of
    /// the request if it names one. A repeated request keeps the recorded constraint, even while the
    /// controller is unavailable.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::Machines`] with the rule that the machines break, [`AllocatorError::OtherMachines`]
    /// if the owner requested the partition elsewhere before.
    pub async fn pin_to_machines(
        &self,
        request: &Request,
        machines: &[AgentId],
    ) -> Result<PlacementConstraint, AllocatorError> {
        let recorded = self.get(&request.id).await?.filter(|entry| {
            let owner = entry.owner.as_ref();
            owner.is_none_or(|owner| *owner == request.owner)
        });
        let named = recorded.as_ref().and_then(|entry| entry.pin.controller.as_ref());
        let controller = request.pin.controller.as_ref().or(named);
        let view = match recorded {
            Some(_) => self.view().await?,
            None => self.fresh_view().await?,
        };
        let pinned = view
            .hardware()
            .pin_to_machines(machines, controller, &request.spec);
        let pin = match (pinned, &recorded) {
            (Ok(pin), _) => pin,
            (Err(MachinesError::Unavailable { .. }), Some(entry)) if !entry.pin.ipus.is_empty() => {
                return Ok(entry.pin.clone());
            }
            (Err(error), _) => return Err(error.into()),
        };
        match recorded {
            Some(entry) if !is_within(&entry, &pin) => {
                Err(AllocatorError::OtherMachines { id: entry.id.clone() })
            }
            _ => Ok(pin),
        }
    }

    /// Returns the IPUoF configuration of the partition of `expected`: of one GCD, or of all in their order.
    /// Each has the attribute `GCD Id`.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotActive`] if the partition is not active, or not the one of `expected` any more
    /// when the controller replies; [`AllocatorError::ControllerCall`] if the controller returns no
    /// configuration.
    pub async fn ipuof_config(
        &self,
        expected: &Entry,
        gcd: Option<u32>,
    ) -> Result<IpuofConfig, AllocatorError> {
        let id = &expected.id;
        let not_active = |phase| AllocatorError::NotActive {
            id: id.clone(),
            phase,
        };
        let (Phase::Active, Some(name)) = (&expected.phase, &expected.controller) else {
            return Err(not_active(expected.phase.as_str()));
        };
        let Some(controller) = self.inner.pool.get(name) else {
            return Err(AllocatorError::UnknownController {
                id: id.clone(),
                controller: name.clone(),
            });
        };
        let deadline = self.inner.options.times.deadline;
        let call = controller.ipuof_config(id, gcd);
        let reply = call_within(deadline, &self.inner.pool, name, call).await;
        // The partition may have been released or reset during the call: its devices then belong to others.
        match self.get(id).await? {
            Some(entry) if entry.phase != Phase::Active => return Err(not_active(entry.phase.as_str())),
            Some(entry) if is_unchanged(&entry, expected) => {}
            _ => return Err(not_active("gone")),
        }
        let checked = reply.and_then(|config| with_gcd_ids(config, expected.spec.gcds, gcd));
        checked.map_err(|source| match source {
            VipuError::NotFound { .. } => not_active("lost by its controller"),
            source => AllocatorError::ControllerCall {
                id: id.clone(),
                controller: name.clone(),
                operation: "return the IPUoF configuration",
                source: Arc::new(source),
            },
        })
    }

    /// Returns the reason that the partition of `entry` is not ready; none if it is. For a request that may
    /// wait for IPUs, the queue of [`view`](Self::view) has its position too.
    #[must_use]
    pub fn reason(&self, entry: &Entry) -> Option<Reason> {
        if entry.phase == Phase::Queued {
            let view = self.inner.shared.view();
            // It may have started since.
            let now = view.get(&entry.id).filter(|now| now.phase != Phase::Queued);
            return match now {
                Some(now) => self.reason(now),
                None => view.queue().get(&entry.id).map(|status| status.reason.clone()),
            };
        }
        let reason = reason(&self.inner.pool, entry)?;
        let is_operation = matches!(
            reason.code,
            ReasonCode::Creating | ReasonCode::Resetting | ReasonCode::Releasing
        );
        let controller = entry.controller.as_ref().filter(|_| is_operation);
        let unavailable = controller.and_then(|name| self.inner.shared.listing_error(name));
        Some(unavailable.unwrap_or(reason))
    }
}

/// Returns the error of a request of `owner` whose entry is gone.
fn gone(id: &PartitionId, owner: &Owner, changed: &watch::Receiver<EndedRequests>) -> AllocatorError {
    match changed.borrow().get(owner).cloned() {
        Some(Ended::Refused(refusal)) => AllocatorError::ControllerRefused {
            id: id.clone(),
            refusal,
        },
        Some(Ended::Foreign(error)) => error.into(),
        None => ipu_core::allocator::RequestError::Moved {
            id: id.clone(),
            state: "gone",
            wanted: "active",
        }
        .into(),
    }
}

fn reason(pool: &ControllerPool, entry: &Entry) -> Option<Reason> {
    if let Some(reason) = entry.removal_reason() {
        return Some(reason);
    }
    if entry.unconfirmed {
        return Some(ipu_core::allocator::not_confirmed());
    }
    let (code, participle) = match &entry.phase {
        Phase::Active | Phase::Queued => return None,
        Phase::Failed { errors } => return Some(Reason::new(ReasonCode::PartitionFailed, errors.join("; "))),
        Phase::Quarantined => {
            let message = "the partition was found and has no known owner";
            return Some(Reason::new(ReasonCode::Quarantined, message));
        }
        Phase::Resetting => (ReasonCode::Resetting, "reset"),
        Phase::Creating => (ReasonCode::Creating, "created"),
        Phase::Releasing { .. } => (ReasonCode::Releasing, "removed"),
    };
    let Some(name) = &entry.controller else {
        return Some(Reason::new(code, format!("the partition is being {participle}")));
    };
    let Some(member) = pool.member(name) else {
        let message = format!("controller {name} is no longer configured");
        return Some(Reason::new(ReasonCode::UnknownController, message));
    };
    if member.health.consecutive_failures > 0 {
        return Some(unavailable(name, member.health.last_error.as_ref()));
    }
    let message = format!("controller {name} has not confirmed that the partition is {participle}");
    Some(Reason::new(code, message))
}

/// Compares once, and returns the pause before the next comparison; none if the allocator has ended.
async fn compare_once(weak: &std::sync::Weak<Inner>) -> Option<Duration> {
    const RETRY_INTERVAL: Duration = Duration::from_secs(1);
    // The handle is not kept while this waits for the record.
    let mut leading = weak.upgrade()?.shared.leading();
    leading.wait_for(|leading| *leading).await.ok()?;
    let inner = weak.upgrade()?;
    inner.last_comparison.send_if_modified(|at| {
        at.get_or_insert_with(Instant::now);
        false
    });
    let interval = inner.options.compare_interval;
    let Ok(compared) = AssertUnwindSafe(compare(&inner)).catch_unwind().await else {
        tracing::error!("the comparison panicked");
        return Some(interval.min(RETRY_INTERVAL));
    };
    Some(match compared {
        Ok(comparison) if comparison.unavailable.is_empty() => interval,
        Ok(_) => interval.min(RETRY_INTERVAL * 5),
        Err(AllocatorError::Ended) => return None,
        Err(error) => {
            tracing::warn!(%error, "the comparison failed");
            interval.min(RETRY_INTERVAL)
        }
    })
}

async fn compare(inner: &Inner) -> Result<Comparison, AllocatorError> {
    let timeout = if inner.shared.is_compared() {
        inner.options.listing_timeout
    } else {
        // The first comparison is worth the wait for a slow controller.
        inner
            .options
            .times
            .deadline
            .min(inner.options.listing_timeout.saturating_mul(2))
    };
    let mut last = inner.comparing.lock().await;
    let begun = Instant::now();
    while !inner.listings.has_all_tasks() && begun.elapsed() < timeout {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    inner.listings.wait_since(begun, timeout).await;
    let mut owners = Owners::default();
    let view = inner.shared.view();
    let owned = view.state().entries().filter(|entry| entry.owner.is_some());
    // Behind the last one, so that owners whose liveness is not answered do not keep others waiting for ever.
    let (mut entries, before): (Vec<_>, Vec<_>) = owned
        .cloned()
        .partition(|entry| last.as_ref().is_none_or(|last| entry.id > *last));
    entries.extend(before);
    let deadline = Instant::now() + LIVENESS_TIMEOUT;
    let judged = entries.into_iter().map(|entry| {
        if Instant::now() < deadline {
            *last = Some(entry.id.clone());
        }
        let judge = Arc::clone(&inner.options.liveness);
        async move {
            let liveness = ask(deadline, judge.liveness_of(&entry)).await;
            (entry, liveness.unwrap_or(OwnerLiveness::Unknown))
        }
    });
    let judged = stream::iter(judged).buffer_unordered(MAX_JUDGED_AT_ONCE);
    let judged: Vec<_> = judged.collect().await;
    for (entry, liveness) in judged {
        owners.set_liveness(&entry, liveness);
    }
    let claims = ask(Instant::now() + LIVENESS_TIMEOUT, inner.options.liveness.claims()).await;
    for claim in claims.unwrap_or_default() {
        owners.claim(claim);
    }
    let (send, answer) = oneshot::channel();
    let sent = inner.inbox.send(Message::Compare(owners, begun, send)).await;
    sent.map_err(|_| AllocatorError::Ended)?;
    let actions = answer.await.unwrap_or(Err(AllocatorError::Ended))?;
    for (action, id) in &actions {
        tracing::info!(%id, action = action.as_str(), "repaired");
    }
    inner.last_comparison.send_replace(Some(Instant::now()));
    let view = inner.shared.view();
    let busy = view.state().entries().filter(|entry| entry.phase.needs_calls());
    let quarantined = view
        .state()
        .entries()
        .filter(|entry| entry.phase == Phase::Quarantined);
    let comparison = Comparison {
        actions,
        unfinished: busy
            .filter_map(|entry| Some((entry.id.clone(), reason(&inner.pool, entry)?)))
            .collect(),
        unavailable: view
            .hardware()
            .controllers
            .iter()
            .filter_map(|view| Some((view.name.clone(), view.listing.as_ref().err()?.clone())))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect(),
        quarantined: u32::try_from(quarantined.count()).unwrap_or(u32::MAX),
    };
    inner.shared.record_comparison(&comparison);
    Ok(comparison)
}

/// Returns the answer of a system that knows owners; none if it panics or does not answer.
async fn ask<T>(deadline: Instant, answer: impl Future<Output = T>) -> Option<T> {
    let answer = AssertUnwindSafe(answer).catch_unwind();
    tokio::time::timeout_at(deadline, answer).await.ok()?.ok()
}

/// Returns whether the recorded request has the constraint `pin`. A partition without an owner has no
/// constraint of its own: its IPUs decide.
fn is_within(entry: &Entry, pin: &PlacementConstraint) -> bool {
    if entry.owner.is_some() {
        return entry.pin == *pin;
    }
    entry.controller == pin.controller && entry.places.iter().all(|place| pin.ipus.contains(place))
}

/// Returns whether no operation on the partition has begun since it was `expected`. The ticket of a released
/// partition is used again, even for the same owner and within the same millisecond.
fn is_unchanged(entry: &Entry, expected: &Entry) -> bool {
    let identity = |entry: &Entry| (entry.operations, entry.attempt, entry.since);
    is_same_request(entry, expected)
        && identity(entry) == identity(expected)
        && entry.places == expected.places
}

/// Sets the attribute `GCD Id` of each GCD, if the reply has exactly the requested ones.
fn with_gcd_ids(mut config: IpuofConfig, gcds: u32, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
    let numbers = gcd.map_or(0..gcds, |gcd| gcd..gcd + 1);
    if config.gcds.len() != numbers.len() {
        let (found, requested) = (config.gcds.len(), numbers.len());
        return Err(VipuError::BadReply {
            detail: format!("the IPUoF configuration has {found} GCDs, requested {requested}"),
        });
    }
    let numbered = config.gcds.into_iter().zip(numbers);
    config.gcds = numbered.map(|(config, number)| config.for_gcd(number)).collect();
    Ok(config)
}
