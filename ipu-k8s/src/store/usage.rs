//! Who held what for how long, in ConfigMaps beside the ledger.
//!
//! Records are appended to a small ConfigMap, the *open page*, one key each, so that a write costs little however much is
//! kept. When that has grown, it is folded: its records become one key of a *page*. There is a fixed number of pages, begun
//! one after the other in a ring. So the log is bounded, a role can name its ConfigMaps, and nothing has to be deleted.
//!
//! # Why no record is lost, and none counts twice
//!
//! An append adds keys and needs no version: those of several processes commute, and one that is repeated changes nothing.
//! A fold first copies the records into the page, under a key that nobody else writes, and then removes from the open page
//! what it has copied, on condition that it is there still. Whoever dies in between leaves records twice, and reading goes
//! by the record's key. A page is begun anew on condition that it is the one that was looked at. So none of it rests on
//! versions, which come again after etcd was restored.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ipu_core::{FormatError, PartitionId, Timestamp, UsageRecord};
use ipu_ledger::{StoreError, UsageLog};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{ObjectMeta, PostParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::config_map_data::{annotation, data};
use super::{ConfigMapStore, TRIES};
use crate::api_call::{Failure, bounded};

/// The annotation that makes a ConfigMap a part of the log, with the version of how it lies there.
const LAYOUT: &str = "ledger.graphcore.ai/usage";

/// The version that this build writes and reads.
const LAYOUT_VERSION: u32 = 1;

/// The key of the open page that tells where the next fold goes.
const NEXT: &str = ".next";

/// The key of a page that tells which one it is.
const PAGE: &str = ".page";

/// What the keys of records begin with.
const RECORD: &str = "h.";

/// How many records one write appends at most: far fewer than the API server takes in one.
const MAX_BATCH: usize = 256;

/// How much of the log of usage is kept.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UsageOptions {
    /// How many pages there are: 16 unless set, at least 2. The oldest is dropped when another one is begun.
    pub pages: u32,
    /// How many bytes a page has: 896 KiB unless set, so that it fits into a ConfigMap with its keys.
    pub page_bytes: usize,
    /// From how many bytes on the open page is folded: 32 KiB unless set. Every append writes as much.
    pub open_bytes: usize,
}

impl Default for UsageOptions {
    fn default() -> Self {
        Self {
            pages: 16,
            page_bytes: 896 * 1024,
            open_bytes: 32 * 1024,
        }
    }
}

/// Where the next fold goes: a number that grows, of which the ring has the rest, and how full that page is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct NextPage {
    page: u64,
    bytes: usize,
}

/// What came of the attempt to write into a page.
enum PageWrite {
    Done,
    /// It has no more room.
    Full,
    /// A later page has its place in the ring.
    Over,
}

/// A ConfigMap of the log, as it was found.
struct LogPage {
    data: BTreeMap<String, String>,
}

impl LogPage {
    fn of(map: ConfigMap, name: &str) -> Result<Self, StoreError> {
        let layout = map.metadata.annotations.as_ref().and_then(|all| all.get(LAYOUT));
        match layout.and_then(|layout| layout.parse().ok()) {
            Some(LAYOUT_VERSION) => Ok(Self {
                data: map.data.unwrap_or_default(),
            }),
            Some(found) if found > LAYOUT_VERSION => Err(FormatError::Newer { found }.into()),
            _ => Err(corrupt(
                name,
                format!("its annotation {LAYOUT} is {layout:?}: another program made it"),
            )),
        }
    }

    fn bytes(&self) -> usize {
        self.data.iter().map(|(key, text)| key.len() + text.len()).sum()
    }

    fn next(&self, name: &str) -> Result<NextPage, StoreError> {
        let text = self.data.get(NEXT).map_or("", String::as_str);
        serde_json::from_str(text).map_err(|error| corrupt(name, format!("key {NEXT}: {error}")))
    }

    fn page(&self, name: &str) -> Result<u64, StoreError> {
        let text = self.data.get(PAGE).map_or("", String::as_str);
        text.parse()
            .map_err(|error| corrupt(name, format!("key {PAGE}: {error}")))
    }

    /// Its records as they are written: a line each.
    fn records(&self) -> impl Iterator<Item = (&String, &String)> {
        self.data.iter().filter(|(key, _)| key.starts_with(RECORD))
    }
}

fn corrupt(name: &str, detail: String) -> StoreError {
    StoreError::Corrupt {
        what: format!("ConfigMap {name}"),
        detail,
    }
}

fn key_of(record: &UsageRecord) -> String {
    let (id, ticket, since) = record.key();
    format!("{RECORD}{id}.{ticket}.{}", since.as_millis())
}

