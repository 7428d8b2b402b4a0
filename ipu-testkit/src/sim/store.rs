//! Ledger store of a simulation: in memory, with compare-and-swap and faults. Every commit is checked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{Change, Cordon, CordonId, Entry, EntryState, PartitionId};
use ipu_ledger::{LedgerStore, Revision, Snapshot, StoreError};

use super::hosts::suspend;
use super::outages::empty_after;
use super::profile::primary;
use super::world::SimWorld;

pub(super) type Entries = BTreeMap<PartitionId, Arc<Entry>>;

#[derive(Default)]
struct SimContents {
    revision: u64,
    entries: Entries,
    cordons: BTreeMap<CordonId, Arc<Cordon>>,
}

/// Store of a simulation. Clones share it.
#[derive(Clone)]
pub(super) struct SimStore {
    contents: Arc<Mutex<SimContents>>,
    world: Weak<SimWorld>,
    /// Driver whose ledger writes; none for another process.
    driver: Option<usize>,
}

/// Fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreFault {
    /// The commit is not written.
    Broken,
    /// The commit is written, and its reply is lost.
    LostReply,
    /// The commit takes this long.
    Slow(Duration),
}

impl StoreFault {
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::LostReply => "lost reply",
            Self::Slow(_) => "slow",
        }
    }
}

/// Returns the entries with the primary names of their controllers.
pub(super) fn by_primary(entries: &Entries) -> Entries {
    let mut entries = entries.clone();
    for entry in entries.values_mut() {
        if let Some(name) = &entry.controller
            && primary(name) != *name
        {
            let primary = primary(name);
            Arc::make_mut(entry).controller = Some(primary);
        }
    }
    entries
}

impl SimStore {
    pub(super) fn new(world: Weak<SimWorld>) -> Self {
        Self {
            contents: Arc::default(),
            world,
            driver: None,
        }
    }

    /// Returns the same store for the process of `driver`.
    pub(super) fn of(&self, driver: Option<usize>) -> Self {
        Self {
            driver,
            ..self.clone()
        }
    }

    /// Draws whether the process that made these changes is suspended before it acts on them.
    async fn suspend_after(&self, world: &SimWorld, changes: &[Change]) {
        let calls = |change: &Change| match change {
            Change::Put(entry) => matches!(
                entry.state,
                EntryState::Intent { .. } | EntryState::Releasing { .. }
            ),
            _ => false,
        };
        if let Some(driver) = self.driver
            && world.is_wild()
            && changes.iter().any(calls)
            && world.chance(world.profile.suspends)
        {
            suspend(world, driver);
            tokio::task::yield_now().await;
        }
    }

    fn contents(&self) -> MutexGuard<'_, SimContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries, with the primary names of their controllers.
    pub(super) fn entries(&self) -> Entries {
        by_primary(&self.contents().entries)
    }

    pub(super) fn cordons(&self) -> Vec<Cordon> {
        let contents = self.contents();
        contents.cordons.values().map(|one| Cordon::clone(one)).collect()
    }

    pub(super) fn revision(&self) -> u64 {
        self.contents().revision
    }

    /// Replaces all entries.
    pub(super) fn replace(&self, entries: Entries) {
        let mut contents = self.contents();
        contents.entries = entries;
        contents.revision += 1;
    }

    fn write(&self, basis: &Revision, changes: &[Change]) -> Result<(Entries, Entries, u64), StoreError> {
        let mut contents = self.contents();
        if basis.as_str() != contents.revision.to_string() {
            return Err(StoreError::Conflict { basis: basis.clone() });
        }
        let before = contents.entries.clone();
        for change in changes {
            match change {
                Change::Put(entry) => drop(contents.entries.insert(entry.id.clone(), Arc::clone(entry))),
                Change::Remove(id) => drop(contents.entries.remove(id)),
                Change::Cordon(cordon) => {
                    contents.cordons.insert(cordon.id.clone(), Arc::clone(cordon));
                }
                Change::Lift(id) => drop(contents.cordons.remove(id)),
            }
        }
        contents.revision += 1;
        Ok((before, contents.entries.clone(), contents.revision))
    }
}

fn unavailable(step: &'static str) -> StoreError {
    StoreError::Unavailable {
        step,
        detail: "the disk failed".into(),
    }
}

#[async_trait]
impl LedgerStore for SimStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        if let Some(world) = self.world.upgrade()
            && world.draw_store_fault("load") == Some(StoreFault::Broken)
        {
            return Err(unavailable("read"));
        }
        let contents = self.contents();
        let revision = Revision::new(contents.revision.to_string());
        if newer_than == Some(&revision) {
            return Ok(None);
        }
        Ok(Some(Snapshot {
            revision,
            entries: contents
                .entries
                .values()
                .map(|entry| Entry::clone(entry))
                .collect(),
            cordons: contents.cordons.values().map(|one| Cordon::clone(one)).collect(),
        }))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let Some(world) = self.world.upgrade() else {
            return Err(unavailable("write"));
        };
        let began = world.millis();
        let fault = world.draw_store_fault("commit");
        match fault {
            Some(StoreFault::Broken) => return Err(unavailable("write")),
            Some(StoreFault::Slow(pause)) => tokio::time::sleep(pause).await,
            Some(StoreFault::LostReply) | None => {}
        }
        let (before, after, revision) = self.write(basis, changes)?;
        world.committed(&before, &after, changes, began);
        empty_after(&world, changes);
        self.suspend_after(&world, changes).await;
        if fault == Some(StoreFault::LostReply) {
            return Err(unavailable("write"));
        }
        Ok(Revision::new(revision.to_string()))
    }
}
