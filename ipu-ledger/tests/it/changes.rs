//! The change feed: whole, in order, and of nothing that is not durable.

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

use crate::setup::{Bench, id, name, owner, request, unknown};

fn heard(receiver: &mut Receiver<LedgerChange>) -> Vec<LedgerChange> {
    let mut heard = Vec::new();
    loop {
        match receiver.try_recv() {
            Ok(change) => heard.push(change),
            Err(TryRecvError::Empty) => return heard,
            Err(error) => panic!("{error}"),
        }
    }
}

/// From and to what, in words.
fn words(heard: &[LedgerChange]) -> Vec<String> {
    let state = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or("-", |entry| entry.state.label());
    heard
        .iter()
        .map(|change| format!("{} {}", state(&change.from), state(&change.to)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_change_is_told_once_and_in_order() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = bench.ledger();
    let mut changes = ledger.changes();
    ledger.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    ledger.release(&id("a"), &owner("a"), Some(0)).await.unwrap();
    let heard = heard(&mut changes);
    assert_eq!(
        words(&heard),
        ["- intent", "intent active", "active releasing", "releasing -"]
    );
    assert_eq!(
        heard.iter().map(|change| change.seq).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert!(heard.iter().all(|change| change.id == id("a")));
    assert!(heard.is_sorted_by_key(|change| change.at));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_wrote_is_told_when_this_one_looks() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let (ledger, other) = (bench.ledger(), bench.ledger());
    other.ensure_active(request("old", 4), &mut |_| {}).await.unwrap();
    // What was there before is found by listing and is no change.
    ledger.list().await.unwrap();
    let mut changes = ledger.changes();
    other.ensure_active(request("a", 4), &mut |_| {}).await.unwrap();
    other.release(&id("old"), &owner("old"), None).await.unwrap();
    assert_eq!(heard(&mut changes), []);
    ledger.refresh().await.unwrap();
    assert_eq!(words(&heard(&mut changes)), ["active -", "- active"]);
    ledger.refresh().await.unwrap();
    assert_eq!(heard(&mut changes), []);
}

#[tokio::test(start_paused = true)]
async fn who_is_too_slow_is_told_how_much_he_missed() {
    let bench = Bench::new(&Topology::pod16(), 1);
    let ledger = bench.ledger();
    let mut changes = ledger.changes();
    for _ in 0..2_000 {
        ledger.ensure_active(request("a", 1), &mut |_| {}).await.unwrap();
        ledger.release(&id("a"), &owner("a"), None).await.unwrap();
    }
    assert!(matches!(changes.try_recv(), Err(TryRecvError::Lagged(3_904))));
    assert_eq!(changes.try_recv().unwrap().seq, 3_905);
}

/// What happens to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accident {
    None,
    NotWritten,
    ReplyLost,
    Hangs,
    HangsAfterWriting,
}

/// A store to whose commits accidents happen.
#[derive(Clone)]
struct Accidents {
    store: MemoryStore,
    next: Arc<Mutex<Box<dyn FnMut() -> Accident + Send>>>,
    happened: Arc<AtomicU32>,
}

impl Accidents {
    fn new(store: &MemoryStore, next: impl FnMut() -> Accident + Send + 'static) -> Self {
        Self {
            store: store.clone(),
            next: Arc::new(Mutex::new(Box::new(next))),
            happened: Arc::default(),
        }
    }
}

#[async_trait]
impl LedgerStore for Accidents {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let accident = (self.next.lock().unwrap())();
        if accident != Accident::None {
            self.happened.fetch_add(1, Ordering::Relaxed);
        }
        let written = match accident {
            Accident::NotWritten | Accident::Hangs => None,
            _ => Some(self.store.commit(basis, changes).await?),
        };
        match (accident, written) {
            (Accident::None, Some(revision)) => Ok(revision),
            (Accident::Hangs | Accident::HangsAfterWriting, _) => std::future::pending().await,
            _ => Err(StoreError::Unavailable {
                step: "write",
                detail: "no answer".into(),
            }),
        }
    }

    async fn turn(&self) -> Result<WriteLock, StoreError> {
        self.store.turn().await
    }
}

fn ledger_on(bench: &Bench, store: Accidents) -> Ledger<FakeController, Accidents> {
    let pool = ControllerPool::single(name("fake"), Arc::new(bench.controller.clone()));
    Ledger::new(pool, store, bench.options.clone())
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_tells_nothing_and_one_whose_reply_is_lost_tells_once() {
    for (accident, told) in [
        (Accident::NotWritten, vec![]),
        (Accident::ReplyLost, vec!["- intent"]),
        (Accident::Hangs, vec![]),
        (Accident::HangsAfterWriting, vec!["- intent"]),
    ] {
        let bench = Bench::new(&Topology::pod16(), 1);
        let mut once = Some(accident);
        let store = Accidents::new(&bench.store, move || once.take().unwrap_or(Accident::None));
        let ledger = ledger_on(&bench, store);
        let mut changes = ledger.changes();
        let asked = tokio::time::timeout(std::time::Duration::from_secs(60), ledger.ensure(request("a", 4)));
        assert!(!matches!(asked.await, Ok(Ok(_))), "{accident:?}");
        assert_eq!(heard(&mut changes), [], "{accident:?}");
        ledger.refresh().await.unwrap();
        ledger.refresh().await.unwrap();
        assert_eq!(words(&heard(&mut changes)), told, "{accident:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_follows_the_feed_knows_the_ledger_whatever_happens_to_its_commits() {
    let mut accidents = 0;
    for seed in 0..20 {
        let bench = Bench::new(&Topology::pod16(), seed);
        let mut dice = Random::new(seed + 1_000);
        let store = Accidents::new(&bench.store, move || match dice.below(12) {
            0 => Accident::NotWritten,
            1 => Accident::ReplyLost,
            2 => Accident::Hangs,
            3 => Accident::HangsAfterWriting,
            _ => Accident::None,
        });
        let ledgers = [ledger_on(&bench, store.clone()), ledger_on(&bench, store.clone())];
        for ledger in &ledgers {
            // What is there at the first look is not told.
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
                let what = random.below(4);
                tasks.spawn(tokio::time::timeout(
                    std::time::Duration::from_millis(80),
                    async move {
                        let name = format!("job{number}");
                        match what {
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
        let truth = bench.ledger().list().await.unwrap();
        for (ledger, mut feed) in ledgers.iter().zip(feeds) {
            ledger.refresh().await.unwrap();
            feed.follow();
            let known: Vec<Entry> = feed.known.values().map(|entry| Entry::clone(entry)).collect();
            assert_eq!(known, truth, "seed {seed}");
        }
        accidents += store.happened.load(Ordering::Relaxed);
    }
    assert!(accidents > 100, "{accidents}");
}

/// Somebody who knows of the ledger what the feed told.
struct Follower {
    feed: Receiver<LedgerChange>,
    known: BTreeMap<PartitionId, Arc<Entry>>,
    last: u64,
}

impl Follower {
    fn new(feed: Receiver<LedgerChange>) -> Self {
        Self {
            feed,
            known: BTreeMap::new(),
            last: 0,
        }
    }

    fn follow(&mut self) {
        for change in heard(&mut self.feed) {
            assert_eq!(change.seq, self.last + 1);
            self.last = change.seq;
            assert_eq!(self.known.get(&change.id), change.from.as_ref());
            assert_ne!(change.from, change.to);
            match change.to {
                Some(entry) => self.known.insert(change.id, entry),
                None => self.known.remove(&change.id),
            };
        }
    }
}
