//! Runs the controller of `ipu-k8s` with the settings of this process.

use std::collections::{BTreeSet, HashMap};
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

/// Readiness condition of each watched scope.
const CACHE_CONDITION: &str = "IPUJobs and their Kubernetes Pods";

/// Runs the controller while this operator leads. The caller drops the future when the leadership is lost
/// or the operator stops, and calls again after the next election.
///
/// # Errors
///
/// [`OperatorError`] is fatal; transient errors are retried internally.
pub async fn run_controller(
    kube: kube::Config,
    config: Arc<Config>,
    metrics: Metrics,
    health: HealthRegistry,
) -> Result<(), OperatorError> {
    let failed = |error: &dyn std::error::Error| OperatorError::Controller { detail: chain(error) };
    let proxy = proxy_client(&config)?;
    let instance = std::env::var("POD_NAME").unwrap_or_else(|_| "ipu-operator".to_owned());
    let namespaces: Vec<Option<String>> = if config.watch_namespaces.is_empty() {
        vec![None]
    } else {
        config.watch_namespaces.iter().cloned().map(Some).collect()
    };
    info!(proxy = %config.proxy_url, "reconciling IPUJobs");
    let scope = |namespace: &Option<String>| {
        let scope = namespace.as_deref().map(|name| format!(" in {name}"));
        scope.unwrap_or_default()
    };
    let _leader_guard = LeaderGuard::begin(metrics.clone(), health.clone(), namespaces.iter().map(scope));
    let access = Arc::new(Access::new(namespaces.len()));
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
        options.observer = Arc::new(MetricsObserver::new(
            &metrics,
            &health,
            &access,
            scope(&namespace),
        ));
        options.namespace = namespace;
        // The controller stops when the future is dropped.
        let never = std::future::pending();
        loops.push(run(client, operator, cache, proxy.clone(), options, never));
    }
    join_all(loops).await;
    Ok(())
}

/// Clears metrics, readiness conditions and watches when the leadership ends.
struct LeaderGuard {
    metrics: Metrics,
    health: HealthRegistry,
    /// Readiness conditions of the watched scopes.
    conditions: Vec<String>,
}

impl LeaderGuard {
    /// Registers the readiness conditions of `scopes`.
    fn begin(metrics: Metrics, health: HealthRegistry, scopes: impl Iterator<Item = String>) -> Self {
        let conditions: Vec<String> = scopes.map(|scope| readiness_condition(&scope)).collect();
        conditions.iter().for_each(|condition| health.require(condition));
        Self {
            metrics,
            health,
            conditions,
        }
    }
}

/// Returns the readiness condition of a scope.
fn readiness_condition(scope: &str) -> String {
    format!("{CACHE_CONDITION}{scope}")
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        self.metrics.jobs().clear();
        self.conditions
            .iter()
            .for_each(|condition| self.health.mark_ready(condition));
        self.health.clear_watches();
    }
}

