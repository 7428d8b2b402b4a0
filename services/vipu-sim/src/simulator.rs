//! Starts and stops a simulator in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::PartitionId;
use ipu_core::hardware::Topology;
use ipu_serve::{ServeOptions, TlsError, TlsFiles};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::Api;
use crate::error::SimError;
use crate::faults::Faults;
use crate::server::ServerContext;
use crate::service::SimulatorService;
use crate::state::{PodState, Settings, SimState};
use crate::store::{Store, StoreError};

/// Default controller version.
const DEFAULT_VERSION: &str = "1.18.0-sim";

/// Errors of starting a simulator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The state file cannot be used.
    #[error("open the state of the IPU-POD")]
    State(#[source] StoreError),
    /// TLS cannot be configured.
    #[error("configure TLS")]
    Tls(#[source] TlsError),
    /// The address cannot be bound.
    #[error("listen on {address}")]
    Listen {
        /// The listen address.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// Builder of a [`Simulator`].
#[derive(Debug)]
#[must_use]
pub struct SimulatorBuilder {
    topology: Topology,
    delay: Option<Duration>,
    /// State file; without one, the state is in memory.
    state_file: Option<PathBuf>,
    listen: SocketAddr,
    version: String,
    refuses_ipus: bool,
    secure: Option<(TlsFiles, BTreeMap<String, String>)>,
}

impl SimulatorBuilder {
    /// Sets the duration of create, reset and remove. Defaults to zero, or to the value in the state file.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Stores the state in this file, which is created if missing and which several processes may serve at
    /// once. Network file systems are not supported.
    pub fn state_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.state_file = Some(path.into());
        self
    }

    /// Sets the listen address; the default is a free port of 127.0.0.1.
    pub const fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Sets the reported controller version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Refuses every create call that names IPUs, as a controller without this parameter does.
    pub const fn refuse_ipus(mut self) -> Self {
        self.refuses_ipus = true;
        self
    }

    /// Serves TLS only, requires a client certificate, and authenticates these users by access key. The
    /// headers are `vipu-user-id` and `vipu-access-key`, names of this project: the real ones are not
    /// public.
    pub fn secure(mut self, files: TlsFiles, users: BTreeMap<String, String>) -> Self {
        self.secure = Some((files, users));
        self
    }

    /// Returns the controller operations over the configured state.
    fn api(&self) -> Result<Api, StartError> {
        let delays = self.delay.map(Settings::all);
        let settings = delays.unwrap_or(Settings::all(Duration::ZERO));
        let initial = SimState::new(self.topology.clone(), settings);
        let store = match &self.state_file {
            None => Store::memory(initial),
            Some(path) => Store::open(path.clone(), initial, delays).map_err(StartError::State)?,
        };
        Ok(Api::new(store, &self.version, self.refuses_ipus))
    }

    /// Handles requests passed to it, without a listener and without TLS. The users of
    /// [`SimulatorBuilder::secure`] are authenticated; client certificates are not required.
    ///
    /// # Errors
    ///
    /// [`StartError::State`] if the state cannot be used.
    pub fn in_process(self) -> Result<SimulatorService, StartError> {
        let api = self.api()?;
        let users = self.secure.map(|(_, users)| users);
        Ok(SimulatorService::new(&Arc::new(ServerContext::new(api, users))))
    }

    /// Starts serving.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the state file, the certificates or the address cannot be used.
    pub async fn start(self) -> Result<Simulator, StartError> {
        let api = self.api()?;
        let mut options = ServeOptions::default();
        let users = match self.secure {
            None => None,
            Some((files, users)) => {
                options.tls = Some(ipu_serve::Tls::from_files(files).map_err(StartError::Tls)?);
                Some(users)
            }
        };
        let address = self.listen;
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let context = Arc::new(ServerContext::new(api, users));
        let (stop, stopped) = watch::channel(());
        let serving = tokio::spawn(ipu_serve::serve(listener, Arc::clone(&context), options, stopped));
        Ok(Simulator {
            context,
            address,
            stop,
            serving,
        })
    }
}

/// A V-IPU controller that serves in this process until it is dropped or shut down. A state file is kept.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), vipu_sim::StartError> {
/// let simulator = vipu_sim::Simulator::builder(ipu_core::hardware::Topology::pod16()).start().await?;
/// assert_ne!(simulator.addr().port(), 0);
/// simulator.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct Simulator {
    context: Arc<ServerContext>,
    address: SocketAddr,
    stop: watch::Sender<()>,
    serving: JoinHandle<()>,
}

impl Simulator {
    /// Returns a builder for this topology: in memory, on a free port of 127.0.0.1, with zero operation
    /// time.
    pub fn builder(topology: Topology) -> SimulatorBuilder {
        SimulatorBuilder {
            topology,
            delay: None,
            state_file: None,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            version: DEFAULT_VERSION.to_owned(),
            refuses_ipus: false,
            secure: None,
        }
    }

    /// Returns the listen address.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns a service for clients in this process.
    #[must_use]
    pub fn service(&self) -> SimulatorService {
        SimulatorService::new(&self.context)
    }

    /// Returns the injected faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.context.faults.clone()
    }

    /// Returns the current state of the IPU-POD.
    ///
    /// # Errors
    ///
    /// [`SimError::Storage`] if the state file cannot be read.
    pub fn state(&self) -> Result<PodState, SimError> {
        self.context.state()
    }

    /// Sets the duration of create, reset and remove from now on.
    ///
    /// # Errors
    ///
    /// [`SimError::Storage`] if the state file cannot be written.
    pub async fn set_delay(&self, delay: Duration) -> Result<(), SimError> {
        let change = move |state: &mut SimState, now| {
            state.set_settings(Settings::all(delay), now);
            Ok(())
        };
        self.context.api.change("set delays", change).await
    }

    /// Makes an IPU of this partition bad. An active partition is then in the error state.
    ///
    /// # Errors
    ///
    /// [`SimError::NotFound`] if there is no such partition, and [`SimError::Storage`].
    pub async fn break_partition(&self, id: &PartitionId) -> Result<(), SimError> {
        let id = id.clone();
        let change = move |state: &mut SimState, now| state.break_partition(&id, now);
        self.context.api.change("break partition", change).await
    }

    /// Renders the current state as text, as `GET /sim/map` does.
    ///
    /// # Errors
    ///
    /// [`SimError::Storage`] if the state file cannot be read.
    pub fn map(&self) -> Result<String, SimError> {
        let store = self.context.api.store();
        store.read(|state| Ok(crate::ascii_map::draw(state)))
    }

    /// Stops accepting connections, lets open calls finish for some seconds, and returns when serving has
    /// ended.
    pub async fn shutdown(mut self) {
        // The receiver is closed only if serving has already ended.
        self.stop.send(()).ok();
        if let Err(error) = (&mut self.serving).await {
            tracing::warn!(%error, "the server task failed");
        }
    }
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
