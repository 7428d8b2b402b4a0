//! The running operator: listeners, leader election, and the controller of the leader.

use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use ipu_core::ErrorChain;
use ipu_k8s::webhook::MAX_REVIEW_BYTES;
use ipu_serve::{ClientCertificates, ServeOptions, Tls, TlsFiles, serve};
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use crate::certificates::{CertificateUser, ManagedCertificate, Rotation};
use crate::crd_update::CrdUpdater;
use crate::error::OperatorError;
use crate::health::HealthRegistry;
use crate::job_controller::{proxy_client, run_controller};
use crate::leader_election::Leadership;
use crate::metrics::Metrics;
use crate::metrics_auth::MetricsAuthorizer;
use crate::settings::{Certificates, Config};
use crate::webhook_server::{Routes, WebhookServer};
use crate::{metrics, probes, webhooks};

/// Timeout of idle connections. The API server closes its own after 90 s, and must be the first: it does not
/// repeat a request that was on its way when the operator closed the connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which clients close their connections before the operator stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which running reconciliations end before the operator stops.
const CONTROLLER_DRAIN: Duration = Duration::from_secs(5);
/// Maximum body size of requests that need no body, in bytes.
const MAX_EMPTY_BODY: usize = 1024;

/// A running operator. Dropping it has the effect of a crash.
#[derive(Debug)]
pub struct Operator {
    webhooks: SocketAddr,
    metrics: SocketAddr,
    probes: SocketAddr,
    health: HealthRegistry,
    leadership: Leadership,
    stop: watch::Sender<()>,
    servers: JoinSet<()>,
    /// Loops of certificates, and the update of the CRD.
    upkeep: Vec<JoinHandle<()>>,
    work: JoinHandle<()>,
    /// Lets the running reconciliations end, and starts no others.
    drain: watch::Sender<bool>,
    failure: mpsc::Receiver<OperatorError>,
}

impl Operator {
    /// Starts on the cluster of `kube`. Certificates and the election follow later; `/readyz` reports when
    /// they are done.
    ///
    /// # Errors
    ///
    /// [`OperatorError`] if an address cannot be listened on, or if provided certificates or CA files
    /// cannot be used.
    pub async fn start(config: Config, kube: kube::Config) -> Result<Self, OperatorError> {
        Self::start_with(config, kube, Rotation::default()).await
    }

