//! The ledger: held partitions, queued requests, and the legal transitions between the two.
//!
//! ```text
//!            does not fit            fits: the intent is committed, then the controller is called
//! request ──► Waiting ─────────────────────────► Intent ──► Active ◄──► Failed
//!                ▲    controller has no capacity   │          │ │          │
//!                └─────────────────────────────────┘          │ ▼ owner dead
//!                                                             │ Orphaned   │
//!             release, by the owner or by repair: committed, then the controller is called
//!                                                             ▼            ▼
//!                         removed entry ◄──────────────── Releasing ◄──────┘
//!
//! Quarantined: listed by a controller under a derived id, without an owner; claimed by its owner or left untouched.
//! ```
//!
//! Everything here is a pure function of the recorded state, the listings of the controllers, and `now`. A
//! function returns its decision and the [`Change`]s to commit. No decision takes effect before that commit,
//! which `ipu-ledger` makes.

mod admission;
mod alias;
mod blocked_requests;
pub(crate) mod capacity;
pub(crate) mod capacity_snapshot;
pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod cordon;
pub(crate) mod diff;
pub(crate) mod dry_run;
pub(crate) mod entry;
mod expected_start;
pub(crate) mod free_capacity;
pub(crate) mod inventory_capacity;
pub(crate) mod location;
pub(crate) mod machines;
pub(crate) mod namespaces;
mod pinned_capacity;
pub(crate) mod preemption;
pub(crate) mod queue;
pub(crate) mod queue_policy;
pub(crate) mod quota;
pub(crate) mod reclaim;
pub(crate) mod repeated_create;
pub(crate) mod stats;
pub(crate) mod transition_error;
pub(crate) mod transitions;
pub(crate) mod unforced_removal;
pub(crate) mod usage;
mod victims;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::ids::{CordonId, PartitionId};
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::change::Change;
use crate::ledger::cordon::Cordon;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::queue::{QueueDecision, QueueScan, QueueStatus};
use crate::ledger::queue_policy::QueuePolicy;
use crate::reason::Reason;
use crate::units::Timestamp;

/// The complete ledger at one revision: entries and cordons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerState {
    entries: BTreeMap<PartitionId, Arc<Entry>>,
    /// Queued entries in queue order. Derived from `entries`, like `tickets`.
    queue: BTreeMap<QueueKey, Arc<Entry>>,
    /// Tickets of all entries, in order. Derived from `entries`.
    tickets: BTreeSet<(u64, PartitionId)>,
    /// Preempting requests with the partitions that they demand. Derived from `entries`.
    demands: BTreeMap<PartitionId, BTreeSet<PartitionId>>,
    cordons: BTreeMap<CordonId, Arc<Cordon>>,
}

/// Sort key of the queue: higher priority first, then the lower ticket. The id breaks ties only if a damaged
/// ledger has a ticket twice.
type QueueKey = (Reverse<i32>, u64, PartitionId);

fn queue_key(entry: &Entry) -> QueueKey {
    (Reverse(entry.priority), entry.ticket, entry.id.clone())
}

impl LedgerState {
    /// Creates the state of these entries, without cordons.
    #[must_use]
    pub fn from_entries(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut state = Self::default();
        for entry in entries {
            state.put(Arc::new(entry));
        }
        state
    }

    /// Returns the entry of `id`.
    #[must_use]
    pub fn get(&self, id: &PartitionId) -> Option<&Entry> {
        self.entries.get(id).map(|entry| &**entry)
    }

    /// Iterates over all entries, by id.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(|entry| &**entry)
    }

    /// Returns the entry of `id` as a shared reference that the caller can keep without a copy.
    #[must_use]
    pub fn get_shared(&self, id: &PartitionId) -> Option<&Arc<Entry>> {
        self.entries.get(id)
    }

    /// Iterates over all entries by id, as shared references that the caller can keep without a copy.
    pub fn entries_shared(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Applies a change that was or will be committed.
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
            self.queue.remove(&queue_key(&old));
            self.remove_demand(&old);
        }
        if let Some(demand) = &entry.preemption {
            let demanded = self.demands.entry(demand.by.clone()).or_default();
            demanded.insert(entry.id.clone());
        }
        if matches!(entry.state, EntryState::Waiting { .. }) {
            self.queue.insert(queue_key(&entry), entry);
        }
    }

    /// Removes the index entries of a removed or replaced entry.
    fn unindex(&mut self, old: &Entry) {
        self.tickets.remove(&(old.ticket, old.id.clone()));
        self.queue.remove(&queue_key(old));
        self.remove_demand(old);
    }

    fn remove_demand(&mut self, old: &Entry) {
        if let Some(demand) = &old.preemption
            && let Some(demanded) = self.demands.get_mut(&demand.by)
        {
            demanded.remove(&old.id);
            if demanded.is_empty() {
                self.demands.remove(&demand.by);
            }
        }
    }

    /// Returns the queued entries in queue order: by priority, then by ticket.
    #[must_use]
    pub fn queue(&self) -> Vec<&Entry> {
        self.queue.values().map(|entry| &**entry).collect()
    }

    /// Iterates over the queued entries ahead of `entry`, which need not be recorded yet.
    fn ahead_of(&self, entry: &Entry) -> impl Iterator<Item = &Entry> {
        let ahead = self.queue.range(..queue_key(entry));
        let id = entry.id.clone();
        ahead
            .map(|(_, other)| &**other)
            .filter(move |other| other.id != id)
    }

    /// Evaluates the whole queue: the decision on each queued entry, in queue order.
    #[must_use]
    pub fn evaluate_queue(
        &self,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Vec<(PartitionId, QueueDecision)> {
        let snapshot = &*self.by_controller(snapshot);
        let mut scan = QueueScan::new(self, snapshot, policy, now);
        self.queue()
            .into_iter()
            .map(|entry| (entry.id.clone(), scan.evaluate(entry)))
            .collect()
    }

    /// Returns the decision on the queued entry `id`, the same as [`evaluate_queue`](Self::evaluate_queue)
    /// returns for it; none if `id` is not queued. Entries ahead of it get no explanation, which makes this
    /// cheaper.
    #[must_use]
    pub fn evaluate(
        &self,
        id: &PartitionId,
        snapshot: &ControllersSnapshot,
        policy: &QueuePolicy,
        now: Timestamp,
    ) -> Option<QueueDecision> {
        let entry = self.get(id)?;
        if !matches!(entry.state, EntryState::Waiting { .. }) {
            return None;
        }
        let snapshot = &*self.by_controller(snapshot);
        let mut scan = QueueScan::new(self, snapshot, policy, now);
        for ahead in self.ahead_of(entry) {
            scan.advance(ahead);
        }
        Some(scan.evaluate(entry))
    }

    /// Returns the ticket of the next new entry, which is higher than all others.
    fn next_ticket(&self) -> u64 {
        let last = self.tickets.last();
        last.map_or(1, |(last, _)| last.saturating_add(1))
    }
}

impl QueueStatus {
    /// Builds the queue status of a request that fits now and starts next; `position` counts from 1.
    #[must_use]
    pub fn next_in_queue(position: u32) -> Self {
        let reason = Reason::new("NextInLine", "it fits now and starts next");
        Self {
            position,
            reason: reason.with("position", position),
            blockers: Vec::new(),
            earliest_fit: None,
        }
    }
}
