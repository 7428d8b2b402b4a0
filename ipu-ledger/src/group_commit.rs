//! Group commit: whatever transitions are asked for at the same time share one write.
//!
//! Callers put their transition into a queue. Whoever gets the lead brings the ledger up to date, takes all of the queue,
//! applies the transitions in order, commits them together and answers everybody. The queue is taken as late as can be:
//! the callers of one write are answered together and come back together, and the first of them must not write alone.
//! No task is spawned: the leader is one of the callers. If it is dropped in the middle, the transitions that have no
//! answer go back into the queue and the next caller leads; they are safe to repeat.
//!
//! The store is asked no more than is needed to be up to date. A commit proves that what it was decided on was the newest,
//! so as long as nobody else writes it is not looked first; and a reader is content with what was looked up, or proved,
//! after he came.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipu_core::{Change, ChangeKey, Entry, LedgerState, PartitionId, UsageRecord};
use tokio::sync::{broadcast, oneshot, watch};

use crate::change_feed::{ChangeFeed, LedgerChange, difference};
use crate::options::Clock;
use crate::store::{LedgerStore, Revision, Snapshot, StoreError};
use crate::usage::UsageLog;

/// How often a conflict with another process is tried again. With turns a conflict is rare; without, 100 processes that
/// write at the same time all get through.
const TRIES: u32 = 100;

/// After how many writes without news from other processes it is no longer looked for news before each write.
const ALONE_AFTER: u32 = 16;

pub(crate) struct Committer<S> {
    store: S,
    /// Where ended holds are recorded before they are forgotten.
    usage: Option<Arc<dyn UsageLog>>,
    cached: tokio::sync::Mutex<Cached>,
    /// What was durable when this process last heard of it.
    known: Arc<Mutex<Entries>>,
    queue: Mutex<Vec<Box<dyn Job>>>,
    /// Numbers those who ask, in the order in which they come.
    asked: AtomicU64,
    /// Counts the commits after which somebody in the line may have a better answer.
    capacity_freed: watch::Sender<u64>,
    changes: broadcast::Sender<LedgerChange>,
}

type Entries = BTreeMap<PartitionId, Arc<Entry>>;

struct Cached {
    /// None if what is cached may differ from what is stored.
    revision: Option<Revision>,
    /// Whoever has this number or an earlier one came before the store was last seen to be at `revision`.
    as_of: u64,
    /// How many more writes are expected to meet those of other processes.
    contention: u32,
    state: LedgerState,
    known: Arc<Mutex<Entries>>,
    /// What was told last of the entries in which `state` is ahead of it: a commit is under way, or came to nothing.
    uncommitted: BTreeMap<PartitionId, Option<Arc<Entry>>>,
    /// Whether the ledger was ever loaded. What was there before is no change.
    loaded: bool,
    feed: ChangeFeed,
}

impl Cached {
    /// Takes over a change that is about to be committed.
    fn advance(&mut self, change: &Change) {
        if let Some(id) = change.partition()
            && !self.uncommitted.contains_key(id)
        {
            self.uncommitted
                .insert(id.clone(), self.state.get_shared(id).cloned());
        }
        self.state.apply(change);
    }

    /// The holds that end with what was taken over.
    fn ended(&self) -> Vec<UsageRecord> {
        let now = self.feed.now();
        let ended = self.uncommitted.iter().filter_map(|(id, before)| {
            let after = self.state.get(id);
            UsageRecord::of(before.as_deref()?, after, now)
        });
        ended.collect()
    }

    /// All that was taken over is durable.
    fn catch_up(&mut self) {
        let ahead = std::mem::take(&mut self.uncommitted);
        let state = &self.state;
        {
            let mut known = locked(&self.known);
            for id in ahead.keys() {
                match state.get_shared(id) {
                    Some(entry) => known.insert(id.clone(), Arc::clone(entry)),
                    None => known.remove(id),
                };
            }
        }
        self.feed.tell(
            ahead
                .into_iter()
                .map(|(id, before)| (before, state.get_shared(&id).cloned())),
        );
    }

    /// This was stored, by somebody else, when whoever has the number `asked` had come.
    fn take_over(&mut self, snapshot: Snapshot, asked: u64) {
        self.replace(LedgerState::of(snapshot.entries).with_cordons(snapshot.cordons));
        self.revision = Some(snapshot.revision);
        self.as_of = asked;
    }

