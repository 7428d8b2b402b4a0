//! Starting and stopping the proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipu_ledger::{Ledger, LedgerOptions, MemoryStore, SqliteStore, StoreError};
use ipu_serve::ServeOptions;
use ipu_vipu_client::{
    ConnectError, ConnectOptions, ControllerEndpoint, ControllerPool, EndpointError, GrpcController,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vipu_sim::Simulator;

use crate::app::{AnyController, App, ProxyLedger};
use crate::front::{Front, Patience};
use crate::settings::{Config, Hardware, StoreChoice};
use crate::store::AnyStore;
use crate::worker;

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
    stop: watch::Sender<bool>,
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
        let store = match &config.store {
            StoreChoice::Memory => AnyStore::new(MemoryStore::default()),
            StoreChoice::File(path) => AnyStore::new(SqliteStore::open(path).map_err(StartError::Store)?),
        };
        let mut options = LedgerOptions::default();
        let (simulator, endpoints) = match &config.hardware {
            Hardware::Controllers(endpoints) => (None, endpoints.clone()),
            Hardware::Simulated { .. } => {
                let simulator = simulate(&config.hardware).await?;
                let address = simulator.addr().try_into().map_err(StartError::Address)?;
                // Calls end with this process.
                options.settle = Duration::ZERO;
                (Some(simulator), vec![address])
            }
        };
        let pool = ControllerPool::connect(&endpoints, connect).map_err(StartError::Connect)?;
        let ledger = Ledger::new(pool, store, options);
        let address = config.listen;
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (stop, stopping) = watch::channel(false);
        let (close, closing) = watch::channel(());
        let app = App::new(ledger, stopping);
        let front = Arc::new(front(&app, &config));
        let mut serve = ServeOptions::default();
        serve.idle = config.idle_timeout;
        serve.stall = config.write_timeout;
        let serving = tokio::spawn(ipu_serve::serve(listener, front, serve, closing));
        let workers = vec![tokio::spawn(worker::go_on(app))];
        Ok(Self {
            address,
            stop,
            close,
            serving,
            workers,
            simulator,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Stops: nothing new is begun, open calls are answered, and what is under way is left to the ledger.
    pub async fn shutdown(self) {
        // The receivers are gone only if everything has ended already.
        self.stop.send(true).ok();
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

/// The API over a ledger, without a connection: a request in, its answer out. What is not done by the end of a request is
/// gone on with by nobody.
#[must_use]
pub fn in_process(ledger: ProxyLedger) -> Front {
    let (_, stopping) = watch::channel(false);
    Front::new(
        &App::new(ledger, stopping),
        Patience {
            read: Duration::from_secs(30),
            write: Duration::from_secs(300),
        },
    )
}

fn front(app: &Arc<App>, config: &Config) -> Front {
    Front::new(
        app,
        Patience {
            read: config.read_timeout,
            write: config.write_timeout,
        },
    )
}

fn connect(endpoint: &ControllerEndpoint) -> Result<AnyController, ConnectError> {
    Ok(Arc::new(GrpcController::connect(
        endpoint,
        &ConnectOptions::default(),
    )?))
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
