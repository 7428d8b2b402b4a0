//! The usage log: which owner held which partition for how long, in ConfigMaps beside the ledger.
//!
//! Records are appended to a small ConfigMap, the *open page*, one key each, so the cost of a write does not
//! depend on the size of the log. When the open page is large enough, it is folded: its records become one
//! key of a *page*. A fixed number of pages is used in turn as a ring. So the log is bounded, a Role can name
//! its ConfigMaps, and nothing has to be deleted.
//!
//! # Why no record is lost or counted twice
//!
//! An append adds keys and needs no version: appends of several processes commute, and a repeated one changes
//! nothing. A fold first copies the records into the page, under a key that no other process writes. Then it
//! removes the copied records from the open page, on condition that they are unchanged. A crash in between
//! leaves records twice, and readers deduplicate by the record's key. A page is reused on condition that it
//! is still the one that was read. None of this relies on versions, which repeat after a restore of etcd.

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
use super::{ConfigMapStore, MAX_ATTEMPTS};
use crate::api_call::{Failure, bounded};

/// Annotation that marks a ConfigMap as part of the log, with the layout version.
const LAYOUT: &str = "ledger.graphcore.ai/usage";

/// Layout version that this build writes and reads.
const LAYOUT_VERSION: u32 = 1;

/// Key of the open page with the position of the next fold.
const NEXT_KEY: &str = ".next";

/// Key of a page with its number.
const PAGE_KEY: &str = ".page";

/// Prefix of the keys of records.
const RECORD_PREFIX: &str = "h.";

/// Maximum number of records appended by one write: far below the limit of the API server.
const MAX_BATCH: usize = 256;

/// Limits of the usage log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UsageOptions {
    /// Number of pages; 16 by default, at least 2. The oldest one is dropped when another is started.
    pub pages: u32,
    /// Size of a page in bytes; 896 KiB by default, so that it fits into a ConfigMap with its keys.
    pub page_bytes: usize,
    /// Size of the open page in bytes above which it is folded; 32 KiB by default. Every append writes as
    /// much.
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

/// Position of the next fold: an increasing page number, whose remainder selects the slot of the ring, and
/// the size of that page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct NextPage {
    page: u64,
    bytes: usize,
}

/// Outcome of a write to a page.
enum PageWrite {
    Done,
    /// The page is full.
    Full,
    /// A later page occupies its slot of the ring.
    Overtaken,
}

/// A ConfigMap of the log, as it was read.
struct LogPage {
    data: BTreeMap<String, String>,
}

impl LogPage {
    fn from_config_map(map: ConfigMap, name: &str) -> Result<Self, StoreError> {
        let layout = map.metadata.annotations.as_ref().and_then(|all| all.get(LAYOUT));
        match layout.and_then(|layout| layout.parse().ok()) {
            Some(LAYOUT_VERSION) => Ok(Self {
                data: map.data.unwrap_or_default(),
            }),
            Some(found) if found > LAYOUT_VERSION => Err(FormatError::Newer { found }.into()),
            _ => Err(corrupt(
                name,
                format!("its annotation {LAYOUT} is {layout:?}: another program created it"),
            )),
        }
    }

    fn bytes(&self) -> usize {
        self.data.iter().map(|(key, text)| key.len() + text.len()).sum()
    }

    fn next(&self, name: &str) -> Result<NextPage, StoreError> {
        let text = self.data.get(NEXT_KEY).map_or("", String::as_str);
        serde_json::from_str(text).map_err(|error| corrupt(name, format!("key {NEXT_KEY}: {error}")))
    }

    fn page(&self, name: &str) -> Result<u64, StoreError> {
        let text = self.data.get(PAGE_KEY).map_or("", String::as_str);
        text.parse()
            .map_err(|error| corrupt(name, format!("key {PAGE_KEY}: {error}")))
    }

