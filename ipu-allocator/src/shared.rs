//! State between the loop and its handles: the published state, changes, and the ends of requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipu_core::allocator::{Change, Ended, Entry, Hardware, Policy, State};
use ipu_core::{BootTime, ControllerName, Owner, PartitionId, Reason, Timestamp};
use ipu_vipu_client::boot_time;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{broadcast, oneshot, watch};

use crate::clock::Clock;
use crate::comparison::Comparison;
use crate::error::AllocatorError;
use crate::store::{Store, StoreError};
use crate::view::View;

/// Changes that a receiver may lag behind before it gets `Lagged`: 4,096 are about two seconds of the fastest
/// store.
const HISTORY_LEN: usize = 4_096;

/// Longest age of a view for which nothing has changed: the declared ends in it are relative to its time.
const MAX_VIEW_AGE: Duration = Duration::from_secs(1);

/// A durable change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryChange {
    /// The sequence number of the change in this process: from 1, without gaps.
    pub seq: u64,
    /// The time at which it became durable.
    pub at: Timestamp,
    /// The id of the entry.
    pub id: PartitionId,
    /// The previous entry; none if the entry is new.
    pub from: Option<Arc<Entry>>,
    /// The new entry; none if the entry was removed.
    pub to: Option<Arc<Entry>>,
}

/// Called after each commit with the number of changes and the duration.
pub(crate) type CommitObserver = Box<dyn Fn(usize, Duration) + Send + Sync>;

/// Called after each comparison.
pub(crate) type ComparisonObserver = Box<dyn Fn(&Comparison) + Send + Sync>;

/// Why the last request of each owner for an id ended without a partition.
pub(crate) type EndedRequests = BTreeMap<Owner, Ended>;

/// The entries that a batch changes, as they were before it.
pub(crate) type Undo = BTreeMap<PartitionId, Option<Arc<Entry>>>;

pub(crate) struct Shared {
    store: Arc<dyn Store>,
    clock: Clock,
    published: RwLock<PublishedState>,
    view: Mutex<Option<Arc<View>>>,
    changes: broadcast::Sender<EntryChange>,
    /// Waiters for a change of one partition, with the requests of its id that ended.
    waiters: Mutex<HashMap<PartitionId, watch::Sender<EndedRequests>>>,
    finished: Mutex<Vec<oneshot::Sender<()>>>,
    /// Number of the published state.
    generation: watch::Sender<u64>,
    leading: watch::Sender<bool>,
    compared: watch::Sender<bool>,
    open_error: Mutex<Option<Arc<StoreError>>>,
    preemptions: AtomicU64,
    has_ended: AtomicBool,
    on_commit: OnceLock<CommitObserver>,
    on_comparison: OnceLock<ComparisonObserver>,
}

