//! The way to a controller: the one that was named, or a simulated Pod16 that all of the user's ipuctl processes share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, Topology, TransitionError};
use ipu_ledger::{Ledger, LedgerError, LedgerOptions, SqliteStore};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, ControllerPool, Credentials, GrpcController, TlsOptions,
    VipuController as _, VipuError,
};
use vipu_sim::Simulator;

use crate::cli::{Global, Secure};
use crate::commands::gc::HolderLiveness;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::state_dir::StateDir;

/// The pauses after which the first call is made again: one lost answer is no controller that is not there.
const FIRST_PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

/// The name of the simulated controller in the ledger: its port is another one in each process.
const SIMULATED: &str = "simulated-pod16";

/// The ledger of this user over one controller.
pub(crate) type HostLedger = Ledger<GrpcController, SqliteStore>;

/// A controller, the ledger of what this user holds there, and where both keep their files.
pub(crate) struct Connection {
    pub(crate) state: StateDir,
    pub(crate) ledger: HostLedger,
    pub(crate) controller: Arc<GrpcController>,
    pub(crate) name: ControllerName,
    /// Where processes reach the controller.
    pub(crate) address: ControllerEndpoint,
    simulator: Option<Simulator>,
    /// What tells an `ipuctl` that a process of this one starts which Pod it is led to; none for a real controller.
    pub(crate) mark: Option<String>,
}

/// The variable that carries [`Connection::mark`] to the processes of a job.
pub(crate) const SIMULATED_MARK: &str = "IPUCTL_SIMULATED_POD";

impl Connection {
    /// Connects as the flags and the environment say: `--vipu`, then `IPUOF_VIPU_API_HOST` and `_PORT`, then the
    /// simulated Pod.
    pub(crate) async fn open(global: &Global, output: &Output) -> Result<Self, Failure> {
        let state = StateDir::open(global.state_dir.as_deref())?;
        let named = named(global)?;
        let inside = named
            .as_ref()
            .is_some_and(|address| is_own_simulator(address, &state));
        let (simulator, address) = match named.filter(|_| !inside) {
            Some(address) => (None, address),
            None => {
                let simulator = simulate(&state).await?;
                let address = endpoint(&simulator.addr().to_string())?;
                output.say(if inside {
                    "inside a job on the simulated Pod16 of this user: the same Pod"
                } else {
                    "no V-IPU controller given (--vipu, IPUOF_VIPU_API_HOST): a simulated Pod16 of this user"
                });
                (Some(simulator), address)
            }
        };
        let mark = simulator.as_ref().map(|_| mark_of(&address, &state));
        let name = match &simulator {
            Some(_) => ControllerName::new(SIMULATED)
                .map_err(|error| Failure::because(Code::Bug, "name the simulated controller", error))?,
            None => address.name().clone(),
        };
        let options = options(global)?;
        let controller = GrpcController::connect(&address, &options)
            .map_err(|error| Failure::because(Code::Usage, format!("controller {address}"), error))?;
        let controller = Arc::new(controller);
        let store = SqliteStore::open(state.ledger())
            .map_err(|error| Failure::because(Code::Host, "open the ledger", error))?;
        let pool = ControllerPool::single(name.clone(), Arc::clone(&controller));
        let mut rules = LedgerOptions::default();
        rules.liveness = Some(Arc::new(HolderLiveness));
        // The ledger is one user's own.
        rules.queue.namespaces.max_queued = rules.queue.length_limit;
        if simulator.is_some() {
            // The simulated controller lives and dies with this process, and so do calls to it.
            rules.settle = Duration::ZERO;
        }
        let ledger = Ledger::new(pool, store, rules);
        Ok(Self {
            state,
            ledger,
            controller,
            name,
            address,
            simulator,
            mark,
        })
    }

    /// The controller's version.
    pub(crate) async fn version(&self) -> Result<String, VipuError> {
        self.controller.version().await
    }

    /// Asks the controller for a sign of life: what cannot be reached at the start is an error, not a wait.
    pub(crate) async fn require_answer(&self) -> Result<(), Failure> {
        if self.simulator.is_some() {
            return Ok(());
        }
        for pause in FIRST_PAUSES {
            match self.version().await {
                Ok(_) => return Ok(()),
                Err(VipuError::Unreachable { .. }) => tokio::time::sleep(pause).await,
                Err(error) => return Err(controller_failure(error)),
            }
        }
        self.version().await.map(drop).map_err(controller_failure)
    }

