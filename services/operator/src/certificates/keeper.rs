//! The loop that keeps the certificates: looks at the Secret and at the two configurations, makes the next move, serves what is
//! current. Every operator runs it; what they write is compared and swapped.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_serve::{Tls, TlsPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::made::Generation;
use super::names::asked_names;
use super::state::{Facts, Rotation, State, StateError, step};
use crate::error::chain;
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::settings::Keeping;
use crate::watching::wake_on_changes;

/// Where in the Secret the state is.
const KEY: &str = "certificates.json";
/// What the operator is not ready without.
const WANTED: &str = "the webhooks' certificate";
/// How long one look at everything may take.
const ROUND: Duration = Duration::from_secs(30);
/// The pause after a look that failed, or that somebody else was faster in.
const AGAIN: Duration = Duration::from_millis(500);
const LOOP: &str = "certificates";

/// Why a look came to nothing; the next one may do better.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{0}")]
    State(#[from] StateError),
    #[error("make certificates")]
    Make(#[from] rcgen::Error),
    #[error("serve with the certificate")]
    Serve(#[from] ipu_serve::TlsError),
    #[error("{what}")]
    Call {
        what: &'static str,
        source: Box<kube::Error>,
    },
}

fn call(what: &'static str) -> impl Fn(kube::Error) -> KeepError {
    move |source| KeepError::Call {
        what,
        source: Box::new(source),
    }
}

pub(crate) struct Keeper {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) keeping: Keeping,
    pub(crate) rotation: Rotation,
    pub(crate) progress: Progress,
    pub(crate) metrics: Metrics,
    /// What is served with; none before the first look.
    pub(crate) tls: watch::Sender<Option<Tls>>,
}

impl Keeper {
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
            let look = tokio::time::timeout(ROUND, self.look(&mut served)).await;
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
                    AGAIN
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
    async fn look(&self, served: &mut Option<Generation>) -> Result<Duration, KeepError> {
        let now = now();
        let (version, state) = self.load().await?;
        if let Some(state) = &state {
            self.serve(&state.current, served)?;
        }
        let hooks = self.hooks().await?;
        let trusted = match &state {
            Some(state) => self.tell(&hooks, &state.bundle()).await?,
            None => false,
        };
        let asked = asked_names(hooks.clients());
        let facts = Facts {
            now,
            names: &self.keeping.names.union(&asked).cloned().collect(),
            asked: &asked,
            served: served.as_ref(),
            trusted,
            rotation: &self.rotation,
        };
        let make = |names: &_| Generation::make(names, now, self.rotation.validity);
        match (step(state.as_ref(), &facts, make)?, &state) {
            (Some(next), _) => {
                self.store(&next, version.as_deref()).await?;
                // By way of the Secret, also for what this operator wrote itself.
                Ok(Duration::from_millis(1))
            }
            (None, Some(state)) => Ok(state.pause(now, &self.rotation)),
            (None, None) => Ok(AGAIN),
        }
    }

    /// The Secret's version, if it is there, and the state, if that is in it.
    async fn load(&self) -> Result<(Option<String>, Option<State>), KeepError> {
        let secret = self.secrets().get_opt(&self.keeping.secret).await;
        let Some(secret) = secret.map_err(call("read the Secret"))? else {
            return Ok((None, None));
        };
        let state = secret.data.as_ref().and_then(|data| data.get(KEY));
        let state = state.map(|bytes| State::read(&bytes.0)).transpose()?;
        Ok((secret.metadata.resource_version, state))
    }

    /// Writes the state, unless somebody else has written: then the next look sees that.
    async fn store(&self, state: &State, version: Option<&str>) -> Result<(), KeepError> {
        let bytes = serde_json::to_vec(state).map_err(StateError::Broken)?;
        let data = json!({KEY: ByteString(bytes)});
        let name = &self.keeping.secret;
        let written = match version {
            Some(version) => {
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                let params = PatchParams::default();
                self.secrets().patch(name, &params, &Patch::Merge(patch)).await
            }
            None => {
                let secret = serde_json::from_value(json!({
                    "metadata": {
                        "name": name,
                        "labels": {"app.kubernetes.io/component": "admission-webhook", "app.kubernetes.io/part-of": "ipu-operator"},
                    },
                    "type": "Opaque",
                    "data": data,
                }));
                let secret: Secret = secret.map_err(StateError::Broken)?;
                self.secrets().create(&PostParams::default(), &secret).await
            }
        };
        match written {
            Ok(_) => {
                info!(secret = name, "wrote the webhooks' certificates");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(call("write the Secret")(error)),
        }
    }

    /// Serves with `current`, if it does not yet.
    fn serve(&self, current: &Generation, served: &mut Option<Generation>) -> Result<(), KeepError> {
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

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
