//! Stores with one fault each, around the store in memory.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Waker};

use async_trait::async_trait;
use ipu_core::{Change, ChangeKey, Entry};
use ipu_ledger::{LedgerStore, MemoryStore, Revision, Snapshot, StoreError, WriteLock};
use ipu_testkit::StoreFactory;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Every commit is taken, whatever it is based on.
    NoCheck,
    /// The basis is checked, and somebody else may write before the changes are.
    CheckThenAct,
    /// An old basis is refused only if one of the very entries was changed since.
    ChecksEntriesOnly,
    /// A revision is made of the content, so that it comes back with it.
    RevisionOfContent,
    /// A conflict is answered and the changes are written.
    ConflictAfterWriting,
    /// Half of the changes are written if the caller goes away.
    HalfWhenDropped,
    /// What the caller gave up is written later, without regard to who wrote since.
    LateWhenDropped,
    /// A large commit is refused with a half of it written.
    FullAfterHalf,
    /// Entries are not removed.
    LosesRemovals,
    /// Cordons are not kept.
    IgnoresCordons,
    /// Cordons are not lifted.
    LosesLifts,
    /// `passed_over` is not stored.
    DropsPassedOver,
    /// `unsettled` is not stored.
    DropsUnsettled,
    /// A snapshot has an entry twice.
    EntryTwice,
    /// Only own commits count as news.
    OnlyOwnNews,
    /// What did not change is answered again.
    AlwaysNews,
    /// The commit is answered before it is written.
    AnswersEarly,
    /// A commit is seen by others one entry after the other.
    EntryByEntry,
    /// All is forgotten when the last who has it open goes.
    ForgetsOnClosing,
    /// A turn that was given is never given again.
    TurnNeverEnds,
    /// A commit waits for the turn.
    CommitWaitsForTurn,
    /// A commit panics if there is something to remove.
    Panics,
}

/// What all openings of a home share.
#[derive(Clone)]
struct Common {
    ledger: MemoryStore,
    /// By which commit each entry was written last.
    written: Arc<Mutex<BTreeMap<ChangeKey, u64>>>,
    turns: Arc<Semaphore>,
}

/// A store with a fault.
pub(crate) struct Broken {
    fault: Fault,
    common: Arc<Common>,
    /// The newest revision that this opening made or told.
    known: Mutex<Option<Revision>>,
}

impl Broken {
    pub(crate) fn open(home: &StoreFactory, fault: Fault) -> Self {
        let make = || {
            Arc::new(Common {
                ledger: MemoryStore::new(),
                written: Arc::default(),
                turns: Arc::new(Semaphore::new(1)),
            })
        };
        let common = if fault == Fault::ForgetsOnClosing {
            let slot = home.shared(|| Arc::new(Mutex::new(Weak::new())));
            let mut slot = slot.lock().unwrap();
            slot.upgrade().unwrap_or_else(|| {
                let common = make();
                *slot = Arc::downgrade(&common);
                common
            })
        } else {
            home.shared(make)
        };
        Self {
            fault,
            common,
            known: Mutex::default(),
        }
    }

    async fn now(&self) -> Snapshot {
        self.common.ledger.load(None).await.unwrap().unwrap()
    }

    /// Writes on whatever is there.
    async fn force(&self, changes: &[Change]) -> Result<Revision, StoreError> {
        let now = self.now().await.revision;
        self.common.ledger.commit(&now, changes).await
    }

    /// What the fault leaves of the changes.
    fn kept(&self, changes: &[Change]) -> Vec<Change> {
        let keep = |change: &Change| match (self.fault, change) {
            (Fault::LosesRemovals, Change::Remove(_))
            | (Fault::IgnoresCordons, Change::Cordon(_))
            | (Fault::LosesLifts, Change::Lift(_)) => None,
            (Fault::DropsPassedOver, Change::Put(entry)) => {
                let mut entry = Entry::clone(entry);
                entry.overtaken = 0;
                Some(Change::Put(Arc::new(entry)))
            }
            (Fault::DropsUnsettled, Change::Put(entry)) => {
                let mut entry = Entry::clone(entry);
                entry.unsettled = None;
                Some(Change::Put(Arc::new(entry)))
            }
            _ => Some(change.clone()),
        };
        changes.iter().filter_map(keep).collect()
    }

    /// Whether one of the entries was written after `basis`.
    fn touched_since(&self, basis: &Revision, changes: &[Change]) -> bool {
        let Ok(basis) = basis.as_str().parse::<u64>() else {
            return true;
        };
        let written = self.common.written.lock().unwrap();
        changes
            .iter()
            .any(|change| written.get(&change.key()).is_some_and(|at| *at > basis))
    }