    /// Starts with another certificate rotation schedule.
    ///
    /// # Errors
    ///
    /// See [`Operator::start`].
    pub async fn start_with(
        config: Config,
        kube: kube::Config,
        rotation: Rotation,
    ) -> Result<Self, OperatorError> {
        let config = Arc::new(config);
        // The leader creates its own client. This check reports an invalid setting at startup instead of at
        // a failover. For an operator-managed certificate the CA file does not exist yet.
        if config.proxy_certificate.is_none() {
            proxy_client(&config)?;
        }
        let client = Client::try_from(kube.clone()).map_err(|error| client_error(&error))?;
        let access =
            MetricsAuthorizer::new(kube.clone(), client.clone()).map_err(|error| client_error(&error))?;
        let (health, recorded) = (HealthRegistry::default(), Metrics::default());
        let listeners = [
            bind(&config.webhooks).await?,
            bind(&config.metrics).await?,
            bind(&config.probes).await?,
        ];
        let address = |listener: &TcpListener| {
            let local = listener.local_addr();
            local.unwrap_or_else(|_| (std::net::Ipv4Addr::UNSPECIFIED, 0).into())
        };
        let [webhooks, metrics, probes] = [0, 1, 2].map(|which| address(&listeners[which]));
        let (tls, certificate) = serving_tls(&config, &client, rotation, &health, &recorded)?;
        let metrics_tls = metrics_tls(&config, &tls)?;
        let (trusts, proxy_certificate) = proxy_trust(&config, &client, rotation, &health);
        let (crd_served, crd_updater) = crd_update(&config, &client, &health);
        let upkeep = [certificate, proxy_certificate, crd_updater]
            .into_iter()
            .flatten()
            .collect();
        let prerequisites = vec![
            (trusts, "the rotation of the proxy's certificate has stopped"),
            (crd_served, "the update of the CRD has stopped"),
        ];

        let (stop, stopped) = watch::channel(());
        let mut servers = JoinSet::new();
        let [for_webhooks, for_metrics, for_probes] = listeners;
        let webhook_routes = webhooks::routes(config.rules, &recorded);
        let max = MAX_REVIEW_BYTES;
        servers.spawn(serve_tls(for_webhooks, webhook_routes, max, tls, stopped.clone()));
        let metrics_routes = metrics::routes(&recorded, &Arc::new(access));
        servers.spawn(serve_tls(
            for_metrics,
            metrics_routes,
            MAX_EMPTY_BODY,
            metrics_tls,
            stopped.clone(),
        ));
        let probe_server = Arc::new(WebhookServer::new(probes::routes(&health), MAX_EMPTY_BODY));
        servers.spawn(serve(for_probes, probe_server, ServeOptions::default(), stopped));

        let leadership = match &config.lease {
            Some(name) => Leadership::join(client.clone(), &config.namespace, name, &identity()),
            None => Leadership::without_election(),
        };
        let (failure_sender, failure) = mpsc::channel(1);
        let leads = leadership.is_leader();
        let (drain, drained) = watch::channel(false);
        let work = run_while_leader(
            leads,
            drained,
            prerequisites,
            kube,
            config,
            recorded,
            health.clone(),
        );
        let work = tokio::spawn(report_exit(work, failure_sender));
        Ok(Self {
            webhooks,
            metrics,
            probes,
            health,
            leadership,
            stop,
            servers,
            upkeep,
            work,
            drain,
            failure,
        })
    }

    /// Returns the address of the webhooks.
    #[must_use]
    pub const fn webhooks(&self) -> SocketAddr {
        self.webhooks
    }

    /// Returns the address of the metrics.
    #[must_use]
    pub const fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Returns the address of the probes.
    #[must_use]
    pub const fn probes(&self) -> SocketAddr {
        self.probes
    }

    /// Returns the registry behind `/healthz` and `/readyz`.
    #[must_use]
    pub const fn health(&self) -> &HealthRegistry {
        &self.health
    }

    /// Returns a receiver that tracks whether this operator is the leader.
    #[must_use]
    pub fn is_leader(&self) -> watch::Receiver<bool> {
        self.leadership.is_leader()
    }

    /// Waits for a fatal error inside the operator; without one it never returns.
    pub async fn wait_for_failure(&mut self) -> OperatorError {
        // The controller task sends one error before it ends.
        let detail = || "it returned unexpectedly".to_owned();
        let failure = self.failure.recv().await;
        failure.unwrap_or_else(|| OperatorError::Controller { detail: detail() })
    }

    /// Shuts down: lets the running reconciliations end, stops the controller, releases the Lease, then
    /// finishes open requests.
    pub async fn shutdown(mut self) {
        self.drain.send_replace(true);
        if tokio::time::timeout(CONTROLLER_DRAIN, &mut self.work)
            .await
            .is_err()
        {
            self.work.abort();
            // The task has ended, with or without an error.
            let _ = (&mut self.work).await;
        }
        self.leadership.release().await;
        self.stop.send_replace(());
        while self.servers.join_next().await.is_some() {}
        for task in self.upkeep {
            task.abort();
        }
    }
}

/// Reports why `work` has ended, including panics: an operator that holds the Lease without reconciling
/// blocks the others.
async fn report_exit(work: impl Future<Output = OperatorError>, failure_sender: mpsc::Sender<OperatorError>) {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    let error = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let detail = format!("it panicked: {}", text.unwrap_or("no message"));
        OperatorError::Controller { detail }
    });
    // A send error means that the operator was dropped.
    let _ = failure_sender.send(error).await;
}

