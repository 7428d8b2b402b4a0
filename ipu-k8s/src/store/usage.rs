//! Usage records in ConfigMaps next to the record: a ring of pages, one key per hold.
//!
//! A commit adds its usage records to the record itself. When they are many, the next commit copies them to a
//! page first and removes them.
//!
//! A write of records adds keys and needs no version: a repeated one changes nothing. Readers take the later
//! one of two records of a hold. The ring bounds the log, a Role can name its ConfigMaps, and nothing has to
//! be deleted.

use std::collections::BTreeMap;

use ipu_allocator::{StoreError, UsagePosition};
use ipu_core::allocator::UsageRecord;
use ipu_core::{PartitionId, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::ConfigMapStore;
use super::content::USAGE_PREFIX;

/// Number of pages. The Role of the proxy names each of them.
const PAGE_COUNT: u64 = 16;

/// Annotation that marks a ConfigMap as a page, with its number. The slot in the ring is its remainder.
const PAGE_ANNOTATION: &str = "ledger.graphcore.ai/usage-page";

/// The page that records are added to.
#[derive(Clone, Copy, Default)]
pub(super) struct OpenPage {
    number: u64,
    bytes: usize,
}

impl ConfigMapStore {
    fn page_name(&self, number: u64) -> String {
        format!("{}-usage-{:02}", self.options.name, number % PAGE_COUNT)
    }

    /// Returns the number of a page.
    fn page_number(&self, name: &str, page: &ConfigMap) -> Result<u64, StoreError> {
        let annotation = page
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(PAGE_ANNOTATION));
        let number = annotation.and_then(|number| number.parse().ok());
        number.ok_or_else(|| {
            let detail = format!(
                "its annotation {PAGE_ANNOTATION} is {annotation:?}: another program created it; delete it"
            );
            self.corrupt(name, detail)
        })
    }

    /// Returns the page with the highest number.
    async fn last_page(&self) -> Result<OpenPage, StoreError> {
        let mut last = OpenPage::default();
        for slot in 0..PAGE_COUNT {
            let name = self.page_name(slot);
            let Some(page) = self.find(&name).await? else {
                continue;
            };
            let number = self.page_number(&name, &page)?;
            if number >= last.number {
                let data = page.data.unwrap_or_default();
                let bytes = data.iter().map(|(key, text)| key.len() + text.len()).sum();
                last = OpenPage { number, bytes };
            }
        }
        Ok(last)
    }

    /// Adds records to the log. After an error, some may be written.
    pub(super) async fn append_usage(&self, records: &BTreeMap<String, String>) -> Result<(), StoreError> {
        let bytes = records
            .iter()
            .map(|(key, text)| key.len() + text.len())
            .sum::<usize>();
        let mut open = self.usage.lock().await;
        let mut page = match open.take() {
            Some(page) => page,
            None => self.last_page().await?,
        };
        if page.bytes > 0 && page.bytes + bytes > self.options.usage_page_bytes {
            page = OpenPage {
                number: page.number + 1,
                bytes: 0,
            };
            self.empty_page(page.number).await?;
        }
        page.bytes += bytes;
        self.budget.spend(page.bytes).await;
        self.add_to_page(page.number, &json!(records)).await?;
        *open = Some(page);
        Ok(())
    }

    async fn add_to_page(&self, number: u64, data: &Value) -> Result<(), StoreError> {
        let name = self.page_name(number);
        loop {
            let patch = json!({ "metadata": { "managedFields": [{}] }, "data": data });
            match self.patch(&name, &patch).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.code() == Some(404) => {}
                Err(failure) => return Err(self.unavailable("write", &name, &failure)),
            }
            let annotations = [(PAGE_ANNOTATION, &*number.to_string())];
            if self.create(&name, &annotations, data).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Drops the records of the page that page `number` replaces.
    async fn empty_page(&self, number: u64) -> Result<(), StoreError> {
        let name = self.page_name(number);
        let Some(page) = self.find(&name).await? else {
            return Ok(());
        };
        self.page_number(&name, &page)?;
        let data = page.data.unwrap_or_default();
        let data: serde_json::Map<String, Value> = data.into_keys().map(|key| (key, Value::Null)).collect();
        let patch = json!({
            "metadata": {
                "resourceVersion": page.metadata.resource_version,
                "annotations": { PAGE_ANNOTATION: number.to_string() },
            },
            "data": data,
        });
        match self.patch(&name, &patch).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.unavailable("write", &name, &failure)),
        }
    }

    pub(super) async fn read_usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        let mut by_key: BTreeMap<(PartitionId, u64, Timestamp), UsageRecord> = BTreeMap::new();
        // The record comes first: its usage records are on a page before they leave it.
        let names = (0..PAGE_COUNT).map(|slot| self.page_name(slot));
        for name in std::iter::once(self.options.name.clone()).chain(names) {
            let Some(map) = self.find(&name).await? else {
                continue;
            };
            if name != self.options.name {
                self.page_number(&name, &map)?;
            }
            let data = map.data.unwrap_or_default().into_iter();
            for (key, text) in data.filter(|(key, _)| key.starts_with(USAGE_PREFIX)) {
                let record: UsageRecord = serde_json::from_str(&text)
                    .map_err(|error| self.corrupt(&name, format!("key {key}: {error}")))?;
                let known = by_key.entry(record.key()).or_insert_with(|| record.clone());
                if known.released_at < record.released_at {
                    *known = record;
                }
            }
        }
        let is_wanted = |record: &UsageRecord| {
            let position = UsagePosition::from(record);
            record.released_at >= since && after.is_none_or(|after| position > *after)
        };
        let mut records: Vec<UsageRecord> = by_key.into_values().filter(is_wanted).collect();
        records.sort_by_cached_key(|record| UsagePosition::from(record));
        records.truncate(limit);
        Ok(records)
    }
}
