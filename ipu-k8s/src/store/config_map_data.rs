//! The content of the ConfigMap at one revision, and the changes of a commit to it: pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{Change, Cordon, CordonId, Entry, EntryState, Operation, PartitionId};
use ipu_ledger::{DecodeError, decode_cordon, encode_cordon};
use serde_json::{Value, json};

use super::codec::{compact, expand};
use super::revision::{ConfigMapRevision, WRITE};

/// Maximum growth of an entry in bytes when it is granted (controller, places, state and fence), and again
/// when it is released (state, fence and calls in flight). That much space is reserved, so that every queued
/// request can be granted and every partition be released.
const MAX_GROWTH_BYTES: usize = 64;

/// Divisor of the size for the additional reserve: for error messages, adopted partitions, long names of
/// controllers. New cordons may use half of it, so that hardware can be cordoned while requests fill the
/// ledger.
const HEADROOM_PARTS: usize = 32;

/// Number of namespaces that can fill the ledger with their queued requests.
const SHARES: usize = 10;

/// Returns the maximum size of the queued requests of one namespace in a ConfigMap of `max_bytes`.
pub(super) const fn namespace_share(max_bytes: usize) -> usize {
    (max_bytes - max_bytes / HEADROOM_PARTS) / SHARES
}

/// Prefix of the key of a cordon; no partition id results in such a key.
const CORDON_PREFIX: &str = ".x";

/// Text of one key with its parsed record.
#[derive(Clone, Debug)]
struct StoredKey {
    text: Arc<str>,
    record: StoredRecord,
}

#[derive(Clone, Debug)]
enum StoredRecord {
    Entry(Arc<Entry>),
    Cordon(Arc<Cordon>),
}

impl StoredKey {
    const fn entry(&self) -> Option<&Arc<Entry>> {
        match &self.record {
            StoredRecord::Entry(entry) => Some(entry),
            StoredRecord::Cordon(_) => None,
        }
    }
}

/// Entries and cordons of the ConfigMap by key. A clone copies no text.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    records: BTreeMap<Arc<str>, StoredKey>,
    /// True if the API server records the writer of each key, which it does only if another client enabled
    /// that.
    pub(super) tracked: bool,
}

/// Reason why data is not a ledger.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Another build wrote an entry.
    Format(ipu_core::FormatError),
    /// An entry is damaged.
    Damaged { key: String, detail: String },
}

/// A commit that may be sent.
#[derive(Debug)]
pub(super) struct PreparedCommit {
    /// JSON patch.
    pub(super) patch: Value,
    /// Content of the ConfigMap after the patch.
    pub(super) content: Content,
}

/// Reason why a commit must not be sent: a sentence about the size of the ConfigMap.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConfigMapFull(pub(super) String);

impl Content {
    /// Parses `data`. Records that equal those in `cached` are not parsed again.
    pub(super) fn read(data: BTreeMap<String, String>, cached: Option<&Self>) -> Result<Self, Unreadable> {
        let mut records = BTreeMap::new();
        for (key, text) in data {
            let same = cached
                .and_then(|cached| cached.records.get(key.as_str()))
                .filter(|same| *same.text == *text);
            let record = match same {
                Some(same) => same.record.clone(),
                None => read_record(&key, &text)?,
            };
            let text = text.into();
            records.insert(key.into(), StoredKey { text, record });
        }
        Ok(Self {
            records,
            tracked: false,
        })
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let entries = self.records.values().filter_map(StoredKey::entry);
        entries.map(|entry| Entry::clone(entry)).collect()
    }

    pub(super) fn cordons(&self) -> Vec<Cordon> {
        let cordons = self.records.values().filter_map(|stored| match &stored.record {
            StoredRecord::Entry(_) => None,
            StoredRecord::Cordon(cordon) => Some(Cordon::clone(cordon)),
        });
        cordons.collect()
    }

