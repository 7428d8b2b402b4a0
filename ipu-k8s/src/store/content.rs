//! What the ConfigMap holds at one revision, and what a commit makes of it: pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_core::{Change, Entry, EntryState, Operation, PartitionId};
use ipu_ledger::DecodeError;
use serde_json::{Value, json};

use super::codec::{compact, expand};
use super::revision::{At, WRITE};

/// How much an entry that waits may grow until it holds its partition: controller, places, state and fence. Room for that is
/// kept free, so that whoever was let into the line can be served.
const GROWTH: usize = 64;

/// What stays free for entries that hold already and grow: fences, the words of errors, partitions that are found.
const HEADROOM_PARTS: usize = 32;

/// One key and value, with the entry that they mean.
#[derive(Clone, Debug)]
struct Kept {
    text: Arc<str>,
    entry: Arc<Entry>,
}

/// The entries of the ConfigMap by key. To clone it copies no text.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    kept: BTreeMap<Arc<str>, Kept>,
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
pub(super) struct Write {
    /// A JSON patch.
    pub(super) patch: Value,
    /// What the ConfigMap holds once it is taken.
    pub(super) content: Content,
}

/// Why a commit must not be sent: how full the ConfigMap is, in a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full(pub(super) String);

impl Content {
    /// Reads `data`. What is as in `known` need not be read again.
    pub(super) fn read(data: BTreeMap<String, String>, known: Option<&Self>) -> Result<Self, Unreadable> {
        let mut kept = BTreeMap::new();
        for (key, text) in data {
            let same = known
                .and_then(|known| known.kept.get(key.as_str()))
                .filter(|same| *same.text == *text);
            let entry = match same {
                Some(same) => Arc::clone(&same.entry),
                None => Arc::new(read_entry(&key, &text)?),
            };
            let text = text.into();
            kept.insert(key.into(), Kept { text, entry });
        }
        Ok(Self { kept, tracked: false })
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.kept.values().map(|kept| Entry::clone(&kept.entry)).collect()
    }

    /// The patch that makes `changes` at `at` and nowhere else.
    pub(super) fn write(&self, at: &At, word: &str, changes: &[Change], most: usize) -> Result<Write, Full> {
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
        Ok(Write {
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
                    Kept {
                        text: compact(entry).into(),
                        entry: Arc::clone(entry),
                    },
                ),
                Change::Remove(id) => content.kept.remove(key_of(id).as_str()),
            };
        }
        content
    }

    /// New work has to leave room for what is there; what is there may take all of it.
    fn check_room(&self, before: &Self, most: usize) -> Result<(), Full> {
        let bytes = self.bytes();
        if bytes > most {
            return Err(Full(format!(
                "{bytes} of at most {most} bytes would be in the ConfigMap, with {} entries",
                self.kept.len()
            )));
        }
        let waiting = self
            .kept
            .values()
            .filter(|kept| !kept.entry.state.holds())
            .count();
        let reserved = waiting * GROWTH + most / HEADROOM_PARTS;
        let new = self
            .kept
            .iter()
            .any(|(key, kept)| !before.kept.contains_key(key) && is_new_work(&kept.entry));
        if new && bytes + reserved > most {
            return Err(Full(format!(
                "{} entries take {} of {most} bytes of the ConfigMap, and {reserved} are kept free for those that \
                 are in it: new requests are refused until some of them are gone",
                before.kept.len(),
                before.bytes(),
            )));
        }
        Ok(())
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

/// Whether somebody asks for something that the ledger need not know yet, because nothing exists of it.
const fn is_new_work(entry: &Entry) -> bool {
    match entry.state {
        EntryState::Waiting { .. } => true,
        EntryState::Intent { operation, .. } => matches!(operation, Operation::Create),
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

fn read_entry(key: &str, text: &str) -> Result<Entry, Unreadable> {
    let damaged = |detail: String| Unreadable::Damaged {
        key: key.into(),
        detail,
    };
    let id = match key.strip_prefix(".p") {
        Some(odd) => odd,
        None if key.starts_with('.') => return Err(damaged("no key of a ledger begins so".into())),
        None => key,
    };
    let id = PartitionId::new(id).map_err(|error| damaged(error.to_string()))?;
    expand(&id, text).map_err(|error| match error {
        DecodeError::Format(format) => Unreadable::Format(format),
        other => damaged(told(&other)),
    })
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
fn data(key: &str) -> String {
    format!("/data/{key}")
}