    /// This is what is stored, whoever wrote it.
    fn replace(&mut self, state: LedgerState) {
        for (id, before) in std::mem::take(&mut self.uncommitted) {
            self.state.apply(&match before {
                Some(entry) => Change::Put(entry),
                None => Change::Remove(id),
            });
        }
        if std::mem::replace(&mut self.loaded, true) {
            self.feed.tell(difference(&self.state, &state));
        }
        *locked(&self.known) = state
            .shared()
            .map(|entry| (entry.id.clone(), Arc::clone(entry)))
            .collect();
        self.state = state;
    }
}

/// A transition in the queue.
trait Job: Send {
    fn run(&mut self, state: &LedgerState) -> Vec<Change>;
    fn answer(self: Box<Self>, result: Result<(), Arc<StoreError>>);
    /// Whether nobody waits for the answer any more.
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
        self.outcome = Some(outcome);
        changes
    }

    fn answer(self: Box<Self>, result: Result<(), Arc<StoreError>>) {
        let answer = match (result, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Err(error), _) => Err(error),
            (Ok(()), None) => return,
        };
        // Nobody listens any more: fine.
        let _ = self.reply.send(answer);
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// The transitions that a leader has taken; what has no answer goes back when it is dropped.
struct Batch<'a> {
    jobs: Vec<Box<dyn Job>>,
    queue: &'a Mutex<Vec<Box<dyn Job>>>,
    /// How many go into one write. Fewer than all after a write for which there was no room: what asks for less, such as a
    /// release, is not refused because of what it came with.
    max_jobs: usize,
}

impl Batch<'_> {
    /// Takes what was asked for meanwhile, too.
    fn take(&mut self) {
        if self.max_jobs == usize::MAX {
            self.jobs.append(&mut locked(self.queue));
        }
        self.jobs.retain(|job| !job.is_abandoned());
    }

    /// Those of the next write.
    fn next(&mut self) -> &mut [Box<dyn Job>] {
        let count = self.jobs.len().min(self.max_jobs);
        &mut self.jobs[..count]
    }

    /// There was no room for all of them together: fewer are to be tried. Says whether that is possible.
    fn split(&mut self) -> bool {
        let count = self.jobs.len().min(self.max_jobs);
        self.max_jobs = (count / 2).max(1);
        count > 1
    }

    /// Answers those of the write that is over, and says whether there are more.
    fn answer(&mut self, result: &Result<(), Arc<StoreError>>) -> bool {
        let count = self.jobs.len().min(self.max_jobs);
        for job in self.jobs.drain(..count) {
            job.answer(result.clone());
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
        let later = std::mem::take(&mut *queue);
        queue.append(&mut self.jobs);
        queue.extend(later);
    }
}

impl<S: LedgerStore> Committer<S> {
    pub(crate) fn new(store: S, clock: Clock, usage: Option<Arc<dyn UsageLog>>) -> Self {
        let (feed, changes) = ChangeFeed::new(clock);
        let known = Arc::default();
        Self {
            store,
            usage,
            asked: AtomicU64::new(0),
            cached: tokio::sync::Mutex::new(Cached {
                revision: None,
                as_of: 0,
                contention: 0,
                state: LedgerState::default(),
                known: Arc::clone(&known),
                uncommitted: BTreeMap::new(),
                loaded: false,
                feed,
            }),
            known,
            queue: Mutex::default(),
            capacity_freed: watch::Sender::new(0),
            changes,
        }
    }

