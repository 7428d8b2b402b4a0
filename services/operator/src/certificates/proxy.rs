//! The certificate of the proxy: a Secret that the proxy mounts, with the authorities that clients of the proxy trust.
//!
//! The rules are those of the webhooks' certificate. Every operator writes the authorities to a file of its own, which its client
//! reads for each connection, before a certificate of theirs is in `tls.crt`: other operators have the settling time for that.

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
use super::secret::{KeepError, RETRY_INTERVAL, ROUND, StateSecret, now};
use crate::error::chain;
use crate::health::HealthRegistry;
use crate::object_watch::wake_on_changes;
use crate::settings::ProxyCertificate;

/// The condition of readiness.
const WANTED: &str = "the proxy's certificate";
const LOOP: &str = "proxy-certificate";

/// Keeps the certificate of the proxy.
pub(crate) struct ProxyKeeper {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) certificate: ProxyCertificate,
    pub(crate) rotation: Rotation,
    pub(crate) progress: HealthRegistry,
    /// Whether the file of the authorities is written.
    pub(crate) trusts: watch::Sender<bool>,
}

impl ProxyKeeper {
    /// Reconciles the Secret and the file again and again. Never ends.
    pub(crate) async fn run(self) {
        self.progress.await_ready(WANTED);
        let wake = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        let name = self.certificate.secret.clone();
        watches.spawn(wake_on_changes(self.secrets(), name, Arc::clone(&wake)));
        let (mut known, mut reported) = (None, String::new());
        loop {
            let round = tokio::time::timeout(ROUND, self.reconcile(&mut known)).await;
            let failure = match &round {
                Ok(Ok(_)) => String::new(),
                Ok(Err(error)) => chain(error),
                Err(_) => format!("there was no end to it within {} s", ROUND.as_secs()),
            };
            if !failure.is_empty() && failure != reported {
                warn!(
                    error = failure,
                    "the proxy's certificate is not kept; the one before stays"
                );
            }
            reported = failure;
            let pause = match round {
                Ok(Ok(pause)) => pause,
                _ => RETRY_INTERVAL,
            };
            if known.is_some() {
                self.progress.ready(WANTED);
                self.trusts.send_replace(true);
            }
            self.progress.beat(LOOP, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // A call that fails is not repeated faster because the Secret changes.
                () = wake.notified(), if reported.is_empty() => {}
            }
        }
    }

    /// Reconciles once, and returns after how long the next time is due. `known` is the state whose authorities are in the file.
    async fn reconcile(&self, known: &mut Option<RotationState>) -> Result<Duration, KeepError> {
        let now = now();
        let secret = StateSecret {
            api: self.secrets(),
            name: &self.certificate.secret,
            component: "vipu-proxy",
        };
        let stored = secret.load().await?;
        let state = stored.as_ref().and_then(|stored| stored.state.clone());
        if let Some(state) = state.as_ref().filter(|state| known.as_ref() != Some(*state)) {
            write(&self.certificate.ca_file, state.bundle()).await?;
            info!(file = %self.certificate.ca_file.display(), "trusts the authorities of the proxy's certificate");
            *known = Some(state.clone());
        }
        let facts = RotationFacts {
            now,
            names: &self.certificate.names,
            asked: &BTreeSet::new(),
            served: known.as_ref().map(|state| &state.current),
            // They are written with the state, and to the file before this.
            trusted: state.is_some(),
            rotation: &self.rotation,
        };
        let make = |names: &_| CertBundle::make(names, now, self.rotation.validity);
        let next = next_state(state.as_ref(), &facts, make)?;
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
        // The next reconciliation reads what is stored, whichever operator wrote it.
        Ok(Duration::from_millis(1))
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Replaces a file as one.
async fn write(path: &Path, text: String) -> Result<(), KeepError> {
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
        .map_err(|source| KeepError::Write {
            path: path.display().to_string(),
            source,
        })
}
