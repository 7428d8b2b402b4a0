//! Group commit: transitions that arrive at the same time share one write.
//!
//! Callers push their transition to a queue. The caller that becomes leader refreshes the ledger, takes the
//! whole queue, applies the transitions in order, commits them together and replies to all callers. The
//! leader takes the queue as late as possible. The callers of one write return together and come back
//! together, and the first of them must not write alone. The leader is one of the callers; no task is
//! spawned. If the leader is dropped, transitions without a reply return to the queue and the next caller
//! leads. Transitions are safe to repeat.
//!
//! The committer loads from the store only when needed. A commit verifies that its basis was the newest
//! revision, so a single writer does not load before each write. A reader accepts a state that was loaded or
//! verified after the reader arrived.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipu_core::{Change, ChangeKey, Entry, LedgerState, PartitionId, UsageRecord};
use tokio::sync::{broadcast, oneshot, watch};

use crate::change_feed::{ChangeFeed, LedgerChange, difference};
use crate::options::Clock;
use crate::store::{LedgerStore, Revision, Snapshot, StoreError};
use crate::usage::UsageLog;

/// Maximum number of commit attempts after conflicts with other processes. With the store's lock a conflict
/// is rare; without it, 100 processes that write at the same time all succeed.
const MAX_COMMIT_ATTEMPTS: u32 = 100;

/// Number of writes without changes from other processes after which a write no longer loads first.
const CONTENTION_WRITES: u32 = 16;

pub(crate) struct Committer<S> {
    store: S,
    /// The log that records ended holds before the ledger forgets them.
    usage: Option<Arc<dyn UsageLog>>,
    cached: tokio::sync::Mutex<Cached>,
    /// The durable entries that this process last observed.
    entries: Arc<Mutex<Entries>>,
    queue: Mutex<Vec<Box<dyn Job>>>,
    /// Numbers the callers in the order of their arrival.
    arrivals: AtomicU64,
    /// Counts the commits after which the decision on a queued request may change.
    capacity_freed: watch::Sender<u64>,
    changes: broadcast::Sender<LedgerChange>,
}

type Entries = BTreeMap<PartitionId, Arc<Entry>>;

struct Cached {
    /// `None` if the cached state may differ from the stored one.
    revision: Option<Revision>,
    /// The store was last observed at `revision` after the arrival of all callers up to this number.
    as_of: u64,
    /// The number of further writes that load first, because other processes are writing too.
    contention: u32,
    state: LedgerState,
    entries: Arc<Mutex<Entries>>,
    /// The last published version of each entry that `state` has changed ahead of a commit, which is in
    /// flight or failed.
    uncommitted: BTreeMap<PartitionId, Option<Arc<Entry>>>,
    /// Whether the ledger was loaded before. Entries of the first load are no changes.
    loaded: bool,
    feed: ChangeFeed,
}

impl Cached {
    /// Applies a change that is about to be committed.
    fn apply(&mut self, change: &Change) {
        if let Some(id) = change.partition()
            && !self.uncommitted.contains_key(id)
        {
            self.uncommitted
                .insert(id.clone(), self.state.get_shared(id).cloned());
        }
        self.state.apply(change);
    }

    /// Returns the holds that end with the applied changes.
    fn ended(&self) -> Vec<UsageRecord> {
        let now = self.feed.now();
        let ended = self.uncommitted.iter().filter_map(|(id, before)| {
            let after = self.state.get(id);
            UsageRecord::from_transition(before.as_deref()?, after, now)
        });
        ended.collect()
    }

    /// Publishes all applied changes after their commit.
    fn publish_applied(&mut self) {
        let applied = std::mem::take(&mut self.uncommitted);
        let state = &self.state;
        {
            let mut entries = locked(&self.entries);
            for id in applied.keys() {
                match state.get_shared(id) {
                    Some(entry) => entries.insert(id.clone(), Arc::clone(entry)),
                    None => entries.remove(id),
                };
            }
        }
        self.feed.publish(
            applied
                .into_iter()
                .map(|(id, before)| (before, state.get_shared(&id).cloned())),
        );
    }

    /// Adopts a snapshot that another process stored, loaded after caller number `arrival` had arrived.
    fn adopt(&mut self, snapshot: Snapshot, arrival: u64) {
        self.replace(LedgerState::from_entries(snapshot.entries).with_cordons(snapshot.cordons));
        self.revision = Some(snapshot.revision);
        self.as_of = arrival;
    }

    /// Replaces the cached state by the stored one, independent of its writer.
    fn replace(&mut self, state: LedgerState) {
        for (id, before) in std::mem::take(&mut self.uncommitted) {
            self.state.apply(&match before {
                Some(entry) => Change::Put(entry),
                None => Change::Remove(id),
            });
        }
        if std::mem::replace(&mut self.loaded, true) {
            self.feed.publish(difference(&self.state, &state));
        }
        *locked(&self.entries) = state
            .entries_shared()
            .map(|entry| (entry.id.clone(), Arc::clone(entry)))
            .collect();
        self.state = state;
    }
}

