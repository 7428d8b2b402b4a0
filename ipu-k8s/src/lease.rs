//! A Lease that picks one of several processes: the proxy that writes the record, the operator that
//! reconciles.
//!
//! Times are measured by this process's own clock, which counts suspension, from the last observed change of
//! the Lease. Times of other clocks are ignored. Safety must not depend on a Lease: a process may act on a
//! request that it sent while it led.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipu_core::BootTime;
use ipu_vipu_client::boot_time;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::api_call::{Failure, bounded};

/// Upper limit for the duration in another holder's Lease.
const MAX_OBSERVED_DURATION: Duration = Duration::from_secs(60);

/// Annotation with the number of the last revision of the record.
const LAST_REVISION: &str = "ledger.graphcore.ai/last-revision";

/// Name and times of a Lease.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this process; must be unique.
    pub identity: String,
    /// Time after which an unrenewed Lease expires, in whole seconds.
    pub duration: Duration,
    /// Time before that at which its holder no longer leads: for clocks of different speed, and for an
    /// answer that is on its way.
    pub margin: Duration,
    /// Interval between renewals, and timeout of each request.
    pub renew_interval: Duration,
    /// Interval at which a process that waits reads the Lease, and pause after a failed renewal.
    pub poll_interval: Duration,
}

/// This process's part in the election. Once acquired, the Lease is renewed until it is released, lost or
/// dropped.
pub struct LeaderLease {
    shared: Arc<Shared>,
    renewal: Mutex<JoinSet<()>>,
}

struct Shared {
    api: Api<Lease>,
    options: LeaseOptions,
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

impl std::fmt::Debug for LeaderLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderLease")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl LeaderLease {
    /// Joins the election. Sends no request yet.
    #[must_use]
    pub fn new(client: Client, options: LeaseOptions) -> Self {
        let shared = Shared {
            api: Api::namespaced(client, &options.namespace),
            options,
            observed: tokio::sync::Mutex::new(None),
            until: AtomicU64::new(0),
            revision: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            renewal: Mutex::default(),
        }
    }

    /// Waits until this process leads. Failed requests are repeated.
    pub async fn lead(&self) {
        while let Err(failure) = self.acquire().await {
            tracing::debug!(lease = self.shared.options.name, %failure, "cannot read or write the Lease");
            tokio::time::sleep(self.shared.options.poll_interval).await;
        }
    }

    /// Waits for the Lease. Returns the number of the last revision that it has; none if it did not exist or
    /// had none.
    pub(crate) async fn acquire(&self) -> Result<Option<u64>, Failure> {
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
                        tracing::info!(
                            lease = self.shared.options.name,
                            "another process has the Lease; waiting"
                        );
                    }
                    tokio::time::sleep(self.shared.options.poll_interval).await;
                }
            }
        }
    }

    /// Sets the number of the last revision, which the next renewal writes.
    pub(crate) fn note(&self, revision: u64) {
        self.shared.revision.store(revision, Ordering::Relaxed);
    }

    /// Renews the Lease ahead of time. Failures are left to the next renewal.
    pub(crate) async fn renew_now(&self) {
        if let Err(failure) = self.shared.attempt(true).await {
            tracing::debug!(%failure, "cannot renew the Lease");
        }
    }

    /// Returns the time until which this process leads; in the past if it does not.
    #[must_use]
    pub fn leads_until(&self) -> BootTime {
        BootTime::from_millis(self.shared.until.load(Ordering::Acquire))
    }

    /// Waits until this process does not lead, at the latest until the end of the time that was granted last.
    pub async fn lost(&self) {
        loop {
            let left = self.leads_until().since(boot_time());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Lets another process acquire the Lease at once.
    pub async fn release(&self) {
        self.restart_renewal(None);
        match self.shared.release().await {
            Ok(true) => tracing::info!(lease = self.shared.options.name, "released the Lease"),
            Ok(false) => {}
            Err(failure) => tracing::warn!(%failure, "cannot release the Lease; it will expire"),
        }
    }

    /// Ends the task that renews the Lease, and starts another one.
    fn restart_renewal(&self, shared: Option<Arc<Shared>>) {
        let mut renewal = self.renewal.lock();
        renewal.abort_all();
        if let Some(shared) = shared {
            renewal.spawn(async move { shared.keep().await });
        }
    }
}

impl Shared {
    /// Renews the Lease until another process holds it.
    async fn keep(&self) {
        let mut pause = self.options.renew_interval;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.attempt(true).await {
                Ok(Attempt::Held(_)) => self.options.renew_interval,
                Ok(Attempt::Conflict) => self.options.poll_interval,
                Ok(Attempt::Other) => {
                    tracing::error!(lease = self.options.name, "another process has the Lease");
                    return;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "cannot renew the Lease");
                    self.options.poll_interval
                }
            };
        }
    }

    /// Makes one attempt to renew the Lease, or to acquire it unless `only_renew`.
    async fn attempt(&self, only_renew: bool) -> Result<Attempt, Failure> {
        let mut observed = self.observed.lock().await;
        let begun = boot_time();
        let found = bounded(self.options.renew_interval, self.api.get_opt(&self.options.name)).await?;
        let is_own = found.as_ref().and_then(holder) == Some(&self.options.identity);
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
            bounded(self.options.renew_interval, self.api.create(&params, &lease)).await
        } else {
            bounded(
                self.options.renew_interval,
                self.api.replace(&self.options.name, &params, &lease),
            )
            .await
        };
        match written {
            Ok(_) => {
                let until = begun.plus(self.options.duration.saturating_sub(self.options.margin));
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
                name: Some(self.options.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        self.note_revision(&mut lease);
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.options.identity) {
            *spec = LeaseSpec {
                holder_identity: Some(self.options.identity.clone()),
                acquire_time: Some(now.clone()),
                lease_transitions: Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1))),
                ..LeaseSpec::default()
            };
        }
        spec.lease_duration_seconds = i32::try_from(self.options.duration.as_secs()).ok();
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

    /// Returns whether this process held the Lease.
    async fn release(&self) -> Result<bool, Failure> {
        // Waits for an attempt that is under way.
        let _observed = self.observed.lock().await;
        self.until.store(0, Ordering::Release);
        loop {
            let found = bounded(self.options.renew_interval, self.api.get_opt(&self.options.name)).await?;
            let Some(mut lease) = found.filter(|lease| holder(lease) == Some(&self.options.identity)) else {
                return Ok(false);
            };
            self.note_revision(&mut lease);
            lease.spec.get_or_insert_default().holder_identity = None;
            let params = PostParams::default();
            match bounded(
                self.options.renew_interval,
                self.api.replace(&self.options.name, &params, &lease),
            )
            .await
            {
                Err(failure) if failure.code() == Some(409) => {}
                written => return written.map(|_| true),
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
        .map_or(MAX_OBSERVED_DURATION, Duration::from_secs)
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
