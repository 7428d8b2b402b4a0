//! Rotation loop of the webhooks' certificates: reads the Secret and both webhook configurations, takes the
//! next step and serves the current certificate. Every operator runs it; writes use optimistic concurrency.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_serve::{Tls, TlsPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::dns_names::webhook_names;
use super::issue::CertBundle;
use super::rotation::{Rotation, RotationFacts, next_state};
use super::secret::{CHECK_TIMEOUT, RETRY_INTERVAL, RotationError, StateSecret, call, labels, now};
use crate::error::chain;
use crate::health::HealthRegistry;
use crate::metrics::Metrics;
use crate::object_watch::wake_on_changes;
use crate::settings::ManagedCertificates;

/// Readiness condition.
const READINESS_CONDITION: &str = "the webhooks' certificate";
const LOOP_NAME: &str = "certificates";
/// Key of the Secret and of the ConfigMap of its name with the CA certificates, for clients of the metrics.
const CA_KEY: &str = "ca.crt";
const FIELD_MANAGER: &str = "ipu-operator";

pub(crate) struct CertRotator {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) managed: ManagedCertificates,
    pub(crate) rotation: Rotation,
    pub(crate) health: HealthRegistry,
    pub(crate) metrics: Metrics,
    /// TLS configuration of the servers; `None` before the first check.
    pub(crate) tls: watch::Sender<Option<Tls>>,
}

impl CertRotator {
    /// Runs the rotation loop. Never ends.
    pub(crate) async fn run(self) {
        self.health.require(READINESS_CONDITION);
        let wake = Arc::new(Notify::new());
        let mut watches = JoinSet::new();
        watches.spawn(wake_on_changes(
            self.secrets(),
            self.managed.secret.clone(),
            Arc::clone(&wake),
        ));
        watches.spawn(wake_on_changes(
            self.mutating(),
            self.managed.mutating.clone(),
            Arc::clone(&wake),
        ));
        watches.spawn(wake_on_changes(
            self.validating(),
            self.managed.validating.clone(),
            Arc::clone(&wake),
        ));
        watches.spawn(wake_on_changes(
            self.config_maps(),
            self.managed.secret.clone(),
            Arc::clone(&wake),
        ));
        let mut last_error = String::new();
        let (mut served, mut unpublished) = (None, String::new());
        loop {
            let check = self.check(&mut served, &mut unpublished);
            let outcome = tokio::time::timeout(CHECK_TIMEOUT, check).await;
            let pause = match outcome {
                Ok(Ok(pause)) => {
                    last_error.clear();
                    if served.is_some() {
                        self.health.mark_ready(READINESS_CONDITION);
                    }
                    pause
                }
                failed => {
                    let error = match failed {
                        Ok(Err(error)) => chain(&error),
                        _ => format!("it timed out after {} s", CHECK_TIMEOUT.as_secs()),
                    };
                    if error != last_error {
                        warn!(
                            error,
                            "cannot rotate the webhooks' certificates; the previous ones remain in use"
                        );
                        last_error = error;
                    }
                    RETRY_INTERVAL
                }
            };
            self.health.heartbeat(LOOP_NAME, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // After a failure, events do not shorten the retry interval.
                () = wake.notified(), if last_error.is_empty() => {}
            }
        }
    }

    /// Checks the certificates once, and returns the delay until the next check. `unpublished` is the last
    /// error of the publication.
    async fn check(
        &self,
        served: &mut Option<CertBundle>,
        unpublished: &mut String,
    ) -> Result<Duration, RotationError> {
        let now = now();
        let secret = self.state_secret();
        let (version, state, mut files) = secret
            .load()
            .await?
            .map_or((None, None, BTreeMap::new()), |stored| {
                (Some(stored.version), stored.state, stored.files)
            });
        if let Some(state) = &state {
            self.serve(&state.current, served)?;
            // Roles of an older installation have no right to write it: webhooks do not depend on it.
            let error = self.publish(&state.bundle()).await.err();
            let error = error.map(|error| chain(&error)).unwrap_or_default();
            if !error.is_empty() && error != *unpublished {
                warn!(error, "cannot publish the CA certificates of the metrics");
            }
            *unpublished = error;
        }
        let webhooks = self.webhooks().await?;
        let trusted = match &state {
            Some(state) => self.update_bundles(&webhooks, &state.bundle()).await?,
            None => false,
        };
        let called_names = webhook_names(webhooks.clients());
        let facts = RotationFacts {
            now,
            names: &self.managed.names.union(&called_names).cloned().collect(),
            called_names: &called_names,
            served: served.as_ref(),
            trusted,
            rotation: &self.rotation,
        };
        let create = |names: &_| CertBundle::create(names, now, self.rotation.validity);
        let next = next_state(state.as_ref(), &facts, create)?;
        let is_changed = next.is_some();
        let Some(wanted) = next.or(state) else {
            return Ok(RETRY_INTERVAL);
        };
        let bundle = wanted.bundle();
        if !is_changed
            && files
                .remove(CA_KEY)
                .is_some_and(|stored| stored == bundle.as_bytes())
        {
            return Ok(wanted.pause(now, &self.rotation));
        }
        let files = BTreeMap::from([(CA_KEY, bundle.as_str())]);
        if secret.store(&wanted, version.as_deref(), &files).await? {
            info!(secret = self.managed.secret, "wrote the webhooks' certificates");
        }
        // The next check reads the Secret, also after a write of this operator.
        Ok(Duration::from_millis(1))
    }

