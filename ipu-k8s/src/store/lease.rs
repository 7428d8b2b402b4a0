//! The Lease that picks the process which writes the record.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipu_allocator::boot_time;
use ipu_core::BootTime;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::task::JoinSet;

use super::ConfigMapOptions;
use crate::api_call::{Failure, bounded};

/// Time after which an unrenewed Lease expires.
const DURATION: Duration = Duration::from_secs(10);

/// Time before that at which its holder no longer leads: for clocks of different speed, and for an answer
/// that is on its way.
const MARGIN: Duration = Duration::from_secs(2);

/// Interval between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(2);

/// Pause after a renewal that failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which a process that waits reads the Lease.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Upper limit for the duration in another holder's Lease.
const MAX_OBSERVED_DURATION: Duration = Duration::from_secs(60);

/// Annotation with the number of the last revision of the record.
const LAST_REVISION: &str = "ledger.graphcore.ai/last-revision";

/// This process's part in the election. Once acquired, the Lease is renewed until it is released, lost or
/// dropped.
pub(super) struct WriterLease {
    shared: Arc<Shared>,
    renewal: Mutex<JoinSet<()>>,
}

struct Shared {
    api: Api<Lease>,
    name: String,
    identity: String,
    timeout: Duration,
    /// The version of another holder's Lease, and the time of its first observation. Locked during an
    /// attempt.
    observed: tokio::sync::Mutex<Option<(String, BootTime)>>,
    /// The time until which this process leads in milliseconds; 0 if it does not hold the Lease.
    until: AtomicU64,
    /// Number of the last revision of the record; 0 before one is written.
    revision: AtomicU64,
}

/// The result of one attempt to acquire or renew the Lease.
enum Attempt {
    /// This process holds the Lease. It had this number of a revision before.
    Held(Option<u64>),
    /// Another process holds it.
    Other,
    /// Another process wrote it at the same time.
    Conflict,
}

