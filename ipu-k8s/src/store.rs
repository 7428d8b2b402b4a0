//! The allocator's record in a ConfigMap, for one process of a cluster at a time.
//!
//! One key per entry, per cordon and per recent usage record, so that `kubectl get configmap
//! ipu-partitions-tracker -o yaml` shows the holds. An annotation has the revision: a number that grows with
//! every commit, and its writer.
//!
//! # Consistency
//!
//! Every write is one merge patch with the `resourceVersion` that its changes are based on. The API server
//! applies it to that version or not at all. If the reply is lost, the store sends the same patch again:
//! either it is applied now, or it conflicts, and the revision shows who wrote. A write that arrives late
//! conflicts for the same reason.
//!
//! # The Lease
//!
//! A Lease of the same name picks the process that writes; the others wait in [`open`](Store::open). Safety
//! does not depend on it, because a process that gets the Lease begins with a write, after which every commit
//! of its predecessor conflicts. The Lease lasts 10 s, measured from its last observed change by this
//! process's own clock, which counts suspension. Times of other clocks are ignored.
//!
//! # Old copies
//!
//! The Lease has the last revision number in an annotation. A ConfigMap with a lower number, or with entries
//! while there is no Lease, is an old copy that was put back: its entries are marked as such. A restore of
//! etcd puts back both: delete the Lease after it, before a process opens the record.

mod budget;
mod content;
mod usage;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::{Record, Revision, Store, StoreError, StoreFill, UsagePosition};
use ipu_core::allocator::{Change, UsageRecord};
use ipu_core::{BootTime, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api_call::{Failure, bounded, connect};
use crate::lease::{LeaderLease, LeaseOptions};
use budget::WriteBudget;
use content::Content;
use usage::OpenPage;

/// Default name of the ConfigMap, as documented (V-IPU guide table 6.1).
const DEFAULT_NAME: &str = "ipu-partitions-tracker";

/// Default limit for new requests: 7/8 of the 1 MiB that the API server accepts. The rest is for errors of
/// controllers and for partitions that are found.
const DEFAULT_MAX_BYTES: usize = (1 << 20) / 8 * 7;

/// Usage records move from the record to a page when they reach this part of the size of a page: every commit
/// writes them again until then.
const USAGE_SHARE: usize = 16;

/// Number of namespaces that can fill the record with their queued requests.
const NAMESPACE_SHARES: usize = 10;

/// Default timeout of one request: several fit into the time in which a lost reply is resolved.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in which a lost reply is resolved. Longer than the Lease, after which this process ends anyway.
const MAX_DOUBT: Duration = Duration::from_secs(15);

/// Pause before a patch is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(200);

/// Annotation with the revision of the record: `NUMBER.WRITER`.
const REVISION_ANNOTATION: &str = "ledger.graphcore.ai/revision";

/// Annotation that marks a ConfigMap as a record, with the version of its layout.
const LAYOUT_ANNOTATION: &str = "ledger.graphcore.ai/layout";

/// Version of the layout.
const LAYOUT_VERSION: &str = "1";

/// Location of the record, and limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConfigMapOptions {
    /// Namespace of the ConfigMap and its Lease.
    pub namespace: String,
    /// Name of the ConfigMap and its Lease; `ipu-partitions-tracker` by default.
    pub name: String,
    /// Timeout of one request; 3 s by default.
    pub timeout: Duration,
    /// Size in bytes from which new requests are refused, 896 KiB by default. It counts the growth of
    /// existing entries until their release. The API server's limit is 1 MiB.
    pub max_bytes: usize,
    /// Size in bytes of each of the sixteen ConfigMaps `NAME-usage-00`, `-01`, … with usage records; 512 KiB
    /// by default. The oldest one is dropped when all are full.
    pub usage_page_bytes: usize,
}

impl ConfigMapOptions {
    /// Selects the ConfigMap `ipu-partitions-tracker` of `namespace`.
    #[must_use]
    pub fn in_namespace(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: DEFAULT_NAME.into(),
            timeout: REQUEST_TIMEOUT,
            max_bytes: DEFAULT_MAX_BYTES,
            usage_page_bytes: 512 * 1024,
        }
    }

    /// Returns the maximum size in bytes of the queued requests of one namespace, a tenth of
    /// [`max_bytes`](Self::max_bytes): for
    /// [`NamespaceRules::max_queued_bytes`](ipu_core::allocator::NamespaceRules::max_queued_bytes).
    #[must_use]
    pub const fn namespace_share(&self) -> usize {
        self.max_bytes / NAMESPACE_SHARES
    }
}