/// Creates the client of the proxy.
pub(crate) fn proxy_client(config: &Config) -> Result<ProxyClient, OperatorError> {
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

/// Scopes with a watch that the API server forbids.
struct Access {
    scopes: usize,
    forbidden: std::sync::Mutex<BTreeSet<String>>,
}

impl Access {
    fn new(scopes: usize) -> Self {
        Self {
            scopes,
            forbidden: std::sync::Mutex::default(),
        }
    }

    fn forbidden(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.forbidden
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records a forbidden watch. Returns whether each scope has one.
    fn forbid(&self, scope: &str) -> bool {
        let mut forbidden = self.forbidden();
        forbidden.insert(scope.to_owned());
        forbidden.len() >= self.scopes
    }

    fn permit(&self, scope: &str) {
        self.forbidden().remove(scope);
    }
}

/// Reports the progress of a controller to probes and metrics.
struct MetricsObserver {
    metrics: Metrics,
    health: HealthRegistry,
    /// Running reconciliations by job, with their start.
    running: std::sync::Mutex<HashMap<String, (WorkGuard, Instant)>>,
    /// Number of queued jobs of this controller.
    waiting: AtomicUsize,
    access: Arc<Access>,
    /// Suffix that names the watched namespace; empty for all namespaces.
    scope: String,
}

impl MetricsObserver {
    fn new(metrics: &Metrics, health: &HealthRegistry, access: &Arc<Access>, scope: String) -> Self {
        Self {
            metrics: metrics.clone(),
            health: health.clone(),
            running: std::sync::Mutex::default(),
            waiting: AtomicUsize::default(),
            access: Arc::clone(access),
            scope,
        }
    }

    /// Returns the name of a watch in probe messages.
    fn watch(&self, objects: &str) -> String {
        format!("the watch of {objects}{}", self.scope)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<String, (WorkGuard, Instant)>> {
        self.running
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Observer for MetricsObserver {
    fn ready(&self) {
        self.health.mark_ready(&readiness_condition(&self.scope));
    }

    fn reconcile_started(&self, job: &str) {
        let running = self.health.begin_work(job);
        self.running().insert(job.to_owned(), (running, Instant::now()));
    }

    fn reconcile_finished(&self, job: &str, outcome: Result<(), &PortError>) {
        let Some((_, since)) = self.running().remove(job) else {
            return;
        };
        let outcome = match outcome {
            Ok(()) => "done",
            Err(PortError::Conflict(_) | PortError::NotFound(_)) => "changed meanwhile",
            Err(_) => "failed",
        };
        self.metrics.jobs().record_reconcile(outcome, since.elapsed());
    }

    fn watch_connected(&self, objects: &'static str) {
        self.access.permit(&self.scope);
        self.health.watch_ok(&self.watch(objects));
    }

    fn watch_failed(&self, objects: &'static str) {
        self.health.watch_failed(&self.watch(objects));
        self.metrics.jobs().record_interruption(objects);
    }

    fn watch_forbidden(&self, objects: &'static str) {
        if self.scope.is_empty() {
            return self.watch_failed(objects);
        }
        // The other namespaces need operator and webhooks. A new operator that may watch none is not ready.
        if !self.access.forbid(&self.scope) {
            self.ready();
        }
        // A restart restores no right.
        self.health.watch_ok(&self.watch(objects));
        self.metrics.jobs().record_interruption(objects);
    }

    fn queue_depth_changed(&self, jobs: usize) {
        let before = self.waiting.swap(jobs, Ordering::Relaxed);
        self.metrics.jobs().update_queued(before, jobs);
    }

    fn job_applied(&self, job: &serde_json::Value) {
        self.metrics.jobs().observe_job(job);
    }

    fn job_deleted(&self, job: &serde_json::Value) {
        self.metrics.jobs().remove_job(job);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_former_leader_has_no_pending_readiness_conditions() {
        let health = HealthRegistry::default();
        let all_namespaces = std::iter::once(String::new());
        let leader_guard = LeaderGuard::begin(Metrics::default(), health.clone(), all_namespaces);
        assert!(health.pending().contains(CACHE_CONDITION));
        drop(leader_guard);
        assert!(health.pending().is_empty());
    }

    #[test]
    fn an_operator_of_several_namespaces_is_ready_once_all_caches_are_filled() {
        let (metrics, health) = (Metrics::default(), HealthRegistry::default());
        let scopes = [" in one", " in two"].map(str::to_owned);
        let _leader_guard = LeaderGuard::begin(metrics.clone(), health.clone(), scopes.iter().cloned());
        let access = Arc::new(Access::new(2));
        let [one, two] = scopes.map(|scope| MetricsObserver::new(&metrics, &health, &access, scope));
        one.ready();
        let pending = health.pending().into_iter().collect::<Vec<_>>();
        assert_eq!(pending, ["IPUJobs and their Kubernetes Pods in two"]);
        two.ready();
        assert!(health.pending().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_forbids_its_watches_makes_the_operator_neither_unready_nor_unhealthy() {
        const OBJECTS: &str = "IPUJobs";
        let (metrics, health) = (Metrics::default(), HealthRegistry::default());
        let scopes = [" in one", " in two"].map(str::to_owned);
        let _leader_guard = LeaderGuard::begin(metrics.clone(), health.clone(), scopes.iter().cloned());
        let access = Arc::new(Access::new(2));
        let [one, two] = scopes.map(|scope| MetricsObserver::new(&metrics, &health, &access, scope));
        let forbid = async |observer: &MetricsObserver| {
            for _ in 0..30 {
                observer.watch_forbidden(OBJECTS);
                tokio::time::advance(std::time::Duration::from_secs(10)).await;
            }
        };
        forbid(&one).await;
        assert_eq!(health.overdue(), None);
        assert_eq!(
            health.pending().into_iter().collect::<Vec<_>>(),
            ["IPUJobs and their Kubernetes Pods in two"]
        );
        // Without any namespace, a new operator has nothing to do.
        forbid(&two).await;
        assert!(!health.pending().is_empty());
        assert_eq!(health.overdue(), None);
        // A permitted namespace is enough.
        one.watch_connected(OBJECTS);
        forbid(&two).await;
        assert!(health.pending().is_empty());
        let all = MetricsObserver::new(&metrics, &health, &access, String::new());
        forbid(&all).await;
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

        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut proxy_settings = vipu_proxy::Settings::default();
        proxy_settings.sim = Some("1x8".into());
        proxy_settings.sim_listen = Some(any_port);
        proxy_settings.listen = Some(any_port.into());
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
