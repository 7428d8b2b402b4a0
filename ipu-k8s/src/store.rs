//! The ledger in a ConfigMap.
//!
//! One key per partition and one per cordon, so that `kubectl get configmap ipu-partitions-tracker -o yaml`
//! shows the holds. Two annotations contain the layout version and the token of the last write. The ConfigMap
//! outlives the programs that use it.
//!
//! # Consistency
//!
//! Every write is one JSON patch, which the API server applies to the newest object in one transaction of
//! etcd, or not at all. The patch tests the token of the write that the changes are based on, and contains
//! the object's `resourceVersion`. It therefore fails on any other state: a newer one, another object after
//! the ConfigMap was deleted, or an older one after etcd was restored from a snapshot. A write whose
//! caller has given up lands on the state it was made for, or nowhere. No request is ever repeated: the
//! retries of the client are disabled, so a refusal means that nothing was written.
//!
//! [`load`](LedgerStore::load) requests no version, so the API server reads from etcd with a quorum and not
//! from its cache: every commit before it is visible. To detect that nothing changed it requests only the
//! metadata. Cached content is used only for the revision at which it was read or written: an outdated cache
//! causes a conflict, and never a lost update.

mod codec;
mod config_map_data;
mod rate_limit;
mod revision;
mod usage;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use ipu_core::{Change, FormatError};
use ipu_ledger::{LedgerStore, Revision, Snapshot, StoreError, WriteLock};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api_call::{Failure, METADATA_ONLY, bounded, connect};
use config_map_data::{ConfigMapFull, Content, Unreadable, annotation, namespace_share};
use rate_limit::WriteBudget;
use revision::{ConfigMapRevision, LAYOUT, WRITE, WriteTokens};

pub use usage::UsageOptions;

/// Default name of the ConfigMap, as documented (seed 000 table 6.1).
const DEFAULT_NAME: &str = "ipu-partitions-tracker";

/// Limit of the API server for the values of a ConfigMap: 1 MiB.
const MAX_BYTES: usize = 1 << 20;

/// Default timeout of one request: long enough for a loaded API server, and shorter than the timeouts of
/// callers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Layout version that this build writes and reads.
const LAYOUT_VERSION: u32 = 1;

/// Maximum number of attempts when the ConfigMap vanishes or appears between two steps of one call.
const MAX_ATTEMPTS: u32 = 5;

/// Location of the ledger, and limits of requests to the API server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConfigMapOptions {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Name of the ConfigMap; `ipu-partitions-tracker` by default.
    pub name: String,
    /// Timeout of one request; 10 s by default. After a timeout it is unknown whether a write was applied.
    pub timeout: Duration,
    /// Maximum size of all values in bytes: 1 MiB by default, which is the limit of the API server. The last
    /// thirty-second part, and the growth of existing entries, are reserved: new requests are refused
    /// earlier. New cordons may use half of that part.
    pub max_bytes: usize,
    /// Limits of the usage log, in ConfigMaps beside the ledger: `NAME-usage` and `NAME-usage-00`, `-01`, ….
    pub usage: UsageOptions,
}

impl ConfigMapOptions {
    /// Selects the ConfigMap `ipu-partitions-tracker` of `namespace`.
    #[must_use]
    pub fn in_namespace(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: DEFAULT_NAME.into(),
            timeout: REQUEST_TIMEOUT,
            max_bytes: MAX_BYTES,
            usage: UsageOptions::default(),
        }
    }

    /// Returns the maximum size in bytes of the queued requests of one namespace, a tenth of the usable size:
    /// for [`NamespaceRules::max_queued_bytes`](ipu_core::NamespaceRules::max_queued_bytes).
    #[must_use]
    pub const fn namespace_share(&self) -> usize {
        namespace_share(self.max_bytes)
    }
}

/// A ledger in a ConfigMap. The store creates it on first use, and again, empty, after its deletion. The
/// service account needs `get`, `create` and `patch` on it. The store is also a
/// [`UsageLog`](ipu_ledger::UsageLog) in further ConfigMaps, which it creates when there is something to
/// record.
pub struct ConfigMapStore {
    client: Client,
    options: ConfigMapOptions,
    tokens: WriteTokens,
    write_budget: WriteBudget,
    cache: Mutex<Option<CachedConfigMap>>,
    /// Highest version observed. It never decreases, unless etcd was restored.
    highest: AtomicU64,
}

/// Content of the ConfigMap at one revision.
#[derive(Clone)]
struct CachedConfigMap {
    at: ConfigMapRevision,
    content: Content,
}