    /// Hears of every change from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<LedgerChange> {
        self.changes.subscribe()
    }

    /// The entry of `id` as this process last heard of it: what it wrote itself is in it, what others wrote may not be yet.
    pub(crate) fn known(&self, id: &PartitionId) -> Option<Arc<Entry>> {
        locked(&self.known).get(id).cloned()
    }

    /// The number of somebody who asks now.
    fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Hears of commits that freed something.
    pub(crate) fn capacity_freed(&self) -> watch::Receiver<u64> {
        self.capacity_freed.subscribe()
    }

    /// Takes `decide` on the newest state, and answers its outcome once its changes are durable. `decide` may be called
    /// several times; the last call counts.
    pub(crate) async fn transact<T, F>(&self, decide: F) -> Result<T, Arc<StoreError>>
    where
        T: Send + 'static,
        F: FnMut(&LedgerState) -> (T, Vec<Change>) + Send + 'static,
    {
        let (reply, mut answer) = oneshot::channel();
        self.ask();
        locked(&self.queue).push(Box::new(Transition {
            decide,
            outcome: None,
            reply,
        }));
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.unwrap_or_else(|_| Err(Arc::new(abandoned()))),
                mut cached = self.cached.lock() => self.commit_as_leader(&mut cached).await,
            }
        }
    }

    /// Looks at the newest state.
    pub(crate) async fn read<T>(
        &self,
        look: impl FnOnce(&LedgerState) -> T + Send,
    ) -> Result<T, Arc<StoreError>> {
        let asked = self.ask();
        let mut cached = self.cached.lock().await;
        if cached.revision.is_none() || cached.as_of < asked {
            self.refresh(&mut cached).await?;
        }
        Ok(look(&cached.state))
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
        let mut tries = 1;
        loop {
            let result = match self.commit(cached, &mut batch).await {
                Err(StoreError::Conflict { .. }) if tries < TRIES => {
                    tries += 1;
                    cached.contention = ALONE_AFTER;
                    continue;
                }
                Err(StoreError::Full { .. }) if batch.split() => continue,
                Err(error) => Err(Arc::new(error)),
                Ok(()) => Ok(()),
            };
            if result.is_err() && batch.jobs.is_empty() {
                // The store failed before anybody could decide.
                batch.take();
            }
            if !batch.answer(&result) {
                return;
            }
            tries = 1;
        }
    }

    async fn commit(&self, cached: &mut Cached, batch: &mut Batch<'_>) -> Result<(), StoreError> {
        let _turn = self.store.turn().await?;
        let mut looked = cached.revision.is_none() || cached.contention > 0;
        if looked {
            cached.contention = cached.contention.saturating_sub(1);
            self.refresh(cached).await?;
        }
        batch.take();
        let asked = self.asked.load(Ordering::SeqCst);
        let (basis, changes, freed) = loop {
            // From here to the commit the cache is ahead of the store; if this future is dropped it has to be read again.
            let Some(basis) = cached.revision.take() else {
                return Err(abandoned());
            };
            let mut changes: BTreeMap<ChangeKey, Change> = BTreeMap::new();
            let mut freed = false;
            for job in batch.next() {
                for change in job.run(&cached.state) {
                    freed |= frees(&cached.state, &change);
                    cached.advance(&change);
                    changes.insert(change.key(), change);
                }
            }
            if !changes.is_empty() {
                // When a hold ended is recorded before the commit that would tell that it had ended earlier.
                if looked || self.usage.is_none() || cached.ended().is_empty() {
                    break (basis, changes, freed);
                }
                looked = true;
                let came = self.asked.load(Ordering::SeqCst);
                match self.store.load(Some(&basis)).await? {
                    None => break (basis, changes, freed),
                    Some(snapshot) => cached.take_over(snapshot, came),
                }
                cached.contention = ALONE_AFTER;
                continue;
            }
            cached.revision = Some(basis);
            // No commit proves that this was decided on the newest state.
            if cached.as_of >= asked || !self.refresh(cached).await? {
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
        let proved = self.asked.load(Ordering::SeqCst);
        let revision = self.store.commit(&basis, &changes).await?;
        tracing::debug!(%revision, changes = changes.len(), "committed to the ledger");
        cached.revision = Some(revision);
        cached.as_of = proved;
        cached.catch_up();
        if freed {
            self.capacity_freed.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Looks what is stored now, and says whether that is news.
    async fn refresh(&self, cached: &mut Cached) -> Result<bool, StoreError> {
        let asked = self.asked.load(Ordering::SeqCst);
        match self.store.load(cached.revision.as_ref()).await? {
            Some(snapshot) => {
                if cached.revision.is_some() {
                    cached.contention = ALONE_AFTER;
                }
                cached.take_over(snapshot, asked);
                Ok(true)
            }
            // What is cached after a commit that failed is not what is stored.
            None if cached.revision.is_none() => Err(abandoned()),
            None => {
                cached.as_of = asked;
                Ok(false)
            }
        }
    }
}

/// Whether somebody in the line may go after `change`, or has to be told something else.
fn frees(state: &LedgerState, change: &Change) -> bool {
    let held = |id| state.get(id).is_some_and(|entry| entry.state.holds());
    match change {
        Change::Remove(_) | Change::Lift(_) => true,
        Change::Cordon(_) => false,
        Change::Put(entry) => !entry.state.holds() && held(&entry.id),
    }
}

fn abandoned() -> StoreError {
    StoreError::Unavailable {
        step: "write",
        detail: "the store did not say at which revision it is".into(),
    }
}

// Nothing panics while it is locked, so that what a poisoned lock holds is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