    /// Draws the simulated Pod, if that is what this is.
    pub(crate) fn show(&self, output: &Output) -> Result<(), Failure> {
        if let Some(simulator) = &self.simulator {
            let map = simulator
                .map()
                .map_err(|error| Failure::because(Code::Host, "read the simulated Pod", error))?;
            output.say(map.trim_end());
        }
        Ok(())
    }

    /// Stops serving the simulated Pod; its state stays.
    pub(crate) async fn close(self) {
        drop(self.ledger);
        drop(self.controller);
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }
}

/// What a controller's refusal means for the exit code.
pub(crate) fn controller_failure(error: VipuError) -> Failure {
    let code = match &error {
        VipuError::NotFound { .. } => Code::NotFound,
        VipuError::AlreadyExists { .. } | VipuError::Refused { .. } => Code::Data,
        VipuError::NoCapacity { .. } => Code::NoRoom,
        VipuError::Denied { .. } => Code::Denied,
        _ => Code::Unavailable,
    };
    Failure::because(code, "V-IPU controller", error)
}

/// What an error of the ledger means for the exit code.
pub(crate) fn ledger_failure(error: LedgerError) -> Failure {
    let code = match &error {
        LedgerError::Illegal(TransitionError::NotTheOwner { .. } | TransitionError::Foreign { .. }) => {
            Code::Denied
        }
        LedgerError::Illegal(TransitionError::OtherSpec { .. }) => Code::Data,
        LedgerError::Illegal(
            TransitionError::LineFull { .. } | TransitionError::NamespaceQueueFull { .. },
        )
        | LedgerError::DoesNotFit { .. } => Code::NoRoom,
        LedgerError::Illegal(TransitionError::StaleAttempt { .. }) => Code::Bug,
        LedgerError::Store(_) => Code::Host,
        LedgerError::Refused { .. } => Code::Impossible,
        _ => Code::Unavailable,
    };
    Failure::because(code, "ledger", error)
}

fn named(global: &Global) -> Result<Option<ControllerEndpoint>, Failure> {
    if let Some(text) = &global.vipu {
        return endpoint(text).map(Some);
    }
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(host) = set("IPUOF_VIPU_API_HOST") else {
        return Ok(None);
    };
    match set("IPUOF_VIPU_API_PORT") {
        Some(port) => endpoint(&format!("{host}:{port}")).map(Some),
        None => endpoint(&host).map(Some),
    }
}

fn endpoint(text: &str) -> Result<ControllerEndpoint, Failure> {
    text.parse()
        .map_err(|error| Failure::because(Code::Usage, "V-IPU controller", error))
}

/// Whether `address` is the port at which an `ipuctl` that this one was started below serves the Pod of this very state
/// directory. Its partitions are in this ledger, so that the Pod must have the name that it has there.
fn is_own_simulator(address: &ControllerEndpoint, state: &StateDir) -> bool {
    std::env::var(SIMULATED_MARK).is_ok_and(|mark| mark == mark_of(address, state))
}

fn mark_of(address: &ControllerEndpoint, state: &StateDir) -> String {
    format!(
        "{}:{} {}",
        address.host(),
        address.port(),
        state.ledger().display()
    )
}

async fn simulate(state: &StateDir) -> Result<Simulator, Failure> {
    Simulator::builder(Topology::pod16())
        .state_file(state.simulator()?)
        .start()
        .await
        .map_err(|error| Failure::because(Code::Host, "start the simulated Pod", error))
}

fn options(global: &Global) -> Result<ConnectOptions, Failure> {
    let Secure {
        tls_ca,
        tls_cert,
        tls_key,
        user_id,
        access_key_file,
    } = &global.secure;
    let mut options = ConnectOptions::default().with_deadline(Duration::from_secs(global.timeout));
    if let Some(ca) = tls_ca {
        let mut tls = TlsOptions::new(read(ca)?);
        if let (Some(cert), Some(key)) = (tls_cert, tls_key) {
            tls = tls.with_identity(read(cert)?, read(key)?);
        }
        options = options.with_tls(tls);
    }
    if let Some(user) = user_id {
        let Some(file) = access_key_file else {
            return Err(Failure::new(Code::Usage, "--user-id needs --access-key-file"));
        };
        let key = String::from_utf8_lossy(&read(file)?).trim().to_owned();
        options = options.with_credentials(Credentials::new(user, key));
    }
    Ok(options)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::because(Code::NotFound, format!("read {}", path.display()), error))
}