impl std::fmt::Debug for ConfigMapStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigMapStore")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ConfigMapStore {
    /// Creates a store at the API server of `config`. Sends no request yet. Its client never repeats a
    /// request, whatever `config` contains: a write repeated after a lost response would be refused as a
    /// conflict although it was applied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if `config` is not valid for a client, for example because of an
    /// unreadable key.
    pub fn new(config: Config, options: ConfigMapOptions) -> Result<Self, StoreError> {
        let client = connect(config).map_err(|error| StoreError::Unavailable {
            step: "open",
            detail: error.to_string(),
        })?;
        Ok(Self {
            client,
            options,
            tokens: WriteTokens::new(),
            write_budget: WriteBudget::new(),
            cache: Mutex::new(None),
            highest: AtomicU64::new(0),
        })
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }

    /// Returns the name of the ConfigMap for messages.
    fn display_name(&self) -> String {
        format!("ConfigMap {}/{}", self.options.namespace, self.options.name)
    }

    // No code panics while it holds the lock, so a poisoned lock contains consistent data.
    fn cache(&self) -> MutexGuard<'_, Option<CachedConfigMap>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self, step: &'static str, failure: &Failure) -> StoreError {
        StoreError::Unavailable {
            step,
            detail: format!("{}: {failure}", self.display_name()),
        }
    }

    /// Returns the current revision without the content, or `None` if the ConfigMap is missing or is no
    /// ledger.
    async fn head(&self) -> Result<Option<ConfigMapRevision>, Failure> {
        let api = self.api();
        let found = bounded(self.options.timeout, api.get_metadata_opt(&self.options.name)).await?;
        Ok(found.and_then(|found| ConfigMapRevision::from_metadata(&found.metadata)))
    }

    /// Reads the whole ledger. Creates it if it is missing.
    async fn fetch(&self) -> Result<CachedConfigMap, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let api = self.api();
            let found = bounded(self.options.timeout, api.get_opt(&self.options.name))
                .await
                .map_err(|failure| self.unavailable("read", &failure))?;
            let Some(found) = found else {
                self.create().await?;
                continue;
            };
            match ConfigMapRevision::from_metadata(&found.metadata) {
                Some(at) => return self.read(at, found),
                None => self.initialize(&found).await?,
            }
        }
        Err(StoreError::Unavailable {
            step: "read",
            detail: format!(
                "{}: it is deleted again after every creation",
                self.display_name()
            ),
        })
    }

    fn read(&self, at: ConfigMapRevision, found: ConfigMap) -> Result<CachedConfigMap, StoreError> {
        let layout = found
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(LAYOUT));
        match layout.and_then(|layout| layout.parse().ok()) {
            Some(LAYOUT_VERSION) => {}
            Some(found) if found > LAYOUT_VERSION => return Err(FormatError::Newer { found }.into()),
            _ => return Err(self.corrupt(format!("its layout version {layout:?} is not supported"))),
        }
        let cached = self.cache().clone();
        let cached = cached.as_ref().map(|cached| &cached.content);
        let mut content =
            Content::read(found.data.unwrap_or_default(), cached).map_err(|error| match error {
                Unreadable::Format(format) => format.into(),
                Unreadable::Damaged { key, detail } => self.corrupt(format!("key {key}: {detail}")),
            })?;
        content.tracked = found.metadata.managed_fields.is_some();
        let highest = self.highest.fetch_max(at.number(), Ordering::Relaxed);
        if at.number() < highest {
            tracing::warn!(
                what = self.display_name(),
                version = at.number(),
                highest,
                "the ledger was reset to an older state: was etcd restored from a snapshot?"
            );
        }
        if let Some((writer, number)) = self.tokens.parse_foreign(&at.write) {
            self.write_budget.count_other(writer, number, content.size());
        }
        let cached = CachedConfigMap { at, content };
        *self.cache() = Some(cached.clone());
        Ok(cached)
    }

    /// Creates an empty ledger. A concurrent creation is a success too.
    async fn create(&self) -> Result<(), StoreError> {
        if self.cache().is_some() {
            tracing::warn!(
                what = self.display_name(),
                "the ledger was deleted and is recreated empty"
            );
        }
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.options.name.clone()),
                annotations: Some(
                    [
                        (LAYOUT.into(), LAYOUT_VERSION.to_string()),
                        (WRITE.into(), self.tokens.next()),
                    ]
                    .into(),
                ),
                // Managed fields would record a writer for every key, and take as much space as the entries.
                managed_fields: Some(vec![ManagedFieldsEntry::default()]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let api = self.api();
        match bounded(self.options.timeout, api.create(&PostParams::default(), &map)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.code() == Some(409) => Ok(()),
            Err(failure) => Err(self.unavailable("create", &failure)),
        }
    }

    /// Initializes a ledger in an existing, empty ConfigMap.
    async fn initialize(&self, found: &ConfigMap) -> Result<(), StoreError> {
        let data = found.data.as_ref().map_or(0, std::collections::BTreeMap::len);
        let binary = found
            .binary_data
            .as_ref()
            .map_or(0, std::collections::BTreeMap::len);
        if data + binary > 0 {
            return Err(self.corrupt(format!(
                "it has {} keys and no annotation {LAYOUT}: another program created it; delete it if its \
                 partitions are gone, or choose another name",
                data + binary
            )));
        }
        let annotations = found.metadata.annotations.clone().unwrap_or_default();
        let mut patch = vec![json!({
            "op": "replace", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version,
        })];
        if annotations.is_empty() {
            patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
        }
        for (name, value) in [(LAYOUT, LAYOUT_VERSION.to_string()), (WRITE, self.tokens.next())] {
            patch.push(json!({"op": "add", "path": annotation(name), "value": value}));
        }
        match self.patch(&patch.into()).await {
            Ok(_) => Ok(()),
            // The ConfigMap was changed or deleted concurrently: the caller reads it again.
            Err(failure) if matches!(failure.code(), Some(404 | 409)) => Ok(()),
            Err(failure) => Err(self.unavailable("create", &failure)),
        }
    }

    /// Sends a JSON patch of the ledger once. Returns the metadata of the result.
    async fn patch(&self, patch: &Value) -> Result<ObjectMeta, Failure> {
        let sent = self.send_patch::<PartialObjectMeta<ConfigMap>>(&self.options.name, patch, METADATA_ONLY);
        Ok(sent.await?.metadata)
    }

    /// Sends a JSON patch of the ConfigMap `name` once. Returns the result in the media type `accept`.
    async fn send_patch<T: DeserializeOwned>(
        &self,
        name: &str,
        patch: &Value,
        accept: &str,
    ) -> Result<T, Failure> {
        let namespace = &self.options.namespace;
        let request = Request::patch(format!(
            "/api/v1/namespaces/{namespace}/configmaps/{name}?fieldManager=ipu-ledger&fieldValidation=Ignore"
        ))
        .header(CONTENT_TYPE, "application/json-patch+json")
        .header(ACCEPT, accept)
        .body(patch.to_string().into_bytes())
        .map_err(|error| Failure::Call(Box::new(kube::Error::HttpError(error))))?;
        bounded(self.options.timeout, self.client.request::<T>(request)).await
    }

    /// Returns the content at revision `at`, or `None` if that is not the current one.
    async fn content_at(&self, at: &ConfigMapRevision) -> Result<Option<Content>, StoreError> {
        let cached = self.cache().clone();
        if let Some(cached) = cached.filter(|cached| cached.at == *at) {
            return Ok(Some(cached.content));
        }
        let current = self.fetch().await?;
        Ok((current.at == *at).then_some(current.content))
    }

    /// Converts the refusal of a write to an error.
    async fn refused(&self, failure: Failure, at: &ConfigMapRevision, basis: &Revision) -> StoreError {
        let conflict = StoreError::Conflict { basis: basis.clone() };
        match failure.code() {
            // Another version, or no object.
            Some(404 | 409) => conflict,
            // The test of the last write failed, or the patch itself is invalid.
            Some(422) => match self.head().await {
                Ok(Some(now)) if now == *at && failure.message_contains("may not exceed") => {
                    StoreError::Full {
                        detail: failure.to_string(),
                    }
                }
                Ok(Some(now)) if now == *at => self.unavailable("write", &failure),
                Ok(_) => conflict,
                Err(failure) => self.unavailable("read", &failure),
            },
            _ if failure.message_contains("request is too large") => StoreError::Full {
                detail: failure.to_string(),
            },
            _ => self.unavailable("write", &failure),
        }
    }

    fn corrupt(&self, detail: String) -> StoreError {
        StoreError::Corrupt {
            what: self.display_name(),
            detail,
        }
    }
}