/// What fails on every other ConfigMap.
fn is_ours() -> Value {
    json!({"op": "test", "path": annotation(LAYOUT), "value": LAYOUT_VERSION.to_string()})
}

/// Whether a patch was refused because one of its tests failed.
fn failed_test(failure: &Failure) -> bool {
    failure.code() == Some(422) && !is_too_long(failure)
}

fn is_too_long(failure: &Failure) -> bool {
    ["may not exceed", "may not be more than", "request is too large"]
        .iter()
        .any(|words| failure.message_contains(words))
}

impl ConfigMapStore {
    /// The name of the open page.
    fn open_page(&self) -> String {
        format!("{}-usage", self.options.name)
    }

    fn pages(&self) -> u64 {
        u64::from(self.options.usage.pages.max(2))
    }

    /// The name of the ConfigMap that page `number` is in.
    fn page_name(&self, number: u64) -> String {
        format!("{}-{:02}", self.open_page(), number % self.pages())
    }

    fn usage_failed(&self, step: &'static str, name: &str, failure: &Failure) -> StoreError {
        StoreError::Unavailable {
            step,
            detail: format!("ConfigMap {}/{name}: {failure}", self.options.namespace),
        }
    }

    async fn find(&self, name: &str) -> Result<Option<LogPage>, StoreError> {
        let api = self.api();
        let found = bounded(self.options.timeout, api.get_opt(name))
            .await
            .map_err(|failure| self.usage_failed("read", name, &failure))?;
        found.map(|map| LogPage::of(map, name)).transpose()
    }

    /// Makes a ConfigMap of the log. That somebody else did so first is as well.
    async fn make(&self, name: &str, data: BTreeMap<String, String>) -> Result<(), StoreError> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                annotations: Some([(LAYOUT.into(), LAYOUT_VERSION.to_string())].into()),
                // As for the ledger itself: it would take as much room as the records do.
                managed_fields: Some(vec![ManagedFieldsEntry::default()]),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        };
        let api = self.api();
        match bounded(self.options.timeout, api.create(&PostParams::default(), &map)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.code() == Some(409) => Ok(()),
            Err(failure) => Err(self.usage_failed("make", name, &failure)),
        }
    }

    /// Adds these records to the open page, and answers what is in it then.
    async fn append_to_open(&self, records: &[UsageRecord]) -> Result<LogPage, StoreError> {
        let name = self.open_page();
        let mut patch = vec![is_ours()];
        for record in records {
            // Like an entry: string keys and finite numbers only.
            let text = serde_json::to_string(record).unwrap_or_default();
            patch.push(json!({"op": "add", "path": data(&key_of(record)), "value": text}));
        }
        let patch = Value::from(patch);
        for _ in 0..TRIES {
            match self
                .send_patch::<ConfigMap>(&name, &patch, "application/json")
                .await
            {
                Ok(map) => return LogPage::of(map, &name),
                Err(failure) if failure.code() == Some(404) => {
                    let page = self.last_page().await?.map_or(0, |last| last + 1);
                    let next = json!({"page": page, "bytes": 0}).to_string();
                    self.make(&name, [(NEXT.into(), next)].into()).await?;
                }
                Err(failure) if is_too_long(&failure) => {
                    let detail = format!("the log of usage: ConfigMap {name}: {failure}");
                    return Err(StoreError::Full { detail });
                }
                Err(failure) if failed_test(&failure) => {
                    // It says itself what is wrong with it.
                    self.find(&name).await?;
                    return Err(self.usage_failed("write", &name, &failure));
                }
                Err(failure) => return Err(self.usage_failed("write", &name, &failure)),
            }
        }
        Err(StoreError::Unavailable {
            step: "write",
            detail: format!("ConfigMap {name}: it is deleted as often as it is made"),
        })
    }

    /// The highest number that a page has.
    async fn last_page(&self) -> Result<Option<u64>, StoreError> {
        let mut last = None;
        for slot in 0..self.pages() {
            let name = self.page_name(slot);
            if let Some(found) = self.find(&name).await? {
                last = last.max(Some(found.page(&name)?));
            }
        }
        Ok(last)
    }

    /// Moves what is in the open page into a page.
    async fn fold(&self, open: &LogPage) -> Result<(), StoreError> {
        let name = self.open_page();
        let records: Vec<&str> = open.records().map(|(_, text)| text.as_str()).collect();
        let lines = records.join("\n");
        let mut next = open.next(&name)?;
        let key = format!("c.{}", self.words.next());
        let mut written = PageWrite::Full;
        if next.bytes == 0 || next.bytes + lines.len() <= self.options.usage.page_bytes {
            written = self.write_page(next.page, &key, &lines).await?;
        }
        for _ in 0..TRIES {
            match written {
                PageWrite::Done => break,
                PageWrite::Full => next.page += 1,
                PageWrite::Over => next.page = self.last_page().await?.map_or(0, |last| last + 1),
            }
            next.bytes = 0;
            written = self.write_page(next.page, &key, &lines).await?;
        }
        if !matches!(written, PageWrite::Done) {
            // The records stay in the open page, and the next append tries again.
            return Ok(());
        }
        next.bytes += lines.len();
        self.pace.count(next.bytes);
        let mut patch = vec![is_ours()];
        for (key, text) in open.records() {
            patch.push(json!({"op": "test", "path": data(key), "value": text}));
            patch.push(json!({"op": "remove", "path": data(key)}));
        }
        let text = serde_json::to_string(&next).unwrap_or_default();
        patch.push(json!({"op": "replace", "path": data(NEXT), "value": text}));
        match self
            .send_patch::<ConfigMap>(&name, &patch.into(), "application/json")
            .await
        {
            Ok(_) => Ok(()),
            // Somebody else folded the same, or has appended one of them anew: then it comes with the next fold.
            Err(failure) if failed_test(&failure) || failure.code() == Some(404) => Ok(()),
            Err(failure) => Err(self.usage_failed("write", &name, &failure)),
        }
    }

    /// Writes `lines` into page `number` under `key`, and begins the page if need be.
    async fn write_page(&self, number: u64, key: &str, lines: &str) -> Result<PageWrite, StoreError> {
        let name = self.page_name(number);
        let whole = BTreeMap::from([
            (PAGE.to_owned(), number.to_string()),
            (key.to_owned(), lines.to_owned()),
        ]);
        let is_page = |number: u64| json!({"op": "test", "path": data(PAGE), "value": number.to_string()});
        let mut patch = json!([is_ours(), is_page(number), {"op": "add", "path": data(key), "value": lines}]);
        for _ in 0..TRIES {
            let failure = match self
                .send_patch::<ConfigMap>(&name, &patch, "application/json")
                .await
            {
                Ok(_) => return Ok(PageWrite::Done),
                Err(failure) => failure,
            };
            if failure.code() == Some(404) {
                self.make(&name, whole.clone()).await?;
            } else if is_too_long(&failure) {
                return Ok(PageWrite::Full);
            } else if !failed_test(&failure) {
                return Err(self.usage_failed("write", &name, &failure));
            }
            let Some(found) = self.find(&name).await? else {
                continue;
            };
            match found.page(&name)? {
                _ if found.data.contains_key(key) => return Ok(PageWrite::Done),
                there if there > number => return Ok(PageWrite::Over),
                there if there < number => {
                    // The oldest of the ring: this one takes its place.
                    patch = json!([is_ours(), is_page(there), {"op": "replace", "path": "/data", "value": whole}]);
                }
                _ => {
                    patch =
                        json!([is_ours(), is_page(number), {"op": "add", "path": data(key), "value": lines}])
                }
            }
        }
        Ok(PageWrite::Over)
    }
}

