//! Runs the controller of `ipu-k8s` with the settings of this process.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use ipu_core::ErrorChain;
use ipu_k8s::controller::{Observer, ReconcileError, RunOptions, run};
use ipu_k8s::crd::IpuJob;
use ipu_k8s::resources::{InstallationDefaults, Network};
use ipu_proxy_client::{ClientOptions, ProxyClient, TlsFiles, Token};
use parking_lot::Mutex;
use tracing::info;

use crate::error::OperatorError;
use crate::health::{HealthRegistry, WorkGuard};
use crate::metrics::Metrics;
use crate::settings::Config;

/// Readiness condition of the controller.
const CACHE_CONDITION: &str = "IPUJobs and their Kubernetes Pods";

/// Runs the controller while this operator leads, until `stop` resolves and the running reconciliations have
/// ended. The caller drops the future when the leadership is lost, and calls again after the next election.
///
/// # Errors
///
/// [`OperatorError`] is fatal; transient errors are retried internally.
pub(crate) async fn run_controller(
    kube: kube::Config,
    config: Arc<Config>,
    metrics: Metrics,
    health: HealthRegistry,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), OperatorError> {
    let proxy = proxy_client(&config)?;
    let reporter = std::env::var("POD_NAME").unwrap_or_else(|_| "ipu-operator".to_owned());
    info!(proxy = %config.proxy_url, "reconciling IPUJobs");
    let _leader_guard = LeaderGuard::begin(metrics.clone(), health.clone());
    let observer = MetricsObserver::new(metrics, health, config.watch_namespaces.len());
    let mut options = RunOptions::new(&reporter, Arc::new(observer));
    options.namespaces.extend(config.watch_namespaces.iter().cloned());
    options.installation = installation(&config);
    options.kueue = config.kueue;
    run(kube, proxy, options, stop)
        .await
        .map_err(|error| OperatorError::Controller {
            detail: ErrorChain(&error).to_string(),
        })
}

/// Clears metrics, the readiness condition and watches when the leadership ends.
struct LeaderGuard {
    metrics: Metrics,
    health: HealthRegistry,
}

impl LeaderGuard {
    /// Registers the readiness condition.
    fn begin(metrics: Metrics, health: HealthRegistry) -> Self {
        health.require(CACHE_CONDITION);
        Self { metrics, health }
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.metrics.jobs().clear();
        self.health.mark_ready(CACHE_CONDITION);
        self.health.clear_watches();
    }
}

