//! The ledger in a ConfigMap.
//!
//! One key per partition and one per cordon, so that a person sees what is held with `kubectl get configmap
//! ipu-partitions-tracker -o yaml`, and two annotations: the layout's version, and the word of the last write. The ConfigMap
//! outlives the programs that use it.
//!
//! # Why it is safe
//!
//! Every write is one JSON patch that the API server applies to the newest object in one transaction of etcd, or not at
//! all. It tests the word of the write that the changes were made for, and carries the object's version, so that it fails
//! on any other state: a newer one, another object of the name after somebody deleted the ConfigMap, an older one after
//! etcd was restored from a snapshot. A write that nobody waits for any more lands on the state it was made for or
//! nowhere. Nothing is ever sent twice: the client's own retries are off, so that a refusal means that nothing was written.
//!
//! [`load`](LedgerStore::load) asks for no version, which makes the API server read from etcd with a quorum and not from
//! its cache: what was committed before is seen. To learn that nothing changed it asks for the metadata alone. What is
//! remembered of the content is used only under the revision that it was read or written at; a stale memory costs a
//! conflict, never an update.

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

/// The name of the ConfigMap unless another is chosen, as documented (seed 000 table 6.1).
const NAME: &str = "ipu-partitions-tracker";

/// What the API server takes in the values of a ConfigMap: 1 MiB.
const MAX_BYTES: usize = 1 << 20;

/// How long a call to the API server may take: long enough for one under load, short enough that callers are told of one
/// that hangs before they give up themselves.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The layout that this build writes and reads.
const LAYOUT_VERSION: u32 = 1;

/// How often the ConfigMap may vanish or appear between two steps of one call.
const TRIES: u32 = 5;

/// Where the ledger is, and how the API server is called.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConfigMapOptions {
    /// The namespace of the ConfigMap.
    pub namespace: String,
    /// Its name: `ipu-partitions-tracker` unless set.
    pub name: String,
    /// How long one call to the API server may take: 10 s unless set. After that whether a write was taken is not known.
    pub timeout: Duration,
    /// Up to how many bytes of values are written: 1 MiB unless set, which is what the API server takes at most. New
    /// requests are refused a thirty-second part and the growth of what is recorded below that, new cordons half of that part.
    pub max_bytes: usize,
    /// How much is kept of who held what, in ConfigMaps beside the ledger: `NAME-usage` and `NAME-usage-00`, `-01`, ….
    pub usage: UsageOptions,
}

impl ConfigMapOptions {
    /// The ConfigMap `ipu-partitions-tracker` of `namespace`.
    #[must_use]
    pub fn of(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: NAME.into(),
            timeout: REQUEST_TIMEOUT,
            max_bytes: MAX_BYTES,
            usage: UsageOptions::default(),
        }
    }

    /// The most bytes that the queued requests of one namespace should take, a tenth of what the ConfigMap holds: for
    /// [`NamespaceRules::max_queued_bytes`](ipu_core::NamespaceRules::max_queued_bytes).
    #[must_use]
    pub const fn namespace_share(&self) -> usize {
        namespace_share(self.max_bytes)
    }
}

/// A ledger in a ConfigMap. It is made when it is first looked at, and made again, empty, if somebody deletes it. Whoever
/// uses it may `get`, `create` and `patch` it. It is a [`UsageLog`](ipu_ledger::UsageLog) too, in other ConfigMaps, which it
/// makes when there is something to record.
pub struct ConfigMapStore {
    client: Client,
    options: ConfigMapOptions,
    words: WriteTokens,
    pace: WriteBudget,
    known: Mutex<Option<CachedConfigMap>>,
    /// The highest version that was seen: it never goes down, unless etcd was restored.
    highest: AtomicU64,
}

