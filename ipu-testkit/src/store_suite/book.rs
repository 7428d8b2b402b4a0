//! What a ledger has to hold, and how what it holds differs.

use std::collections::BTreeMap;

use ipu_core::{Change, Entry, PartitionId};
use serde_json::{Map, Value};

use super::bench::Verdict;
use crate::suite::broken;

/// The entries of a ledger, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Book(BTreeMap<PartitionId, Entry>);

impl Book {
    pub(super) fn of(entries: Vec<Entry>) -> Verdict<Self> {
        let mut book = BTreeMap::new();
        for entry in entries {
            let id = entry.id.clone();
            if book.insert(id.clone(), entry).is_some() {
                return Err(broken(
                    "a snapshot has each entry once",
                    format!("one entry {id}"),
                    "several",
                ));
            }
        }
        Ok(Self(book))
    }

    /// What an empty ledger holds after `changes`.
    pub(super) fn after(changes: &[Change]) -> Self {
        let mut book = Self::default();
        book.apply(changes);
        book
    }

    pub(super) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(entry) => self.0.insert(entry.id.clone(), Entry::clone(entry)),
                Change::Remove(id) => self.0.remove(id),
            };
        }
    }

    pub(super) fn get(&self, id: &PartitionId) -> Option<&Entry> {
        self.0.get(id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// `seen` has to be the same.
    pub(super) fn check(&self, rule: &str, seen: &Self) -> Verdict {
        match self.difference(seen) {
            None => Ok(()),
            Some((expected, seen)) => Err(broken(rule, expected, seen)),
        }
    }

    /// The first thing in which `seen` differs.
    pub(super) fn difference(&self, seen: &Self) -> Option<(String, String)> {
        for (id, entry) in &self.0 {
            match seen.0.get(id) {
                None => {
                    return Some((
                        format!("{}, with {id}", self.count()),
                        format!("{}, without it", seen.count()),
                    ));
                }
                Some(other) if other != entry => return Some(fields(entry, other)),
                Some(_) => {}
            }
        }
        let more = seen.0.keys().find(|id| !self.0.contains_key(*id))?;
        Some((
            format!("{}, without {more}", self.count()),
            format!("{}, with it", seen.count()),
        ))
    }

    fn count(&self) -> String {
        match self.0.len() {
            1 => "1 entry".into(),
            many => format!("{many} entries"),
        }
    }
}

/// The fields in which two entries of one id differ.
fn fields(expected: &Entry, seen: &Entry) -> (String, String) {
    let (wanted, found) = (object(expected), object(seen));
    let all: std::collections::BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
    let differing: Vec<_> = all
        .into_iter()
        .filter(|key| wanted.get(*key) != found.get(*key))
        .collect();
    let list = |of: &Map<String, Value>| {
        let value = |key: &String| of.get(key).map_or_else(|| "nothing".into(), Value::to_string);
        let fields: Vec<_> = differing
            .iter()
            .map(|key| format!("{key} = {}", value(key)))
            .collect();
        fields.join(", ")
    };
    (format!("{} with {}", expected.id, list(&wanted)), list(&found))
}

fn object(entry: &Entry) -> Map<String, Value> {
    match serde_json::to_value(entry) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("an entry is an object in JSON, not {other:?}"),
    }
}
