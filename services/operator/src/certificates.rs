//! Certificates that the operator manages, in the way of other controllers: a Secret with an authority, which
//! stays for ten years, and with a server certificate that it signs, which is renewed. All operators share
//! the Secret. As the authority stays, every server certificate in use is trusted.

mod issue;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::ErrorChain;
use ipu_serve::{Tls, TlsPem};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use self::issue::{KeyedCertificate, StoredCertificates, renewed};
use crate::health::HealthRegistry;
use crate::metrics::Metrics;
use crate::object_watch::wake_on_changes;
use crate::settings::{ManagedCertificates, is_name_or_address};

/// Timeout of one check of a certificate.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after a failed check.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of names from the webhook configurations: they usually have one or two, and the certificate
/// is sent in every handshake.
const MAX_WEBHOOK_NAMES: usize = 64;
/// Key of the Secret, and of the ConfigMap of its name, with the authority.
const CA_KEY: &str = "ca.crt";
const FIELD_MANAGER: &str = "ipu-operator";

/// Renewal schedule of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotation {
    /// Validity of a server certificate; default 90 days.
    pub validity: Duration,
    /// Time before the expiry at which a new certificate is created; default 30 days.
    pub renew_before: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            validity: Duration::from_secs(90 * DAY),
            renew_before: Duration::from_secs(30 * DAY),
        }
    }
}

/// Error of a check; the next one may succeed.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error("cannot create a certificate")]
    Create(#[from] rcgen::Error),
    #[error("cannot serve the certificate")]
    Serve(#[from] ipu_serve::TlsError),
    #[error("cannot write {path}")]
    Write { path: String, source: std::io::Error },
    #[error("cannot {action}")]
    Call {
        action: &'static str,
        source: Box<kube::Error>,
    },
}

fn call(action: &'static str) -> impl Fn(kube::Error) -> CertificateError {
    move |source| CertificateError::Call {
        action,
        source: Box::new(source),
    }
}

/// The user of a certificate: the servers of this operator, or the proxy.
pub(crate) enum CertificateUser {
    /// The webhooks and the metrics of this operator.
    Webhooks {
        managed: ManagedCertificates,
        metrics: Metrics,
        /// TLS of the servers; none before the first check.
        tls: watch::Sender<Option<Tls>>,
    },
    /// The proxy, which mounts the Secret. This operator is its client.
    Proxy {
        /// File of the authority for the client.
        ca_file: PathBuf,
        /// Set to true once the file is written.
        trusts: watch::Sender<bool>,
    },
}

/// A certificate in a Secret, until it is dropped.
pub(crate) struct ManagedCertificate {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) secret: String,
    /// DNS names and addresses that it always covers.
    pub(crate) names: BTreeSet<String>,
    pub(crate) rotation: Rotation,
    pub(crate) health: HealthRegistry,
    pub(crate) user: CertificateUser,
}

impl ManagedCertificate {
    /// Keeps the certificate valid and in use. Never ends.
    pub(crate) async fn run(self) {
        let what = match &self.user {
            CertificateUser::Webhooks { .. } => "the webhooks' certificate",
            CertificateUser::Proxy { .. } => "the proxy's certificate",
        };
        self.health.require(what);
        let wake = Arc::new(Notify::new());
        let _watches = self.watches(&wake);
        let (mut in_use, mut reported) = (None, String::new());
        loop {
            let outcome = tokio::time::timeout(CHECK_TIMEOUT, self.check(&mut in_use)).await;
            let failure = match &outcome {
                Ok(Ok(_)) => String::new(),
                Ok(Err(error)) => ErrorChain(error).to_string(),
                Err(_) => format!("it timed out after {} s", CHECK_TIMEOUT.as_secs()),
            };
            if !failure.is_empty() && failure != reported {
                warn!(
                    error = failure,
                    "cannot renew {what}; the previous one remains in use"
                );
            }
            reported = failure;
            let pause = match outcome {
                Ok(Ok(pause)) => pause,
                _ => RETRY_INTERVAL,
            };
            if in_use.is_some() {
                self.health.mark_ready(what);
            }
            self.health.heartbeat(what, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // After a failure, events do not shorten the retry interval.
                () = wake.notified(), if reported.is_empty() => {}
            }
        }
    }

    /// Notifies `wake` of changes by other clients, until the result is dropped.
    fn watches(&self, wake: &Arc<Notify>) -> JoinSet<()> {
        let mut watches = JoinSet::new();
        let secret = self.secret.clone();
        watches.spawn(wake_on_changes(
            self.own::<Secret>(),
            secret.clone(),
            Arc::clone(wake),
        ));
        if let CertificateUser::Webhooks { managed, .. } = &self.user {
            watches.spawn(wake_on_changes(self.own::<ConfigMap>(), secret, Arc::clone(wake)));
            let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
            watches.spawn(wake_on_changes(
                mutating,
                managed.mutating.clone(),
                Arc::clone(wake),
            ));
            let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
            watches.spawn(wake_on_changes(
                validating,
                managed.validating.clone(),
                Arc::clone(wake),
            ));
        }
        watches
    }

