//! Starting and stopping a simulator in this process.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::Topology;
use ipu_serve::{ServeOptions, TlsError, TlsFiles};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::Api;
use crate::error::SimError;
use crate::faults::Faults;
use crate::in_process::InProcess;
use crate::server::ServerContext;
use crate::service::SimulatorService;
use crate::state::{PodState, Settings, SimState};
use crate::store::{Store, StoreError};

/// The version that the simulated controller reports unless told otherwise.
const DEFAULT_VERSION: &str = "1.18.0-sim";

/// Why a simulator does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The state file cannot be used.
    #[error("open the state of the Pod")]
    State(#[source] StoreError),
    /// TLS cannot be offered.
    #[error("offer TLS")]
    Tls(#[source] TlsError),
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the operating system says.
        source: std::io::Error,
    },
}

/// Where the state comes from and is kept.
#[derive(Debug)]
enum StatePersistence {
    /// Begins empty, ends with the process.
    Memory,
    /// Begins with what a state file held, ends with the process.
    Copy(Vec<u8>),
    /// In this file.
    File(PathBuf),
}

/// A simulator to be started.
#[derive(Debug)]
#[must_use]
pub struct SimulatorBuilder {
    topology: Topology,
    delay: Option<Duration>,
    kept: StatePersistence,
    listen: SocketAddr,
    version: String,
    secure: Option<(TlsFiles, BTreeMap<String, String>)>,
}

impl SimulatorBuilder {
    /// Create, reset and remove take this long. Without it: no time, or what the state file says.
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Keeps the state in this file, which is made if it does not exist and which several processes may serve at once.
    /// Not for network file systems.
    pub fn state_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.kept = StatePersistence::File(path.into());
        self
    }

    /// Begins with what a state file holds, and keeps the state in memory: a Pod can be looked at, or its future tried, with
    /// its file left alone.
    pub fn state_copy(mut self, stored: impl Into<Vec<u8>>) -> Self {
        self.kept = StatePersistence::Copy(stored.into());
        self
    }

    /// Listens here instead of on a free port of 127.0.0.1.
    pub const fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Reports this as its version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Serves TLS only, asks clients for a certificate, and admits only these users, each with its access key, by the headers
    /// `vipu-user-id` and `vipu-access-key` (names of this project: the real ones are not public).
    pub fn secure(mut self, files: TlsFiles, users: BTreeMap<String, String>) -> Self {
        self.secure = Some((files, users));
        self
    }

    /// The state, behind the calls of the controller.
    fn api(&self) -> Result<Api, StartError> {
        let delays = self.delay.map(Settings::all);
        let settings = delays.unwrap_or(Settings::all(Duration::ZERO));
        let initial = SimState::new(self.topology.clone(), settings);
        let store = match &self.kept {
            StatePersistence::Memory => Store::memory(initial),
            StatePersistence::Copy(stored) => {
                Store::copy(stored, &initial, delays).map_err(StartError::State)?
            }
            StatePersistence::File(path) => {
                Store::open(path.clone(), initial, delays).map_err(StartError::State)?
            }
        };
        Ok(Api::new(store, &self.version))
    }

    /// Answers requests that are handed to it, without listening anywhere and without TLS. The users of
    /// [`SimulatorBuilder::secure`] are asked for, their certificates are not.
    ///
    /// # Errors
    ///
    /// [`StartError::State`] if the state cannot be used.
    pub fn in_process(self) -> Result<InProcess, StartError> {
        let api = self.api()?;
        Ok(InProcess::new(api, self.secure.map(|(_, users)| users)))
    }

    /// Starts to serve.
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
                options.tls = Some(ipu_serve::Tls::of(files).map_err(StartError::Tls)?);
                Some(users)
            }
        };
        let address = self.listen;
        let listen = |source| StartError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let faults = Faults::default();
        let front = Arc::new(ServerContext::new(&api, faults.clone(), users));
        let (stop, stopped) = watch::channel(());
        let serving = tokio::spawn(ipu_serve::serve(listener, Arc::clone(&front), options, stopped));
        Ok(Simulator {
            service: SimulatorService::new(&front),
            api,
            faults,
            address,
            stop,
            serving,
        })
    }
}

/// A V-IPU controller that serves in this process until it is dropped or shut down. A state file stays.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), vipu_sim::StartError> {
/// let simulator = vipu_sim::Simulator::builder(ipu_core::Topology::pod16()).start().await?;
/// assert_ne!(simulator.addr().port(), 0);
/// simulator.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct Simulator {
    api: Api,
    service: SimulatorService,
    faults: Faults,
    address: SocketAddr,
    stop: watch::Sender<()>,
    serving: JoinHandle<()>,
}

impl Simulator {
    /// A simulator of this topology, in memory, on a free port of 127.0.0.1, with operations that take no time.
    pub fn builder(topology: Topology) -> SimulatorBuilder {
        SimulatorBuilder {
            topology,
            delay: None,
            kept: StatePersistence::Memory,
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            version: DEFAULT_VERSION.to_owned(),
            secure: None,
        }
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What serves this process without a connection.
    #[must_use]
    pub fn service(&self) -> SimulatorService {
        self.service.clone()
    }

    /// The faults of this simulator, to be switched on and off.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The Pod as it is now.
    ///
    /// # Errors
    ///
    /// [`Refusal::Storage`] if the state file cannot be read.
    pub fn state(&self) -> Result<PodState, SimError> {
        self.api.store().read(|state| Ok(state.pod()))
    }

    /// The Pod as it is now, drawn as text: what `GET /sim/map` answers.
    ///
    /// # Errors
    ///
    /// [`Refusal::Storage`] if the state file cannot be read.
    pub fn map(&self) -> Result<String, SimError> {
        self.api.store().read(|state| Ok(crate::ascii_map::draw(state)))
    }

    /// Stops to accept connections, lets open calls end for some seconds, and returns when nothing is served any more.
    pub async fn shutdown(mut self) {
        // The receiver is gone only if serving has ended already.
        self.stop.send(()).ok();
        if let Err(error) = (&mut self.serving).await {
            tracing::warn!(%error, "serving ended badly");
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