/// A transition in the queue.
trait Job: Send {
    fn run(&mut self, state: &LedgerState) -> Vec<Change>;
    fn complete(self: Box<Self>, result: Result<(), Arc<StoreError>>);
    /// Returns whether the caller no longer waits for the reply.
    fn is_abandoned(&self) -> bool;
}

struct Transition<T, F> {
    decide: F,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, Arc<StoreError>>>,
}

impl<T, F> Job for Transition<T, F>
where
    T: Send,
    F: FnMut(&LedgerState) -> (T, Vec<Change>) + Send,
{
    fn run(&mut self, state: &LedgerState) -> Vec<Change> {
        let (outcome, changes) = (self.decide)(state);
        let changes = state.with_ended_demands(changes);
        self.outcome = Some(outcome);
        changes
    }

    fn complete(self: Box<Self>, result: Result<(), Arc<StoreError>>) {
        let result = match (result, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Err(error), _) => Err(error),
            (Ok(()), None) => return,
        };
        // An error means that the caller no longer waits.
        let _ = self.reply.send(result);
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// The transitions that a leader has taken. Those without a reply return to the queue on drop.
struct Batch<'a> {
    jobs: Vec<Box<dyn Job>>,
    queue: &'a Mutex<Vec<Box<dyn Job>>>,
    /// The number of transitions in one write. It is reduced after a write that exceeded the store's
    /// capacity. A transition that needs less space, such as a release, then does not fail because of its
    /// batch.
    max_jobs: usize,
}

impl Batch<'_> {
    /// Takes the transitions that arrived meanwhile, too.
    fn take(&mut self) {
        if self.max_jobs == usize::MAX {
            self.jobs.append(&mut locked(self.queue));
        }
        self.jobs.retain(|job| !job.is_abandoned());
    }

    /// Returns the transitions of the next write.
    fn next(&mut self) -> &mut [Box<dyn Job>] {
        let count = self.jobs.len().min(self.max_jobs);
        &mut self.jobs[..count]
    }

    /// Halves the batch after a write that exceeded the store's capacity. Returns whether a smaller batch is
    /// possible.
    fn split(&mut self) -> bool {
        let count = self.jobs.len().min(self.max_jobs);
        self.max_jobs = (count / 2).max(1);
        count > 1
    }

    /// Replies to the transitions of the finished write, and returns whether there are more.
    fn complete(&mut self, result: &Result<(), Arc<StoreError>>) -> bool {
        let count = self.jobs.len().min(self.max_jobs);
        for job in self.jobs.drain(..count) {
            job.complete(result.clone());
        }
        if result.is_ok() && self.max_jobs != usize::MAX {
            self.max_jobs = self.max_jobs.saturating_mul(2).min(usize::MAX - 1);
        }
        !self.jobs.is_empty()
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut queue = locked(self.queue);
        let newer = std::mem::take(&mut *queue);
        queue.append(&mut self.jobs);
        queue.extend(newer);
    }
}

impl<S: LedgerStore> Committer<S> {
    pub(crate) fn new(store: S, clock: Clock, usage: Option<Arc<dyn UsageLog>>) -> Self {
        let (feed, changes) = ChangeFeed::new(clock);
        let entries = Arc::default();
        Self {
            store,
            usage,
            arrivals: AtomicU64::new(0),
            cached: tokio::sync::Mutex::new(Cached {
                revision: None,
                as_of: 0,
                contention: 0,
                state: LedgerState::default(),
                entries: Arc::clone(&entries),
                uncommitted: BTreeMap::new(),
                loaded: false,
                feed,
            }),
            entries,
            queue: Mutex::default(),
            capacity_freed: watch::Sender::new(0),
            changes,
        }
    }

