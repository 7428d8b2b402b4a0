//! Independent record of partition holds from the observed commits; the ledger's usage records must agree.

use std::collections::BTreeMap;

use ipu_core::{EntryState, Operation, PartitionId, Timestamp, UsageRecord};

use super::invariants::BrokenInvariant;
use super::store::Entries;

/// Identity of a hold.
type Key = (PartitionId, u64, Timestamp);

#[derive(Default)]
pub(super) struct Holds(BTreeMap<Key, RecordedHold>);

struct RecordedHold {
    ipus: u64,
    /// Start time of the commit that ended it.
    until: Option<u64>,
    /// Whether the controller may have created it.
    made: bool,
}

impl Holds {
    /// Records that the ledger holds `entries` since a commit that began at `now`.
    pub(super) fn observe(&mut self, entries: &Entries, now: u64) {
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
            let hold = self.0.entry(key.clone()).or_insert_with(|| RecordedHold {
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
        // A rejected create held nothing.
        self.0.retain(|_, hold| hold.made || hold.until.is_none());
    }

    /// Returns the number of holds.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Compares the observed holds with the records, in IPU-milliseconds.
    pub(super) fn compare(&self, records: &[UsageRecord]) -> Result<(), BrokenInvariant> {
        let broken = |message: String| {
            Err(BrokenInvariant {
                invariant: "usage_is_recorded_exactly",
                message,
            })
        };
        let mut left: BTreeMap<&Key, &RecordedHold> = self.0.iter().collect();
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
            Some(key) => broken(format!("{key:?} was held but is not recorded")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ipu_core::{
        CallWindow, Change, ControllersSnapshot, Entry, JobKey, LedgerState, Owner, PartitionSpec,
        QueuePolicy, Request,
    };

    use super::*;

    fn held(number: u32, state: EntryState) -> Entry {
        let owner = Owner {
            kind: "Test".into(),
            job: JobKey::new("ns", "job", "1").expect("a valid key"),
        };
        let size = 4.try_into().expect("a valid size");
        let request = Request::of_instance(owner, number, PartitionSpec::of_size(size));
        let window = CallWindow {
            now: Timestamp::from_millis(1_000),
            settle: std::time::Duration::ZERO,
        };
        let state_of = LedgerState::default();
        let step = state_of.request(
            &request,
            &ControllersSnapshot::default(),
            &QueuePolicy::default(),
            window,
        );
        let Ok([Change::Put(entry)]) = step.as_ref().map(|step| &step.changes[..]) else {
            panic!("{step:?}");
        };
        let mut entry = Entry::clone(entry);
        entry.state = state;
        entry.held_since = Some(window.now);
        entry
    }

    fn entries(all: &[Entry]) -> Entries {
        all.iter()
            .map(|entry| (entry.id.clone(), Arc::new(entry.clone())))
            .collect()
    }

    #[test]
    fn missing_duplicate_short_and_rejected_holds_are_reported() {
        let mut holds = Holds::default();
        let used = held(0, EntryState::Active);
        let fence = Timestamp::from_millis(0);
        let operation = Operation::Create;
        let refused = held(1, EntryState::Intent { operation, fence });
        holds.observe(&entries(&[used.clone(), refused.clone()]), 1_000);
        holds.observe(&entries(&[]), 61_000);
        assert_eq!(holds.len(), 1);

        let ended = |at| {
            UsageRecord::from_transition(&used, None, Timestamp::from_millis(at)).expect("the hold ends")
        };
        assert_eq!(UsageRecord::from_transition(&refused, None, fence), None);
        let found = |records: &[UsageRecord]| holds.compare(records).err().map(|broken| broken.message);
        assert_eq!(found(&[ended(61_000)]), None);
        assert_eq!(found(&[ended(61_050)]), None);
        let assert_found = |records: &[UsageRecord], expected: &str| {
            let message = found(records).unwrap_or_default();
            assert!(message.contains(expected), "{message:?} without {expected:?}");
        };
        assert_found(&[], "is not recorded");
        assert_found(&[ended(61_000), ended(61_000)], "recorded twice");
        assert_found(&[ended(62_000)], "IPU-ms");
    }
}