    /// Checks the certificate once, and returns the delay until the next check. `in_use` is the server
    /// certificate and authority in use.
    async fn check(&self, in_use: &mut Option<StoredCertificates>) -> Result<Duration, CertificateError> {
        let now = now();
        let mut names = self.names.clone();
        let mut configurations = None;
        if let CertificateUser::Webhooks { managed, .. } = &self.user {
            let mutating: Webhooks = self
                .webhooks::<MutatingWebhookConfiguration>(&managed.mutating)
                .await?;
            let validating = self
                .webhooks::<ValidatingWebhookConfiguration>(&managed.validating)
                .await?;
            names.extend(webhook_names(mutating.values().chain(validating.values())));
            configurations = Some((mutating, validating));
        }
        let secret = self.own::<Secret>().get_opt(&self.secret).await;
        let secret = secret.map_err(call("read the Secret"))?;
        let stored = secret
            .as_ref()
            .map(|secret| StoredCertificates::read(secret.data.as_ref()));
        if let Some(new) = renewed(stored.as_ref(), &names, now, &self.rotation)? {
            self.store(&new, secret.and_then(|secret| secret.metadata.resource_version))
                .await?;
            // The next check reads the Secret, whichever operator wrote it.
            return Ok(Duration::from_millis(1));
        }
        let Some((stored, authority, server)) = stored.and_then(|stored| {
            let (authority, server) = (stored.authority.clone()?, stored.server.clone()?);
            Some((stored, authority, server))
        }) else {
            return Ok(RETRY_INTERVAL);
        };
        match &self.user {
            CertificateUser::Webhooks { managed, .. } => {
                if in_use.as_ref() != Some(&stored) {
                    self.serve(&server)?;
                    *in_use = Some(stored);
                }
                if let Some((mutating, validating)) = configurations {
                    let ca = &authority.certificate;
                    self.trust::<MutatingWebhookConfiguration>(&managed.mutating, &mutating, ca)
                        .await?;
                    self.trust::<ValidatingWebhookConfiguration>(&managed.validating, &validating, ca)
                        .await?;
                }
                self.publish(&authority.certificate).await?;
            }
            CertificateUser::Proxy { ca_file, trusts } => {
                if in_use.as_ref() != Some(&stored) {
                    write(ca_file, authority.certificate.clone()).await?;
                    trusts.send_replace(true);
                }
                *in_use = Some(stored);
            }
        }
        let renewal = server
            .not_after()
            .saturating_sub(self.rotation.renew_before.as_secs());
        Ok(Duration::from_secs(renewal.saturating_sub(now)).clamp(Duration::from_secs(1), CHECK_INTERVAL))
    }

    /// Writes the Secret, unless another operator has written since `version`: then the next check reads
    /// that.
    async fn store(&self, new: &StoredCertificates, version: Option<String>) -> Result<(), CertificateError> {
        let component = match &self.user {
            CertificateUser::Webhooks { .. } => "admission-webhook",
            CertificateUser::Proxy { .. } => "vipu-proxy",
        };
        let api = self.own::<Secret>();
        let data = new.data();
        let written = match version {
            Some(version) => {
                let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
                let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
                api.patch(&self.secret, &params, &patch).await
            }
            None => {
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: Some(self.secret.clone()),
                        labels: Some(labels(component)),
                        ..ObjectMeta::default()
                    },
                    data: Some(data),
                    ..Secret::default()
                };
                api.create(&PostParams::default(), &secret).await
            }
        };
        match written {
            Ok(_) => {
                info!(secret = self.secret, "wrote a certificate");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(call("write the Secret")(error)),
        }
    }

    /// Serves webhooks and metrics with `server`.
    fn serve(&self, server: &KeyedCertificate) -> Result<(), CertificateError> {
        let CertificateUser::Webhooks { metrics, tls, .. } = &self.user else {
            return Ok(());
        };
        let pem = TlsPem::new(&server.certificate, &server.key);
        let current = tls.borrow().clone();
        match current {
            Some(current) => current.replace(&pem)?,
            None => drop(tls.send_replace(Some(Tls::from_pem(&pem)?))),
        }
        metrics.set_certificate_expiry(server.not_after());
        info!(
            not_after = server.not_after(),
            "serving a new webhook certificate"
        );
        Ok(())
    }

    /// Writes the authority to the ConfigMap, which clients of the metrics may read: the Secret also has the
    /// keys.
    async fn publish(&self, ca: &str) -> Result<(), CertificateError> {
        let api = self.own::<ConfigMap>();
        let found = api
            .get_opt(&self.secret)
            .await
            .map_err(call("read the ConfigMap"))?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        if data.get(CA_KEY).is_some_and(|stored| stored == ca) {
            return Ok(());
        }
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.secret, "labels": labels("admission-webhook")},
            "data": {CA_KEY: ca},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = api.patch(&self.secret, &params, &Patch::Apply(config_map)).await;
        written.map_err(call("write the ConfigMap")).map(drop)
    }

    /// Reads the webhooks of a configuration; a missing one has none.
    async fn webhooks<K: Configuration>(&self, name: &str) -> Result<Webhooks, CertificateError> {
        let api: Api<K> = Api::all(self.client.clone());
        let found = api.get_opt(name).await;
        let found = found.map_err(call("read the configuration of the webhooks"))?;
        Ok(found.map(K::webhooks).unwrap_or_default())
    }

    /// Writes the authority into the webhooks of a configuration that have another one. A missing
    /// configuration is written once it is created.
    async fn trust<K: Configuration>(
        &self,
        name: &str,
        webhooks: &Webhooks,
        ca: &str,
    ) -> Result<(), CertificateError> {
        let ca = ByteString(ca.as_bytes().to_vec());
        let stale: Vec<Value> = webhooks
            .iter()
            .filter(|(_, client)| client.ca_bundle.as_ref() != Some(&ca))
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": ca}}))
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let api: Api<K> = Api::all(self.client.clone());
        // The API server merges webhooks by name.
        let patch = Patch::Strategic(json!({"webhooks": stale}));
        let patched = api.patch(name, &PatchParams::default(), &patch).await;
        patched.map_err(call("write the configuration of the webhooks"))?;
        info!(name, "wrote the authority into the configuration of the webhooks");
        Ok(())
    }

    fn own<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Client configurations of webhooks, by the name of the webhook.
