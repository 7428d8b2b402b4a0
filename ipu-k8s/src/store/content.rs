//! The keys and values of the ConfigMap, and its size: pure functions.

use std::collections::BTreeMap;

use ipu_core::allocator::{Change, Cordon, Entry, Phase, State, UsageRecord};
use ipu_core::{CordonId, PartitionId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Prefix of the key of an entry, which is followed by the partition id.
const ENTRY_PREFIX: &str = "partition.";

/// Prefix of the key of a cordon, which is followed by its id.
const CORDON_PREFIX: &str = "cordon.";

/// Prefix of the key of a usage record that is not on a page yet.
pub(super) const USAGE_PREFIX: &str = "usage.";

/// Growth in bytes of an entry that holds a partition until it is released: the words of its phases, counts
/// and one time.
const RELEASE_BYTES: usize = 96;

/// Space for cordons above the limit of new requests, so that hardware can be cordoned while requests fill
/// the record.
const CORDON_BYTES: usize = 64 * 1024;

/// The size of one key.
#[derive(Clone, Copy, Debug)]
struct RecordSize {
    /// Key and value.
    bytes: usize,
    /// The same, with the growth until the entry is removed.
    reserved: usize,
    /// The part that the client of a queued entry determines.
    requested: usize,
}

/// The content at one revision: the size of each entry and cordon by key, and the usage records.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    sizes: BTreeMap<String, RecordSize>,
    usage: BTreeMap<String, String>,
}

impl Content {
    /// Parses `data`. The error has a key and its defect.
    pub(super) fn read(data: BTreeMap<String, String>) -> Result<(Self, State), (String, String)> {
        let (mut content, mut entries, mut cordons) = (Self::default(), Vec::new(), Vec::new());
        for (key, text) in data {
            if key.starts_with(USAGE_PREFIX) {
                content.usage.insert(key, text);
                continue;
            }
            let parsed = if key.starts_with(ENTRY_PREFIX) {
                let entry: Result<Entry, String> = parse(&key, &text, |entry: &Entry| entry_key(&entry.id));
                entry.map(|entry| {
                    let size = entry_size(&entry, key.len() + text.len());
                    entries.push(entry);
                    size
                })
            } else if key.starts_with(CORDON_PREFIX) {
                let cordon: Result<Cordon, String> =
                    parse(&key, &text, |cordon: &Cordon| cordon_key(&cordon.id));
                cordon.map(|cordon| {
                    cordons.push(cordon);
                    cordon_size(key.len() + text.len())
                })
            } else {
                Err(format!(
                    "it begins with none of {ENTRY_PREFIX:?}, {CORDON_PREFIX:?} and {USAGE_PREFIX:?}"
                ))
            };
            match parsed {
                Ok(size) => content.sizes.insert(key, size),
                Err(detail) => return Err((key, detail)),
            };
        }
        Ok((content, State::new(entries, cordons)))
    }

    /// Returns whether there are neither entries nor cordons.
    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns the size of all keys and values.
    pub(super) fn bytes(&self) -> usize {
        let entry_bytes: usize = self.sizes.values().map(|size| size.bytes).sum();
        entry_bytes + self.usage_bytes()
    }

    /// Returns the size of all entries and cordons with their growth until their release.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.sizes.values().map(|size| size.reserved).sum()
    }

    /// Returns the usage records by key.
    pub(super) const fn usage(&self) -> &BTreeMap<String, String> {
        &self.usage
    }

    pub(super) fn usage_bytes(&self) -> usize {
        self.usage.iter().map(|(key, text)| key.len() + text.len()).sum()
    }

    /// Returns the content without usage records, and the `data` of a merge patch that removes them.
    pub(super) fn without_usage(&self) -> (Self, serde_json::Map<String, Value>) {
        let removed = self.usage.keys().map(|key| (key.clone(), Value::Null));
        let content = Self {
            sizes: self.sizes.clone(),
            usage: BTreeMap::new(),
        };
        (content, removed.collect())
    }

    /// Applies `changes` and adds `usage`. Adds both to the `data` of a merge patch.
    pub(super) fn apply(
        &mut self,
        changes: &[Change],
        usage: &[UsageRecord],
        data: &mut serde_json::Map<String, Value>,
    ) {
        for record in usage {
            let (id, ticket, held_since) = record.key();
            let key = format!("{USAGE_PREFIX}{id}.{ticket}.{}", held_since.as_millis());
            let text = encode(record);
            data.insert(key.clone(), text.clone().into());
            self.usage.insert(key, text);
        }
        for change in changes {
            let (key, written) = match change {
                Change::Put(entry) => {
                    let (key, text) = (entry_key(&entry.id), encode(&**entry));
                    let size = entry_size(entry, key.len() + text.len());
                    (key, Some((text, size)))
                }
                Change::Remove(id) => (entry_key(id), None),
                Change::Cordon(cordon) => {
                    let (key, text) = (cordon_key(&cordon.id), encode(&**cordon));
                    let size = cordon_size(key.len() + text.len());
                    (key, Some((text, size)))
                }
                Change::Uncordon(id) => (cordon_key(id), None),
            };
            match written {
                Some((text, size)) => {
                    self.sizes.insert(key.clone(), size);
                    data.insert(key, text.into());
                }
                None => {
                    self.sizes.remove(&key);
                    data.insert(key, Value::Null);
                }
            }
        }
    }

    /// Checks that new work leaves space for the growth of all entries. Everything else is left to the limit
    /// of the API server. The error is a sentence about the size.
    pub(super) fn check_capacity(
        &self,
        before: &Self,
        changes: &[Change],
        max_bytes: usize,
    ) -> Result<(), String> {
        let limit_of = |change: &Change| match change {
            Change::Put(entry) if Self::is_new_work(before, entry) => Some(max_bytes),
            Change::Cordon(_) => Some(max_bytes + CORDON_BYTES),
            _ => None,
        };
        let Some(limit) = changes.iter().filter_map(limit_of).min() else {
            return Ok(());
        };
        if self.reserved_bytes() <= limit {
            return Ok(());
        }
        Err(format!(
            "{} entries and cordons take {} of {limit} bytes of the ConfigMap, and their growth until they are \
             released is reserved: new requests and cordons are refused until finished or queued jobs are deleted",
            before.sizes.len(),
            before.bytes(),
        ))
    }

    /// Returns whether the record need not have the entry, because nothing exists yet: a new request, or a
    /// queued one that has grown.
    fn is_new_work(before: &Self, entry: &Entry) -> bool {
        match (&entry.phase, before.sizes.get(&entry_key(&entry.id))) {
            (Phase::Queued | Phase::Creating, None) => true,
            (Phase::Queued, Some(before)) => entry.record_bytes() > before.requested,
            _ => false,
        }
    }
}