#[derive(Default)]
struct PublishedState {
    generation: u64,
    seq: u64,
    state: State,
    hardware: Hardware,
    policy: Arc<Policy>,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self {
            store,
            clock,
            published: RwLock::default(),
            view: Mutex::default(),
            changes: broadcast::Sender::new(HISTORY_LEN),
            waiters: Mutex::default(),
            finished: Mutex::default(),
            generation: watch::Sender::new(0),
            leading: watch::Sender::new(false),
            compared: watch::Sender::new(false),
            open_error: Mutex::default(),
            preemptions: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            on_commit: OnceLock::new(),
            on_comparison: OnceLock::new(),
        }
    }

    pub(crate) fn observe_commits(&self, observer: CommitObserver) {
        // Only the first observer counts.
        let _ = self.on_commit.set(observer);
    }

    pub(crate) fn observe_comparisons(&self, observer: ComparisonObserver) {
        // Only the first observer counts.
        let _ = self.on_comparison.set(observer);
    }

    pub(crate) fn record_comparison(&self, comparison: &Comparison) {
        if let Some(observer) = self.on_comparison.get() {
            observer(comparison);
        }
    }

    pub(crate) fn record_commit(&self, changes: usize, duration: Duration) {
        if let Some(observer) = self.on_commit.get() {
            observer(changes, duration);
        }
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.send_replace(leading);
    }

    pub(crate) fn leading(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Records why the record could not be opened; none while this process waits for it.
    pub(crate) fn set_open_error(&self, error: Option<StoreError>) {
        *self.open_error.lock() = error.map(Arc::new);
    }

    /// Returns the error of a command while this process does not have the record.
    pub(crate) fn not_leading(&self) -> AllocatorError {
        if self.has_ended.load(Ordering::Relaxed) {
            return AllocatorError::Ended;
        }
        match &*self.open_error.lock() {
            Some(error) => AllocatorError::Store(Arc::clone(error)),
            None => AllocatorError::Standby,
        }
    }

    pub(crate) fn set_ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.leading.send_replace(false);
        self.waiters.lock().clear();
    }

    pub(crate) fn set_compared(&self) {
        self.compared
            .send_if_modified(|compared| !std::mem::replace(compared, true));
    }

    pub(crate) fn is_compared(&self) -> bool {
        *self.compared.borrow()
    }

    pub(crate) fn compared(&self) -> watch::Receiver<bool> {
        self.compared.subscribe()
    }

    /// Returns whether this process certainly is the active one at `now`.
    pub(crate) fn may_act(&self, now: BootTime) -> bool {
        *self.leading.borrow() && self.store.leads_until().is_none_or(|until| now < until)
    }

    /// Returns an error unless this process may answer from its memory.
    pub(crate) fn check_leading(&self) -> Result<(), AllocatorError> {
        if self.may_act(boot_time()) {
            Ok(())
        } else {
            Err(self.not_leading())
        }
    }

    pub(crate) fn publish_all(&self, state: &State, hardware: &Hardware, policy: &Arc<Policy>) {
        let mut published = self.published.write();
        published.generation += 1;
        published.state = state.clone();
        published.hardware = hardware.clone();
        published.policy = Arc::clone(policy);
        self.generation.send_replace(published.generation);
    }

    /// Publishes a committed batch.
    pub(crate) fn publish(
        &self,
        changes: &[Change],
        undo: &Undo,
        state: &State,
        hardware: &Hardware,
        policy: &Arc<Policy>,
        now: Timestamp,
    ) {
        let mut feed = Vec::new();
        {
            let mut published = self.published.write();
            published.generation += 1;
            changes.iter().for_each(|change| published.state.apply(change));
            published.hardware = hardware.clone();
            published.policy = Arc::clone(policy);
            self.generation.send_replace(published.generation);
            for (id, from) in undo {
                let to = state.get(id).cloned();
                if *from != to {
                    published.seq += 1;
                    feed.push(EntryChange {
                        seq: published.seq,
                        at: now,
                        id: id.clone(),
                        from: from.clone(),
                        to,
                    });
                }
            }
        }
        for change in feed {
            self.count_preemption(&change);
            // An error means that there are no subscribers.
            let _ = self.changes.send(change);
        }
    }

    fn count_preemption(&self, change: &EntryChange) {
        let before = change.from.as_ref().and_then(|entry| entry.preemption.as_ref());
        let after = change.to.as_ref().and_then(|entry| entry.preemption.as_ref());
        if let Some(preemption) = after.filter(|after| before.is_none_or(|before| before.by != after.by)) {
            self.preemptions.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                id = %change.id,
                by = %preemption.by,
                priority = preemption.priority,
                "a request preempts the partition: its owner is asked to release it"
            );
        }
    }

    pub(crate) fn preemptions(&self) -> u64 {
        self.preemptions.load(Ordering::Relaxed)
    }

    /// Restores the cordons of the published state.
    pub(crate) fn restore_cordons(&self, state: &mut State) {
        let published = self.published.read();
        let added: Vec<_> = state.cordons().map(|cordon| cordon.id.clone()).collect();
        added
            .into_iter()
            .for_each(|id| state.apply(&Change::Uncordon(id)));
        let recorded = published.state.cordons();
        recorded.for_each(|cordon| state.apply(&Change::Cordon(Arc::clone(cordon))));
    }

    pub(crate) fn after_batch(&self, waiter: oneshot::Sender<()>) {
        self.finished.lock().push(waiter);
    }

    /// Wakes everybody that waits for the end of the batch.
    pub(crate) fn end_batch(&self) {
        for waiter in self.finished.lock().drain(..) {
            // An error means that the client has gone.
            let _ = waiter.send(());
        }
    }

    /// Notes why a request ended, before its waiter can see that it is gone.
    pub(crate) fn note_end(&self, id: &PartitionId, owner: Owner, ended: Ended) {
        if let Some(waiter) = self.waiters.lock().get(id) {
            waiter.send_if_modified(|all| {
                all.insert(owner, ended);
                false
            });
        }
    }

    /// Forgets why an earlier request ended, because there is a new one.
    pub(crate) fn forget_end(&self, id: &PartitionId, owner: &Owner) {
        if let Some(waiter) = self.waiters.lock().get(id) {
            waiter.send_if_modified(|all| {
                all.remove(owner);
                false
            });
        }
    }

    /// Wakes the waiters for the partitions of `undo`.
    pub(crate) fn wake(&self, undo: &Undo) {
        let waiters = self.waiters.lock();
        for waiter in undo.keys().filter_map(|id| waiters.get(id)) {
            waiter.send_modify(|_| {});
        }
    }

    /// Subscribes to changes of one partition.
    pub(crate) fn watch(&self, id: &PartitionId) -> watch::Receiver<EndedRequests> {
        let mut waiters = self.waiters.lock();
        waiters.retain(|_, waiter| waiter.receiver_count() > 0);
        waiters
            .entry(id.clone())
            .or_insert_with(|| watch::Sender::new(EndedRequests::new()))
            .subscribe()
    }

    pub(crate) fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub(crate) fn changes(&self) -> broadcast::Receiver<EntryChange> {
        self.changes.subscribe()
    }

    pub(crate) fn get(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        let published = self.published.read();
        published.state.get(id).cloned()
    }

    /// Returns why the controller `name` is not listed; none if it is.
    pub(crate) fn listing_error(&self, name: &ControllerName) -> Option<Reason> {
        let published = self.published.read();
        published.hardware.listing_error(name).cloned()
    }

    /// Returns the published state; one view serves everybody until the next change.
    pub(crate) fn view(&self) -> Arc<View> {
        let mut view = self.view.lock();
        let now = (self.clock)();
        let published = self.published.read();
        if let Some(view) = &*view
            && view.generation == published.generation
            && now.is_near(view.now, MAX_VIEW_AGE)
        {
            return Arc::clone(view);
        }
        let newest = Arc::new(View {
            generation: published.generation,
            now,
            state: published.state.clone(),
            hardware: published.hardware.clone(),
            policy: Arc::clone(&published.policy),
            queue: OnceLock::new(),
        });
        *view = Some(Arc::clone(&newest));
        newest
    }
}