/// Condition of the first reconciliation, and the error if it can no longer be met.
type Prerequisite = (watch::Receiver<bool>, &'static str);

/// Runs the controller whenever this operator leads, until a fatal error.
async fn run_while_leader(
    mut leads: watch::Receiver<bool>,
    mut drained: watch::Receiver<bool>,
    mut prerequisites: Vec<Prerequisite>,
    kube: kube::Config,
    config: Arc<Config>,
    metrics: Metrics,
    health: HealthRegistry,
) -> OperatorError {
    let stopped_because = |detail: &str| OperatorError::Controller {
        detail: detail.to_owned(),
    };
    loop {
        tokio::select! {
            leads = leads.wait_for(|leads| *leads) => if leads.is_err() { break },
            _ = drained.wait_for(|drained| *drained) => break,
        }
        metrics.set_leader(true);
        let mut stop = drained.clone();
        // A dropped sender stops the controller as well.
        let stop = async move { drop(stop.wait_for(|drained| *drained).await) };
        let controller = run_controller(
            kube.clone(),
            Arc::clone(&config),
            metrics.clone(),
            health.clone(),
            stop,
        );
        let work = async {
            for (met, error) in &mut prerequisites {
                met.wait_for(|met| *met)
                    .await
                    .map_err(|_| stopped_because(error))?;
            }
            controller.await
        };
        let error = tokio::select! {
            lost = leads.wait_for(|leads| !*leads) => match lost {
                Ok(_) => None,
                Err(_) => break,
            },
            done = work => Some(done.err().unwrap_or_else(|| stopped_because("it returned unexpectedly"))),
        };
        metrics.set_leader(false);
        if let Some(error) = error {
            return error;
        }
        warn!("lost the leadership: stopped reconciling");
    }
    metrics.set_leader(false);
    // The election task has stopped, so this operator cannot become leader again.
    stopped_because("the election has ended")
}

/// Returns whether the CA file for the proxy's certificate is written, now or later. Also returns the loop
/// that writes it if the operator manages that certificate.
fn proxy_trust(
    config: &Config,
    client: &Client,
    rotation: Rotation,
    health: &HealthRegistry,
) -> (watch::Receiver<bool>, Option<JoinHandle<()>>) {
    let Some(certificate) = &config.proxy_certificate else {
        return (watch::channel(true).1, None);
    };
    let (trusts, trusted) = watch::channel(false);
    let managed = ManagedCertificate {
        client: client.clone(),
        namespace: config.namespace.clone(),
        secret: certificate.secret.clone(),
        names: certificate.names.clone(),
        rotation,
        health: health.clone(),
        user: CertificateUser::Proxy {
            ca_file: certificate.ca_file.clone(),
            trusts,
        },
    };
    (trusted, Some(tokio::spawn(managed.run())))
}

/// Returns whether the CRD is served, now or later, and the task that updates it.
fn crd_update(
    config: &Config,
    client: &Client,
    health: &HealthRegistry,
) -> (watch::Receiver<bool>, Option<JoinHandle<()>>) {
    if !config.maintain_crd {
        return (watch::channel(true).1, None);
    }
    let (served, is_served) = watch::channel(false);
    let updater = CrdUpdater {
        client: client.clone(),
        health: health.clone(),
        served,
    };
    updater.require();
    (is_served, Some(tokio::spawn(updater.run())))
}

type PendingTls = watch::Receiver<Option<Tls>>;

/// Returns the TLS configuration of the webhooks, now or later, and the task that rotates it.
fn serving_tls(
    config: &Config,
    client: &Client,
    rotation: Rotation,
    health: &HealthRegistry,
    metrics: &Metrics,
) -> Result<(PendingTls, Option<JoinHandle<()>>), OperatorError> {
    match &config.certificates {
        Certificates::Directory(directory) => {
            let tls = tls_from_directory(directory, "webhook-cert-dir")?;
            Ok((watch::channel(Some(tls)).1, None))
        }
        Certificates::Managed(managed) => {
            let (tls, pending_tls) = watch::channel(None);
            let certificate = ManagedCertificate {
                client: client.clone(),
                namespace: config.namespace.clone(),
                secret: managed.secret.clone(),
                names: managed.names.clone(),
                rotation,
                health: health.clone(),
                user: CertificateUser::Webhooks {
                    managed: managed.clone(),
                    metrics: metrics.clone(),
                    tls,
                },
            };
            Ok((pending_tls, Some(tokio::spawn(certificate.run()))))
        }
    }
}

/// Returns the TLS configuration of the metrics: from the provided directory, or that of the webhooks.
fn metrics_tls(config: &Config, webhooks: &PendingTls) -> Result<PendingTls, OperatorError> {
    match &config.metrics_cert_dir {
        Some(directory) => {
            let tls = tls_from_directory(directory, "metrics-cert-dir")?;
            Ok(watch::channel(Some(tls)).1)
        }
        None => Ok(webhooks.clone()),
    }
}

fn tls_from_directory(directory: &Path, name: &'static str) -> Result<Tls, OperatorError> {
    let files = TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        clients: ClientCertificates::Disabled,
    };
    Tls::from_files(files).map_err(|source| OperatorError::Certificates { name, source })
}

