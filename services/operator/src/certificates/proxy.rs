//! Certificate of the proxy: a Secret that the proxy mounts, with the CA certificates for its clients.
//!
//! The rotation follows the rules of the webhooks' certificate. Every operator writes the CA certificates
//! to its own file before a certificate they signed is in `tls.crt`. Its client reads the file for each
//! connection. The trust delay gives other operators time for that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::issue::CertBundle;
use super::rotation::{Rotation, RotationFacts, RotationState, next_state};
use super::secret::{CHECK_TIMEOUT, RETRY_INTERVAL, RotationError, StateSecret, now};
use crate::error::chain;
use crate::health::HealthRegistry;
use crate::object_watch::wake_on_changes;
use crate::settings::ProxyCertificate;

/// Readiness condition.
const READINESS_CONDITION: &str = "the proxy's certificate";
const LOOP_NAME: &str = "proxy-certificate";

/// Rotation loop of the proxy's certificate.
pub(crate) struct ProxyCertRotator {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) certificate: ProxyCertificate,
    pub(crate) rotation: Rotation,
    pub(crate) health: HealthRegistry,
    /// Set to true once the CA file is written.
    pub(crate) trusts: watch::Sender<bool>,
}

impl ProxyCertRotator {
    /// Runs the rotation loop. Never ends.
    pub(crate) async fn run(self) {
        self.health.require(READINESS_CONDITION);
        let wake = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        let name = self.certificate.secret.clone();
        watches.spawn(wake_on_changes(self.secrets(), name, Arc::clone(&wake)));
        let (mut trusted_state, mut reported) = (None, String::new());
        loop {
            let outcome = tokio::time::timeout(CHECK_TIMEOUT, self.reconcile(&mut trusted_state)).await;
            let failure = match &outcome {
                Ok(Ok(_)) => String::new(),
                Ok(Err(error)) => chain(error),
                Err(_) => format!("it timed out after {} s", CHECK_TIMEOUT.as_secs()),
            };
            if !failure.is_empty() && failure != reported {
                warn!(
                    error = failure,
                    "cannot rotate the proxy's certificate; the previous one remains in use"
                );
            }
            reported = failure;
            let pause = match outcome {
                Ok(Ok(pause)) => pause,
                _ => RETRY_INTERVAL,
            };
            if trusted_state.is_some() {
                self.health.mark_ready(READINESS_CONDITION);
                self.trusts.send_replace(true);
            }
            self.health.heartbeat(LOOP_NAME, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // After a failure, events do not shorten the retry interval.
                () = wake.notified(), if reported.is_empty() => {}
            }
        }
    }

    /// Reconciles once, and returns the delay until the next check. `trusted_state` is the state whose CA
    /// certificates are in the file.
    async fn reconcile(&self, trusted_state: &mut Option<RotationState>) -> Result<Duration, RotationError> {
        let now = now();
        let secret = StateSecret {
            api: self.secrets(),
            name: &self.certificate.secret,
            component: "vipu-proxy",
        };
        let stored = secret.load().await?;
        let state = stored.as_ref().and_then(|stored| stored.state.clone());
        if let Some(state) = state
            .as_ref()
            .filter(|state| trusted_state.as_ref() != Some(*state))
        {
            write(&self.certificate.ca_file, state.bundle()).await?;
            info!(file = %self.certificate.ca_file.display(), "wrote the CA certificates of the proxy");
            *trusted_state = Some(state.clone());
        }
        let facts = RotationFacts {
            now,
            names: &self.certificate.names,
            called_names: &BTreeSet::new(),
            served: trusted_state.as_ref().map(|state| &state.current),
            // The CA certificates are written with the state, and to the file before this point.
            trusted: state.is_some(),
            rotation: &self.rotation,
        };
        let create = |names: &_| CertBundle::create(names, now, self.rotation.validity);
        let next = next_state(state.as_ref(), &facts, create)?;
        let changed = next.is_some();
        let Some(wanted) = next.or_else(|| state.clone()) else {
            return Ok(RETRY_INTERVAL);
        };
        let (bundle, current) = (wanted.bundle(), &wanted.current);
        let files = BTreeMap::from([
            ("ca.crt", bundle.as_str()),
            ("tls.crt", &current.certificate),
            ("tls.key", &current.key),
        ]);
        let is_in = |stored: &BTreeMap<String, Vec<u8>>| {
            let same =
                |(key, text): (&&str, &&str)| stored.get(*key).is_some_and(|found| found == text.as_bytes());
            files.iter().all(same)
        };
        if !changed && stored.as_ref().is_some_and(|stored| is_in(&stored.files)) {
            return Ok(wanted.pause(now, &self.rotation));
        }
        let version = stored.as_ref().map(|stored| stored.version.as_str());
        if secret.store(&wanted, version, &files).await? {
            info!(
                secret = self.certificate.secret,
                not_after = current.not_after,
                "wrote the proxy's certificate"
            );
        }
        // The next check reads the stored state, whichever operator wrote it.
        Ok(Duration::from_millis(1))
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Replaces a file atomically.
async fn write(path: &Path, text: String) -> Result<(), RotationError> {
    let target = path.to_owned();
    let replace = move || {
        let new = target.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &target)
    };
    let written = tokio::task::spawn_blocking(replace).await;
    written
        .map_err(std::io::Error::other)
        .flatten()
        .map_err(|source| RotationError::Write {
            path: path.display().to_string(),
            source,
        })
}