    /// Returns the patch that applies `changes` at revision `at` only.
    pub(super) fn write(
        &self,
        at: &ConfigMapRevision,
        token: &str,
        changes: &[Change],
        max_bytes: usize,
    ) -> Result<PreparedCommit, ConfigMapFull> {
        let content = self.after(changes);
        content.check_capacity(self, max_bytes)?;
        let mut patch = vec![
            // Another object, or an older one after a restore, fails here whatever its version is.
            json!({"op": "test", "path": annotation(WRITE), "value": at.write}),
            // The API server refuses the patch unless this is still the version.
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": at.version}),
            json!({"op": "replace", "path": annotation(WRITE), "value": token}),
        ];
        if self.tracked {
            // It would take as much space as the entries.
            patch.push(json!({"op": "add", "path": "/metadata/managedFields", "value": [{}]}));
        }
        if self.records.is_empty() {
            // The API server omits an empty map.
            let all: BTreeMap<&str, &str> = content
                .records
                .iter()
                .map(|(key, record)| (&**key, &*record.text))
                .collect();
            patch.push(json!({"op": "add", "path": "/data", "value": all}));
        } else {
            let removed = self
                .records
                .keys()
                .filter(|key| !content.records.contains_key(*key));
            patch.extend(removed.map(|key| json!({"op": "remove", "path": data(key)})));
            let new = content.records.iter().filter(|(key, record)| {
                self.records
                    .get(*key)
                    .is_none_or(|before| before.text != record.text)
            });
            patch.extend(
                new.map(|(key, record)| json!({"op": "add", "path": data(key), "value": &*record.text})),
            );
        }
        Ok(PreparedCommit {
            patch: patch.into(),
            content,
        })
    }

    fn after(&self, changes: &[Change]) -> Self {
        let mut content = self.clone();
        content.tracked = false;
        for change in changes {
            match change {
                Change::Put(entry) => content.records.insert(
                    key_of(&entry.id).into(),
                    StoredKey {
                        text: compact(entry).into(),
                        record: StoredRecord::Entry(Arc::clone(entry)),
                    },
                ),
                Change::Remove(id) => content.records.remove(key_of(id).as_str()),
                Change::Cordon(cordon) => content.records.insert(
                    key_of_cordon(&cordon.id).into(),
                    StoredKey {
                        text: encode_cordon(cordon).into(),
                        record: StoredRecord::Cordon(Arc::clone(cordon)),
                    },
                ),
                Change::Lift(id) => content.records.remove(key_of_cordon(id).as_str()),
            };
        }
        content
    }

    /// Checks that new work leaves the reserve free. Changes of existing entries may use all of it.
    fn check_capacity(&self, before: &Self, max_bytes: usize) -> Result<(), ConfigMapFull> {
        let bytes = self.bytes();
        if bytes > max_bytes {
            return Err(ConfigMapFull(format!(
                "the ConfigMap would have {bytes} of at most {max_bytes} bytes, with {} entries{}",
                self.records.len(),
                self.largest_namespace(),
            )));
        }
        let growth: usize = self
            .records
            .values()
            .filter_map(StoredKey::entry)
            .map(|e| growth(e))
            .sum();
        let headroom = max_bytes / HEADROOM_PARTS;
        let changed = self.records.iter().filter(|(key, record)| {
            let same = before.records.get(*key);
            same.is_none_or(|same| !Arc::ptr_eq(&same.text, &record.text))
        });
        let reserved = changed.filter_map(|(key, record)| match &record.record {
            StoredRecord::Entry(entry) => {
                let old = before.records.get(key).and_then(StoredKey::entry);
                is_new_work(entry, old.map(|old| &**old)).then_some(growth + headroom)
            }
            StoredRecord::Cordon(_) => Some(growth + headroom / 2),
        });
        let Some(reserved) = reserved.max() else {
            return Ok(());
        };
        if bytes + reserved > max_bytes {
            return Err(ConfigMapFull(format!(
                "{} entries take {} of {max_bytes} bytes of the ConfigMap, and {reserved} are reserved for the growth of \
                 existing entries: new requests and cordons are refused until some of them are deleted{}",
                before.records.len(),
                before.bytes(),
                before.largest_namespace(),
            )));
        }
        Ok(())
    }

