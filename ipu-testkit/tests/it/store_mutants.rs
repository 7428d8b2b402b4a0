//! Mutants of the memory store with one fault each.

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

/// Fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// Every commit is accepted, whatever its basis.
    NoCheck,
    /// The basis is checked, but another writer may commit before the changes are written.
    CheckThenAct,
    /// An old basis conflicts only if one of the same entries was changed since.
    ChecksEntriesOnly,
    /// A revision is derived from the content, so that it repeats with the content.
    RevisionOfContent,
    /// A conflict is returned and the changes are written.
    ConflictAfterWriting,
    /// Half of the changes are written if the caller is dropped.
    HalfWhenDropped,
    /// The changes of a dropped caller are written later, over newer commits.
    LateWhenDropped,
    /// A large commit is rejected with half of it written.
    FullAfterHalf,
    /// Entries are not removed.
    LosesRemovals,
    /// Cordons are not stored.
    IgnoresCordons,
    /// Cordons are not lifted.
    LosesLifts,
    /// `passed_over` is not stored.
    DropsPassedOver,
    /// `unsettled` is not stored.
    DropsUnsettled,
    /// A snapshot contains an entry twice.
    EntryTwice,
    /// Only own commits count as newer.
    OnlyOwnCommits,
    /// Unchanged contents are returned again.
    AlwaysNewer,
    /// The commit returns before it is written.
    ReturnsEarly,
    /// Other processes see a commit entry by entry.
    EntryByEntry,
    /// The contents are lost when the last opening is dropped.
    ForgetsOnClosing,
    /// A write lock is never released.
    LockNeverReleased,
    /// A commit waits for the write lock.
    CommitWaitsForLock,
    /// A commit with removals panics.
    Panics,
}

/// Shared state of all openings of a store factory.
#[derive(Clone)]
struct Common {
    ledger: MemoryStore,
    /// Last commit of each entry.
    written: Arc<Mutex<BTreeMap<ChangeKey, u64>>>,
    turns: Arc<Semaphore>,
}

/// Store with a fault.
pub(crate) struct StoreMutant {
    fault: Fault,
    common: Arc<Common>,
    /// Newest revision that this opening committed or returned.
    newest: Mutex<Option<Revision>>,
}

impl StoreMutant {
    pub(crate) fn open(factory: &StoreFactory, fault: Fault) -> Self {
        let make = || {
            Arc::new(Common {
                ledger: MemoryStore::new(),
                written: Arc::default(),
                turns: Arc::new(Semaphore::new(1)),
            })
        };
        let common = if fault == Fault::ForgetsOnClosing {
            let slot = factory.shared(|| Arc::new(Mutex::new(Weak::new())));
            let mut slot = slot.lock().unwrap();
            slot.upgrade().unwrap_or_else(|| {
                let common = make();
                *slot = Arc::downgrade(&common);
                common
            })
        } else {
            factory.shared(make)
        };
        Self {
            fault,
            common,
            newest: Mutex::default(),
        }
    }

    async fn now(&self) -> Snapshot {
        self.common.ledger.load(None).await.unwrap().unwrap()
    }

    /// Writes over any contents.
    async fn force(&self, changes: &[Change]) -> Result<Revision, StoreError> {
        let now = self.now().await.revision;
        self.common.ledger.commit(&now, changes).await
    }

    /// Returns the changes without those that the fault loses.
    fn remaining(&self, changes: &[Change]) -> Vec<Change> {
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

    /// Returns whether one of the entries was written after `basis`.
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
                result => result,
            },
            Fault::FullAfterHalf if changes.len() > 100 => {
                ledger.commit(basis, &changes[..50]).await?;
                let detail = "100 changes exceed the limit".into();
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
            Fault::ReturnsEarly => {
                // Computes its revision in advance.
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

/// Executes the fault of a dropped caller.
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
                // The store is in memory, so the first poll completes; a conflict is fine.
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
impl LedgerStore for StoreMutant {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        let newest = self.newest.lock().unwrap().clone();
        if self.fault == Fault::OnlyOwnCommits && newer_than.is_some() && newer_than == newest.as_ref() {
            return Ok(None);
        }
        let mut now = self.now().await;
        if self.fault == Fault::RevisionOfContent {
            now.revision = of_content(&now);
        }
        *self.newest.lock().unwrap() = Some(now.revision.clone());
        if newer_than == Some(&now.revision) && self.fault != Fault::AlwaysNewer {
            return Ok(None);
        }
        if self.fault == Fault::EntryTwice {
            now.entries.extend(now.entries.first().cloned());
        }
        Ok(Some(now))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let changes = self.remaining(changes);
        let _turn = match self.fault {
            Fault::CommitWaitsForLock => Some(self.lock().await?),
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
        *self.newest.lock().unwrap() = Some(revision.clone());
        if let Ok(number) = revision.as_str().parse() {
            let mut written = self.common.written.lock().unwrap();
            for change in &changes {
                written.insert(change.key(), number);
            }
        }
        Ok(revision)
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        let turn = Arc::clone(&self.common.turns).acquire_owned().await.unwrap();
        match self.fault {
            Fault::LockNeverReleased => {
                turn.forget();
                Ok(WriteLock::default())
            }
            Fault::CommitWaitsForLock => Ok(WriteLock::held_by(turn)),
            _ => Ok(WriteLock::default()),
        }
    }
}