fn entry_size(entry: &Entry, bytes: usize) -> RecordSize {
    let requested = match entry.phase {
        Phase::Queued => entry.record_bytes(),
        _ => 0,
    };
    let growth = match entry.phase {
        Phase::Queued | Phase::Releasing { .. } => 0,
        _ => RELEASE_BYTES,
    };
    RecordSize {
        bytes,
        reserved: requested.max(bytes + growth),
        requested,
    }
}

const fn cordon_size(bytes: usize) -> RecordSize {
    RecordSize {
        bytes,
        reserved: bytes,
        requested: 0,
    }
}

// Ids have only characters that a key of a ConfigMap may have.
fn entry_key(id: &PartitionId) -> String {
    format!("{ENTRY_PREFIX}{id}")
}

fn cordon_key(id: &CordonId) -> String {
    format!("{CORDON_PREFIX}{id}")
}

/// Returns the stored form of a value, which has string keys and finite numbers only: this cannot fail. If it
/// did, reading would return an error.
fn encode(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses a record, whose key must be the one under which it is stored.
fn parse<T: DeserializeOwned>(key: &str, text: &str, key_of: impl Fn(&T) -> String) -> Result<T, String> {
    let record: T = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match key_of(&record) {
        own if own == key => Ok(record),
        own => Err(format!("it contains the record of key {own}")),
    }
}

#[cfg(test)]
mod tests {
    use ipu_core::allocator::{Event, Hardware, PlacementConstraint, Policy, Request, step};
    use ipu_core::hardware::{IpuPlace, PartitionSpec};
    use ipu_core::{ControllerName, JobKey, Owner, Timestamp};

    use super::*;

    /// Returns the queued entry of a request with names of this length.
    fn queued(length: usize, change: impl FnOnce(&mut Request)) -> Entry {
        let name = "n".repeat(length);
        let owner = Owner {
            kind: "IPUJob".into(),
            job: JobKey::new(&name, &name, &name).unwrap(),
        };
        let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(4.try_into().unwrap()));
        request.id = "p".repeat(50).parse().unwrap();
        change(&mut request);
        let (now, event) = (Timestamp::from_millis(1_795_000_000_000), Event::Ensure(request));
        let step = step(
            &State::default(),
            &Hardware::default(),
            &Policy::default(),
            now,
            &event,
        );
        match step.unwrap().changes.pop() {
            Some(Change::Put(entry)) => {
                let mut entry = Entry::clone(&entry);
                entry.ticket = 1 << 40;
                entry.overtaken = u32::MAX;
                entry
            }
            other => panic!("{other:?}"),
        }
    }

    fn bytes(entry: &Entry) -> usize {
        entry_key(&entry.id).len() + encode(entry).len()
    }

    #[test]
    fn the_counted_size_of_a_request_covers_its_record_until_it_is_released() {
        let all = |request: &mut Request| {
            request.instance = 4_095;
            request.attempt = u32::MAX;
            request.priority = i32::MIN;
            request.preemptible = true;
            request.account = Some("a".repeat(63));
            request.max_runtime = Some(std::time::Duration::from_secs(1 << 40));
            request.holder = "lease:604800:1795000000000".into();
            request.spec.gcds = 4;
            request.spec.replicas = 4;
            request.spec.reconfigurable = true;
            request.spec.allocation = Some("allocation-7".parse().unwrap());
            request.pin = PlacementConstraint {
                controller: Some("pod001:8090".parse().unwrap()),
                ipus: (0..4)
                    .map(|ipu| IpuPlace {
                        link_domain: 1_000,
                        ipu: 60 + ipu,
                    })
                    .collect(),
            };
        };
        for length in [1, 63, 253] {
            for entry in [queued(length, |_| {}), queued(length, all)] {
                let counted = entry.record_bytes();
                assert!(
                    bytes(&entry) <= counted,
                    "{entry:?}: {} of {counted}",
                    bytes(&entry)
                );
                // The count is no more than twice the size of a usual entry.
                assert!(
                    counted <= 2 * bytes(&entry),
                    "{entry:?}: {} of {counted}",
                    bytes(&entry)
                );
                let mut held = entry;
                held.phase = Phase::Releasing { refusal: None };
                held.operations = 1_000;
                held.controller = Some(ControllerName::new("pod001.vipu.cluster.local:8090").unwrap());
                held.cluster = Some("cluster-7".parse().unwrap());
                held.names_ipus = true;
                held.unforced = true;
                held.held_since = Some(held.since);
                assert!(bytes(&held) <= counted, "{held:?}: {} of {counted}", bytes(&held));
            }
        }
    }
}
