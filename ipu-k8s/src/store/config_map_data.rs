//! What the ConfigMap holds at one revision, and what a commit makes of it: pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{Change, Cordon, CordonId, Entry, EntryState, Operation, PartitionId};
use ipu_ledger::{DecodeError, decode_cordon, encode_cordon};
use serde_json::{Value, json};

use super::codec::{compact, expand};
use super::revision::{ConfigMapRevision, WRITE};

/// How much an entry may grow when it is granted (controller, places, state and fence), and again when it is released (state,
/// fence and what may still be under way). Room for that is kept free, so that every queued request can be served and every
/// partition be released.
const GROWTH: usize = 64;

/// What stays free besides: the words of errors, partitions that are found, long names of controllers. New cordons may take
/// half of it, so that hardware can be cordoned while requests fill the ledger.
const HEADROOM_PARTS: usize = 32;

/// How many namespaces can fill the ledger with their queued requests.
const SHARES: usize = 10;

/// The most bytes that the queued requests of one namespace may take in a ConfigMap of `most` bytes.
pub(super) const fn namespace_share(most: usize) -> usize {
    (most - most / HEADROOM_PARTS) / SHARES
}

/// What the key of an cordon begins with; no id of a partition makes such a key.
const CORDON: &str = ".x";

/// One key and value, with what they mean.
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

/// The entries and cordons of the ConfigMap by key. To clone it copies no text.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    kept: BTreeMap<Arc<str>, StoredKey>,
    /// Whether the API server records who wrote which key. It does only after somebody made it do so.
    pub(super) tracked: bool,
}

/// Why `data` is not a ledger.
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
    /// A JSON patch.
    pub(super) patch: Value,
    /// What the ConfigMap holds once it is taken.
    pub(super) content: Content,
}

/// Why a commit must not be sent: how full the ConfigMap is, in a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConfigMapFull(pub(super) String);

impl Content {
    /// Reads `data`. What is as in `known` need not be read again.
    pub(super) fn read(data: BTreeMap<String, String>, known: Option<&Self>) -> Result<Self, Unreadable> {
        let mut kept = BTreeMap::new();
        for (key, text) in data {
            let same = known
                .and_then(|known| known.kept.get(key.as_str()))
                .filter(|same| *same.text == *text);
            let record = match same {
                Some(same) => same.record.clone(),
                None => read_record(&key, &text)?,
            };
            let text = text.into();
            kept.insert(key.into(), StoredKey { text, record });
        }
        Ok(Self { kept, tracked: false })
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let entries = self.kept.values().filter_map(StoredKey::entry);
        entries.map(|entry| Entry::clone(entry)).collect()
    }

    pub(super) fn cordons(&self) -> Vec<Cordon> {
        let cordons = self.kept.values().filter_map(|kept| match &kept.record {
            StoredRecord::Entry(_) => None,
            StoredRecord::Cordon(cordon) => Some(Cordon::clone(cordon)),
        });
        cordons.collect()
    }

