//! The simulator's own count of who held what for how long, from what it sees committed; the ledger's records have to agree.

use std::collections::BTreeMap;

use ipu_core::{EntryState, Operation, PartitionId, Timestamp, UsageRecord};

use super::invariants::Broken;
use super::store::Entries;

/// What tells a hold from every other.
type Key = (PartitionId, u64, Timestamp);

#[derive(Default)]
pub(super) struct Holds(BTreeMap<Key, Hold>);

struct Hold {
    ipus: u64,
    /// When the commit began that ended it.
    until: Option<u64>,
    /// Whether the controller may have made it.
    made: bool,
}

impl Holds {
    /// The ledger holds `entries` from a commit on that began at `now`.
    pub(super) fn see(&mut self, entries: &Entries, now: u64) {
        let mut held: BTreeMap<Key, bool> = BTreeMap::new();
        for entry in entries.values() {
            let Some(since) = entry.held_since else { continue };
            let key = (entry.id.clone(), entry.ticket, since);
            let only_wanted = matches!(
                entry.state,
                EntryState::Intent {
                    operation: Operation::Create,
                    ..
                }
            );
            let hold = self.0.entry(key.clone()).or_insert_with(|| Hold {
                ipus: u64::from(entry.spec.size.get()),
                until: None,
                made: false,
            });
            hold.until = None;
            hold.made |= !only_wanted;
            held.insert(key, hold.made);
        }
        for (key, hold) in &mut self.0 {
            if !held.contains_key(key) {
                hold.until.get_or_insert(now);
            }
        }
        // What the controller refused held nothing.
        self.0.retain(|_, hold| hold.made || hold.until.is_none());
    }

    /// How many there were.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// What was counted and what was recorded, in IPUs times milliseconds.
    pub(super) fn compare(&self, records: &[UsageRecord]) -> Result<(), Broken> {
        let broken = |message: String| {
            Err(Broken {
                invariant: "usage_is_recorded_exactly",
                message,
            })
        };
        let mut left: BTreeMap<&Key, &Hold> = self.0.iter().collect();
        for record in records {
            let key = record.key();
            let Some(hold) = left.remove(&key) else {
                return broken(format!("{key:?} is recorded twice, or was never held"));
            };
            let counted = hold.until.unwrap_or_default().saturating_sub(key.2.as_millis()) * hold.ipus;
            let recorded = record.ipu_millis();
            if counted.abs_diff(recorded) * 1_000 > counted {
                return broken(format!("{key:?} was held for {counted} IPU-ms, not {recorded}"));
            }
        }
        match left.keys().next() {
            Some(key) => broken(format!("{key:?} was held and is not recorded")),
            None => Ok(()),
        }
    }
}