    /// Returns its records as stored: one line each.
    fn records(&self) -> impl Iterator<Item = (&String, &String)> {
        self.data.iter().filter(|(key, _)| key.starts_with(RECORD_PREFIX))
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
    format!("{RECORD_PREFIX}{id}.{ticket}.{}", since.as_millis())
}

/// Returns the operation that fails on a ConfigMap that is not part of the log.
fn test_layout() -> Value {
    json!({"op": "test", "path": annotation(LAYOUT), "value": LAYOUT_VERSION.to_string()})
}

/// Returns whether a patch was refused because one of its tests failed.
fn is_failed_test(failure: &Failure) -> bool {
    failure.code() == Some(422) && !is_too_long(failure)
}

fn is_too_long(failure: &Failure) -> bool {
    ["may not exceed", "may not be more than", "request is too large"]
        .iter()
        .any(|text| failure.message_contains(text))
}

impl ConfigMapStore {
    /// Returns the name of the open page.
    fn open_page(&self) -> String {
        format!("{}-usage", self.options.name)
    }

    fn pages(&self) -> u64 {
        u64::from(self.options.usage.pages.max(2))
    }

    /// Returns the name of the ConfigMap with page `number`.
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
        found.map(|map| LogPage::from_config_map(map, name)).transpose()
    }

    /// Creates a ConfigMap of the log. A concurrent creation is a success too.
    async fn create_page(&self, name: &str, data: BTreeMap<String, String>) -> Result<(), StoreError> {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                annotations: Some([(LAYOUT.into(), LAYOUT_VERSION.to_string())].into()),
                // As for the ledger itself: they would take as much space as the records.
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
            Err(failure) => Err(self.usage_failed("create", name, &failure)),
        }
    }

    /// Adds records to the open page. Returns its new content.
    async fn append_to_open(&self, records: &[UsageRecord]) -> Result<LogPage, StoreError> {
        let name = self.open_page();
        let mut patch = vec![test_layout()];
        for record in records {
            // Cannot fail: like an entry, it has string keys and finite numbers only.
            let text = serde_json::to_string(record).unwrap_or_default();
            patch.push(json!({"op": "add", "path": data(&key_of(record)), "value": text}));
        }
        let patch = Value::from(patch);
        for _ in 0..MAX_ATTEMPTS {
            match self
                .send_patch::<ConfigMap>(&name, &patch, "application/json")
                .await
            {
                Ok(map) => return LogPage::from_config_map(map, &name),
                Err(failure) if failure.code() == Some(404) => {
                    let page = self.last_page().await?.map_or(0, |last| last + 1);
                    let next = json!({"page": page, "bytes": 0}).to_string();
                    self.create_page(&name, [(NEXT_KEY.into(), next)].into()).await?;
                }
                Err(failure) if is_too_long(&failure) => {
                    let detail = format!("usage log: ConfigMap {name}: {failure}");
                    return Err(StoreError::Full { detail });
                }
                Err(failure) if is_failed_test(&failure) => {
                    // Reading it returns a more specific error.
                    self.find(&name).await?;
                    return Err(self.usage_failed("write", &name, &failure));
                }
                Err(failure) => return Err(self.usage_failed("write", &name, &failure)),
            }
        }
        Err(StoreError::Unavailable {
            step: "write",
            detail: format!("ConfigMap {name}: it is deleted again after every creation"),
        })
    }

    /// Returns the highest page number.
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

    /// Moves the records of the open page into a page.
    async fn fold(&self, open: &LogPage) -> Result<(), StoreError> {
        let name = self.open_page();
        let records: Vec<&str> = open.records().map(|(_, text)| text.as_str()).collect();
        let lines = records.join("\n");
        let mut next = open.next(&name)?;
        let key = format!("c.{}", self.tokens.next());
        let mut written = PageWrite::Full;
        if next.bytes == 0 || next.bytes + lines.len() <= self.options.usage.page_bytes {
            written = self.write_page(next.page, &key, &lines).await?;
        }
        for _ in 0..MAX_ATTEMPTS {
            match written {
                PageWrite::Done => break,
                PageWrite::Full => next.page += 1,
                PageWrite::Overtaken => next.page = self.last_page().await?.map_or(0, |last| last + 1),
            }
            next.bytes = 0;
            written = self.write_page(next.page, &key, &lines).await?;
        }
        if !matches!(written, PageWrite::Done) {
            // The records stay in the open page, and the next append tries again.
            return Ok(());
        }
        next.bytes += lines.len();
        self.write_budget.count(next.bytes);
        let mut patch = vec![test_layout()];
        for (key, text) in open.records() {
            patch.push(json!({"op": "test", "path": data(key), "value": text}));
            patch.push(json!({"op": "remove", "path": data(key)}));
        }
        let text = serde_json::to_string(&next).unwrap_or_default();
        patch.push(json!({"op": "replace", "path": data(NEXT_KEY), "value": text}));
        match self
            .send_patch::<ConfigMap>(&name, &patch.into(), "application/json")
            .await
        {
            Ok(_) => Ok(()),
            // Another process folded the same records, or appended one of them again, which the next fold
            // handles.
            Err(failure) if is_failed_test(&failure) || failure.code() == Some(404) => Ok(()),
            Err(failure) => Err(self.usage_failed("write", &name, &failure)),
        }
    }

    /// Writes `lines` into page `number` under `key`. Starts the page if necessary.
    async fn write_page(&self, number: u64, key: &str, lines: &str) -> Result<PageWrite, StoreError> {
        let name = self.page_name(number);
        let content = BTreeMap::from([
            (PAGE_KEY.to_owned(), number.to_string()),
            (key.to_owned(), lines.to_owned()),
        ]);
        let test_page =
            |number: u64| json!({"op": "test", "path": data(PAGE_KEY), "value": number.to_string()});
        let mut patch =
            json!([test_layout(), test_page(number), {"op": "add", "path": data(key), "value": lines}]);
        for _ in 0..MAX_ATTEMPTS {
            let failure = match self
                .send_patch::<ConfigMap>(&name, &patch, "application/json")
                .await
            {
                Ok(_) => return Ok(PageWrite::Done),
                Err(failure) => failure,
            };
            if failure.code() == Some(404) {
                self.create_page(&name, content.clone()).await?;
            } else if is_too_long(&failure) {
                return Ok(PageWrite::Full);
            } else if !is_failed_test(&failure) {
                return Err(self.usage_failed("write", &name, &failure));
            }
            let Some(found) = self.find(&name).await? else {
                continue;
            };
            match found.page(&name)? {
                _ if found.data.contains_key(key) => return Ok(PageWrite::Done),
                current if current > number => return Ok(PageWrite::Overtaken),
                current if current < number => {
                    // The oldest page of the ring: this one replaces it.
                    patch = json!([test_layout(), test_page(current), {"op": "replace", "path": "/data", "value": content}]);
                }
                _ => {
                    patch = json!([test_layout(), test_page(number), {"op": "add", "path": data(key), "value": lines}])
                }
            }
        }
        Ok(PageWrite::Overtaken)
    }
}