/// Serves once a certificate is available.
async fn serve_tls(
    listener: TcpListener,
    routes: Routes,
    max_body: usize,
    mut tls: PendingTls,
    mut stop: watch::Receiver<()>,
) {
    let tls = tokio::select! {
        // A dropped sender stops the server as well.
        _ = stop.changed() => return,
        tls = tls.wait_for(Option::is_some) => match tls {
            Ok(tls) => tls.clone(),
            Err(_) => return,
        },
    };
    let mut options = ServeOptions::default();
    options.tls = tls;
    options.idle_timeout = IDLE_TIMEOUT;
    options.drain = DRAIN_TIMEOUT;
    serve(
        listener,
        Arc::new(WebhookServer::new(routes, max_body)),
        options,
        stop,
    )
    .await;
}

/// Listens on the first available address.
async fn bind(addresses: &[SocketAddr]) -> Result<TcpListener, OperatorError> {
    let mut failure = None;
    for &address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "listening");
                return Ok(listener);
            }
            Err(source) => failure = Some(OperatorError::Listen { address, source }),
        }
    }
    Err(failure.unwrap_or(OperatorError::Listen {
        address: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        source: std::io::Error::other("no address is configured"),
    }))
}

/// Returns the identity for the election: the Pod name plus a random suffix that differs between
/// containers.
fn identity() -> String {
    let name = ["POD_NAME", "HOSTNAME"]
        .iter()
        .find_map(|variable| std::env::var(variable).ok());
    // The seed comes from the operating system and differs in every process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}_{random:016x}", name.as_deref().unwrap_or("ipu-operator"))
}

fn client_error(error: &(dyn std::error::Error + 'static)) -> OperatorError {
    OperatorError::Client {
        detail: ErrorChain(error).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_panic_of_the_controller_is_reported_as_a_failure() {
        let (failure_sender, mut failure) = mpsc::channel(1);
        let work = async { panic!("no {}", "more") };
        tokio::spawn(report_exit(work, failure_sender)).await.unwrap();
        let error = failure.recv().await.unwrap();
        assert_eq!(
            error.to_string(),
            "the controller has stopped: it panicked: no more"
        );
    }

    #[tokio::test]
    async fn the_controller_stops_with_an_error_once_the_election_task_ends() {
        for won in [false, true] {
            let (sender, leads) = watch::channel(won);
            let (_drain, drained) = watch::channel(false);
            let kube = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
            let config = Settings::default().check("n").unwrap();
            let work = run_while_leader(
                leads,
                drained,
                Vec::new(),
                kube,
                Arc::new(config),
                Metrics::default(),
                HealthRegistry::default(),
            );
            drop(sender);
            let outcome = tokio::time::timeout(Duration::from_secs(30), work).await;
            let error = outcome.unwrap().to_string();
            assert!(error.contains("the election has ended"), "{error}");
        }
    }
}
