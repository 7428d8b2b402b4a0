//! Start and shutdown of the proxy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::process::{ProcessHolder, ProcessLiveness};
use ipu_allocator::{
    Allocator, LeaseLiveness, Liveness, MemoryStore, Options, SqliteStore, Store, StoreError,
};
use ipu_core::allocator::{CallTimes, Entry, OwnerLiveness, Policy};
use ipu_core::placement::PlacementMode;
use ipu_core::{ControllerName, ErrorChain, PartitionId};
use ipu_serve::{ClientCertificates, Listener, ServeOptions, TlsError, UnidentifiedLimits};
use ipu_vipu_client::{
    ConnectError, ControllerEndpoint, ControllerListError, ControllerPool, EndpointError, parse_controllers,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vipu_sim::Simulator;

use crate::app::App;
use crate::auth::{AnyOf, Authenticator, Certificates, NoAuth, Tokens};
use crate::connector::Connector;
use crate::controllers::{maintain, warn_of_unlisted_placements};
use crate::file_watch::watch_file;
use crate::kubernetes::{self, Cluster};
use crate::local::LocalUsers;
use crate::metrics::Metrics;
use crate::middleware::{AccessPolicy, Gateway, MAX_UNSENT_BYTES, Timeouts};
use crate::settings::{
    Config, Hardware, Limits, ListenAddress, ReadAccess, StoreChoice, keys_for_restart, read_settings,
};

/// Connections beyond those of concurrent requests: probes, event streams, and idle clients.
const SPARE_CONNECTIONS: usize = 512;

/// Error at the start of the proxy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store of the ledger is unusable.
    #[error("open the ledger")]
    Store(#[source] StoreError),
    /// The simulated controller failed to start.
    #[error("start the simulated controller")]
    Simulate(#[source] vipu_sim::StartError),
    /// The address of the simulated controller is invalid for a client.
    #[error("use the address of the simulated controller")]
    Address(#[source] EndpointError),
    /// A file is unreadable.
    #[error("read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The list of controllers is invalid.
    #[error("read the controllers of {}", path.display())]
    List {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: ControllerListError,
    },
    /// The token file is invalid.
    #[error("read the tokens of {}: {detail}", path.display())]
    Tokens {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        detail: String,
    },
    /// The Kubernetes cluster is unusable.
    #[error("use the Kubernetes cluster: {0}")]
    Kubernetes(String),
    /// The TLS configuration is invalid.
    #[error("configure TLS")]
    Tls(#[source] TlsError),
    /// The address of a controller is invalid.
    #[error("connect to a V-IPU controller")]
    Connect(#[source] ConnectError),
    /// The listen address is unusable.
    #[error("listen on {address}")]
    Listen {
        /// Listen address.
        address: ListenAddress,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// Running proxy.
pub struct Proxy {
    address: ListenAddress,
    plain_address: Option<SocketAddr>,
    app: Arc<App>,
    open_connections: watch::Receiver<usize>,
    close: watch::Sender<()>,
    serving: JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
    simulator: Option<Simulator>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts the proxy.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let cluster = match &config.kubernetes {
            Some(choice) => Some(Cluster::connect(choice).await.map_err(StartError::Kubernetes)?),
            None => None,
        };
        let mut options = Options::default();
        let store: Arc<dyn Store> = match &config.store {
            StoreChoice::Kubernetes => {
                let cluster = cluster
                    .as_ref()
                    .ok_or_else(|| StartError::Kubernetes(String::new()))?;
                let (store, share) = cluster.store().map_err(StartError::Store)?;
                options.policy.namespaces.max_queued_bytes = Some(share);
                store
            }
            StoreChoice::Memory => Arc::new(MemoryStore::default()),
            StoreChoice::File(path) => Arc::new(SqliteStore::at(path).map_err(StartError::Store)?),
        };
        let metrics = Arc::new(Metrics::default());
        options.policy.order = config.order;
        options.policy.preemption = config.preemption;
        options.placement = config.placement.clone();
        options.placements = config.placements.clone();
        options.compare_interval = config.repair_interval;
        options.times = CallTimes::with_deadline(config.controller_deadline);
        config.limits.apply(&mut options.policy);
        if let Some(max) = config.max_queued {
            options.policy.namespaces.max_queued = max;
            options.policy.namespaces.max_queued_bytes = None;
        }
        let mut files = Vec::new();
        let mut simulator = None;
        let endpoints = match &config.hardware {
            Hardware::Controllers(endpoints) => endpoints.clone(),
            Hardware::File(path) => {
                let text = read(path)?;
                let endpoints = parse_controllers(&text).map_err(|source| StartError::List {
                    path: path.clone(),
                    source,
                })?;
                files.push((
                    path.clone(),
                    text,
                    FileReloader::Controllers(config.placements.clone()),
                ));
                endpoints
            }
            // The watch delivers the controllers.
            Hardware::Watched => Vec::new(),
            Hardware::Simulated { name, .. } => {
                let started = simulate(&config.hardware).await?;
                let mut address: ControllerEndpoint =
                    started.addr().try_into().map_err(StartError::Address)?;
                if let Some(name) = name {
                    address = address.with_name(name.clone());
                }
                // Calls end with this process.
                options.times.settle = Duration::ZERO;
                simulator = Some(started);
                vec![address]
            }
        };
        let connector = Connector::new(
            Arc::clone(&metrics),
            options.times,
            config.secrets.clone(),
            simulator.as_ref().map(Simulator::service),
        );
        let pool = ControllerPool::connect(&endpoints, |endpoint| connector.connect(endpoint))
            .map_err(StartError::Connect)?;
        if let Hardware::File(_) = config.hardware {
            warn_of_unlisted_placements(&config.placements, &pool);
        }
        let mut liveness: Arc<dyn Liveness> =
            Arc::new(HolderLiveness(LeaseLiveness::new(Arc::clone(&options.clock))));
        if let Some(cluster) = &cluster {
            liveness = cluster.liveness(liveness).map_err(StartError::Kubernetes)?;
        }
        options.liveness = liveness;
        let policy_in_force = options.policy.clone();
        let allocator = Allocator::start(options, store, pool);
        let repairs = Arc::clone(&metrics);
        allocator.observe_commits(move |changes, duration| metrics.record_write(changes, duration));
        allocator.observe_comparisons(move |comparison| repairs.record_repair(comparison));
        let tokens = Tokens::default();
        if let Some(path) = &config.token_file {
            let text = read(path)?;
            let refused = |detail| StartError::Tokens {
                path: path.clone(),
                detail,
            };
            tokens.load(&text).map_err(refused)?;
            files.push((path.clone(), text, FileReloader::Tokens(tokens.clone())));
        }
        if let Some(path) = &config.file {
            let text = read(path)?;
            files.push((
                path.clone(),
                text.clone(),
                FileReloader::Settings {
                    started: text,
                    policy: Box::new(policy_in_force),
                },
            ));
        }
        let policy = access_policy(&config, tokens, cluster.as_ref())?;
        let app = App::new(allocator, connector, config.repair_interval);
        let mut workers = Vec::new();
        if let Some(cluster) = &cluster
            && let Some(watch) = cluster.controllers().map_err(StartError::Kubernetes)?
        {
            workers.push(kubernetes::watch_controllers(watch, &app).await);
        }
        for (path, text, reloader) in files {
            let (app, stopping, reloader) = (Arc::clone(&app), app.stopping(), Arc::new(reloader));
            let apply = move |text: String| {
                let (app, reloader) = (Arc::clone(&app), Arc::clone(&reloader));
                async move { reloader.apply(&app, &text).await }
            };
            workers.push(tokio::spawn(watch_file(path, text, stopping, apply)));
        }
        workers.push(tokio::spawn(maintain(Arc::clone(&app), config.repair_interval)));
        workers.push(tokio::spawn(crate::subjects::watch(Arc::clone(&app))));
        let watched = Arc::clone(&app);
        workers.push(tokio::spawn(async move {
            let (pool, stopping) = (watched.allocator.pool(), watched.stopping());
            watched.connector.watch_secrets(pool, stopping).await;
        }));
        let mut proxy = Self::serve(&config, app, policy).await?;
        proxy.workers.extend(workers);
        proxy.simulator = simulator;
        Ok(proxy)
    }

    async fn serve(config: &Config, app: Arc<App>, policy: AccessPolicy) -> Result<Self, StartError> {
        let mut serve = ServeOptions::default();
        serve.idle_timeout = config.idle_timeout;
        serve.write_timeout = config.write_timeout;
        serve.response_timeout = config.write_timeout;
        serve.first_request_timeout = serve.first_request_timeout.min(config.idle_timeout);
        serve.max_connections = config.max_requests.saturating_add(SPARE_CONNECTIONS);
        serve.unidentified = policy.split.then_some(UnidentifiedLimits {
            total: serve.max_connections / 2,
            per_network: serve.max_connections / 4,
        });
        if let Some(files) = &config.tls {
            serve.tls = Some(ipu_serve::Tls::from_files(files.clone()).map_err(StartError::Tls)?);
        }
        let (listener, address) = bind(&config.listen).await?;
        let (close, closing) = watch::channel(());
        let timeouts = Timeouts {
            read: config.read_timeout,
            write: config.write_timeout,
        };
        let (mut workers, mut plain_address) = (Vec::new(), None);
        if let Some(plain) = config.plain_listen {
            let (listener, address) = bind_tcp(plain).await?;
            let gateway = Arc::new(Gateway::new(&app, timeouts, plain_access_policy(config, address)));
            let mut serve = serve.clone();
            serve.tls = None;
            let serving = ipu_serve::serve(listener, gateway, serve, closing.clone());
            workers.push(tokio::spawn(serving));
            tracing::info!(%address, "serving documented reads over plain HTTP");
            plain_address = Some(address);
        }
        let gateway = Arc::new(Gateway::new(&app, timeouts, policy));
        let open_connections = serve.open_connections.subscribe();
        let serving = tokio::spawn(ipu_serve::serve(listener, gateway, serve, closing));
        Ok(Self {
            address,
            plain_address,
            app,
            open_connections,
            close,
            serving,
            workers,
            simulator: None,
        })
    }

    /// Returns the listen address.
    #[must_use]
    pub const fn listen_address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the TCP listen address; port 0 on a Unix socket.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        match &self.address {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(_) => SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        }
    }

    /// Waits until the proxy has had neither connections nor partitions nor queued requests for `timeout`.
    pub async fn until_idle(&self, timeout: Duration) {
        let mut open = self.open_connections.clone();
        loop {
            // The sender lives as long as the server; if it has ended, the proxy is idle.
            if open.wait_for(|count| *count == 0).await.is_err() {
                return;
            }
            let connected = open.wait_for(|count| *count > 0);
            if tokio::time::timeout(timeout, connected).await.is_err()
                && self
                    .app
                    .partition_documents()
                    .await
                    .is_ok_and(|all| all.is_empty())
                && *open.borrow() == 0
            {
                return;
            }
        }
    }

    /// Returns the plain HTTP address of the documented reads.
    #[must_use]
    pub const fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain_address
    }

    /// Stops the proxy. It starts no new work, finishes open requests, and leaves pending operations to the
    /// ledger.
    pub async fn shutdown(self) {
        self.app.stop.send_replace(true);
        // Sending fails only if the server has already ended.
        self.close.send(()).ok();
        if let Err(error) = self.serving.await {
            tracing::warn!(%error, "the server failed");
        }
        for worker in self.workers {
            if let Err(error) = worker.await {
                tracing::warn!(%error, "a worker failed");
            }
        }
        self.app.allocator.stop().await;
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }

    /// Waits until the proxy cannot go on, because another process has taken over its record.
    pub async fn ended(&self) -> String {
        match self.app.allocator.ended().await {
            Ok(()) => "the allocator has ended".to_owned(),
            Err(error) => ErrorChain(&*error).to_string(),
        }
    }
}

/// Liveness of owners by the evidence that the ledger records: a process of this host, or a lease.
struct HolderLiveness(LeaseLiveness);

#[async_trait]
impl Liveness for HolderLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        if entry.holder.parse::<ProcessHolder>().is_ok() {
            return ProcessLiveness.liveness_of(entry).await;
        }
        self.0.judge(entry)
    }

    fn forget_silence(&self, partitions: &[&PartitionId]) {
        self.0.forget_silence(partitions);
    }
}

fn access_policy(
    config: &Config,
    tokens: Tokens,
    cluster: Option<&Cluster>,
) -> Result<AccessPolicy, StartError> {
    let mut authenticators: Vec<Arc<dyn Authenticator>> = Vec::new();
    if config.token_file.is_some() {
        authenticators.push(Arc::new(tokens));
    }
    if let Some(tls) = &config.tls
        && tls.clients != ClientCertificates::Disabled
    {
        authenticators.push(Arc::new(Certificates));
    }
    if let Some(cluster) = cluster.filter(|_| config.authenticates) {
        authenticators.push(cluster.authenticator().map_err(StartError::Kubernetes)?);
    }
    let local = config.local_users;
    if local {
        authenticators.push(Arc::new(LocalUsers::of_this_process()));
    }
    let split = !authenticators.is_empty();
    if !split {
        authenticators.push(Arc::new(NoAuth));
    }
    Ok(AccessPolicy {
        authenticator: Arc::new(AnyOf(authenticators)),
        reading: config.reading,
        max_requests: config.max_requests,
        max_unsent: MAX_UNSENT_BYTES,
        local,
        split,
        loopback: config.listen.is_loopback(),
        plain: false,
    })
}

/// Policy of the plain HTTP address: clients are anonymous, and take at most half of the slots of the TLS
/// address.
fn plain_access_policy(config: &Config, address: SocketAddr) -> AccessPolicy {
    let slots = config.max_requests.div_ceil(2);
    AccessPolicy {
        authenticator: Arc::new(AnyOf(Vec::new())),
        reading: ReadAccess::Open,
        max_requests: slots,
        max_unsent: MAX_UNSENT_BYTES / 2,
        local: false,
        split: false,
        loopback: address.ip().is_loopback(),
        plain: true,
    }
}

async fn bind(address: &ListenAddress) -> Result<(Listener, ListenAddress), StartError> {
    match address {
        ListenAddress::Tcp(address) => {
            let (listener, address) = bind_tcp(*address).await?;
            Ok((listener.into(), address.into()))
        }
        ListenAddress::Unix(path) => {
            let listener = Listener::bind_unix(path).map_err(|source| StartError::Listen {
                address: address.clone(),
                source,
            })?;
            Ok((listener, address.clone()))
        }
    }
}

async fn bind_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listen = |source| StartError::Listen {
        address: address.into(),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let bound = listener.local_addr().map_err(listen)?;
    Ok((listener, bound))
}

/// Target of a reloaded file.
enum FileReloader {
    /// The list of controllers, with the placements of single ones.
    Controllers(BTreeMap<ControllerName, PlacementMode>),
    Tokens(Tokens),
    /// The settings file, with its text at the start of the proxy, and the policy without its limits.
    Settings {
        started: String,
        policy: Box<Policy>,
    },
}

impl FileReloader {
    async fn apply(&self, app: &App, text: &str) -> Result<(), String> {
        match self {
            Self::Controllers(placements) => {
                app.replace_controllers(text).await?;
                warn_of_unlisted_placements(placements, app.allocator.pool());
                Ok(())
            }
            Self::Tokens(tokens) => tokens.load(text),
            Self::Settings { started, policy } => {
                let limits = Limits::of(&read_settings(text)?).map_err(|error| error.to_string())?;
                let mut policy = Policy::clone(policy);
                limits.apply(&mut policy);
                app.allocator.set_policy(policy).await;
                let keys = keys_for_restart(started, text);
                if !keys.is_empty() {
                    tracing::warn!(
                        keys = keys.join(", "),
                        "these changed settings need a restart; only quotas and priorities apply while the proxy runs"
                    );
                }
                Ok(())
            }
        }
    }
}

fn read(path: &Path) -> Result<String, StartError> {
    std::fs::read_to_string(path).map_err(|source| StartError::Read {
        path: path.to_owned(),
        source,
    })
}

async fn simulate(hardware: &Hardware) -> Result<Simulator, StartError> {
    let Hardware::Simulated {
        topology,
        listen,
        state,
        delay,
        ..
    } = hardware
    else {
        unreachable!("the caller has matched a simulated controller");
    };
    let mut builder = Simulator::builder(topology.clone()).listen(*listen).delay(*delay);
    if let Some(state) = state {
        builder = builder.state_file(state);
    }
    builder.start().await.map_err(StartError::Simulate)
}