    /// The patch that makes `changes` at `at` and nowhere else.
    pub(super) fn write(
        &self,
        at: &ConfigMapRevision,
        word: &str,
        changes: &[Change],
        most: usize,
    ) -> Result<PreparedCommit, ConfigMapFull> {
        let content = self.after(changes);
        content.check_room(self, most)?;
        let mut patch = vec![
            // Another object, or an older one that was restored, fails here whatever its version is.
            json!({"op": "test", "path": annotation(WRITE), "value": at.write}),
            // The API server refuses the patch unless this is the version still.
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": at.version}),
            json!({"op": "replace", "path": annotation(WRITE), "value": word}),
        ];
        if self.tracked {
            // It would take as much room as the entries do.
            patch.push(json!({"op": "add", "path": "/metadata/managedFields", "value": [{}]}));
        }
        if self.kept.is_empty() {
            // An empty map is not there at all.
            let all: BTreeMap<&str, &str> = content
                .kept
                .iter()
                .map(|(key, kept)| (&**key, &*kept.text))
                .collect();
            patch.push(json!({"op": "add", "path": "/data", "value": all}));
        } else {
            let gone = self.kept.keys().filter(|key| !content.kept.contains_key(*key));
            patch.extend(gone.map(|key| json!({"op": "remove", "path": data(key)})));
            let new = content
                .kept
                .iter()
                .filter(|(key, kept)| self.kept.get(*key).is_none_or(|before| before.text != kept.text));
            patch
                .extend(new.map(|(key, kept)| json!({"op": "add", "path": data(key), "value": &*kept.text})));
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
                Change::Put(entry) => content.kept.insert(
                    key_of(&entry.id).into(),
                    StoredKey {
                        text: compact(entry).into(),
                        record: StoredRecord::Entry(Arc::clone(entry)),
                    },
                ),
                Change::Remove(id) => content.kept.remove(key_of(id).as_str()),
                Change::Cordon(cordon) => content.kept.insert(
                    key_of_cordon(&cordon.id).into(),
                    StoredKey {
                        text: encode_cordon(cordon).into(),
                        record: StoredRecord::Cordon(Arc::clone(cordon)),
                    },
                ),
                Change::Lift(id) => content.kept.remove(key_of_cordon(id).as_str()),
            };
        }
        content
    }

    /// Checks that new work leaves room for what is recorded. What is recorded may take all of it.
    fn check_room(&self, before: &Self, most: usize) -> Result<(), ConfigMapFull> {
        let bytes = self.bytes();
        if bytes > most {
            return Err(ConfigMapFull(format!(
                "{bytes} of at most {most} bytes would be in the ConfigMap, with {} entries{}",
                self.kept.len(),
                self.largest_namespace(),
            )));
        }
        let growth: usize = self
            .kept
            .values()
            .filter_map(StoredKey::entry)
            .map(|e| growth(e))
            .sum();
        let headroom = most / HEADROOM_PARTS;
        let changed = self.kept.iter().filter(|(key, kept)| {
            let same = before.kept.get(*key);
            same.is_none_or(|same| !Arc::ptr_eq(&same.text, &kept.text))
        });
        let reserved = changed.filter_map(|(key, kept)| match &kept.record {
            StoredRecord::Entry(entry) => {
                let old = before.kept.get(key).and_then(StoredKey::entry);
                is_new_work(entry, old.map(|old| &**old)).then_some(growth + headroom)
            }
            StoredRecord::Cordon(_) => Some(growth + headroom / 2),
        });
        let Some(reserved) = reserved.max() else {
            return Ok(());
        };
        if bytes + reserved > most {
            return Err(ConfigMapFull(format!(
                "{} entries take {} of {most} bytes of the ConfigMap, and {reserved} are kept free for those that \
                 are in it: new requests and cordons are refused until some of them are gone{}",
                before.kept.len(),
                before.bytes(),
                before.largest_namespace(),
            )));
        }
        Ok(())
    }

    /// Which namespace takes most of the bytes, in words that continue a sentence. Empty if no entry has an owner.
    fn largest_namespace(&self) -> String {
        let mut all: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for kept in self.kept.values() {
            if let Some(owner) = kept.entry().and_then(|entry| entry.owner.as_ref()) {
                let (bytes, count) = all.entry(owner.job.namespace.as_str()).or_default();
                *bytes += kept.text.len();
                *count += 1;
            }
        }
        let largest = all.into_iter().max_by_key(|(_, taken)| *taken);
        largest.map_or_else(String::new, |(name, (bytes, count))| {
            format!("; namespace {name} has most of them: {count} entries, {bytes} bytes")
        })
    }

    /// What etcd keeps of one version, roughly.
    pub(super) fn size(&self) -> usize {
        self.kept
            .iter()
            .map(|(key, kept)| key.len() + kept.text.len())
            .sum()
    }

    /// What the API server counts: the values.
    fn bytes(&self) -> usize {
        self.kept.values().map(|kept| kept.text.len()).sum()
    }
}

/// How much `entry` may still grow.
const fn growth(entry: &Entry) -> usize {
    match entry.state {
        EntryState::Waiting { .. } => 2 * GROWTH,
        EntryState::Releasing { .. } => 0,
        _ => GROWTH,
    }
}

/// Whether a client asks for something that the ledger need not record yet, because nothing exists of it: a new request, or a
/// queued one that says more than `before`.
fn is_new_work(entry: &Entry, before: Option<&Entry>) -> bool {
    match (&entry.state, before) {
        (EntryState::Waiting { .. }, Some(before)) => entry.record_bytes() > before.record_bytes(),
        (EntryState::Waiting { .. }, None) => true,
        (EntryState::Intent { operation, .. }, None) => matches!(operation, Operation::Create),
        _ => false,
    }
}

/// The key of a partition: its id, unless that begins with a point. Such a key means something else (`.` and `..` are not
/// allowed at all).
fn key_of(id: &PartitionId) -> String {
    match id.as_str() {
        odd if odd.starts_with('.') => format!(".p{odd}"),
        plain => plain.into(),
    }
}

/// The key of an cordon: its id after a mark.
fn key_of_cordon(id: &CordonId) -> String {
    format!("{CORDON}{id}")
}

fn read_record(key: &str, text: &str) -> Result<StoredRecord, Unreadable> {
    let damaged = |detail: String| Unreadable::Damaged {
        key: key.into(),
        detail,
    };
    let unread = |error| match error {
        DecodeError::Format(format) => Unreadable::Format(format),
        other => damaged(told(&other)),
    };
    if let Some(id) = key.strip_prefix(CORDON) {
        let cordon = decode_cordon(text).map_err(unread)?;
        return match cordon.id.as_str() == id {
            true => Ok(StoredRecord::Cordon(Arc::new(cordon))),
            false => Err(damaged(format!("it holds the exclusion {}", cordon.id))),
        };
    }
    let id = match key.strip_prefix(".p") {
        Some(odd) => odd,
        None if key.starts_with('.') => return Err(damaged("no key of a ledger begins so".into())),
        None => key,
    };
    let id = PartitionId::new(id).map_err(|error| damaged(error.to_string()))?;
    let entry = expand(&id, text).map_err(unread)?;
    Ok(StoredRecord::Entry(Arc::new(entry)))
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Where an annotation is, in a patch.
pub(super) fn annotation(name: &str) -> String {
    format!(
        "/metadata/annotations/{}",
        name.replace('~', "~0").replace('/', "~1")
    )
}

// Keys have neither '~' nor '/'.
pub(super) fn data(key: &str) -> String {
    format!("/data/{key}")
}

#[cfg(test)]
mod tests;
