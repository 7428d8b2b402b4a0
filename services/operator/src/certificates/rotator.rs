//! The loop that keeps the certificates: looks at the Secret and at the two configurations, makes the next move, serves what is
//! current. Every operator runs it; what they write is compared and swapped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_serve::{Tls, TlsPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::dns_names::asked_names;
use super::issue::CertBundle;
use super::rotation::{Rotation, RotationFacts, next_state};
use super::secret::{KeepError, RETRY_INTERVAL, ROUND, StateSecret, call, now};
use crate::error::chain;
use crate::health::HealthRegistry;
use crate::metrics::Metrics;
use crate::object_watch::wake_on_changes;
use crate::settings::Keeping;

/// What the operator is not ready without.
const WANTED: &str = "the webhooks' certificate";
const LOOP: &str = "certificates";

pub(crate) struct CertRotator {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) keeping: Keeping,
    pub(crate) rotation: Rotation,
    pub(crate) progress: HealthRegistry,
    pub(crate) metrics: Metrics,
    /// What is served with; none before the first look.
    pub(crate) tls: watch::Sender<Option<Tls>>,
}

impl CertRotator {
    /// Looks again and again. Never ends.
    pub(crate) async fn run(self) {
        self.progress.await_ready(WANTED);
        let wake = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        watches.spawn(wake_on_changes(
            self.secrets(),
            self.keeping.secret.clone(),
            Arc::clone(&wake),
        ));
        watches.spawn(wake_on_changes(
            self.mutating(),
            self.keeping.mutating.clone(),
            Arc::clone(&wake),
        ));
        watches.spawn(wake_on_changes(
            self.validating(),
            self.keeping.validating.clone(),
            Arc::clone(&wake),
        ));
        let mut told = String::new();
        let mut served = None;
        loop {
            let look = tokio::time::timeout(ROUND, self.check(&mut served)).await;
            let pause = match look {
                Ok(Ok(pause)) => {
                    told.clear();
                    if served.is_some() {
                        self.progress.ready(WANTED);
                    }
                    pause
                }
                failed => {
                    let error = match failed {
                        Ok(Err(error)) => chain(&error),
                        _ => format!("there was no end to it within {} s", ROUND.as_secs()),
                    };
                    if error != told {
                        warn!(
                            error,
                            "the webhooks' certificates are not kept; those before stay"
                        );
                        told = error;
                    }
                    RETRY_INTERVAL
                }
            };
            self.progress.beat(LOOP, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // What fails is not tried faster because something happens.
                () = wake.notified(), if told.is_empty() => {}
            }
        }
    }

    /// One look, and after how long the next one is due.
    async fn check(&self, served: &mut Option<CertBundle>) -> Result<Duration, KeepError> {
        let now = now();
        let secret = self.state_secret();
        let (version, state) = secret
            .load()
            .await?
            .map_or((None, None), |kept| (Some(kept.version), kept.state));
        if let Some(state) = &state {
            self.serve(&state.current, served)?;
        }
        let hooks = self.hooks().await?;
        let trusted = match &state {
            Some(state) => self.tell(&hooks, &state.bundle()).await?,
            None => false,
        };
        let asked = asked_names(hooks.clients());
        let facts = RotationFacts {
            now,
            names: &self.keeping.names.union(&asked).cloned().collect(),
            asked: &asked,
            served: served.as_ref(),
            trusted,
            rotation: &self.rotation,
        };
        let make = |names: &_| CertBundle::make(names, now, self.rotation.validity);
        match (next_state(state.as_ref(), &facts, make)?, &state) {
            (Some(next), _) => {
                if secret.store(&next, version.as_deref(), &BTreeMap::new()).await? {
                    info!(secret = self.keeping.secret, "wrote the webhooks' certificates");
                }
                // By way of the Secret, also for what this operator wrote itself.
                Ok(Duration::from_millis(1))
            }
            (None, Some(state)) => Ok(state.pause(now, &self.rotation)),
            (None, None) => Ok(RETRY_INTERVAL),
        }
    }