/// What the ConfigMap holds at some state of it.
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
    /// A ledger at the API server of `config`. Calls nobody yet. Its own client never repeats a call, whatever `config`
    /// says: a write that is repeated after its answer was lost would be refused as a conflict although it was taken.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if `config` makes no client, such as by a key that cannot be read.
    pub fn new(config: Config, options: ConfigMapOptions) -> Result<Self, StoreError> {
        let client = connect(config).map_err(|error| StoreError::Unavailable {
            step: "open",
            detail: error.to_string(),
        })?;
        Ok(Self {
            client,
            options,
            words: WriteTokens::new(),
            pace: WriteBudget::new(),
            known: Mutex::new(None),
            highest: AtomicU64::new(0),
        })
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }

    /// What people call it.
    fn what(&self) -> String {
        format!("ConfigMap {}/{}", self.options.namespace, self.options.name)
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn known(&self) -> MutexGuard<'_, Option<CachedConfigMap>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unavailable(&self, step: &'static str, failure: &Failure) -> StoreError {
        StoreError::Unavailable {
            step,
            detail: format!("{}: {failure}", self.what()),
        }
    }

    /// Where the ledger is now, without its content; none if it is not there, or is no ledger.
    async fn head(&self) -> Result<Option<ConfigMapRevision>, Failure> {
        let api = self.api();
        let found = bounded(self.options.timeout, api.get_metadata_opt(&self.options.name)).await?;
        Ok(found.and_then(|found| ConfigMapRevision::of(&found.metadata)))
    }

    /// All of the ledger. Makes it if it is not there.
    async fn fetch(&self) -> Result<CachedConfigMap, StoreError> {
        for _ in 0..TRIES {
            let api = self.api();
            let found = bounded(self.options.timeout, api.get_opt(&self.options.name))
                .await
                .map_err(|failure| self.unavailable("read", &failure))?;
            let Some(found) = found else {
                self.create().await?;
                continue;
            };
            match ConfigMapRevision::of(&found.metadata) {
                Some(at) => return self.read(at, found),
                None => self.take_over(&found).await?,
            }
        }
        Err(StoreError::Unavailable {
            step: "read",
            detail: format!("{}: it is deleted as often as it is made", self.what()),
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
            _ => return Err(self.corrupt(format!("its layout is {layout:?}"))),
        }
        let known = self.known().clone();
        let known = known.as_ref().map(|known| &known.content);
        let mut content =
            Content::read(found.data.unwrap_or_default(), known).map_err(|error| match error {
                Unreadable::Format(format) => format.into(),
                Unreadable::Damaged { key, detail } => self.corrupt(format!("key {key}: {detail}")),
            })?;
        content.tracked = found.metadata.managed_fields.is_some();
        let highest = self.highest.fetch_max(at.number(), Ordering::Relaxed);
        if at.number() < highest {
            tracing::warn!(
                what = self.what(),
                version = at.number(),
                highest,
                "the ledger has gone back to an older state: was etcd restored from a snapshot?"
            );
        }
        if let Some((writer, number)) = self.words.other(&at.write) {
            self.pace.count_other(writer, number, content.size());
        }
        let known = CachedConfigMap { at, content };
        *self.known() = Some(known.clone());
        Ok(known)
    }

    /// Makes an empty ledger. That somebody else did so first is as well.
    async fn create(&self) -> Result<(), StoreError> {
        if self.known().is_some() {
            tracing::warn!(
                what = self.what(),
                "the ledger was deleted and begins anew, empty"
            );
        }
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.options.name.clone()),
                annotations: Some(
                    [
                        (LAYOUT.into(), LAYOUT_VERSION.to_string()),
                        (WRITE.into(), self.words.next()),
                    ]
                    .into(),
                ),
                // Nobody is to be recorded as the writer of a key, which would take as much room as the entries do.
                managed_fields: Some(vec![ManagedFieldsEntry::default()]),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let api = self.api();
        match bounded(self.options.timeout, api.create(&PostParams::default(), &map)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.code() == Some(409) => Ok(()),
            Err(failure) => Err(self.unavailable("make", &failure)),
        }
    }

    /// Begins a ledger in a ConfigMap that somebody made, if it is empty.
    async fn take_over(&self, found: &ConfigMap) -> Result<(), StoreError> {
        let data = found.data.as_ref().map_or(0, std::collections::BTreeMap::len);
        let binary = found
            .binary_data
            .as_ref()
            .map_or(0, std::collections::BTreeMap::len);
        if data + binary > 0 {
            return Err(self.corrupt(format!(
                "it holds {} keys and not the annotation {LAYOUT}: another program made it; delete it if its \
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
        for (name, value) in [(LAYOUT, LAYOUT_VERSION.to_string()), (WRITE, self.words.next())] {
            patch.push(json!({"op": "add", "path": annotation(name), "value": value}));
        }
        match self.patch(&patch.into()).await {
            Ok(_) => Ok(()),
            // Somebody was faster, or it is gone again: it is looked at once more.
            Err(failure) if matches!(failure.code(), Some(404 | 409)) => Ok(()),
            Err(failure) => Err(self.unavailable("make", &failure)),
        }
    }

    /// Sends a JSON patch of the ledger, once, and answers the metadata of what came of it.
    async fn patch(&self, patch: &Value) -> Result<ObjectMeta, Failure> {
        let sent = self.send_patch::<PartialObjectMeta<ConfigMap>>(&self.options.name, patch, METADATA_ONLY);
        Ok(sent.await?.metadata)
    }

    /// Sends a JSON patch of the ConfigMap `name`, once, and answers what came of it in the form that is asked for.
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

    /// What the ConfigMap holds at `at`; none if it is not there any more.
    async fn content_at(&self, at: &ConfigMapRevision) -> Result<Option<Content>, StoreError> {
        let remembered = self.known().clone();
        if let Some(known) = remembered.filter(|known| known.at == *at) {
            return Ok(Some(known.content));
        }
        let known = self.fetch().await?;
        Ok((known.at == *at).then_some(known.content))
    }

    /// What a write that was refused means.
    async fn refused(&self, failure: Failure, at: &ConfigMapRevision, basis: &Revision) -> StoreError {
        let conflict = StoreError::Conflict { basis: basis.clone() };
        match failure.code() {
            // Another version, or none.
            Some(404 | 409) => conflict,
            // The test of the last write failed, or something is wrong with the patch itself.
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
            what: self.what(),
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
        let known = self.fetch().await?;
        Ok(Some(Snapshot {
            revision: known.at.revision(),
            entries: known.content.entries(),
            cordons: known.content.cordons(),
        }))
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        let conflict = || StoreError::Conflict { basis: basis.clone() };
        let at = ConfigMapRevision::parse(basis).ok_or_else(conflict)?;
        let content = self.content_at(&at).await?.ok_or_else(conflict)?;
        let write = content
            .write(&at, &self.words.next(), changes, self.options.max_bytes)
            .map_err(|ConfigMapFull(detail)| StoreError::Full { detail })?;
        self.pace.count(write.content.size());
        let metadata = match self.patch(&write.patch).await {
            Ok(metadata) => metadata,
            Err(failure) => return Err(self.refused(failure, &at, basis).await),
        };
        let Some(now) = ConfigMapRevision::of(&metadata) else {
            return Err(self.corrupt("the API server's answer to a write tells no version".into()));
        };
        self.highest.fetch_max(now.number(), Ordering::Relaxed);
        let revision = now.revision();
        *self.known() = Some(CachedConfigMap {
            at: now,
            content: write.content,
        });
        Ok(revision)
    }

    /// Processes need no turns: of two that write at the same time one looks again. Whoever writes much has to wait for etcd
    /// to keep up, and here those who wait share the next write.
    async fn turn(&self) -> Result<WriteLock, StoreError> {
        let wait = self.pace.wait();
        if !wait.is_zero() {
            tracing::debug!(
                ?wait,
                what = self.what(),
                "the ledger is written faster than etcd can forget it"
            );
            tokio::time::sleep(wait).await;
        }
        Ok(WriteLock::default())
    }
}