    /// Writes the CA certificates to the ConfigMap, which clients of the metrics may read: the Secret also
    /// has the keys.
    async fn publish(&self, bundle: &str) -> Result<(), RotationError> {
        let (api, name) = (self.config_maps(), &self.managed.secret);
        let found = api.get_opt(name).await.map_err(call("read the ConfigMap"))?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        if data.get(CA_KEY).is_some_and(|stored| stored == bundle) {
            return Ok(());
        }
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels("admission-webhook")},
            "data": {CA_KEY: bundle},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch(name, &params, &Patch::Apply(config_map)).await;
        written.map_err(call("write the ConfigMap"))?;
        info!(config_map = name, "published the CA certificates of the metrics");
        Ok(())
    }

    /// Serves with `current`, unless it is served already.
    fn serve(&self, current: &CertBundle, served: &mut Option<CertBundle>) -> Result<(), RotationError> {
        if served.as_ref() == Some(current) {
            return Ok(());
        }
        let pem = TlsPem::new(&current.certificate, &current.key);
        let tls = self.tls.borrow().clone();
        match tls {
            Some(tls) => tls.replace(&pem)?,
            None => drop(self.tls.send_replace(Some(Tls::from_pem(&pem)?))),
        }
        self.metrics.set_certificate_expiry(current.not_after);
        info!(not_after = current.not_after, "serving a new webhook certificate");
        *served = Some(current.clone());
        Ok(())
    }

    /// Reads the webhooks of both configurations; a missing configuration has none.
    async fn webhooks(&self) -> Result<Webhooks, RotationError> {
        let mutating = self.mutating().get_opt(&self.managed.mutating).await;
        let mutating = mutating.map_err(call("read the MutatingWebhookConfiguration"))?;
        let mutating = mutating.and_then(|all| all.webhooks).unwrap_or_default();
        let validating = self.validating().get_opt(&self.managed.validating).await;
        let validating = validating.map_err(call("read the ValidatingWebhookConfiguration"))?;
        let validating = validating.and_then(|all| all.webhooks).unwrap_or_default();
        Ok(Webhooks {
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

    /// Writes `bundle` into both configurations, and returns whether it was present already. A missing
    /// configuration is updated once it is created.
    async fn update_bundles(&self, webhooks: &Webhooks, bundle: &str) -> Result<bool, RotationError> {
        let params = PatchParams::default();
        let mut is_current = true;
        if let Some(patch) = bundle_patch(&webhooks.mutating, bundle) {
            is_current = false;
            let patched = self
                .mutating()
                .patch(&self.managed.mutating, &params, &patch)
                .await;
            patched.map_err(call("write the MutatingWebhookConfiguration"))?;
        }
        if let Some(patch) = bundle_patch(&webhooks.validating, bundle) {
            is_current = false;
            let patched = self
                .validating()
                .patch(&self.managed.validating, &params, &patch)
                .await;
            patched.map_err(call("write the ValidatingWebhookConfiguration"))?;
        }
        if !is_current {
            info!("updated the CA bundle in the webhook configurations");
        }
        Ok(is_current)
    }

    fn state_secret(&self) -> StateSecret<'_> {
        StateSecret {
            api: self.secrets(),
            name: &self.managed.secret,
            component: "admission-webhook",
        }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn mutating(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    fn validating(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }
}

/// Name and client configuration of a webhook.
type Webhook = (String, WebhookClientConfig);

/// Webhooks of both configurations.
struct Webhooks {
    mutating: Vec<Webhook>,
    validating: Vec<Webhook>,
}

impl Webhooks {
    fn clients(&self) -> impl Iterator<Item = &WebhookClientConfig> {
        self.mutating
            .iter()
            .chain(&self.validating)
            .map(|(_, client)| client)
    }
}

/// Returns a patch that sets `bundle` in the webhooks with another one, if there are any. It changes
/// nothing else: the API server merges webhooks by name.
fn bundle_patch(webhooks: &[Webhook], bundle: &str) -> Option<Patch<serde_json::Value>> {
    let is_stale = |found: Option<&ByteString>| found.is_none_or(|found| found.0 != bundle.as_bytes());
    let expected = ByteString(bundle.as_bytes().to_vec());
    let stale: Vec<_> = webhooks
        .iter()
        .filter(|(_, client)| is_stale(client.ca_bundle.as_ref()))
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": expected}}))
        .collect();
    (!stale.is_empty()).then(|| Patch::Strategic(json!({"webhooks": stale})))
}
