//! The change feed: complete, in order, and only of durable changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use ipu_core::{PartitionId, Topology};
use ipu_ledger::{
    Change, Entry, Ledger, LedgerChange, LedgerStore, MemoryStore, Revision, Snapshot, StoreError, WriteLock,
};
use ipu_testkit::{FakeController, Random};
use ipu_vipu_client::ControllerPool;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::setup::{Fixture, id, name, owner, request, unknown};

fn received(receiver: &mut Receiver<LedgerChange>) -> Vec<LedgerChange> {
    let mut changes = Vec::new();
    loop {
        match receiver.try_recv() {
            Ok(change) => changes.push(change),
            Err(TryRecvError::Empty) => return changes,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the state labels before and after each change.
fn transitions(changes: &[LedgerChange]) -> Vec<String> {
    let state = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or("-", |entry| entry.state.label());
    changes
        .iter()
        .map(|change| format!("{} {}", state(&change.from), state(&change.to)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_change_is_published_once_and_in_order() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = fixture.ledger();
    let mut changes = ledger.changes();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.release(&id("a"), &owner("a"), Some(0)).await.unwrap();
    let published = received(&mut changes);
    assert_eq!(
        transitions(&published),
        ["- intent", "intent active", "active releasing", "releasing -"]
    );
    assert_eq!(
        published.iter().map(|change| change.seq).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert!(published.iter().all(|change| change.id == id("a")));
    assert!(published.is_sorted_by_key(|change| change.at));
}

#[tokio::test(start_paused = true)]
async fn writes_of_another_process_are_published_on_refresh() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let (ledger, other) = (fixture.ledger(), fixture.ledger());
    other.ensure_active(request("old", 4), &mut |_| {}).await.unwrap();
    // Entries of the first load are no changes.
    ledger.list().await.unwrap();
    let mut changes = ledger.changes();
    other.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    other.release(&id("old"), &owner("old"), None).await.unwrap();
    assert_eq!(received(&mut changes), []);
    ledger.refresh().await.unwrap();
    assert_eq!(transitions(&received(&mut changes)), ["active -", "- active"]);
    ledger.refresh().await.unwrap();
    assert_eq!(received(&mut changes), []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_gets_the_number_of_missed_changes() {
    let fixture = Fixture::new(&Topology::pod16(), 1);
    let ledger = fixture.ledger();
    let mut changes = ledger.changes();
    for _ in 0..2_000 {
        ledger.ensure_active(request("a", 1), &mut |_| {}).await.unwrap();
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert!(matches!(changes.try_recv(), Err(TryRecvError::Lagged(3_904))));
    assert_eq!(changes.try_recv().unwrap().seq, 3_905);
}

/// The fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitFault {
    None,
    NotWritten,
    ReplyLost,
    Hangs,
    HangsAfterWriting,
}

/// A store with injected commit faults.
#[derive(Clone)]
struct FaultyStore {
    store: MemoryStore,
    next: Arc<Mutex<Box<dyn FnMut() -> CommitFault + Send>>>,
    injected_count: Arc<AtomicU32>,
}

impl FaultyStore {
    fn new(store: &MemoryStore, next: impl FnMut() -> CommitFault + Send + 'static) -> Self {
        Self {
            store: store.clone(),
            next: Arc::new(Mutex::new(Box::new(next))),
            injected_count: Arc::default(),
        }
    }
}

#[async_trait]
impl LedgerStore for FaultyStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let fault = (self.next.lock().unwrap())();
        if fault != CommitFault::None {
            self.injected_count.fetch_add(1, Ordering::Relaxed);
        }
        let written = match fault {
            CommitFault::NotWritten | CommitFault::Hangs => None,
            _ => Some(self.store.commit(basis, changes).await?),
        };
        match (fault, written) {
            (CommitFault::None, Some(revision)) => Ok(revision),
            (CommitFault::Hangs | CommitFault::HangsAfterWriting, _) => std::future::pending().await,
            _ => Err(StoreError::Unavailable {
                step: "write",
                detail: "no reply".into(),
            }),
        }
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        self.store.lock().await
    }
}

fn ledger_on(fixture: &Fixture, store: FaultyStore) -> Ledger<FakeController, FaultyStore> {
    let pool = ControllerPool::single(name("fake"), Arc::new(fixture.controller.clone()));
    Ledger::new(pool, store, fixture.options.clone())
}

#[tokio::test(start_paused = true)]
async fn a_failed_commit_publishes_nothing_and_one_with_a_lost_reply_publishes_once() {
    for (fault, expected) in [
        (CommitFault::NotWritten, vec![]),
        (CommitFault::ReplyLost, vec!["- intent"]),
        (CommitFault::Hangs, vec![]),
        (CommitFault::HangsAfterWriting, vec!["- intent"]),
    ] {
        let fixture = Fixture::new(&Topology::pod16(), 1);
        let mut once = Some(fault);
        let store = FaultyStore::new(&fixture.store, move || once.take().unwrap_or(CommitFault::None));
        let ledger = ledger_on(&fixture, store);
        let mut changes = ledger.changes();
        let request =
            tokio::time::timeout(std::time::Duration::from_secs(60), ledger.ensure(request("a", 4)));
        assert!(!matches!(request.await, Ok(Ok(_))), "{fault:?}");
        assert_eq!(received(&mut changes), [], "{fault:?}");
        ledger.refresh().await.unwrap();
        ledger.refresh().await.unwrap();
        assert_eq!(transitions(&received(&mut changes)), expected, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_of_the_feed_can_rebuild_the_ledger_despite_commit_faults() {
    let mut injected = 0;
    for seed in 0..20 {
        let fixture = Fixture::new(&Topology::pod16(), seed);
        let mut fault_random = Random::new(seed + 1_000);
        let store = FaultyStore::new(&fixture.store, move || match fault_random.below(12) {
            0 => CommitFault::NotWritten,
            1 => CommitFault::ReplyLost,
            2 => CommitFault::Hangs,
            3 => CommitFault::HangsAfterWriting,
            _ => CommitFault::None,
        });
        let ledgers = [
            ledger_on(&fixture, store.clone()),
            ledger_on(&fixture, store.clone()),
        ];
        for ledger in &ledgers {
            // Entries of the first load are not published.
            ledger.refresh().await.unwrap();
        }
        let mut feeds: Vec<_> = ledgers
            .iter()
            .map(|ledger| Follower::new(ledger.changes()))
            .collect();
        let mut random = Random::new(seed);
        for _ in 0..60 {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..3 {
                let (ledger, number) = (ledgers[random.below(2) as usize].clone(), random.below(4));
                let choice = random.below(4);
                tasks.spawn(tokio::time::timeout(
                    std::time::Duration::from_millis(80),
                    async move {
                        let name = format!("job{number}");
                        match choice {
                            0 | 1 => drop(ledger.ensure(request(&name, 1 << number)).await),
                            2 => drop(ledger.release(&id(&name), &owner(&name), None).await),
                            _ => drop(ledger.repair(&unknown).await),
                        }
                    },
                ));
            }
            while tasks.join_next().await.is_some() {}
            feeds.iter_mut().for_each(Follower::follow);
        }
        let expected = fixture.ledger().list().await.unwrap();
        for (ledger, mut feed) in ledgers.iter().zip(feeds) {
            ledger.refresh().await.unwrap();
            feed.follow();
            let entries: Vec<Entry> = feed.entries.values().map(|entry| Entry::clone(entry)).collect();
            assert_eq!(entries, expected, "seed {seed}");
        }
        injected += store.injected_count.load(Ordering::Relaxed);
    }
    assert!(injected > 100, "{injected}");
}

/// A copy of the ledger that is built from the feed alone.
struct Follower {
    feed: Receiver<LedgerChange>,
    entries: BTreeMap<PartitionId, Arc<Entry>>,
    last: u64,
}

impl Follower {
    fn new(feed: Receiver<LedgerChange>) -> Self {
        Self {
            feed,
            entries: BTreeMap::new(),
            last: 0,
        }
    }

    fn follow(&mut self) {
        for change in received(&mut self.feed) {
            assert_eq!(change.seq, self.last + 1);
            self.last = change.seq;
            assert_eq!(self.entries.get(&change.id), change.from.as_ref());
            assert_ne!(change.from, change.to);
            match change.to {
                Some(entry) => self.entries.insert(change.id, entry),
                None => self.entries.remove(&change.id),
            };
        }
    }
}