/// A record in a ConfigMap, which is created when it is opened. The service account needs `get`, `create` and
/// `patch` on it and on the ConfigMaps of [usage records](ConfigMapOptions::usage_page_bytes), and `get`,
/// `create` and `update` on the Lease.
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// use ipu_k8s::kube::Config;
/// use ipu_k8s::store::{ConfigMapOptions, ConfigMapStore};
///
/// let mut options = ConfigMapOptions::in_namespace("graphcore");
/// options.name = "ipu-partitions-of-pod64".into();
/// let store = ConfigMapStore::new(Config::infer().await?, options)?;
/// # Ok(())
/// # }
/// ```
pub struct ConfigMapStore {
    client: Client,
    options: ConfigMapOptions,
    /// Distinguishes the revisions of this process from those of all others.
    writer: String,
    lease: LeaderLease,
    budget: WriteBudget,
    /// None before the record is open, and from then on while it is not known what is written.
    current: Mutex<Option<Current>>,
    /// Size of the record as read or written last, while `current` may be none.
    reserved_bytes: AtomicUsize,
    usage: tokio::sync::Mutex<Option<OpenPage>>,
}

/// Returns the Lease of the record, under an identity that begins with the host's name and ends with
/// `writer`.
fn lease_options(options: &ConfigMapOptions, writer: &str) -> LeaseOptions {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    LeaseOptions {
        namespace: options.namespace.clone(),
        name: options.name.clone(),
        identity: format!("{host}_{writer}"),
        duration: Duration::from_secs(10),
        margin: Duration::from_secs(2),
        renew_interval: options.timeout.min(Duration::from_secs(2)),
        poll_interval: Duration::from_millis(500),
    }
}

/// The record at one revision.
struct Current {
    number: u64,
    /// The revision in its text form.
    revision: String,
    /// The object's `resourceVersion`.
    version: String,
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
    /// Creates a store at the API server of `config`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if `config` is not valid for a client, for example because of an
    /// unreadable key.
    pub fn new(config: Config, options: ConfigMapOptions) -> Result<Self, StoreError> {
        let client = connect(config).map_err(|error| StoreError::Unavailable {
            operation: "open",
            detail: error.to_string(),
        })?;
        // The standard library seeds its hashers from the system; two of them suffice to avoid collisions.
        let random = || RandomState::new().build_hasher().finish();
        let writer = format!("{:016x}{:016x}", random(), random());
        Ok(Self {
            lease: LeaderLease::new(client.clone(), lease_options(&options, &writer)),
            client,
            options,
            writer,
            budget: WriteBudget::new(),
            current: Mutex::new(None),
            reserved_bytes: AtomicUsize::new(0),
            usage: tokio::sync::Mutex::new(None),
        })
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }

    fn unavailable(&self, operation: &'static str, name: &str, failure: &Failure) -> StoreError {
        StoreError::Unavailable {
            operation,
            detail: format!("ConfigMap {}/{name}: {failure}", self.options.namespace),
        }
    }

    fn corrupt(&self, name: &str, detail: String) -> StoreError {
        StoreError::Corrupt {
            what: format!("ConfigMap {}/{name}", self.options.namespace),
            detail,
        }
    }

    async fn find(&self, name: &str) -> Result<Option<ConfigMap>, StoreError> {
        bounded(self.options.timeout, self.api().get_opt(name))
            .await
            .map_err(|failure| self.unavailable("read", name, &failure))
    }