    /// Subscribes to all changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<LedgerChange> {
        self.changes.subscribe()
    }

    /// Returns the entry of `id` as this process last observed it. Own writes are included; writes of other
    /// processes may be missing.
    pub(crate) fn cached(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        locked(&self.entries).get(id).cloned()
    }

    /// Returns the number of a caller that arrives now.
    fn next_arrival(&self) -> u64 {
        self.arrivals.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Subscribes to commits that free capacity.
    pub(crate) fn capacity_freed(&self) -> watch::Receiver<u64> {
        self.capacity_freed.subscribe()
    }

    /// Runs `decide` on the newest state, and returns its outcome once its changes are durable. `decide` may
    /// run several times; the last run counts.
    pub(crate) async fn transact<T, F>(&self, decide: F) -> Result<T, Arc<StoreError>>
    where
        T: Send + 'static,
        F: FnMut(&LedgerState) -> (T, Vec<Change>) + Send + 'static,
    {
        let (reply, mut completion) = oneshot::channel();
        self.next_arrival();
        locked(&self.queue).push(Box::new(Transition {
            decide,
            outcome: None,
            reply,
        }));
        loop {
            tokio::select! {
                biased;
                result = &mut completion => return result.unwrap_or_else(|_| Err(Arc::new(unknown_revision()))),
                mut cached = self.cached.lock() => self.commit_as_leader(&mut cached).await,
            }
        }
    }

    /// Runs `inspect` on the newest state.
    pub(crate) async fn read<T>(
        &self,
        inspect: impl FnOnce(&LedgerState) -> T + Send,
    ) -> Result<T, Arc<StoreError>> {
        let arrival = self.next_arrival();
        let mut cached = self.cached.lock().await;
        if cached.revision.is_none() || cached.as_of < arrival {
            self.refresh(&mut cached).await?;
        }
        Ok(inspect(&cached.state))
    }

    async fn commit_as_leader(&self, cached: &mut Cached) {
        if locked(&self.queue).iter().all(|job| job.is_abandoned()) {
            return;
        }
        let mut batch = Batch {
            jobs: Vec::new(),
            queue: &self.queue,
            max_jobs: usize::MAX,
        };
        let mut attempts = 1;
        loop {
            let result = match self.commit(cached, &mut batch).await {
                Err(StoreError::Conflict { .. }) if attempts < MAX_COMMIT_ATTEMPTS => {
                    attempts += 1;
                    cached.contention = CONTENTION_WRITES;
                    continue;
                }
                Err(StoreError::Full { .. }) if batch.split() => continue,
                Err(error) => Err(Arc::new(error)),
                Ok(()) => Ok(()),
            };
            if result.is_err() && batch.jobs.is_empty() {
                // The store failed before any transition could decide.
                batch.take();
            }
            if !batch.complete(&result) {
                return;
            }
            attempts = 1;
        }
    }

    async fn commit(&self, cached: &mut Cached, batch: &mut Batch<'_>) -> Result<(), StoreError> {
        let _turn = self.store.lock().await?;
        let mut loaded = cached.revision.is_none() || cached.contention > 0;
        if loaded {
            cached.contention = cached.contention.saturating_sub(1);
            self.refresh(cached).await?;
        }
        batch.take();
        let arrival = self.arrivals.load(Ordering::SeqCst);
        let (basis, changes, freed) = loop {
            // From here to the commit the cache is ahead of the store. If this future is dropped, the
            // cache must be loaded again.
            let Some(basis) = cached.revision.take() else {
                return Err(unknown_revision());
            };
            let mut changes: BTreeMap<ChangeKey, Change> = BTreeMap::new();
            let mut freed = false;
            for job in batch.next() {
                for change in job.run(&cached.state) {
                    freed |= frees(&cached.state, &change);
                    cached.apply(&change);
                    changes.insert(change.key(), change);
                }
            }
            if !changes.is_empty() {
                // Another process may have ended the hold earlier. Load before the record with this end
                // time is written.
                if loaded || self.usage.is_none() || cached.ended().is_empty() {
                    break (basis, changes, freed);
                }
                loaded = true;
                let arrival = self.arrivals.load(Ordering::SeqCst);
                match self.store.load(Some(&basis)).await? {
                    None => break (basis, changes, freed),
                    Some(snapshot) => cached.adopt(snapshot, arrival),
                }
                cached.contention = CONTENTION_WRITES;
                continue;
            }
            cached.revision = Some(basis);
            // No commit verifies that the decision used the newest state.
            if cached.as_of >= arrival || !self.refresh(cached).await? {
                return Ok(());
            }
        };
        let changes: Vec<Change> = changes.into_values().collect();
        if let Some(log) = &self.usage {
            let ended = cached.ended();
            if !ended.is_empty() {
                log.append(&ended).await?;
            }
        }
        let verified = self.arrivals.load(Ordering::SeqCst);
        let revision = self.store.commit(&basis, &changes).await?;
        tracing::debug!(%revision, changes = changes.len(), "committed to the ledger");
        cached.revision = Some(revision);
        cached.as_of = verified;
        cached.publish_applied();
        if freed {
            self.capacity_freed.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Loads the stored state, and returns whether it is newer.
    async fn refresh(&self, cached: &mut Cached) -> Result<bool, StoreError> {
        let arrival = self.arrivals.load(Ordering::SeqCst);
        match self.store.load(cached.revision.as_ref()).await? {
            Some(snapshot) => {
                if cached.revision.is_some() {
                    cached.contention = CONTENTION_WRITES;
                }
                cached.adopt(snapshot, arrival);
                Ok(true)
            }
            // After a failed commit the cached state is not the stored one.
            None if cached.revision.is_none() => Err(unknown_revision()),
            None => {
                cached.as_of = arrival;
                Ok(false)
            }
        }
    }
}

/// Returns whether `change` may change the decision on a queued request.
fn frees(state: &LedgerState, change: &Change) -> bool {
    let held = |id| state.get(id).is_some_and(|entry| entry.state.holds());
    match change {
        Change::Remove(_) | Change::Lift(_) => true,
        Change::Cordon(_) => false,
        Change::Put(entry) => !entry.state.holds() && held(&entry.id),
    }
}

fn unknown_revision() -> StoreError {
    StoreError::Unavailable {
        step: "write",
        detail: "the store did not report its revision".into(),
    }
}

// The critical sections do not panic, so the content of a poisoned lock is consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
