//! Leader election among operators with a Lease: renewed every second, expired after three.
//!
//! The Lease is only an optimisation: the ledger keeps two simultaneous leaders consistent. Expiry is
//! measured with the monotonic clock of this process, from the observed change of the Lease. Timestamps of
//! other clocks are ignored.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::error::chain;
use crate::object_watch::wake_on_changes;

/// Time after which an unrenewed Lease expires.
const LEASE_DURATION: Duration = Duration::from_secs(3);
/// Interval between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a renewal after which the leader steps down: shorter than the Lease duration.
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
/// Timeout of one API call.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay after a conflict or a failed call.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which a follower reads the Lease regardless of the watch: a late observation would start the
/// expiry too late.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time until another operator leads after the leader was killed.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(5);
// Observation, expiry, and one lost conflict; the remainder is for calls.
const _: () = assert!(
    POLL_INTERVAL.as_millis()
        + LEASE_DURATION.as_millis()
        + RETRY_INTERVAL.as_millis()
        + CALL_TIMEOUT.as_millis()
        < MAX_FAILOVER_TIME.as_millis()
);
// The leader steps down before another operator can acquire the Lease, and has tried to renew it by then.
const _: () = assert!(
    RENEW_INTERVAL.as_millis() < RENEW_DEADLINE.as_millis()
        && RENEW_DEADLINE.as_millis() < LEASE_DURATION.as_millis()
);
/// Upper limit for the duration in another holder's Lease.
const MAX_OBSERVED_LEASE_DURATION: Duration = Duration::from_secs(60);

/// Lease and identity of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of the candidate; must be unique.
    pub identity: String,
}

impl LeaseOptions {
    /// Creates options for the Lease `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
        }
    }
}

/// Participation in the election, until [released](Leadership::release) or dropped. After a drop the Lease
/// remains for its three seconds, as after a crash.
#[derive(Debug)]
pub struct Leadership {
    is_leader: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Leadership {
    /// Joins the election for a Lease.
    #[must_use]
    pub fn join(client: Client, options: LeaseOptions) -> Self {
        let (sender, is_leader) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let elector = Elector {
            leases: Api::namespaced(client, &options.namespace),
            options,
            observed: None,
            renewed_at: None,
            is_leader: sender,
        };
        let task = tokio::spawn(elector.run(stopped));
        Self {
            is_leader,
            stop,
            task,
        }
    }

    /// Leads without an election, for a single operator.
    #[must_use]
    pub fn without_election() -> Self {
        let (sender, is_leader) = watch::channel(true);
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            // A dropped sender stops the task as well.
            let _ = stopped.wait_for(|stop| *stop).await;
            sender.send_replace(false);
        });
        Self {
            is_leader,
            stop,
            task,
        }
    }

    /// Returns a receiver that tracks whether this process is the leader.
    #[must_use]
    pub fn is_leader(&self) -> watch::Receiver<bool> {
        self.is_leader.clone()
    }

    /// Leaves the election and releases the Lease. Call it after the controller has stopped.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        // The task ends after at most one call.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Version of the Lease and the time at which it was first observed.
struct ObservedLease {
    version: Option<String>,
    at: Instant,
}

struct Elector {
    leases: Api<Lease>,
    options: LeaseOptions,
    observed: Option<ObservedLease>,
    /// Start of the last call that acquired or renewed the Lease; `None` for a follower.
    renewed_at: Option<Instant>,
    is_leader: watch::Sender<bool>,
}

/// Outcome of one attempt.
enum ElectionResult {
    Acquired,
    /// Another operator holds the Lease until this time unless it renews it.
    HeldUntil(Instant),
    /// Another operator wrote the Lease at the same time (409).
    Conflict,
}