#[async_trait]
impl LedgerStore for ConfigMapStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        if let Some(known) = newer_than {
            let now = self
                .head()
                .await
                .map_err(|failure| self.unavailable("read", &failure))?;
            if now.is_some_and(|now| now.revision() == *known) {
                return Ok(None);
            }
        }
        let current = self.fetch().await?;
        Ok(Some(Snapshot {
            revision: current.at.revision(),
            entries: current.content.entries(),
            cordons: current.content.cordons(),
        }))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let conflict = || StoreError::Conflict { basis: basis.clone() };
        let at = ConfigMapRevision::parse(basis).ok_or_else(conflict)?;
        let content = self.content_at(&at).await?.ok_or_else(conflict)?;
        let write = content
            .write(&at, &self.tokens.next(), changes, self.options.max_bytes)
            .map_err(|ConfigMapFull(detail)| StoreError::Full { detail })?;
        self.write_budget.count(write.content.size());
        let metadata = match self.patch(&write.patch).await {
            Ok(metadata) => metadata,
            Err(failure) => return Err(self.refused(failure, &at, basis).await),
        };
        let Some(now) = ConfigMapRevision::from_metadata(&metadata) else {
            return Err(self.corrupt("the response of the API server to a write contains no version".into()));
        };
        self.highest.fetch_max(now.number(), Ordering::Relaxed);
        let revision = now.revision();
        *self.cache() = Some(CachedConfigMap {
            at: now,
            content: write.content,
        });
        Ok(revision)
    }

    /// Processes need no mutual exclusion: of two concurrent writers one gets a conflict. A heavy writer
    /// waits for etcd's compaction, and the requests that wait here share the next write.
    async fn lock(&self) -> Result<WriteLock, StoreError> {
        let wait = self.write_budget.wait();
        if !wait.is_zero() {
            tracing::debug!(
                ?wait,
                what = self.display_name(),
                "the ledger is written faster than etcd compacts it"
            );
            tokio::time::sleep(wait).await;
        }
        Ok(WriteLock::default())
    }
}