    /// Creates a ConfigMap. Returns none if it exists.
    async fn create(
        &self,
        name: &str,
        annotations: &[(&str, &str)],
        data: &Value,
    ) -> Result<Option<ConfigMap>, StoreError> {
        let annotations = annotations
            .iter()
            .map(|&(key, text)| (key.to_owned(), text.to_owned()));
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                annotations: Some(annotations.collect()),
                // Managed fields would record a writer for every key, and take as much space as the entries.
                managed_fields: Some(vec![ManagedFieldsEntry::default()]),
                ..ObjectMeta::default()
            },
            data: serde_json::from_value(data.clone()).unwrap_or_default(),
            ..ConfigMap::default()
        };
        match bounded(
            self.options.timeout,
            self.api().create(&PostParams::default(), &map),
        )
        .await
        {
            Ok(map) => Ok(Some(map)),
            Err(failure) if failure.code() == Some(409) => Ok(None),
            Err(failure) => Err(self.unavailable("create", name, &failure)),
        }
    }

    /// Sends a patch once. Returns the metadata of the result. The API server applies a strategic one to the
    /// object in memory, but a merge patch to its JSON text, which takes much longer for a large record.
    async fn patch(&self, name: &str, patch: &Value) -> Result<ObjectMeta, Failure> {
        let (api, params) = (self.api(), PatchParams::default());
        let patch = Patch::Strategic(patch);
        let sent = bounded(self.options.timeout, api.patch_metadata(name, &params, &patch));
        Ok(sent.await?.metadata)
    }

    /// Returns the ConfigMap of the record, which is created if it is missing.
    async fn find_or_create(&self) -> Result<ConfigMap, StoreError> {
        let name = &self.options.name;
        loop {
            if let Some(found) = self.find(name).await? {
                return Ok(found);
            }
            tracing::info!(name, "the record does not exist and is created");
            let annotations = [(LAYOUT_ANNOTATION, LAYOUT_VERSION)];
            if let Some(created) = self.create(name, &annotations, &json!({})).await? {
                return Ok(created);
            }
        }
    }

    /// Returns the number of the revision of `found`.
    fn check_layout(&self, found: &ConfigMap) -> Result<u64, StoreError> {
        let name = &self.options.name;
        let annotation = |name| found.metadata.annotations.as_ref()?.get(name).map(String::as_str);
        let is_empty = found.data.as_ref().is_none_or(|data| data.is_empty())
            && found.binary_data.as_ref().is_none_or(|data| data.is_empty());
        match annotation(LAYOUT_ANNOTATION) {
            Some(LAYOUT_VERSION) => {}
            None if is_empty => {}
            None => {
                let detail = format!(
                    "it has keys and no annotation {LAYOUT_ANNOTATION}: another program created it; choose another name, or \
                     delete it"
                );
                return Err(self.corrupt(name, detail));
            }
            Some(other) => {
                let detail = format!("its layout is {other:?}, and this version reads {LAYOUT_VERSION:?}");
                return Err(self.corrupt(name, detail));
            }
        }
        let Some(revision) = annotation(REVISION_ANNOTATION) else {
            return Ok(0);
        };
        let number = revision
            .split_once('.')
            .and_then(|(number, _)| number.parse().ok());
        number.ok_or_else(|| {
            self.corrupt(
                name,
                format!("its annotation {REVISION_ANNOTATION} is {revision:?}"),
            )
        })
    }

    /// Writes `data` on the object at `version` as revision `number`. Returns the revision and the new
    /// `resourceVersion`.
    async fn write(&self, version: &str, number: u64, data: &Value) -> Result<(String, String), StoreError> {
        let revision = format!("{number}.{}", self.writer);
        let patch = json!({
            "metadata": {
                "resourceVersion": version,
                "annotations": {
                    LAYOUT_ANNOTATION: LAYOUT_VERSION,
                    REVISION_ANNOTATION: revision,
                },
                "managedFields": [{}],
            },
            "data": data,
        });
        let version = self.resolve(&patch, &revision).await?;
        Ok((revision, version))
    }

    /// Sends a patch until it is known whether it was applied. Returns the new `resourceVersion`.
    async fn resolve(&self, patch: &Value, revision: &str) -> Result<String, StoreError> {
        let name = &self.options.name;
        let conflict = || StoreError::Conflict {
            basis: Revision::new(revision),
        };
        let deadline = Instant::now() + MAX_DOUBT;
        let mut in_doubt = false;
        loop {
            let failure = match self.patch(name, patch).await {
                Ok(metadata) => return metadata.resource_version.ok_or_else(conflict),
                Err(failure) => failure,
            };
            match failure.code() {
                // Another version, or no object: this patch or another one was applied.
                Some(404 | 409) => match self.applied(revision).await {
                    Ok(Some(version)) => return Ok(version),
                    Ok(None) => return Err(conflict()),
                    Err(_) => in_doubt = true,
                },
                Some(code) if code < 500 && code != 408 && !in_doubt => return Err(self.refused(&failure)),
                _ => in_doubt = true,
            }
            if Instant::now() >= deadline {
                tracing::error!(%failure, "it is not known whether the record was written");
                return Err(conflict());
            }
            tracing::warn!(%failure, "the reply to a write was lost; it is sent again");
            tokio::time::sleep(RESEND_INTERVAL).await;
        }
    }

    /// Returns the `resourceVersion` if the record is at `revision`.
    async fn applied(&self, revision: &str) -> Result<Option<String>, Failure> {
        let api = self.api();
        let found = bounded(self.options.timeout, api.get_metadata_opt(&self.options.name)).await?;
        let metadata = found.map(|found| found.metadata).unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let is_at = annotations
            .get(REVISION_ANNOTATION)
            .is_some_and(|at| at == revision);
        Ok(metadata.resource_version.filter(|_| is_at))
    }

    /// Returns the error of a write that the API server refused.
    fn refused(&self, failure: &Failure) -> StoreError {
        if failure.is_too_large() {
            return StoreError::Full {
                detail: failure.to_string(),
            };
        }
        self.unavailable("write", &self.options.name, failure)
    }

    async fn try_commit(
        &self,
        current: &Current,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Current, StoreError> {
        let is_full = current.content.usage_bytes() >= self.options.usage_page_bytes / USAGE_SHARE;
        let (mut content, mut data) = if is_full {
            self.append_usage(current.content.usage()).await?;
            current.content.without_usage()
        } else {
            (current.content.clone(), serde_json::Map::new())
        };
        content.apply(changes, usage, &mut data);
        content
            .check_capacity(&current.content, changes, self.options.max_bytes)
            .map_err(|detail| StoreError::Full { detail })?;
        self.budget.spend(content.bytes()).await;
        let number = current.number + 1;
        let (revision, version) = self.write(&current.version, number, &data.into()).await?;
        self.lease.note(number);
        Ok(Current {
            number,
            revision,
            version,
            content,
        })
    }
}

