//! The change feed: what became of which entry, told once it is durable.
//!
//! The feed is the difference of successive states of the ledger, so that it is whole whoever wrote: this process, another
//! one that shares the store, or a commit of our own whose reply was lost.

use std::sync::Arc;

use ipu_core::{Entry, LedgerState, PartitionId, Timestamp};
use tokio::sync::broadcast;

use crate::options::Clock;

/// How many changes a receiver may be behind before it is told that it missed some: 4,096 are about two seconds of the
/// fastest store.
const HISTORY_LEN: usize = 4_096;

/// One entry of the ledger has changed, durably.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerChange {
    /// The number of the change in this process: from 1, without gaps.
    pub seq: u64,
    /// When this process saw it; for its own commits that is when they were durable.
    pub at: Timestamp,
    /// Which entry.
    pub id: PartitionId,
    /// What it was before; none if it is new.
    pub from: Option<Arc<Entry>>,
    /// What it is now; none if it is gone.
    pub to: Option<Arc<Entry>>,
}

/// What an entry was and what it is; none where there is no entry.
type FromTo = (Option<Arc<Entry>>, Option<Arc<Entry>>);

/// Numbers changes and tells them to whoever listens.
pub(crate) struct ChangeFeed {
    told: broadcast::Sender<LedgerChange>,
    clock: Clock,
    last: u64,
}

impl ChangeFeed {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// A feed, and where receivers are made for it.
    pub(crate) fn new(clock: Clock) -> (Self, broadcast::Sender<LedgerChange>) {
        let told = broadcast::Sender::new(HISTORY_LEN);
        let feed = Self {
            told: told.clone(),
            clock,
            last: 0,
        };
        (feed, told)
    }

    /// Tells what each of these entries was and is, unless that is the same.
    pub(crate) fn tell(&mut self, changed: impl IntoIterator<Item = FromTo>) {
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
            // Nobody listens: fine.
            let _ = self.told.send(change);
        }
    }
}

/// What differs between two states: first what is gone, then what is new or other, by id.
pub(crate) fn difference(older: &LedgerState, newer: &LedgerState) -> Vec<FromTo> {
    let gone = older
        .shared()
        .filter(|entry| newer.get(&entry.id).is_none())
        .map(|entry| (Some(Arc::clone(entry)), None));
    let put = newer.shared().filter_map(|entry| {
        let before = older.get_shared(&entry.id);
        let same = before.is_some_and(|before| Arc::ptr_eq(before, entry) || before == entry);
        (!same).then(|| (before.cloned(), Some(Arc::clone(entry))))
    });
    gone.chain(put).collect()
}