    /// Serves with `current`, if it does not yet.
    fn serve(&self, current: &CertBundle, served: &mut Option<CertBundle>) -> Result<(), KeepError> {
        if served.as_ref() == Some(current) {
            return Ok(());
        }
        let pem = TlsPem::new(&current.certificate, &current.key);
        let tls = self.tls.borrow().clone();
        match tls {
            Some(tls) => tls.replace(&pem)?,
            None => drop(self.tls.send_replace(Some(Tls::of_pem(&pem)?))),
        }
        self.metrics.certificate_ends(current.not_after);
        info!(
            not_after = current.not_after,
            "the webhooks have a new certificate"
        );
        *served = Some(current.clone());
        Ok(())
    }

    /// The webhooks of both configurations; none of one that does not exist.
    async fn hooks(&self) -> Result<Hooks, KeepError> {
        let mutating = self.mutating().get_opt(&self.keeping.mutating).await;
        let mutating = mutating.map_err(call("read the MutatingWebhookConfiguration"))?;
        let mutating = mutating.and_then(|all| all.webhooks).unwrap_or_default();
        let validating = self.validating().get_opt(&self.keeping.validating).await;
        let validating = validating.map_err(call("read the ValidatingWebhookConfiguration"))?;
        let validating = validating.and_then(|all| all.webhooks).unwrap_or_default();
        Ok(Hooks {
            mutating: mutating
                .into_iter()
                .map(|hook| (hook.name, hook.client_config))
                .collect(),
            validating: validating
                .into_iter()
                .map(|hook| (hook.name, hook.client_config))
                .collect(),
        })
    }

    /// Puts `bundle` into both configurations, and answers whether it was there already. One that does not exist is told when
    /// it comes.
    async fn tell(&self, hooks: &Hooks, bundle: &str) -> Result<bool, KeepError> {
        let params = PatchParams::default();
        let mut told = true;
        if let Some(patch) = bundles(&hooks.mutating, bundle) {
            told = false;
            let patched = self
                .mutating()
                .patch(&self.keeping.mutating, &params, &patch)
                .await;
            patched.map_err(call("write the MutatingWebhookConfiguration"))?;
        }
        if let Some(patch) = bundles(&hooks.validating, bundle) {
            told = false;
            let patched = self
                .validating()
                .patch(&self.keeping.validating, &params, &patch)
                .await;
            patched.map_err(call("write the ValidatingWebhookConfiguration"))?;
        }
        if !told {
            info!("told the API server of the webhooks' authorities");
        }
        Ok(told)
    }

    fn state_secret(&self) -> StateSecret<'_> {
        StateSecret {
            api: self.secrets(),
            name: &self.keeping.secret,
            component: "admission-webhook",
        }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }
}

/// A webhook's name, and how it is asked.
type Hook = (String, WebhookClientConfig);

/// The webhooks of both configurations.
struct Hooks {
    mutating: Vec<Hook>,
    validating: Vec<Hook>,
}

impl Hooks {
    fn clients(&self) -> impl Iterator<Item = &WebhookClientConfig> {
        self.mutating
            .iter()
            .chain(&self.validating)
            .map(|(_, client)| client)
    }
}

/// What puts `bundle` into those of `hooks` that have another one and changes nothing else, if there are any: the API server merges
/// them by name.
fn bundles(hooks: &[Hook], bundle: &str) -> Option<Patch<serde_json::Value>> {
    let differs = |found: Option<&ByteString>| found.is_none_or(|found| found.0 != bundle.as_bytes());
    let right = ByteString(bundle.as_bytes().to_vec());
    let stale: Vec<_> = hooks
        .iter()
        .filter(|(_, client)| differs(client.ca_bundle.as_ref()))
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": right}}))
        .collect();
    (!stale.is_empty()).then(|| Patch::Strategic(json!({"webhooks": stale})))
}
