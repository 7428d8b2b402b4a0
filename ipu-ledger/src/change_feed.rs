//! The change feed: publishes every durable change of an entry.
//!
//! The feed is the difference of successive states of the ledger. It is therefore complete for every writer:
//! this process, another process that shares the store, or an own commit whose reply was lost.

use std::sync::Arc;

use ipu_core::{Entry, LedgerState, PartitionId, Timestamp};
use tokio::sync::broadcast;

use crate::options::Clock;

/// Changes that a receiver may lag behind before it gets `Lagged`: 4,096 are about two seconds of the fastest
/// store.
const HISTORY_LEN: usize = 4_096;

/// A durable change of one ledger entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerChange {
    /// The sequence number of the change in this process: from 1, without gaps.
    pub seq: u64,
    /// The time at which this process observed the change. For its own commits, the time at which they became
    /// durable.
    pub at: Timestamp,
    /// The id of the entry.
    pub id: PartitionId,
    /// The previous entry; `None` if the entry is new.
    pub from: Option<Arc<Entry>>,
    /// The new entry; `None` if the entry was removed.
    pub to: Option<Arc<Entry>>,
}

/// An entry before and after a change; `None` where there is no entry.
type EntryTransition = (Option<Arc<Entry>>, Option<Arc<Entry>>);

/// Numbers changes and sends them to all subscribers.
pub(crate) struct ChangeFeed {
    sender: broadcast::Sender<LedgerChange>,
    clock: Clock,
    last: u64,
}

impl ChangeFeed {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Returns a feed, and the sender that creates its receivers.
    pub(crate) fn new(clock: Clock) -> (Self, broadcast::Sender<LedgerChange>) {
        let sender = broadcast::Sender::new(HISTORY_LEN);
        let feed = Self {
            sender: sender.clone(),
            clock,
            last: 0,
        };
        (feed, sender)
    }

    /// Publishes these pairs of entries, except pairs without a difference.
    pub(crate) fn publish(&mut self, changed: impl IntoIterator<Item = EntryTransition>) {
        let mut at = None;
        for (from, to) in changed {
            let Some(id) = to.as_ref().or(from.as_ref()).map(|entry| entry.id.clone()) else {
                continue;
            };
            if from == to {
                continue;
            }
            self.last += 1;
            let change = LedgerChange {
                seq: self.last,
                at: *at.get_or_insert_with(|| (self.clock)()),
                id,
                from,
                to,
            };
            // An error means that there are no subscribers.
            let _ = self.sender.send(change);
        }
    }
}

/// Returns the difference of two states: first removed entries, then new or changed ones, by id.
pub(crate) fn difference(older: &LedgerState, newer: &LedgerState) -> Vec<EntryTransition> {
    let removed = older
        .entries_shared()
        .filter(|entry| newer.get(&entry.id).is_none())
        .map(|entry| (Some(Arc::clone(entry)), None));
    let put = newer.entries_shared().filter_map(|entry| {
        let before = older.get_shared(&entry.id);
        let same = before.is_some_and(|before| Arc::ptr_eq(before, entry) || before == entry);
        (!same).then(|| (before.cloned(), Some(Arc::clone(entry))))
    });
    removed.chain(put).collect()
}