type Webhooks = BTreeMap<String, WebhookClientConfig>;

/// A configuration of webhooks.
trait Configuration:
    Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope> + Clone + DeserializeOwned + Debug
{
    fn webhooks(self) -> Webhooks;
}

impl Configuration for MutatingWebhookConfiguration {
    fn webhooks(self) -> Webhooks {
        let webhooks = self.webhooks.into_iter().flatten();
        webhooks
            .map(|webhook| (webhook.name, webhook.client_config))
            .collect()
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn webhooks(self) -> Webhooks {
        let webhooks = self.webhooks.into_iter().flatten();
        webhooks
            .map(|webhook| (webhook.name, webhook.client_config))
            .collect()
    }
}

/// Returns the names under which the API server calls. Those that are invalid in a certificate are omitted:
/// no client can use them.
fn webhook_names<'a>(clients: impl Iterator<Item = &'a WebhookClientConfig>) -> BTreeSet<String> {
    let names: BTreeSet<String> = clients
        .filter_map(webhook_name)
        .filter(|name| is_name_or_address(name))
        .collect();
    names.into_iter().take(MAX_WEBHOOK_NAMES).collect()
}

fn webhook_name(client: &WebhookClientConfig) -> Option<String> {
    if let Some(service) = &client.service {
        return Some(format!("{}.{}.svc", service.name, service.namespace));
    }
    let url: http::Uri = client.url.as_deref()?.parse().ok()?;
    let host = url.host()?.to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Some(address.map_or(host.clone(), str::to_owned))
}

/// Labels of the objects that the operator creates.
fn labels(component: &str) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/component", component),
        ("app.kubernetes.io/part-of", "ipu-operator"),
    ];
    labels
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    ipu_proxy_client::now().as_millis() / 1000
}

/// Replaces a file atomically.
async fn write(path: &Path, text: String) -> Result<(), CertificateError> {
    let target = path.to_owned();
    let replace = move || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(target.parent().unwrap_or(Path::new(".")))?;
        file.write_all(text.as_bytes())?;
        file.persist(&target)?;
        Ok(())
    };
    let written = tokio::task::spawn_blocking(replace).await;
    let written = written.map_err(std::io::Error::other).flatten();
    written.map_err(|source| CertificateError::Write {
        path: path.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::ServiceReference;

    use super::*;

    fn service_client(name: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            service: Some(ServiceReference {
                name: name.into(),
                namespace: "graphcore".into(),
                ..ServiceReference::default()
            }),
            ..WebhookClientConfig::default()
        }
    }

    fn url_client(url: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            url: Some(url.into()),
            ..WebhookClientConfig::default()
        }
    }

    #[test]
    fn webhook_names_are_the_service_name_with_namespace_or_the_url_host() {
        let clients = [
            service_client("hooks"),
            url_client("https://Hooks.example.com:8443/validate"),
            url_client("https://10.0.0.1/validate"),
            url_client("https://[fd00::1]:9443/validate"),
        ];
        let names = webhook_names(clients.iter());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            ["10.0.0.1", "fd00::1", "hooks.example.com", "hooks.graphcore.svc"]
        );
    }

    #[test]
    fn invalid_webhook_names_are_omitted_and_the_number_is_limited() {
        let invalid = [
            service_client("two words"),
            service_client(&"x".repeat(64)),
            service_client(""),
            url_client("/nowhere"),
            url_client("https://ä.example.com/"),
            WebhookClientConfig::default(),
        ];
        assert_eq!(webhook_names(invalid.iter()), BTreeSet::new());
        let many: Vec<_> = (0..1000)
            .map(|number| service_client(&format!("s{number}")))
            .collect();
        assert_eq!(webhook_names(many.iter()).len(), MAX_WEBHOOK_NAMES);
    }
}
