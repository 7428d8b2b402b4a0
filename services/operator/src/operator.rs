//! The running operator: its listeners, the election, and the work of the leader.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt as _;
use ipu_k8s::webhook::MAX_REVIEW_BYTES;
use ipu_serve::{ClientCertificates, ServeOptions, Tls, TlsFiles, TlsPem, serve};
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};

use crate::certificates::{CertBundle, CertRotator, ProxyKeeper, Rotation};
use crate::error::{OperatorError, chain};
use crate::health::HealthRegistry;
use crate::job_controller::{client_of_proxy, run_controller};
use crate::leader_election::{Leadership, LeaseOptions};
use crate::metrics::Metrics;
use crate::metrics_auth::Access;
use crate::settings::{Certificates, Config};
use crate::webhook_server::{Routes, WebhookServer};
use crate::{metrics, probes, webhooks};

/// How long a certificate of the metrics alone lasts: longer than the process.
const OWN_CERTIFICATE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The largest body of a request that has none.
const NO_BODY: usize = 1024;

/// A running operator. Dropped, it ends as after a crash.
#[derive(Debug)]
pub struct Operator {
    webhooks: SocketAddr,
    metrics: SocketAddr,
    probes: SocketAddr,
    progress: HealthRegistry,
    leadership: Leadership,
    stop: watch::Sender<()>,
    servers: JoinSet<()>,
    /// The loops that keep certificates.
    keepers: Vec<JoinHandle<()>>,
    work: JoinHandle<()>,
    failed: mpsc::Receiver<OperatorError>,
}

impl Operator {
    /// Starts on the cluster of `kube`. Certificates and the election come after that: ask `/readyz`.
    ///
    /// # Errors
    ///
    /// [`OperatorError`] if an address cannot be listened on, or given certificates cannot be used, those of the proxy's signers
    /// included.
    pub async fn start(config: Config, kube: kube::Config) -> Result<Self, OperatorError> {
        Self::start_with(config, kube, Rotation::default()).await
    }

    /// The same with certificates that are renewed at other times.
    ///
    /// # Errors
    ///
    /// Those of [`Operator::start`].
    pub async fn start_with(
        config: Config,
        kube: kube::Config,
        rotation: Rotation,
    ) -> Result<Self, OperatorError> {
        let config = Arc::new(config);
        // The leader makes a client of its own. A setting that cannot be used fails here, not when another leader is needed. The
        // authorities of a certificate that the operator makes are not known yet.
        if config.proxy_certificate.is_none() {
            client_of_proxy(&config)?;
        }
        let client = Client::try_from(kube.clone()).map_err(|error| unconnected(&error))?;
        let access = Access::new(kube.clone(), client.clone()).map_err(|error| unconnected(&error))?;
        let (progress, measured) = (HealthRegistry::default(), Metrics::default());
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
        let (tls, keeper) = serving_tls(&config, &client, rotation, &progress, &measured)?;
        let metrics_tls = metrics_tls(&config, &tls)?;
        let (trusts, proxy_keeper) = trust_in_proxy(&config, &client, rotation, &progress);
        let keepers = [keeper, proxy_keeper].into_iter().flatten().collect();

        let (stop, stopped) = watch::channel(());
        let mut servers = JoinSet::new();
        let [for_webhooks, for_metrics, for_probes] = listeners;
        let admission = webhooks::routes(config.rules, &measured);
        let max = MAX_REVIEW_BYTES;
        servers.spawn(secured(for_webhooks, admission, max, tls, stopped.clone()));
        let reading = metrics::routes(&measured, &Arc::new(access));
        servers.spawn(secured(
            for_metrics,
            reading,
            NO_BODY,
            metrics_tls,
            stopped.clone(),
        ));
        let door = Arc::new(WebhookServer::new(probes::routes(&progress), NO_BODY));
        servers.spawn(serve(for_probes, door, ServeOptions::default(), stopped));

        let leadership = match &config.lease {
            Some(name) => {
                let options = LeaseOptions::new(&config.namespace, name, identity());
                Leadership::join(client.clone(), options)
            }
            None => Leadership::alone(),
        };
        let (fails, failed) = mpsc::channel(1);
        let leads = leadership.leads();
        let work = lead(leads, trusts, kube, config, measured, progress.clone());
        let work = tokio::spawn(report_exit(work, fails));
        Ok(Self {
            webhooks,
            metrics,
            probes,
            progress,
            leadership,
            stop,
            servers,
            keepers,
            work,
            failed,
        })
    }

