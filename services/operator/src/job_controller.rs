//! Where the work on jobs begins: the loop of `ipu-k8s`, with what this process was told of proxy and images.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use ipu_core::Timestamp;
use ipu_k8s::controller::{Cache, KubeApi, Observer, PortError, Reconciler, RunOptions, run};
use ipu_k8s::resources::{InstallationDefaults, Network};
use ipu_proxy_client::{ClientOptions, ProxyClient, TlsFiles, Token};
use tracing::info;

use crate::error::{OperatorError, chain};
use crate::health::{HealthRegistry, WorkGuard};
use crate::metrics::Metrics;
use crate::settings::Config;

/// What `/readyz` waits for, of every place where jobs are worked on.
const KNOWN: &str = "IPUJobs and their Kubernetes Pods";

/// Works on jobs as long as this operator is the leader: the future is dropped when it no longer is, or is to stop, and called
/// again when it is once more.
///
/// # Errors
///
/// [`OperatorError`] ends the operator; what may pass is tried again within.
pub async fn run_controller(
    kube: kube::Config,
    config: Arc<Config>,
    metrics: Metrics,
    progress: HealthRegistry,
) -> Result<(), OperatorError> {
    let failed = |error: &dyn std::error::Error| OperatorError::Controller { detail: chain(error) };
    let proxy = client_of_proxy(&config)?;
    let instance = std::env::var("POD_NAME").unwrap_or_else(|_| "ipu-operator".to_owned());
    let namespaces: Vec<Option<String>> = if config.watch_namespaces.is_empty() {
        vec![None]
    } else {
        config.watch_namespaces.iter().cloned().map(Some).collect()
    };
    info!(proxy = %config.proxy_url, "works on IPUJobs");
    let place = |namespace: &Option<String>| {
        let place = namespace.as_deref().map(|name| format!(" in {name}"));
        place.unwrap_or_default()
    };
    let _leads = LeaderGuard::begin(metrics.clone(), progress.clone(), namespaces.iter().map(place));
    let mut loops = Vec::new();
    for namespace in namespaces {
        let api = KubeApi::new(kube.clone(), &instance).map_err(|error| failed(&error))?;
        let client = api.client();
        let cache = Arc::new(Cache::new());
        let operator = Reconciler::new(
            Arc::new(api),
            Arc::new(proxy.clone()),
            Arc::clone(&cache),
            installation(&config),
            Arc::new(now),
        );
        let mut options = RunOptions::default();
        options.observer = Arc::new(MetricsObserver::new(&metrics, &progress, place(&namespace)));
        options.namespace = namespace;
        // It is stopped by being dropped.
        let never = std::future::pending();
        loops.push(run(client, operator, cache, proxy.clone(), options, never));
    }
    join_all(loops).await;
    Ok(())
}

/// Whoever leads no longer hears of no job, counts none, and waits for none.
struct LeaderGuard {
    metrics: Metrics,
    progress: HealthRegistry,
    /// What it waits for.
    known: Vec<String>,
}

impl LeaderGuard {
    /// Jobs of these places are worked on.
    fn begin(metrics: Metrics, progress: HealthRegistry, places: impl Iterator<Item = String>) -> Self {
        let known: Vec<String> = places.map(|place| known(&place)).collect();
        known.iter().for_each(|known| progress.await_ready(known));
        Self {
            metrics,
            progress,
            known,
        }
    }
}

/// What is waited for in a place.
fn known(place: &str) -> String {
    format!("{KNOWN}{place}")
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.metrics.jobs().forget();
        self.known.iter().for_each(|known| self.progress.ready(known));
        self.progress.clear_watches();
    }
}

/// A client of the proxy that the settings name.
pub(crate) fn client_of_proxy(config: &Config) -> Result<ProxyClient, OperatorError> {
    let mut options = ClientOptions::default();
    options.token = config.proxy_token_file.clone().map(Token::File);
    options.tls = config.proxy_ca_file.clone().map(TlsFiles::new);
    ProxyClient::new(&config.proxy_url, options).map_err(|error| OperatorError::Proxy {
        detail: chain(&error),
    })
}