#[async_trait]
impl UsageLog for ConfigMapStore {
    /// Takes some hundred records at a time; if a later part fails, those of the first are there already and come again.
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        for part in records.chunks(MAX_BATCH) {
            let open = self.append_to_open(part).await?;
            self.pace.count(open.bytes());
            if open.bytes() > self.options.usage.open_bytes
                && let Err(error) = self.fold(&open).await
            {
                // What was appended is there. It is tried again at the next append.
                tracing::warn!(%error, "the log of usage cannot be folded");
            }
        }
        Ok(())
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        let mut kept: BTreeMap<(PartitionId, u64, Timestamp), UsageRecord> = BTreeMap::new();
        // The open page first: what is folded meanwhile is seen here or there.
        let pages = (0..self.pages()).map(|slot| self.page_name(slot));
        for name in std::iter::once(self.open_page()).chain(pages) {
            let Some(found) = self.find(&name).await? else {
                continue;
            };
            let records = found.data.iter().filter(|(key, _)| !key.starts_with('.'));
            for (key, line) in records.flat_map(|(key, lines)| lines.lines().map(move |line| (key, line))) {
                let record: UsageRecord = serde_json::from_str(line)
                    .map_err(|error| corrupt(&name, format!("key {key}: {error}")))?;
                if record.released_at < since {
                    continue;
                }
                let known = kept.entry(record.key()).or_insert_with(|| record.clone());
                if known.released_at < record.released_at {
                    *known = record;
                }
            }
        }
        let mut records: Vec<_> = kept.into_values().collect();
        records.sort_by_key(|record| record.released_at);
        Ok(records)
    }
}
