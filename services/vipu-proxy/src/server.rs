//! Starting and stopping the proxy.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipu_ledger::{
    LeaseLiveness, Ledger, LedgerOptions, Liveness, MemoryStore, MemoryUsageLog, SqliteStore, StoreError,
    UsageLog,
};
use ipu_serve::{ClientCertificates, ServeOptions, TlsError, UnidentifiedLimits};
use ipu_vipu_client::{ConnectError, ControllerListError, ControllerPool, EndpointError, parse_controllers};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vipu_sim::Simulator;

use crate::app::{App, ProxyLedger};
use crate::auth::{AnyOf, Authenticator, Certificates, NoAuth, Tokens};
use crate::background;
use crate::connector::{Connector, follow_secrets};
use crate::file_watch::watch_file;
use crate::kubernetes::{self, Cluster};
use crate::limits::Limits;
use crate::local::LocalUsers;
use crate::metrics::Metrics;
use crate::middleware::{AccessPolicy, Gateway, Timeouts, UNSENT};
use crate::settings::{Config, Hardware, ReadAccess, StoreChoice, read_settings};
use crate::store::AnyStore;
use crate::supervise::supervise;

/// Connections beyond those of requests that are worked on: probes, event streams, and clients between two requests.
const SPARE_CONNECTIONS: usize = 512;