    /// Returns a clause about the namespace that takes most of the bytes; empty if no entry has an owner.
    fn largest_namespace(&self) -> String {
        let mut all: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for record in self.records.values() {
            if let Some(owner) = record.entry().and_then(|entry| entry.owner.as_ref()) {
                let (bytes, count) = all.entry(owner.job.namespace.as_str()).or_default();
                *bytes += record.text.len();
                *count += 1;
            }
        }
        let largest = all.into_iter().max_by_key(|(_, taken)| *taken);
        largest.map_or_else(String::new, |(name, (bytes, count))| {
            format!("; namespace {name} has the most: {count} entries, {bytes} bytes")
        })
    }

    /// Returns the approximate size of one version in etcd.
    pub(super) fn size(&self) -> usize {
        self.records
            .iter()
            .map(|(key, record)| key.len() + record.text.len())
            .sum()
    }

    /// Returns the size that the API server limits: that of the values.
    fn bytes(&self) -> usize {
        self.records.values().map(|record| record.text.len()).sum()
    }
}

/// Returns how much `entry` may still grow.
const fn growth(entry: &Entry) -> usize {
    match entry.state {
        EntryState::Waiting { .. } => 2 * MAX_GROWTH_BYTES,
        EntryState::Releasing { .. } => 0,
        _ => MAX_GROWTH_BYTES,
    }
}

/// Returns whether a client requests something that the ledger need not record, because nothing exists yet: a
/// new request, or a queued one that is larger than `before`.
fn is_new_work(entry: &Entry, before: Option<&Entry>) -> bool {
    match (&entry.state, before) {
        (EntryState::Waiting { .. }, Some(before)) => entry.record_bytes() > before.record_bytes(),
        (EntryState::Waiting { .. }, None) => true,
        (EntryState::Intent { operation, .. }, None) => matches!(operation, Operation::Create),
        _ => false,
    }
}

/// Returns the key of a partition: its id, with a prefix if it starts with a dot, which marks other keys (`.`
/// and `..` are not allowed at all).
fn key_of(id: &PartitionId) -> String {
    match id.as_str() {
        odd if odd.starts_with('.') => format!(".p{odd}"),
        plain => plain.into(),
    }
}

/// Returns the key of a cordon: its id with a prefix.
fn key_of_cordon(id: &CordonId) -> String {
    format!("{CORDON_PREFIX}{id}")
}

fn read_record(key: &str, text: &str) -> Result<StoredRecord, Unreadable> {
    let damaged = |detail: String| Unreadable::Damaged {
        key: key.into(),
        detail,
    };
    let decode_error = |error| match error {
        DecodeError::Format(format) => Unreadable::Format(format),
        other => damaged(error_chain(&other)),
    };
    if let Some(id) = key.strip_prefix(CORDON_PREFIX) {
        let cordon = decode_cordon(text).map_err(decode_error)?;
        return match cordon.id.as_str() == id {
            true => Ok(StoredRecord::Cordon(Arc::new(cordon))),
            false => Err(damaged(format!("it contains the cordon {}", cordon.id))),
        };
    }
    let id = match key.strip_prefix(".p") {
        Some(odd) => odd,
        None if key.starts_with('.') => return Err(damaged("the prefix is unknown".into())),
        None => key,
    };
    let id = PartitionId::new(id).map_err(|error| damaged(error.to_string()))?;
    let entry = expand(&id, text).map_err(decode_error)?;
    Ok(StoredRecord::Entry(Arc::new(entry)))
}

/// Returns an error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Returns the path of an annotation in a patch.
pub(super) fn annotation(name: &str) -> String {
    format!(
        "/metadata/annotations/{}",
        name.replace('~', "~0").replace('/', "~1")
    )
}

// Keys contain neither '~' nor '/'.
pub(super) fn data(key: &str) -> String {
    format!("/data/{key}")
}

#[cfg(test)]
mod tests;