    async fn write(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let ledger = &self.common.ledger;
        match self.fault {
            Fault::NoCheck => self.force(changes).await,
            Fault::CheckThenAct => {
                if self.now().await.revision != *basis {
                    return Err(StoreError::Conflict { basis: basis.clone() });
                }
                yield_now().await;
                self.force(changes).await
            }
            Fault::ChecksEntriesOnly if !self.touched_since(basis, changes) => self.force(changes).await,
            Fault::RevisionOfContent => {
                let now = self.now().await;
                if of_content(&now) != *basis {
                    return Err(StoreError::Conflict { basis: basis.clone() });
                }
                ledger.commit(&now.revision, changes).await?;
                Ok(of_content(&self.now().await))
            }
            Fault::ConflictAfterWriting => match ledger.commit(basis, changes).await {
                Err(conflict) => {
                    self.force(changes).await?;
                    Err(conflict)
                }
                taken => taken,
            },
            Fault::FullAfterHalf if changes.len() > 100 => {
                ledger.commit(basis, &changes[..50]).await?;
                let detail = "100 changes are too many".into();
                Err(StoreError::Full { detail })
            }
            Fault::EntryByEntry => {
                let mut revision = basis.clone();
                for change in changes {
                    revision = ledger.commit(&revision, std::slice::from_ref(change)).await?;
                    yield_now().await;
                }
                Ok(revision)
            }
            Fault::AnswersEarly => {
                // The revision that it will have is made first.
                let revision = ledger.commit(basis, &[]).await?;
                let (ledger, changes) = (ledger.clone(), changes.to_vec());
                let basis = revision.clone();
                tokio::spawn(async move {
                    yield_now().await;
                    ledger.commit(&basis, &changes).await
                });
                Ok(revision)
            }
            Fault::Panics if changes.iter().any(|change| matches!(change, Change::Remove(_))) => {
                panic!("no removals here")
            }
            _ => ledger.commit(basis, changes).await,
        }
    }
}

fn of_content(now: &Snapshot) -> Revision {
    Revision::new(format!("{:?} {:?}", now.entries, now.cordons))
}

/// Does what the fault does when the caller has gone away.
struct Dropped {
    fault: Fault,
    ledger: MemoryStore,
    basis: Revision,
    changes: Vec<Change>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let ledger = self.ledger.clone();
        match self.fault {
            Fault::HalfWhenDropped => {
                let half = &self.changes[..self.changes.len() / 2];
                let write = pin!(ledger.commit(&self.basis, half));
                // It is in memory, so the first poll does it; a conflict is fine.
                let _ = write.poll(&mut Context::from_waker(Waker::noop()));
            }
            Fault::LateWhenDropped => {
                let changes = std::mem::take(&mut self.changes);
                tokio::spawn(async move {
                    yield_now().await;
                    let now = ledger.load(None).await.unwrap().unwrap().revision;
                    ledger.commit(&now, &changes).await
                });
            }
            _ => {}
        }
    }
}

#[async_trait]
impl LedgerStore for Broken {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        let known = self.known.lock().unwrap().clone();
        if self.fault == Fault::OnlyOwnNews && newer_than.is_some() && newer_than == known.as_ref() {
            return Ok(None);
        }
        let mut now = self.now().await;
        if self.fault == Fault::RevisionOfContent {
            now.revision = of_content(&now);
        }
        *self.known.lock().unwrap() = Some(now.revision.clone());
        if newer_than == Some(&now.revision) && self.fault != Fault::AlwaysNews {
            return Ok(None);
        }
        if self.fault == Fault::EntryTwice {
            now.entries.extend(now.entries.first().cloned());
        }
        Ok(Some(now))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let changes = self.kept(changes);
        let _turn = match self.fault {
            Fault::CommitWaitsForTurn => Some(self.turn().await?),
            _ => None,
        };
        let mut dropped = Dropped {
            fault: self.fault,
            ledger: self.common.ledger.clone(),
            basis: basis.clone(),
            changes: changes.clone(),
        };
        yield_now().await;
        dropped.fault = Fault::None;
        let revision = self.write(basis, &changes).await?;
        *self.known.lock().unwrap() = Some(revision.clone());
        if let Ok(number) = revision.as_str().parse() {
            let mut written = self.common.written.lock().unwrap();
            for change in &changes {
                written.insert(change.key(), number);
            }
        }
        Ok(revision)
    }

    async fn turn(&self) -> Result<WriteLock, StoreError> {
        let turn = Arc::clone(&self.common.turns).acquire_owned().await.unwrap();
        match self.fault {
            Fault::TurnNeverEnds => {
                turn.forget();
                Ok(WriteLock::default())
            }
            Fault::CommitWaitsForTurn => Ok(WriteLock::held_by(turn)),
            _ => Ok(WriteLock::default()),
        }
    }
}