fn installation(config: &Config) -> InstallationDefaults {
    let mut installation = InstallationDefaults::default();
    installation.network = if config.host_network {
        Network::Host
    } else {
        Network::Pod
    };
    if let Some(image) = &config.launcher_image {
        installation.launcher_image.clone_from(image);
    }
    installation.max_requested = config.max_requested_instances;
    config
        .launcher_image_pull_policy
        .as_str()
        .clone_into(&mut installation.launcher_image_pull_policy);
    installation
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Tells probes and metrics what the loop does.
struct MetricsObserver {
    metrics: Metrics,
    progress: HealthRegistry,
    /// What is under way, and since when.
    working: std::sync::Mutex<HashMap<String, (WorkGuard, Instant)>>,
    /// How many jobs wait in this loop.
    waiting: AtomicUsize,
    /// Where it watches, in words, if that is not everywhere.
    place: String,
}

impl MetricsObserver {
    fn new(metrics: &Metrics, progress: &HealthRegistry, place: String) -> Self {
        Self {
            metrics: metrics.clone(),
            progress: progress.clone(),
            working: std::sync::Mutex::default(),
            waiting: AtomicUsize::default(),
            place,
        }
    }

    /// What probes call a watch.
    fn watch(&self, objects: &str) -> String {
        format!("the watch of {objects}{}", self.place)
    }

    fn working(&self) -> std::sync::MutexGuard<'_, HashMap<String, (WorkGuard, Instant)>> {
        self.working
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Observer for MetricsObserver {
    fn ready(&self) {
        self.progress.ready(&known(&self.place));
    }

    fn began(&self, job: &str) {
        let working = self.progress.begin(job);
        self.working().insert(job.to_owned(), (working, Instant::now()));
    }

    fn ended(&self, job: &str, outcome: Result<(), &PortError>) {
        let Some((_, since)) = self.working().remove(job) else {
            return;
        };
        let outcome = match outcome {
            Ok(()) => "done",
            Err(PortError::Conflict(_) | PortError::NotFound(_)) => "changed meanwhile",
            Err(_) => "failed",
        };
        self.metrics.jobs().passed(outcome, since.elapsed());
    }

    fn hears(&self, objects: &'static str) {
        self.progress.watch_ok(&self.watch(objects));
    }

    fn interrupted(&self, objects: &'static str) {
        self.progress.watch_failed(&self.watch(objects));
        self.metrics.jobs().interrupted(objects);
    }

    fn waiting(&self, jobs: usize) {
        let before = self.waiting.swap(jobs, Ordering::Relaxed);
        self.metrics.jobs().waiting(before, jobs);
    }

    fn watch_connected(&self, job: &serde_json::Value) {
        self.metrics.jobs().heard(job);
    }

    fn job_deleted(&self, job: &serde_json::Value) {
        self.metrics.jobs().gone(job);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn whoever_lost_the_lead_before_everything_was_known_waits_for_nothing() {
        let progress = HealthRegistry::default();
        let everywhere = std::iter::once(String::new());
        let leads = LeaderGuard::begin(Metrics::default(), progress.clone(), everywhere);
        assert!(progress.waits_for().contains(KNOWN));
        drop(leads);
        assert!(progress.waits_for().is_empty());
    }

    #[test]
    fn whoever_works_in_several_namespaces_is_ready_when_all_of_them_are_known() {
        let (metrics, progress) = (Metrics::default(), HealthRegistry::default());
        let places = [" in one", " in two"].map(str::to_owned);
        let _leads = LeaderGuard::begin(metrics.clone(), progress.clone(), places.iter().cloned());
        let [one, two] = places.map(|place| MetricsObserver::new(&metrics, &progress, place));
        one.ready();
        let waits_for = progress.waits_for().into_iter().collect::<Vec<_>>();
        assert_eq!(waits_for, ["IPUJobs and their Kubernetes Pods in two"]);
        two.ready();
        assert!(progress.waits_for().is_empty());
    }

    #[tokio::test]
    async fn a_proxy_at_https_is_reached_by_whoever_is_told_whom_to_trust() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let own = own.signed_by(&key, &authority).unwrap();

        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut of_proxy = vipu_proxy::Settings::default();
        of_proxy.sim = Some("1x8".into());
        of_proxy.sim_listen = Some(anywhere);
        of_proxy.listen = Some(anywhere);
        of_proxy.tls_cert = Some(file("own.crt", own.pem()));
        of_proxy.tls_key = Some(file("own.key", key.serialize_pem()));
        let proxy = vipu_proxy::Proxy::start(of_proxy.check().unwrap()).await.unwrap();

        let settings = Settings {
            vipu_proxy_svc: Some(format!("https://{}", proxy.addr())),
            proxy_ca_file: Some(file("ca.crt", authority.pem())),
            ..Settings::default()
        };
        let mut config = settings.check("n").unwrap();
        client_of_proxy(&config).unwrap().stats().await.unwrap();
        let missing = folder.path().join("missing");
        config.proxy_ca_file = Some(missing.clone());
        let error = client_of_proxy(&config).unwrap_err().to_string();
        assert!(error.contains(&missing.display().to_string()), "{error}");
        proxy.shutdown().await;
    }
}
