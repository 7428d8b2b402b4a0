//! Expected contents of a ledger, and the difference from actual contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use ipu_core::{Change, Cordon, CordonId, Entry, PartitionId};
use serde::Serialize;
use serde_json::{Map, Value};

use super::harness::CaseResult;
use crate::conformance::broken;

/// Entries and cordons of a ledger, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LedgerContents {
    entries: BTreeMap<PartitionId, Entry>,
    cordons: BTreeMap<CordonId, Cordon>,
}

impl LedgerContents {
    pub(super) fn of(entries: Vec<Entry>, cordons: Vec<Cordon>) -> CaseResult<Self> {
        let entries = entries.into_iter().map(|entry| (entry.id.clone(), entry));
        let cordons = cordons.into_iter().map(|one| (one.id.clone(), one));
        Ok(Self {
            entries: unique_by_id("entry", entries)?,
            cordons: unique_by_id("exclusion", cordons)?,
        })
    }

    /// Returns the contents of an empty ledger after `changes`.
    pub(super) fn after(changes: &[Change]) -> Self {
        let mut contents = Self::default();
        contents.apply(changes);
        contents
    }

    pub(super) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Put(entry) => drop(self.entries.insert(entry.id.clone(), Entry::clone(entry))),
                Change::Remove(id) => drop(self.entries.remove(id)),
                Change::Cordon(one) => drop(self.cordons.insert(one.id.clone(), Cordon::clone(one))),
                Change::Lift(id) => drop(self.cordons.remove(id)),
            }
        }
    }

    pub(super) fn get(&self, id: &PartitionId) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks that `actual` is the same.
    pub(super) fn check(&self, rule: &str, actual: &Self) -> CaseResult {
        match self.difference(actual) {
            None => Ok(()),
            Some((expected, actual)) => Err(broken(rule, expected, actual)),
        }
    }

    /// Returns the first difference of `actual`.
    pub(super) fn difference(&self, actual: &Self) -> Option<(String, String)> {
        difference("entry", "entries", &self.entries, &actual.entries)
            .or_else(|| difference("cordon", "cordons", &self.cordons, &actual.cordons))
    }
}

fn unique_by_id<K: Ord + Display + Clone, V>(
    kind: &str,
    all: impl Iterator<Item = (K, V)>,
) -> CaseResult<BTreeMap<K, V>> {
    let mut map = BTreeMap::new();
    for (id, value) in all {
        if map.insert(id.clone(), value).is_some() {
            return Err(broken(
                &format!("a snapshot contains each {kind} once"),
                format!("one {kind} {id}"),
                "several",
            ));
        }
    }
    Ok(map)
}

fn difference<K: Ord + Display, V: PartialEq + Serialize>(
    kind: &str,
    kinds: &str,
    expected: &BTreeMap<K, V>,
    actual: &BTreeMap<K, V>,
) -> Option<(String, String)> {
    let count = |of: &BTreeMap<K, V>| match of.len() {
        1 => format!("1 {kind}"),
        many => format!("{many} {kinds}"),
    };
    for (id, value) in expected {
        match actual.get(id) {
            None => {
                return Some((
                    format!("{}, with {id}", count(expected)),
                    format!("{}, without it", count(actual)),
                ));
            }
            Some(other) if other != value => return Some(fields(id, value, other)),
            Some(_) => {}
        }
    }
    let more = actual.keys().find(|id| !expected.contains_key(*id))?;
    Some((
        format!("{}, without {more}", count(expected)),
        format!("{}, with it", count(actual)),
    ))
}

/// Returns the fields in which two records of one id differ.
fn fields<V: Serialize>(id: &impl Display, expected: &V, actual: &V) -> (String, String) {
    let (wanted, found) = (object(expected), object(actual));
    let all: BTreeSet<_> = wanted.keys().chain(found.keys()).collect();
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
    (format!("{id} with {}", list(&wanted)), list(&found))
}

fn object(record: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(record) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("a record must be a JSON object, not {other:?}"),
    }
}