impl Elector {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let wake = Arc::new(Notify::new());
        let watching = wake_on_changes(self.leases.clone(), self.options.name.clone(), Arc::clone(&wake));
        let mut watching = std::pin::pin!(watching);
        loop {
            let next = self.try_acquire().await;
            let is_leader = *self.is_leader.borrow();
            tokio::select! {
                // A dropped sender stops the task as well.
                _ = stop.wait_for(|stop| *stop) => break,
                () = &mut watching => {}
                () = tokio::time::sleep_until(next) => {}
                () = wake.notified(), if !is_leader => {}
            }
        }
        let renewed_at = self.renewed_at.is_some();
        self.set_leader(false);
        if renewed_at {
            self.release_lease().await;
        }
    }

    /// Makes one attempt and returns the time of the next one.
    async fn try_acquire(&mut self) -> Instant {
        let started = Instant::now();
        let renew_deadline = self.renewed_at.map(|renewed_at| renewed_at + RENEW_DEADLINE);
        let timeout = renew_deadline.map_or(CALL_TIMEOUT, |at| {
            CALL_TIMEOUT.min(at.saturating_duration_since(started))
        });
        let next = match tokio::time::timeout(timeout, self.attempt()).await {
            Ok(Ok(ElectionResult::Acquired)) => {
                self.renewed_at = Some(started);
                self.set_leader(true);
                return started + RENEW_INTERVAL;
            }
            Ok(Ok(ElectionResult::HeldUntil(expiry))) => {
                self.renewed_at = None;
                self.set_leader(false);
                return expiry.min(started + POLL_INTERVAL);
            }
            Ok(Ok(ElectionResult::Conflict)) => started + RETRY_INTERVAL,
            Ok(Err(error)) => {
                debug!(error = %chain(&error), "cannot read or write the Lease");
                Instant::now() + RETRY_INTERVAL
            }
            Err(_) => {
                debug!("a request for the Lease timed out");
                Instant::now() + RETRY_INTERVAL
            }
        };
        match renew_deadline {
            Some(at) if Instant::now() >= at => {
                warn!("the Lease could not be renewed in time");
                self.renewed_at = None;
                self.set_leader(false);
                next
            }
            Some(at) => next.min(at),
            None => next,
        }
    }

    async fn attempt(&mut self) -> Result<ElectionResult, kube::Error> {
        let Some(lease) = self.leases.get_opt(&self.options.name).await? else {
            let new_lease = self.held_lease(None);
            let created = self.leases.create(&PostParams::default(), &new_lease).await;
            return election_result(created);
        };
        let now = Instant::now();
        let version = lease.metadata.resource_version.clone();
        let observed = match &self.observed {
            Some(observed) if observed.version == version => observed.at,
            _ => {
                self.observed = Some(ObservedLease { version, at: now });
                now
            }
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.options.identity {
            let seconds = spec.lease_duration_seconds.unwrap_or_default();
            let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
                .min(MAX_OBSERVED_LEASE_DURATION);
            if now < observed + duration {
                return Ok(ElectionResult::HeldUntil(observed + duration));
            }
            info!(holder, "the Lease of the holder has expired");
        }
        let renewed = self.held_lease(Some(lease));
        let params = PostParams::default();
        election_result(self.leases.replace(&self.options.name, &params, &renewed).await)
    }

    /// Returns the Lease with this operator as its holder and a new renewal time.
    fn held_lease(&self, lease: Option<Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = lease.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.options.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.options.identity) {
            *spec = LeaseSpec {
                holder_identity: Some(self.options.identity.clone()),
                acquire_time: Some(now.clone()),
                lease_transitions: Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1))),
                ..LeaseSpec::default()
            };
        }
        spec.lease_duration_seconds = i32::try_from(LEASE_DURATION.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    /// Removes this operator as the holder, so that a follower can acquire the Lease at once.
    async fn release_lease(&self) {
        let release = async {
            let Some(mut lease) = self.leases.get_opt(&self.options.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.options.identity) {
                spec.holder_identity = None;
                let params = PostParams::default();
                self.leases.replace(&self.options.name, &params, &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(CALL_TIMEOUT, release).await {
            Ok(Ok(())) => info!("released the Lease"),
            Ok(Err(error)) => warn!(error = %chain(&error), "cannot release the Lease; it will expire"),
            Err(_) => warn!("cannot release the Lease; it will expire"),
        }
    }

    fn set_leader(&self, is_leader: bool) {
        let changed = self
            .is_leader
            .send_if_modified(|current| std::mem::replace(current, is_leader) != is_leader);
        if changed {
            info!(
                leads = is_leader,
                identity = self.options.identity,
                "the leadership has changed"
            );
        }
    }
}

/// Converts the result of a write; a 409 means that another operator was first.
fn election_result(written: Result<Lease, kube::Error>) -> Result<ElectionResult, kube::Error> {
    match written {
        Ok(_) => Ok(ElectionResult::Acquired),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(ElectionResult::Conflict),
        Err(error) => Err(error),
    }
}