#[async_trait]
impl Store for ConfigMapStore {
    async fn open(&self) -> Result<Record, StoreError> {
        *self.current.lock() = None;
        *self.usage.lock().await = None;
        let acquired = self.lease.acquire().await;
        let last = acquired.map_err(|failure| StoreError::Unavailable {
            operation: "open",
            detail: format!(
                "Lease {}/{}: {failure}",
                self.options.namespace, self.options.name
            ),
        })?;
        let name = &self.options.name;
        let found = self.find_or_create().await?;
        let found_number = self.check_layout(&found)?;
        let (mut content, mut state) = Content::read(found.data.unwrap_or_default())
            .map_err(|(key, detail)| self.corrupt(name, format!("key {key}: {detail}")))?;
        let is_older = last.is_none_or(|last| last > found_number);
        let mut data = serde_json::Map::new();
        if is_older && !content.is_empty() {
            let marks = state.as_copy();
            marks.iter().for_each(|mark| state.apply(mark));
            content.apply(&marks, &[], &mut data);
            tracing::warn!(
                name,
                "the record is an old copy: its entries are kept until their owners are heard"
            );
        }
        if last.is_some_and(|last| last > 0) && content.is_empty() && is_older {
            tracing::warn!(name, "the record was deleted and begins empty");
        }
        // Higher than any that a predecessor used.
        let number = found_number.max(last.unwrap_or(0)) + 1;
        let version = found.metadata.resource_version.unwrap_or_default();
        let (revision, version) = self.write(&version, number, &data.into()).await?;
        self.lease.note(number);
        self.lease.renew_now().await;
        let record = Record {
            revision: Revision::new(&revision),
            state,
        };
        self.reserved_bytes
            .store(content.reserved_bytes(), Ordering::Relaxed);
        *self.current.lock() = Some(Current {
            number,
            revision,
            version,
            content,
        });
        Ok(record)
    }

    async fn commit(
        &self,
        basis: &Revision,
        changes: &[Change],
        usage: &[UsageRecord],
    ) -> Result<Revision, StoreError> {
        let conflict = || StoreError::Conflict { basis: basis.clone() };
        // If this call is cancelled, it is not known what is written.
        let current = self
            .current
            .lock()
            .take_if(|current| current.revision == basis.as_str());
        let current = current.ok_or_else(conflict)?;
        match self.try_commit(&current, changes, usage).await {
            Ok(next) => {
                let revision = Revision::new(&next.revision);
                self.reserved_bytes
                    .store(next.content.reserved_bytes(), Ordering::Relaxed);
                *self.current.lock() = Some(next);
                Ok(revision)
            }
            Err(StoreError::Conflict { .. }) => Err(conflict()),
            Err(error) => {
                *self.current.lock() = Some(current);
                Err(error)
            }
        }
    }

    async fn usage(
        &self,
        since: Timestamp,
        after: Option<&UsagePosition>,
        limit: usize,
    ) -> Result<Vec<UsageRecord>, StoreError> {
        self.read_usage(since, after, limit).await
    }

    fn leads_until(&self) -> Option<BootTime> {
        Some(self.lease.leads_until())
    }

    fn fill(&self) -> Option<StoreFill> {
        let bytes = self.reserved_bytes.load(Ordering::Relaxed);
        Some(StoreFill::new(bytes, self.options.max_bytes))
    }

    async fn close(&self) {
        self.lease.release().await;
    }
}