/// Why the proxy does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store of the ledger cannot be used.
    #[error("open the ledger")]
    Store(#[source] StoreError),
    /// The simulated controller does not start.
    #[error("simulate a Pod")]
    Simulate(#[source] vipu_sim::StartError),
    /// The address of the simulated controller is none that a client could use.
    #[error("use the address of the simulated controller")]
    Address(#[source] EndpointError),
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The list of controllers is none.
    #[error("read the controllers of {}", path.display())]
    List {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: ControllerListError,
    },
    /// The file of tokens is none.
    #[error("read the tokens of {}: {detail}", path.display())]
    Tokens {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The cluster cannot be used.
    #[error("use the Kubernetes cluster: {0}")]
    Kubernetes(String),
    /// TLS cannot be offered.
    #[error("offer TLS")]
    Tls(#[source] TlsError),
    /// A controller cannot be addressed.
    #[error("address a V-IPU controller")]
    Connect(#[source] ConnectError),
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
}

/// A proxy that serves in this process until it is shut down.
pub struct Proxy {
    address: SocketAddr,
    plain_address: Option<SocketAddr>,
    app: Arc<App>,
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
    /// Starts to serve.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let cluster = match &config.kubernetes {
            Some(choice) => Some(Cluster::connect(choice).await.map_err(StartError::Kubernetes)?),
            None => None,
        };
        let mut options = LedgerOptions::default();
        let store = match &config.store {
            StoreChoice::Kubernetes => {
                let cluster = cluster
                    .as_ref()
                    .ok_or_else(|| StartError::Kubernetes(String::new()))?;
                let (store, usage, share) = cluster.store().map_err(StartError::Store)?;
                options.usage = Some(usage);
                options.queue.namespaces.max_queued_bytes = Some(share);
                store
            }
            StoreChoice::Memory => {
                options.usage = Some(Arc::new(MemoryUsageLog::new()));
                AnyStore::new(MemoryStore::default())
            }
            StoreChoice::File(path) => {
                let store = Arc::new(SqliteStore::open(path).map_err(StartError::Store)?);
                options.usage = Some(Arc::clone(&store) as Arc<dyn UsageLog>);
                AnyStore::shared(store)
            }
        };
        let metrics = Arc::new(Metrics::default());
        let store = store.measured(&metrics);
        options.queue.order = config.order;
        config.limits.apply(&mut options.queue);
        if let Some(most) = config.max_queued {
            options.queue.namespaces.max_queued = most;
            options.queue.namespaces.max_queued_bytes = None;
        }
        let mut files = Vec::new();
        let mut simulator = None;
        let endpoints = match &config.hardware {
            Hardware::Controllers(endpoints) => endpoints.clone(),
            Hardware::Listed(path) => {
                let text = read(path)?;
                let endpoints = parse_controllers(&text).map_err(|source| StartError::List {
                    path: path.clone(),
                    source,
                })?;
                files.push((path.clone(), text, FileFollower::Controllers));
                endpoints
            }
            // They come with the watch.
            Hardware::Watched => Vec::new(),
            Hardware::Simulated { .. } => {
                let started = simulate(&config.hardware).await?;
                let address = started.addr().try_into().map_err(StartError::Address)?;
                // Calls end with this process.
                options.settle = Duration::ZERO;
                simulator = Some(started);
                vec![address]
            }
        };
        let connector = Connector::new(
            metrics,
            config.secrets.clone(),
            simulator.as_ref().map(Simulator::service),
        );
        let pool = ControllerPool::connect(&endpoints, |endpoint| connector.connect(endpoint))
            .map_err(StartError::Connect)?;
        let clock = Arc::clone(&options.clock);
        let ledger = Ledger::new(pool, store, options);
        let tokens = Tokens::default();
        if let Some(path) = &config.token_file {
            let text = read(path)?;
            let refused = |detail| StartError::Tokens {
                path: path.clone(),
                detail,
            };
            tokens.load(&text).map_err(refused)?;
            files.push((path.clone(), text, FileFollower::Tokens(tokens.clone())));
        }
        if let Some(path) = &config.file {
            files.push((path.clone(), read(path)?, FileFollower::Limits));
        }
        let guard = guard(&config, tokens, cluster.as_ref())?;
        let mut alive: Arc<dyn Liveness> = Arc::new(LeaseLiveness::new(clock));
        if let Some(cluster) = &cluster {
            alive = cluster.liveness(alive).map_err(StartError::Kubernetes)?;
        }
        let app = App::new(ledger, connector, alive);
        let mut workers = Vec::new();
        if let Some(cluster) = &cluster
            && let Some(watch) = cluster.controllers().map_err(StartError::Kubernetes)?
        {
            workers.push(kubernetes::follow(watch, &app).await);
        }
        for (path, text, follows) in files {
            let (app, stopping, follows) = (Arc::clone(&app), app.stopping(), Arc::new(follows));
            let apply = move |text: String| {
                let (app, follows) = (Arc::clone(&app), Arc::clone(&follows));
                async move { follows.apply(&app, &text).await }
            };
            workers.push(tokio::spawn(watch_file(path, text, stopping, apply)));
        }
        let interval = config.repair_interval;
        let repair = supervise("repair", Arc::clone(&app), move |app| {
            background::run_repair(app, interval)
        });
        workers.push(tokio::spawn(repair));
        workers.push(tokio::spawn(supervise(
            "queue",
            Arc::clone(&app),
            background::run_queue,
        )));
        workers.push(tokio::spawn(follow_secrets(Arc::clone(&app))));
        let mut proxy = Self::serve(&config, app, guard).await?;
        proxy.workers.extend(workers);
        proxy.simulator = simulator;
        Ok(proxy)
    }

    async fn serve(config: &Config, app: Arc<App>, guard: AccessPolicy) -> Result<Self, StartError> {
        let mut serve = ServeOptions::default();
        serve.idle = config.idle_timeout;
        serve.stall = config.write_timeout;
        serve.answer = config.write_timeout;
        serve.first_request = serve.first_request.min(config.idle_timeout);
        serve.connections = config.max_requests.saturating_add(SPARE_CONNECTIONS);
        serve.unidentified = guard.split.then_some(UnidentifiedLimits {
            total: serve.connections / 2,
            per_network: serve.connections / 4,
        });
        if let Some(files) = &config.tls {
            serve.tls = Some(ipu_serve::Tls::of(files.clone()).map_err(StartError::Tls)?);
        }
        let (listener, address) = bind(config.listen).await?;
        let (close, closing) = watch::channel(());
        let patience = Timeouts {
            read: config.read_timeout,
            write: config.write_timeout,
        };
        let (mut workers, mut plain_address) = (Vec::new(), None);
        if let Some(plain) = config.plain_listen {
            let (listener, address) = bind(plain).await?;
            let front = Arc::new(Gateway::new(&app, patience, plain_guard(config, address)));
            let mut serve = serve.clone();
            serve.tls = None;
            let serving = ipu_serve::serve(listener, front, serve, closing.clone());
            workers.push(tokio::spawn(serving));
            tracing::info!(%address, "answers documented reads over plain HTTP");
            plain_address = Some(address);
        }
        let front = Arc::new(Gateway::new(&app, patience, guard));
        let serving = tokio::spawn(ipu_serve::serve(listener, front, serve, closing));
        Ok(Self {
            address,
            plain_address,
            app,
            close,
            serving,
            workers,
            simulator: None,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers documented reads over plain HTTP.
    #[must_use]
    pub const fn plain_addr(&self) -> Option<SocketAddr> {
        self.plain_address
    }

    /// Stops: nothing new is begun, open calls are answered, and what is under way is left to the ledger.
    pub async fn shutdown(self) {
        self.app.stop.send_replace(true);
        // The receiver is gone only if serving has ended already.
        self.close.send(()).ok();
        if let Err(error) = self.serving.await {
            tracing::warn!(%error, "serving ended badly");
        }
        for worker in self.workers {
            if let Err(error) = worker.await {
                tracing::warn!(%error, "a worker ended badly");
            }
        }
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }
}

/// The API over a ledger, without a connection: a request in, its answer out. Who asks is found out by `authenticator`, or
/// not at all. What is not done by the end of a request is gone on with by nobody.
#[must_use]
pub fn in_process(ledger: ProxyLedger, authenticator: Option<Arc<dyn Authenticator>>) -> Gateway {
    let alive = LeaseLiveness::new(Arc::new(crate::app::now));
    let app = App::new(
        ledger,
        Connector::new(Arc::default(), None, None),
        Arc::new(alive),
    );
    // Nothing is left over that a first repair would find.
    app.health.repaired();
    let split = authenticator.is_some();
    Gateway::new(
        &app,
        Timeouts {
            read: Duration::from_secs(30),
            write: Duration::from_secs(300),
        },
        AccessPolicy {
            authenticator: authenticator.unwrap_or_else(|| Arc::new(NoAuth)),
            reading: ReadAccess::Open,
            concurrency: 1024,
            unsent: UNSENT,
            local: false,
            split,
            loopback: false,
            plain: false,
        },
    )
}

fn guard(config: &Config, tokens: Tokens, cluster: Option<&Cluster>) -> Result<AccessPolicy, StartError> {
    let mut who: Vec<Arc<dyn Authenticator>> = Vec::new();
    if config.token_file.is_some() {
        who.push(Arc::new(tokens));
    }
    if let Some(tls) = &config.tls
        && tls.clients != ClientCertificates::NotAsked
    {
        who.push(Arc::new(Certificates));
    }
    if let Some(cluster) = cluster.filter(|_| config.asks) {
        who.push(cluster.authenticator().map_err(StartError::Kubernetes)?);
    }
    let local = config.local_users && who.is_empty();
    if local {
        who.push(Arc::new(LocalUsers::of_this_process()));
    }
    let split = !who.is_empty();
    if !split {
        who.push(Arc::new(NoAuth));
    }
    Ok(AccessPolicy {
        authenticator: Arc::new(AnyOf(who)),
        reading: config.reading,
        concurrency: config.max_requests,
        unsent: UNSENT,
        local,
        split,
        loopback: config.listen.ip().is_loopback(),
        plain: false,
    })
}

/// The guard of the address without TLS: clients are anonymous there, and take half of the places of the other address at most.
fn plain_guard(config: &Config, address: SocketAddr) -> AccessPolicy {
    let places = config.max_requests.div_ceil(2);
    AccessPolicy {
        authenticator: Arc::new(AnyOf(Vec::new())),
        reading: ReadAccess::Open,
        concurrency: places,
        unsent: UNSENT / 2,
        local: false,
        split: false,
        loopback: address.ip().is_loopback(),
        plain: true,
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listen = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let bound = listener.local_addr().map_err(listen)?;
    Ok((listener, bound))
}

/// What follows a file.
enum FileFollower {
    Controllers,
    Tokens(Tokens),
    Limits,
}

impl FileFollower {
    async fn apply(&self, app: &App, text: &str) -> Result<(), String> {
        match self {
            Self::Controllers => app.replace_controllers(text).await,
            Self::Tokens(tokens) => tokens.load(text),
            Self::Limits => {
                let limits = Limits::of(&read_settings(text)?).map_err(|error| error.to_string())?;
                app.ledger.change_rules(|rules| limits.apply(rules));
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
    } = hardware
    else {
        unreachable!("it was asked for");
    };
    let mut builder = Simulator::builder(topology.clone()).listen(*listen).delay(*delay);
    if let Some(state) = state {
        builder = builder.state_file(state);
    }
    builder.start().await.map_err(StartError::Simulate)
}