/// Creates the client of the proxy.
pub(crate) fn proxy_client(config: &Config) -> Result<ProxyClient, OperatorError> {
    let mut options = ClientOptions::default();
    options.token = config.proxy_token_file.clone().map(Token::File);
    options.tls = config.proxy_ca_file.clone().map(TlsFiles::new);
    ProxyClient::new(&config.proxy_url, options).map_err(|error| OperatorError::Proxy {
        detail: ErrorChain(&error).to_string(),
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

/// Reports the progress of the controller to probes and metrics.
struct MetricsObserver {
    metrics: Metrics,
    health: HealthRegistry,
    /// Running reconciliations by job, with their start.
    running: Mutex<HashMap<String, (WorkGuard, Instant)>>,
    /// Number of watched namespaces; 0 if all are.
    namespaces: usize,
    /// Namespaces with a watch that the API server forbids.
    forbidden: Mutex<BTreeSet<String>>,
}

impl MetricsObserver {
    fn new(metrics: Metrics, health: HealthRegistry, namespaces: usize) -> Self {
        Self {
            metrics,
            health,
            running: Mutex::default(),
            namespaces,
            forbidden: Mutex::default(),
        }
    }
}

/// Returns the name of a watch in probe messages.
fn watch(objects: &str, namespace: Option<&str>) -> String {
    let scope = namespace.map_or_else(String::new, |namespace| format!(" in {namespace}"));
    format!("the watch of {objects}{scope}")
}

impl Observer for MetricsObserver {
    fn ready(&self) {
        // An operator that may watch none of its namespaces is not ready.
        if self.namespaces == 0 || self.forbidden.lock().len() < self.namespaces {
            self.health.mark_ready(CACHE_CONDITION);
        }
    }

    fn reconcile_started(&self, job: &str) {
        let running = self.health.begin_work(job);
        self.running
            .lock()
            .insert(job.to_owned(), (running, Instant::now()));
    }

    fn reconcile_finished(&self, job: &str, outcome: Result<(), &ReconcileError>) {
        let Some((_, since)) = self.running.lock().remove(job) else {
            return;
        };
        let outcome = match outcome {
            Ok(()) => "done",
            Err(ReconcileError::Changed(_)) => "changed meanwhile",
            Err(_) => "failed",
        };
        self.metrics.jobs().record_reconcile(outcome, since.elapsed());
    }

    fn watch_connected(&self, objects: &'static str, namespace: Option<&str>) {
        if let Some(namespace) = namespace
            && self.forbidden.lock().remove(namespace)
        {
            self.health.mark_ready(CACHE_CONDITION);
        }
        self.health.watch_ok(&watch(objects, namespace));
    }

    fn watch_failed(&self, objects: &'static str, namespace: Option<&str>) {
        self.health.watch_failed(&watch(objects, namespace));
        self.metrics.jobs().record_interruption(objects);
    }

    fn watch_forbidden(&self, objects: &'static str, namespace: Option<&str>) {
        let Some(namespace) = namespace else {
            return self.watch_failed(objects, namespace);
        };
        self.forbidden.lock().insert(namespace.to_owned());
        // The other namespaces need the operator, and a restart restores no right.
        self.health.watch_ok(&watch(objects, Some(namespace)));
        self.metrics.jobs().record_interruption(objects);
    }

    fn job_applied(&self, job: &IpuJob) {
        self.metrics.jobs().observe_job(job);
    }

    fn job_deleted(&self, uid: &str) {
        self.metrics.jobs().remove_job(uid);
    }
}

#[cfg(test)]
mod tests {

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_former_leader_has_no_pending_readiness_condition() {
        let health = HealthRegistry::default();
        let leader_guard = LeaderGuard::begin(Metrics::default(), health.clone());
        assert!(health.pending().contains(CACHE_CONDITION));
        drop(leader_guard);
        assert!(health.pending().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_forbids_its_watches_makes_the_operator_neither_unready_nor_unhealthy() {
        const OBJECTS: &str = "IPUJobs";
        let health = HealthRegistry::default();
        let _leader_guard = LeaderGuard::begin(Metrics::default(), health.clone());
        let observer = MetricsObserver::new(Metrics::default(), health.clone(), 2);
        let forbid = async |namespace: Option<&str>| {
            for _ in 0..30 {
                observer.watch_forbidden(OBJECTS, namespace);
                tokio::time::advance(std::time::Duration::from_secs(10)).await;
            }
        };
        // Without any namespace, a new operator has nothing to do.
        forbid(Some("one")).await;
        forbid(Some("two")).await;
        observer.ready();
        assert!(!health.pending().is_empty());
        assert_eq!(health.overdue(), None);
        // A permitted namespace is enough.
        observer.watch_connected(OBJECTS, Some("one"));
        assert!(health.pending().is_empty());
        forbid(Some("two")).await;
        assert!(health.pending().is_empty());
        assert_eq!(health.overdue(), None);
        forbid(None).await;
        assert!(health.overdue().is_some());
    }

    #[tokio::test]
    async fn a_client_with_the_ca_file_reaches_an_https_proxy() {
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
        let server = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let server = server.signed_by(&key, &authority).unwrap();

        let mut proxy_settings = vipu_proxy::Settings::simulated("1x8");
        proxy_settings.tls_cert = Some(file("own.crt", server.pem()));
        proxy_settings.tls_key = Some(file("own.key", key.serialize_pem()));
        let proxy = vipu_proxy::Proxy::start(proxy_settings.check().unwrap())
            .await
            .unwrap();

        let settings = Settings {
            vipu_proxy_svc: Some(format!("https://{}", proxy.addr())),
            proxy_ca_file: Some(file("ca.crt", authority.pem())),
            ..Settings::default()
        };
        let mut config = settings.check("n").unwrap();
        proxy_client(&config).unwrap().stats().await.unwrap();
        let missing = folder.path().join("missing");
        config.proxy_ca_file = Some(missing.clone());
        let error = proxy_client(&config).unwrap_err().to_string();
        assert!(error.contains(&missing.display().to_string()), "{error}");
        proxy.shutdown().await;
    }
}