#[async_trait]
impl UsageLog for ConfigMapStore {
    /// Appends in batches of some hundred records. If a later batch fails, earlier ones are stored, and their
    /// repetition has no effect.
    async fn append(&self, records: &[UsageRecord]) -> Result<(), StoreError> {
        for batch in records.chunks(MAX_BATCH) {
            let open = self.append_to_open(batch).await?;
            self.write_budget.count(open.bytes());
            if open.bytes() > self.options.usage.open_bytes
                && let Err(error) = self.fold(&open).await
            {
                // The records are appended. The next append tries the fold again.
                tracing::warn!(%error, "the open page of the usage log cannot be folded");
            }
        }
        Ok(())
    }

    async fn since(&self, since: Timestamp) -> Result<Vec<UsageRecord>, StoreError> {
        let mut records_by_key: BTreeMap<(PartitionId, u64, Timestamp), UsageRecord> = BTreeMap::new();
        // The open page is read first: a record folded meanwhile is found in one of both.
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
                let known = records_by_key
                    .entry(record.key())
                    .or_insert_with(|| record.clone());
                if known.released_at < record.released_at {
                    *known = record;
                }
            }
        }
        let mut records: Vec<_> = records_by_key.into_values().collect();
        records.sort_by_key(|record| record.released_at);
        Ok(records)
    }
}
