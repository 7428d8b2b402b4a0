//! The ledger: who holds which partition, who waits, and every legal move between the two.
//!
//! ```text
//!            does not fit            fits: intent is durable, then the controller is asked
//! request ──► Waiting ─────────────────────────► Intent ──► Active ◄──► Failed
//!                ▲    controller says: no room     │          │ │          │
//!                └─────────────────────────────────┘          │ ▼ owner gone
//!                                                             │ Orphaned   │
//!             release, by the owner or by repair: durable, then the controller is asked
//!                                                             ▼            ▼
//!                            gone (removed) ◄──────────────── Releasing ◄──┘
//!
//! Quarantined: found at a controller, of our form, owned by nobody; claimed by its owner or left alone.
//! ```
//!
//! Everything here is a pure function of the recorded state, what the controllers list, and `now`. It answers what to do
//! and which [`Change`]s to commit; nothing counts before the commit. `ipu-ledger` does the rest.

mod admission;
mod alias;
mod blocked_requests;
pub(crate) mod capacity;
pub(crate) mod capacity_snapshot;
pub(crate) mod change;
pub(crate) mod cordon;
pub(crate) mod diff;
pub(crate) mod dry_run;
pub(crate) mod entry;
mod expected_start;
pub(crate) mod inventory_capacity;
pub(crate) mod location;
pub(crate) mod namespaces;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod repeated_create;
pub(crate) mod stats;
pub(crate) mod transition_error;
pub(crate) mod transitions;
pub(crate) mod usage;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::ids::{ControllerName, CordonId, PartitionId};
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::change::Change;
use crate::ledger::cordon::Cordon;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::queue::{FreeCapacity, QueueDecision, QueuePolicy, QueueScan, QueueStatus};
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::Timestamp;

/// All of the ledger at one revision: entries and cordons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerState {
    entries: BTreeMap<PartitionId, Arc<Entry>>,
    /// Those that wait, in the order of the line. It follows from the entries, as do the tickets.
    line: BTreeMap<QueueKey, Arc<Entry>>,
    /// The tickets of all entries, in order.
    tickets: BTreeSet<(u64, PartitionId)>,
    cordons: BTreeMap<CordonId, Arc<Cordon>>,
}

/// A place in the line: higher priority first, then the lower ticket; the id only decides where a damaged ledger has a
/// ticket twice.
type QueueKey = (Reverse<i32>, u64, PartitionId);

fn place_of(entry: &Entry) -> QueueKey {
    (Reverse(entry.priority), entry.ticket, entry.id.clone())
}

impl LedgerState {
    /// The state of these entries, without cordons.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut state = Self::default();
        for entry in entries {
            state.put(Arc::new(entry));
        }
        state
    }

    /// The entry of `id`.
    #[must_use]
    pub fn get(&self, id: &PartitionId) -> Option<&Entry> {
        self.entries.get(id).map(|entry| &**entry)
    }

    /// All entries, by id.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(|entry| &**entry)
    }

    /// The entry of `id`, to be kept without a copy.
    #[must_use]
    pub fn get_shared(&self, id: &PartitionId) -> Option<&Arc<Entry>> {
        self.entries.get(id)
    }

    /// All entries, by id, to be kept without a copy.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Takes over a change that was or will be committed.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(entry) => self.put(Arc::clone(entry)),
            Change::Remove(id) => {
                if let Some(old) = self.entries.remove(id) {
                    self.unindex(&old);
                }
            }
            Change::Cordon(cordon) => {
                self.cordons.insert(cordon.id.clone(), Arc::clone(cordon));
            }
            Change::Lift(id) => {
                self.cordons.remove(id);
            }
        }
    }

    fn put(&mut self, entry: Arc<Entry>) {
        self.tickets.insert((entry.ticket, entry.id.clone()));
        if let Some(old) = self.entries.insert(entry.id.clone(), Arc::clone(&entry)) {
            if old.ticket != entry.ticket {
                self.tickets.remove(&(old.ticket, old.id.clone()));
            }
            self.line.remove(&place_of(&old));
        }
        if matches!(entry.state, EntryState::Waiting { .. }) {
            self.line.insert(place_of(&entry), entry);
        }
    }

    /// Forgets what follows from an entry that is no more.
    fn unindex(&mut self, old: &Entry) {
        self.tickets.remove(&(old.ticket, old.id.clone()));
        self.line.remove(&place_of(old));
    }

    /// The waiting line, first come first: by priority, then by ticket.
    #[must_use]
    pub fn queue(&self) -> Vec<&Entry> {
        self.line.values().map(|entry| &**entry).collect()
    }

    /// Those of the line who come before `entry`, which may be new to it.
    fn ahead_of(&self, entry: &Entry) -> impl Iterator<Item = &Entry> {
        let ahead = self.line.range(..place_of(entry));
        let id = entry.id.clone();
        ahead
            .map(|(_, other)| &**other)
            .filter(move |other| other.id != id)
    }

    /// What everybody in the line is told now, in order.
    #[must_use]
    pub fn evaluate_queue(
        &self,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        now: Timestamp,
    ) -> Vec<(PartitionId, QueueDecision)> {
        let world = &*self.by_controller(world);
        let mut walk = QueueScan::new(self, world, rules, now);
        self.queue()
            .into_iter()
            .map(|entry| (entry.id.clone(), walk.step(entry)))
            .collect()
    }

    /// Returns the verdict on the queued entry `id`, the same as [`judge_line`](Self::judge_line) has for it, without an
    /// explanation of those ahead; none if `id` is not queued.
    #[must_use]
    pub fn judge(
        &self,
        id: &PartitionId,
        world: &ControllersSnapshot,
        rules: &QueuePolicy,
        now: Timestamp,
    ) -> Option<QueueDecision> {
        let entry = self.get(id)?;
        if !matches!(entry.state, EntryState::Waiting { .. }) {
            return None;
        }
        let world = &*self.by_controller(world);
        let mut walk = QueueScan::new(self, world, rules, now);
        for ahead in self.ahead_of(entry) {
            walk.pass_over(ahead);
        }
        Some(walk.step(entry))
    }

    /// What is left at each controller for partitions of `spec`, or why the controller cannot tell. What the ledger
    /// knows of and the controller does not show yet is taken off, and what is cordoned; the line is not.
    #[must_use]
    pub fn free_capacity(
        &self,
        world: &ControllersSnapshot,
        spec: &PartitionSpec,
    ) -> Vec<(ControllerName, Result<FreeCapacity, Reason>)> {
        capacity_snapshot::room(self, world, spec)
    }

    /// The ticket of the next who comes: after everybody who is there.
    fn next_ticket(&self) -> u64 {
        let last = self.tickets.last();
        last.map_or(1, |(last, _)| last.saturating_add(1))
    }
}

impl QueueStatus {
    /// The queue status of a request that fits now and is granted next; `position` counts from 1.
    #[must_use]
    pub fn next_in_queue(position: u32) -> Self {
        let reason = Reason::new("NextInLine", "it fits now and is granted next");
        Self {
            position,
            reason: reason.with("position", position),
            blockers: Vec::new(),
            earliest_fit: None,
        }
    }
}