    /// Where the webhooks listen.
    #[must_use]
    pub const fn webhooks(&self) -> SocketAddr {
        self.webhooks
    }

    /// Where metrics are served.
    #[must_use]
    pub const fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Where probes are answered.
    #[must_use]
    pub const fn probes(&self) -> SocketAddr {
        self.probes
    }

    /// Whether it goes on, as `/healthz` tells it.
    #[must_use]
    pub const fn progress(&self) -> &HealthRegistry {
        &self.progress
    }

    /// Whether it works on jobs, from now on.
    #[must_use]
    pub fn leads(&self) -> watch::Receiver<bool> {
        self.leadership.leads()
    }

    /// Waits for what ends the operator from within. Never ends if nothing does.
    pub async fn failed(&mut self) -> OperatorError {
        // It tells why before it ends, once.
        let detail = || "it came to an end".to_owned();
        let told = self.failed.recv().await;
        told.unwrap_or_else(|| OperatorError::Controller { detail: detail() })
    }

    /// Stops: first the work on jobs, then the Lease is given back, and then open requests end.
    pub async fn shutdown(mut self) {
        self.work.abort();
        // It is at an end, one way or the other.
        let _ = (&mut self.work).await;
        self.leadership.release().await;
        self.stop.send_replace(());
        while self.servers.join_next().await.is_some() {}
        for keeper in self.keepers {
            keeper.abort();
        }
    }
}

/// Tells why `work` has ended, also if it panicked: an operator that holds the Lease and works on nothing is worse than none.
async fn report_exit(work: impl Future<Output = OperatorError>, fails: mpsc::Sender<OperatorError>) {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    let error = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let detail = format!("it panicked: {}", text.unwrap_or("nothing was said"));
        OperatorError::Controller { detail }
    });
    // Whoever would be told is gone otherwise.
    let _ = fails.send(error).await;
}

/// Works on jobs whenever this operator leads, until that cannot go on.
async fn lead(
    mut leads: watch::Receiver<bool>,
    mut trusts: watch::Receiver<bool>,
    kube: kube::Config,
    config: Arc<Config>,
    metrics: Metrics,
    progress: HealthRegistry,
) -> OperatorError {
    let ended = |detail: &str| OperatorError::Controller {
        detail: detail.to_owned(),
    };
    while leads.wait_for(|leads| *leads).await.is_ok() {
        metrics.leads(true);
        let controller = run_controller(
            kube.clone(),
            Arc::clone(&config),
            metrics.clone(),
            progress.clone(),
        );
        let work = async {
            if trusts.wait_for(|trusts| *trusts).await.is_err() {
                return Err(ended("the proxy's certificate is not kept any more"));
            }
            controller.await
        };
        let error = tokio::select! {
            lost = leads.wait_for(|leads| !*leads) => match lost {
                Ok(_) => None,
                Err(_) => break,
            },
            done = work => Some(done.err().unwrap_or_else(|| ended("it came to an end"))),
        };
        metrics.leads(false);
        if let Some(error) = error {
            return error;
        }
        warn!("stopped to work on jobs: another operator may lead");
    }
    metrics.leads(false);
    // Nobody renews the Lease any more, and it is never won again.
    ended("the election has ended")
}

/// Whether the file of the authorities that the proxy's certificate is checked with is there, now or later, and the loop that
/// writes it if the operator makes that certificate.
fn trust_in_proxy(
    config: &Config,
    client: &Client,
    rotation: Rotation,
    progress: &HealthRegistry,
) -> (watch::Receiver<bool>, Option<JoinHandle<()>>) {
    let Some(certificate) = &config.proxy_certificate else {
        return (watch::channel(true).1, None);
    };
    let (trusts, trusted) = watch::channel(false);
    let keeper = ProxyKeeper {
        client: client.clone(),
        namespace: config.namespace.clone(),
        certificate: certificate.clone(),
        rotation,
        progress: progress.clone(),
        trusts,
    };
    (trusted, Some(tokio::spawn(keeper.run())))
}

type Awaited = watch::Receiver<Option<Tls>>;

