//! What a ledger has to hold, and how what it holds differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use ipu_core::{Change, Cordon, CordonId, Entry, PartitionId};
use serde::Serialize;
use serde_json::{Map, Value};

use super::harness::CaseResult;
use crate::conformance::broken;

/// The entries and the cordons of a ledger, by id.
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
            entries: each_once("entry", entries)?,
            cordons: each_once("exclusion", cordons)?,
        })
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

    /// `seen` has to be the same.
    pub(super) fn check(&self, rule: &str, seen: &Self) -> CaseResult {
        match self.difference(seen) {
            None => Ok(()),
            Some((expected, seen)) => Err(broken(rule, expected, seen)),
        }
    }

    /// The first thing in which `seen` differs.
    pub(super) fn difference(&self, seen: &Self) -> Option<(String, String)> {
        difference("entry", "entries", &self.entries, &seen.entries)
            .or_else(|| difference("exclusion", "exclusions", &self.cordons, &seen.cordons))
    }
}

fn each_once<K: Ord + Display + Clone, V>(
    kind: &str,
    all: impl Iterator<Item = (K, V)>,
) -> CaseResult<BTreeMap<K, V>> {
    let mut map = BTreeMap::new();
    for (id, value) in all {
        if map.insert(id.clone(), value).is_some() {
            return Err(broken(
                &format!("a snapshot has each {kind} once"),
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
    seen: &BTreeMap<K, V>,
) -> Option<(String, String)> {
    let count = |of: &BTreeMap<K, V>| match of.len() {
        1 => format!("1 {kind}"),
        many => format!("{many} {kinds}"),
    };
    for (id, value) in expected {
        match seen.get(id) {
            None => {
                return Some((
                    format!("{}, with {id}", count(expected)),
                    format!("{}, without it", count(seen)),
                ));
            }
            Some(other) if other != value => return Some(fields(id, value, other)),
            Some(_) => {}
        }
    }
    let more = seen.keys().find(|id| !expected.contains_key(*id))?;
    Some((
        format!("{}, without {more}", count(expected)),
        format!("{}, with it", count(seen)),
    ))
}

/// The fields in which two records of one id differ.
fn fields<V: Serialize>(id: &impl Display, expected: &V, seen: &V) -> (String, String) {
    let (wanted, found) = (object(expected), object(seen));
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
        other => panic!("a record is an object in JSON, not {other:?}"),
    }
}