impl WriterLease {
    /// Joins the election under an identity that begins with the host's name and ends with `writer`.
    pub(super) fn new(client: Client, options: &ConfigMapOptions, writer: &str) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let shared = Shared {
            api: Api::namespaced(client, &options.namespace),
            name: options.name.clone(),
            identity: format!("{host}_{writer}"),
            timeout: options.timeout.min(RENEW_INTERVAL),
            observed: tokio::sync::Mutex::new(None),
            until: AtomicU64::new(0),
            revision: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            renewal: Mutex::default(),
        }
    }

    /// Waits for the Lease. Returns the number of the last revision that it has; none if it did not exist or
    /// had none.
    pub(super) async fn acquire(&self) -> Result<Option<u64>, Failure> {
        let mut is_waiting = false;
        loop {
            match self.shared.attempt(false).await? {
                Attempt::Held(last_revision) => {
                    self.restart_renewal(Some(Arc::clone(&self.shared)));
                    return Ok(last_revision);
                }
                Attempt::Conflict => {}
                Attempt::Other => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        tracing::info!(lease = self.shared.name, "another process has the Lease; waiting");
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Sets the number of the last revision, which the next renewal writes.
    pub(super) fn note(&self, revision: u64) {
        self.shared.revision.store(revision, Ordering::Relaxed);
    }

    /// Renews the Lease ahead of time. Failures are left to the next renewal.
    pub(super) async fn renew_now(&self) {
        if let Err(failure) = self.shared.attempt(true).await {
            tracing::debug!(%failure, "cannot renew the Lease");
        }
    }

    pub(super) fn leads_until(&self) -> BootTime {
        BootTime::from_millis(self.shared.until.load(Ordering::Acquire))
    }

    /// Lets another process acquire the Lease at once.
    pub(super) async fn release(&self) {
        self.restart_renewal(None);
        match self.shared.release().await {
            Ok(()) => tracing::info!(lease = self.shared.name, "released the Lease"),
            Err(failure) => tracing::warn!(%failure, "cannot release the Lease; it will expire"),
        }
    }

    /// Ends the task that renews the Lease, and starts another one.
    fn restart_renewal(&self, shared: Option<Arc<Shared>>) {
        // The critical section does not panic.
        let mut renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        renewal.abort_all();
        if let Some(shared) = shared {
            renewal.spawn(async move { shared.keep().await });
        }
    }
}

impl Shared {
    /// Renews the Lease until another process holds it.
    async fn keep(&self) {
        let mut pause = RENEW_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.attempt(true).await {
                Ok(Attempt::Held(_)) => RENEW_INTERVAL,
                Ok(Attempt::Conflict) => RETRY_INTERVAL,
                Ok(Attempt::Other) => {
                    tracing::error!(lease = self.name, "another process has the Lease");
                    return;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "cannot renew the Lease");
                    RETRY_INTERVAL
                }
            };
        }
    }

    /// Makes one attempt to renew the Lease, or to acquire it unless `only_renew`.
    async fn attempt(&self, only_renew: bool) -> Result<Attempt, Failure> {
        let mut observed = self.observed.lock().await;
        let begun = boot_time();
        let found = bounded(self.timeout, self.api.get_opt(&self.name)).await?;
        let is_own = found.as_ref().and_then(holder) == Some(&self.identity);
        if only_renew && !is_own {
            // The record may have another writer by now.
            self.until.store(0, Ordering::Release);
            return Ok(Attempt::Other);
        }
        let last_revision = found.as_ref().and_then(last_revision);
        if let Some(lease) = found.as_ref().filter(|lease| !is_own && holder(lease).is_some()) {
            let version = lease.metadata.resource_version.clone().unwrap_or_default();
            let now = boot_time();
            let since = match &*observed {
                Some((known, since)) if *known == version => *since,
                _ => {
                    *observed = Some((version, now));
                    now
                }
            };
            if now.since(since) < duration(lease) {
                return Ok(Attempt::Other);
            }
            tracing::info!(holder = ?holder(lease), "the Lease of another process has expired");
        }
        let is_new = found.is_none();
        let lease = self.held(found);
        let params = PostParams::default();
        let written = if is_new {
            bounded(self.timeout, self.api.create(&params, &lease)).await
        } else {
            bounded(self.timeout, self.api.replace(&self.name, &params, &lease)).await
        };
        match written {
            Ok(_) => {
                let until = begun.plus(DURATION.saturating_sub(MARGIN));
                self.until.store(until.as_millis(), Ordering::Release);
                Ok(Attempt::Held(last_revision))
            }
            Err(failure) if matches!(failure.code(), Some(404 | 409)) => Ok(Attempt::Conflict),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the Lease with this process as its holder, renewed now.
    fn held(&self, lease: Option<Lease>) -> Lease {
        let mut lease = lease.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        self.note_revision(&mut lease);
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            *spec = LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                acquire_time: Some(now.clone()),
                lease_transitions: Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1))),
                ..LeaseSpec::default()
            };
        }
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        // For people only: no process reads it.
        spec.renew_time = Some(now);
        lease
    }

    fn note_revision(&self, lease: &mut Lease) {
        let number = self.revision.load(Ordering::Relaxed);
        if number > last_revision(lease).unwrap_or(0) {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(LAST_REVISION.into(), number.to_string());
        }
    }

    async fn release(&self) -> Result<(), Failure> {
        // Waits for an attempt that is under way.
        let _observed = self.observed.lock().await;
        self.until.store(0, Ordering::Release);
        loop {
            let found = bounded(self.timeout, self.api.get_opt(&self.name)).await?;
            let Some(mut lease) = found.filter(|lease| holder(lease) == Some(&self.identity)) else {
                return Ok(());
            };
            self.note_revision(&mut lease);
            lease.spec.get_or_insert_default().holder_identity = None;
            let params = PostParams::default();
            match bounded(self.timeout, self.api.replace(&self.name, &params, &lease)).await {
                Err(failure) if failure.code() == Some(409) => {}
                written => return written.map(drop),
            }
        }
    }
}

fn holder(lease: &Lease) -> Option<&String> {
    let holder = lease.spec.as_ref()?.holder_identity.as_ref();
    holder.filter(|holder| !holder.is_empty())
}

fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds
        .map_or(DURATION, Duration::from_secs)
        .min(MAX_OBSERVED_DURATION)
}

fn last_revision(lease: &Lease) -> Option<u64> {
    lease
        .metadata
        .annotations
        .as_ref()?
        .get(LAST_REVISION)?
        .parse()
        .ok()
}