/// What the webhooks are served with, now or later, and what keeps it.
fn serving_tls(
    config: &Config,
    client: &Client,
    rotation: Rotation,
    progress: &HealthRegistry,
    metrics: &Metrics,
) -> Result<(Awaited, Option<JoinHandle<()>>), OperatorError> {
    match &config.certificates {
        Certificates::Given(directory) => {
            let tls = given(directory, "webhook-cert-dir")?;
            Ok((watch::channel(Some(tls)).1, None))
        }
        Certificates::Made(keeping) => {
            let (tls, awaited) = watch::channel(None);
            let keeper = CertRotator {
                client: client.clone(),
                namespace: config.namespace.clone(),
                keeping: keeping.clone(),
                rotation,
                progress: progress.clone(),
                metrics: metrics.clone(),
                tls,
            };
            Ok((awaited, Some(tokio::spawn(keeper.run()))))
        }
    }
}

/// What the metrics are served with: what was given for them, what is made for the webhooks, or one for this process alone.
fn metrics_tls(config: &Config, webhooks: &Awaited) -> Result<Awaited, OperatorError> {
    if let Some(directory) = &config.metrics_cert_dir {
        let tls = given(directory, "metrics-cert-dir")?;
        return Ok(watch::channel(Some(tls)).1);
    }
    if let Certificates::Made(_) = config.certificates {
        return Ok(webhooks.clone());
    }
    let unmade = |error: &dyn std::error::Error| OperatorError::Make { detail: chain(error) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let names = BTreeSet::from(["ipu-operator".to_owned()]);
    let made = CertBundle::make(&names, now.as_secs(), OWN_CERTIFICATE).map_err(|error| unmade(&error))?;
    let tls = Tls::of_pem(&TlsPem::new(made.certificate, made.key)).map_err(|error| unmade(&error))?;
    Ok(watch::channel(Some(tls)).1)
}

fn given(directory: &Path, name: &'static str) -> Result<Tls, OperatorError> {
    let files = TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        clients: ClientCertificates::NotAsked,
    };
    Tls::of(files).map_err(|source| OperatorError::Certificates { name, source })
}

/// Serves as soon as there is a certificate.
async fn secured(
    listener: TcpListener,
    routes: Routes,
    max_body: usize,
    mut tls: Awaited,
    mut stop: watch::Receiver<()>,
) {
    let tls = tokio::select! {
        // A dropped sender is the end too.
        _ = stop.changed() => return,
        tls = tls.wait_for(Option::is_some) => match tls {
            Ok(tls) => tls.clone(),
            Err(_) => return,
        },
    };
    let mut options = ServeOptions::default();
    options.tls = tls;
    serve(
        listener,
        Arc::new(WebhookServer::new(routes, max_body)),
        options,
        stop,
    )
    .await;
}

/// Listens on the first of the addresses that can be had.
async fn bind(addresses: &[SocketAddr]) -> Result<TcpListener, OperatorError> {
    let mut failed = None;
    for &address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(%address, "listens");
                return Ok(listener);
            }
            Err(source) => failed = Some(OperatorError::Listen { address, source }),
        }
    }
    Err(failed.unwrap_or(OperatorError::Listen {
        address: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        source: std::io::Error::other("no address is given"),
    }))
}

/// Who this process is among those that compete: the Kubernetes Pod, and what tells it from an earlier container of it.
fn identity() -> String {
    let name = ["POD_NAME", "HOSTNAME"]
        .iter()
        .find_map(|variable| std::env::var(variable).ok());
    // Seeded by the operating system for every process.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}_{random:016x}", name.as_deref().unwrap_or("ipu-operator"))
}

fn unconnected(error: &dyn std::error::Error) -> OperatorError {
    OperatorError::Client { detail: chain(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[tokio::test]
    async fn work_that_panics_is_told_like_work_that_fails() {
        let (fails, mut failed) = mpsc::channel(1);
        let work = async { panic!("no {}", "more") };
        tokio::spawn(report_exit(work, fails)).await.unwrap();
        let error = failed.recv().await.unwrap();
        assert_eq!(error.to_string(), "the work on jobs ended: it panicked: no more");
    }

    #[tokio::test]
    async fn an_election_that_ends_by_itself_ends_the_work_whether_it_was_won_or_not() {
        for won in [false, true] {
            let (told, leads) = watch::channel(won);
            let kube = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
            let config = Settings::default().check("n").unwrap();
            let work = lead(
                leads,
                watch::channel(true).1,
                kube,
                Arc::new(config),
                Metrics::default(),
                HealthRegistry::default(),
            );
            drop(told);
            let ended = tokio::time::timeout(Duration::from_secs(30), work).await;
            let error = ended.unwrap().to_string();
            assert!(error.contains("the election has ended"), "{error}");
        }
    }
}
