//! Who of several operators works on jobs: who holds a Lease, renewed every second and gone after three.
//!
//! Leases make things fast and never safe: what two leaders at a time would do is kept apart by the ledger. Time is measured
//! by this process's own monotonic clock, from when a change of the Lease was seen; what other clocks wrote is not looked at.

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

/// How long a Lease counts that is not renewed.
const DURATION: Duration = Duration::from_secs(3);
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// When a leader that could not renew it stops to lead: well before others may begin.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(1);
/// The pause after somebody else was faster, or a call failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How often whoever waits looks, whatever the watch tells: a renewal that was noticed late would be counted from too late.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Within this another operator leads after the leader was killed.
const HAND_OVER: Duration = Duration::from_secs(5);
// The last renewal is noticed, ends, and somebody else is faster once; what is left is for calls.
const _: () = assert!(
    POLL_INTERVAL.as_millis() + DURATION.as_millis() + RETRY_INTERVAL.as_millis() + CALL.as_millis()
        < HAND_OVER.as_millis()
);
// Whoever leads stops before anybody else begins, and has tried to renew it by then.
const _: () = assert!(RENEW.as_millis() < GIVE_UP.as_millis() && GIVE_UP.as_millis() < DURATION.as_millis());
/// The longest that another holder's duration is waited for, whatever the Lease says.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Which Lease is competed for, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseOptions {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who competes; no two may call themselves the same.
    pub identity: String,
}

impl LeaseOptions {
    /// The Lease `name` in `namespace`, for `identity`.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
        }
    }
}

/// Takes part in the election, until it is [released](Leadership::release) or dropped. Dropped without a release, the Lease
/// lasts for its three seconds, as after a crash.
#[derive(Debug)]
pub struct Leadership {
    leads: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Leadership {
    /// Competes for a Lease from now on.
    #[must_use]
    pub fn join(client: Client, options: LeaseOptions) -> Self {
        let (told, leads) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let elector = Elector {
            leases: Api::namespaced(client, &options.namespace),
            options,
            seen: None,
            held: None,
            is_leader: told,
        };
        let task = tokio::spawn(elector.run(stopped));
        Self { leads, stop, task }
    }

    /// Leads without asking anybody: for an operator that is alone.
    #[must_use]
    pub fn alone() -> Self {
        let (told, leads) = watch::channel(true);
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            // A dropped sender is the end too.
            let _ = stopped.wait_for(|stop| *stop).await;
            told.send_replace(false);
        });
        Self { leads, stop, task }
    }

    /// Whether this process leads, from now on.
    #[must_use]
    pub fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    /// Leaves the election, and gives the Lease to whoever waits for it. To be called when the work has stopped.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        // It ends by itself, after one call at most.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The Lease as it was when it was seen to be different.
struct ObservedLease {
    version: Option<String>,
    at: Instant,
}

struct Elector {
    leases: Api<Lease>,
    options: LeaseOptions,
    seen: Option<ObservedLease>,
    /// Since when the Lease is known to be ours: the beginning of the last call that renewed it.
    held: Option<Instant>,
    is_leader: watch::Sender<bool>,
}

/// How an attempt ended.
enum ElectionResult {
    Ours,
    /// Somebody else's, if it is not renewed before that time.
    Until(Instant),
    /// Somebody else wrote at the same time.
    Contested,
}

impl Elector {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let wake = Arc::new(Notify::new());
        let watching = wake_on_changes(self.leases.clone(), self.options.name.clone(), Arc::clone(&wake));
        let mut watching = std::pin::pin!(watching);
        loop {
            let next = self.try_acquire().await;
            let leads = *self.is_leader.borrow();
            tokio::select! {
                // A dropped sender is the end too.
                _ = stop.wait_for(|stop| *stop) => break,
                () = &mut watching => {}
                () = tokio::time::sleep_until(next) => {}
                () = wake.notified(), if !leads => {}
            }
        }
        let held = self.held.is_some();
        self.tell(false);
        if held {
            self.give_back().await;
        }
    }

    /// One attempt, and when the next one is due.
    async fn try_acquire(&mut self) -> Instant {
        let begun = Instant::now();
        let give_up = self.held.map(|held| held + GIVE_UP);
        let patience = give_up.map_or(CALL, |at| CALL.min(at.saturating_duration_since(begun)));
        let next = match tokio::time::timeout(patience, self.attempt()).await {
            Ok(Ok(ElectionResult::Ours)) => {
                self.held = Some(begun);
                self.tell(true);
                return begun + RENEW;
            }
            Ok(Ok(ElectionResult::Until(expiry))) => {
                self.held = None;
                self.tell(false);
                return expiry.min(begun + POLL_INTERVAL);
            }
            Ok(Ok(ElectionResult::Contested)) => begun + RETRY_INTERVAL,
            Ok(Err(error)) => {
                debug!(error = %chain(&error), "the Lease cannot be looked at");
                Instant::now() + RETRY_INTERVAL
            }
            Err(_) => {
                debug!("the API server did not answer about the Lease in time");
                Instant::now() + RETRY_INTERVAL
            }
        };
        match give_up {
            Some(at) if Instant::now() >= at => {
                warn!("the Lease could not be renewed in time");
                self.held = None;
                self.tell(false);
                next
            }
            Some(at) => next.min(at),
            None => next,
        }
    }

    async fn attempt(&mut self) -> Result<ElectionResult, kube::Error> {
        let Some(lease) = self.leases.get_opt(&self.options.name).await? else {
            let fresh = self.ours(None);
            let created = self.leases.create(&PostParams::default(), &fresh).await;
            return contested(created);
        };
        let now = Instant::now();
        let version = lease.metadata.resource_version.clone();
        let seen = match &self.seen {
            Some(seen) if seen.version == version => seen.at,
            _ => {
                self.seen = Some(ObservedLease { version, at: now });
                now
            }
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.options.identity {
            let seconds = spec.lease_duration_seconds.unwrap_or_default();
            let lasts = Duration::from_secs(u64::try_from(seconds).unwrap_or_default()).min(MAX_BACKOFF);
            if now < seen + lasts {
                return Ok(ElectionResult::Until(seen + lasts));
            }
            info!(holder, "the Lease was not renewed in time");
        }
        let renewed = self.ours(Some(lease));
        let params = PostParams::default();
        contested(self.leases.replace(&self.options.name, &params, &renewed).await)
    }

    /// The Lease as it is when it is ours from now on.
    fn ours(&self, lease: Option<Lease>) -> Lease {
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
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    /// Takes our name from the Lease, so that nobody waits for its end.
    async fn give_back(&self) {
        let give = async {
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
        match tokio::time::timeout(CALL, give).await {
            Ok(Ok(())) => info!("gave the Lease back"),
            Ok(Err(error)) => warn!(error = %chain(&error), "the Lease ends by itself"),
            Err(_) => warn!("the Lease ends by itself"),
        }
    }

    fn tell(&self, leads: bool) {
        let changed = self
            .is_leader
            .send_if_modified(|told| std::mem::replace(told, leads) != leads);
        if changed {
            info!(
                leads,
                identity = self.options.identity,
                "the election has changed"
            );
        }
    }
}

/// What a write came to that others may have been faster with.
fn contested(written: Result<Lease, kube::Error>) -> Result<ElectionResult, kube::Error> {
    match written {
        Ok(_) => Ok(ElectionResult::Ours),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(ElectionResult::Contested),
        Err(error) => Err(error),
    }
}
