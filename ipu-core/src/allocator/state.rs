//! The state of the allocator, and its changes.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::cmp::Reverse;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::allocator::cordon::Cordon;
use crate::allocator::entry::{Entry, Phase};
use crate::ids::{CordonId, PartitionId};

/// All entries and cordons at one revision.
///
/// ```
/// use ipu_core::allocator::{Change, State};
/// use ipu_core::PartitionId;
///
/// let mut state = State::default();
/// state.apply(&Change::Remove(PartitionId::new("p-mnist-0")?));
/// assert_eq!(state.entries().count(), 0);
/// # Ok::<(), ipu_core::NameError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    entries: BTreeMap<PartitionId, Arc<Entry>>,
    cordons: BTreeMap<CordonId, Arc<Cordon>>,
    /// Queued entries in queue order. Derived from `entries`, like the following.
    queue: BTreeMap<QueueKey, Arc<Entry>>,
    tickets: BTreeSet<(u64, PartitionId)>,
    /// Entries whose phase ends by calls to the controller.
    busy: BTreeSet<PartitionId>,
    /// Entries that are asked to release their partitions, by the request that asks.
    asked: BTreeMap<PartitionId, BTreeSet<PartitionId>>,
}

/// Sort key of the queue: higher priority first, then the lower ticket. The id breaks ties only if a damaged
/// record has a ticket twice.
type QueueKey = (Reverse<i32>, u64, PartitionId);

fn queue_key(entry: &Entry) -> QueueKey {
    (Reverse(entry.priority), entry.ticket, entry.id.clone())
}

/// One change of the state, to be written by a store. Not `non_exhaustive`: a store that does not handle a
/// kind of change must not compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// Adds this entry, or replaces the one of the same id.
    #[serde(serialize_with = "shared", deserialize_with = "own")]
    Put(Arc<Entry>),
    /// Removes the entry.
    Remove(PartitionId),
    /// Adds this cordon, or replaces the one of the same id.
    #[serde(serialize_with = "shared", deserialize_with = "own")]
    Cordon(Arc<Cordon>),
    /// Removes the cordon.
    Uncordon(CordonId),
}

/// Serialises the value itself.
fn shared<T: Serialize, S: Serializer>(value: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
    T::serialize(value, serializer)
}

/// Deserialises the value itself.
fn own<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<T>, D::Error> {
    T::deserialize(deserializer).map(Arc::new)
}

impl State {
    /// Creates the state of these entries and cordons.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = Entry>, cordons: impl IntoIterator<Item = Cordon>) -> Self {
        let mut state = Self::default();
        for entry in entries {
            state.apply(&Change::Put(Arc::new(entry)));
        }
        for cordon in cordons {
            state.apply(&Change::Cordon(Arc::new(cordon)));
        }
        state
    }

    /// Returns the entry of `id`.
    #[must_use]
    pub fn get(&self, id: &PartitionId) -> Option<&Arc<Entry>> {
        self.entries.get(id)
    }

    /// Iterates over all entries, by id.
    pub fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Iterates over the queued entries in queue order: by priority, then by ticket.
    pub fn queue(&self) -> impl ExactSizeIterator<Item = &Arc<Entry>> {
        self.queue.values()
    }

    /// Iterates over all cordons, by id.
    pub fn cordons(&self) -> impl Iterator<Item = &Arc<Cordon>> {
        self.cordons.values()
    }

    /// Returns the cordon `id`.
    pub(crate) fn cordon(&self, id: &CordonId) -> Option<&Arc<Cordon>> {
        self.cordons.get(id)
    }

    /// Iterates over the entries whose phase ends by calls to the controller, by id.
    pub(crate) fn busy(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.busy.iter().filter_map(|id| self.entries.get(id))
    }

    /// Iterates over the entries that the request `id` asks to release their partitions.
    pub(crate) fn asked_by(&self, id: &PartitionId) -> impl Iterator<Item = &Arc<Entry>> {
        let asked = self.asked.get(id).into_iter().flatten();
        asked.filter_map(|asked| self.entries.get(asked))
    }

    /// Iterates over the queued entries ahead of `entry`, which need not be recorded.
    pub(crate) fn ahead_of(&self, entry: &Entry) -> impl Iterator<Item = &Arc<Entry>> {
        let id = entry.id.clone();
        let ahead = self.queue.range(..queue_key(entry));
        ahead.map(|(_, other)| other).filter(move |other| other.id != id)
    }

    /// Returns the ticket of the next new entry, which is higher than all others.
    pub(crate) fn next_ticket(&self) -> u64 {
        let last = self.tickets.last();
        last.map_or(1, |(last, _)| last.saturating_add(1))
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(entry) => {
                self.forget(&entry.id);
                self.remember(entry);
            }
            Change::Remove(id) => self.forget(id),
            Change::Cordon(cordon) => {
                self.cordons.insert(cordon.id.clone(), Arc::clone(cordon));
            }
            Change::Uncordon(id) => {
                self.cordons.remove(id);
            }
        }
    }

    fn remember(&mut self, entry: &Arc<Entry>) {
        self.tickets.insert((entry.ticket, entry.id.clone()));
        if matches!(entry.phase, Phase::Queued) {
            self.queue.insert(queue_key(entry), Arc::clone(entry));
        }
        if entry.phase.needs_calls() {
            self.busy.insert(entry.id.clone());
        }
        if let Some(preemption) = &entry.preemption {
            let asked = self.asked.entry(preemption.by.clone()).or_default();
            asked.insert(entry.id.clone());
        }
        self.entries.insert(entry.id.clone(), Arc::clone(entry));
    }

    fn forget(&mut self, id: &PartitionId) {
        let Some(old) = self.entries.remove(id) else {
            return;
        };
        self.tickets.remove(&(old.ticket, old.id.clone()));
        self.queue.remove(&queue_key(&old));
        self.busy.remove(id);
        if let Some(preemption) = &old.preemption
            && let Some(asked) = self.asked.get_mut(&preemption.by)
        {
            asked.remove(id);
            if asked.is_empty() {
                self.asked.remove(&preemption.by);
            }
        }
    }
}
