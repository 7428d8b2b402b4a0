//! The connection to a controller: a configured one, or a simulated Pod16 that all `ipuctl` processes of the
//! user share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    ControllerName, PartitionId, PartitionSpec, PlacementMode, Reason, Topology, TransitionError,
};
use ipu_ledger::{Ledger, LedgerError, LedgerOptions, SqliteStore};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, ControllerPool, Credentials, GrpcController, TlsOptions,
    VipuController as _, VipuError,
};
use vipu_sim::Simulator;

use crate::cli::{ControllerCredentials, Global};
use crate::commands::gc::HolderLiveness;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run::never_fits;
use crate::state_dir::StateDir;

/// Pauses before the retries of the first call, so that one lost answer does not count as an unreachable
/// controller.
const RETRY_PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

/// Name of the simulated controller in the ledger; its port differs between processes.
const SIMULATED: &str = "simulated-pod16";

/// The ledger of this user, with one controller.
pub(crate) type HostLedger = Ledger<GrpcController, SqliteStore>;

/// A controller, the ledger of this user and the state directory.
pub(crate) struct Connection {
    pub(crate) state: StateDir,
    pub(crate) ledger: HostLedger,
    pub(crate) controller: Arc<GrpcController>,
    pub(crate) name: ControllerName,
    /// Address of the controller for the processes of a job.
    pub(crate) address: ControllerEndpoint,
    simulator: Option<Simulator>,
    /// Identifies the simulated IPU-POD to an `ipuctl` that a job of this one starts; none for a real
    /// controller.
    pub(crate) mark: Option<String>,
    /// Origin of the IPUs of new partitions.
    pub(crate) placement: PlacementMode,
}

/// Environment variable that passes [`Connection::mark`] to the processes of a job.
pub(crate) const SIMULATED_MARK: &str = "IPUCTL_SIMULATED_POD";

impl Connection {
    /// Connects to the controller of `--vipu`, else of `IPUOF_VIPU_API_HOST` and `_PORT`, else to the
    /// simulated Pod16.
    pub(crate) async fn open(global: &Global, output: &Output) -> Result<Self, Failure> {
        let state = StateDir::open(global.state_dir.as_deref())?;
        let configured = configured_endpoint(global)?;
        let is_nested = configured
            .as_ref()
            .is_some_and(|address| is_own_simulator(address, &state));
        let (simulator, address) = match configured.filter(|_| !is_nested) {
            Some(address) => (None, address),
            None => {
                let simulator = simulate(&state).await?;
                let address = endpoint("the simulated IPU-POD", &simulator.addr().to_string())?;
                report_simulator(is_nested, &state, global, output);
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
        let mut ledger_options = LedgerOptions::default();
        ledger_options.liveness = Some(Arc::new(HolderLiveness));
        // The ledger has a single user, so that a limit per namespace is of no use.
        ledger_options.queue.namespaces.max_queued = ledger_options.queue.length_limit;
        let placement = &global.placement_args;
        ledger_options.placement = placement.placement.clone().unwrap_or_default();
        ledger_options.placement_fallback = placement.placement_fallback;
        ledger_options.queue.preemption = placement.preemption;
        if simulator.is_some() {
            // The simulated controller ends with this process, and so do the calls to it.
            ledger_options.settle = Duration::ZERO;
        }
        let placement = ledger_options.placement.clone();
        let ledger = Ledger::new(pool, store, ledger_options);
        Ok(Self {
            placement,
            state,
            ledger,
            controller,
            name,
            address,
            simulator,
            mark,
        })
    }

    /// Returns the version of the controller.
    pub(crate) async fn version(&self) -> Result<String, VipuError> {
        self.controller.version().await
    }

    /// Checks that the controller answers. An unreachable controller is an error at the start, not a reason
    /// to wait.
    pub(crate) async fn require_answer(&self) -> Result<(), Failure> {
        if self.simulator.is_some() {
            return Ok(());
        }
        for pause in RETRY_PAUSES {
            match self.version().await {
                Ok(_) => return Ok(()),
                Err(VipuError::Unreachable { .. }) => tokio::time::sleep(pause).await,
                Err(error) => return Err(controller_failure(error)),
            }
        }
        self.version().await.map(drop).map_err(controller_failure)
    }

    /// Returns the map of the simulated IPU-POD; none for a real controller.
    pub(crate) fn map(&self) -> Result<Option<String>, Failure> {
        self.simulator
            .as_ref()
            .map(Simulator::map)
            .transpose()
            .map_err(|error| Failure::because(Code::Host, "read the state of the simulated IPU-POD", error))
    }

    /// Returns the controller in use, as it is shown to people.
    pub(crate) fn target(&self) -> String {
        match &self.simulator {
            Some(_) => format!("simulated Pod16 in {}", self.state.path().display()),
            None => format!("V-IPU controller {}", self.address),
        }
    }

    /// Stops serving the simulated IPU-POD; its state is kept.
    pub(crate) async fn close(self) {
        drop(self.ledger);
        drop(self.controller);
        if let Some(simulator) = self.simulator {
            simulator.shutdown().await;
        }
    }
}

/// Maps an error of the controller to an exit code.
pub(crate) fn controller_failure(error: VipuError) -> Failure {
    let code = match &error {
        VipuError::NotFound { .. } => Code::NotFound,
        VipuError::AlreadyExists { .. } | VipuError::Refused { .. } => Code::Data,
        VipuError::NoCapacity { .. } => Code::NoCapacity,
        VipuError::Denied { .. } => Code::Denied,
        _ => Code::Unavailable,
    };
    Failure::because(code, "V-IPU controller", error)
}

/// Returns the failure of a request that can never fit, or that does not fit now and must not queue.
pub(crate) fn does_not_fit(id: &PartitionId, reason: &Reason) -> Failure {
    let text = display::reason(reason);
    if never_fits(reason) {
        Failure::new(Code::Impossible, format!("partition {id} can never fit: {text}"))
    } else {
        Failure::new(
            Code::NoCapacity,
            format!("partition {id} does not fit now: {text}"),
        )
    }
}

/// Returns the failure of a request for a partition that exists with other properties, with the values of
/// those that differ. None if no property differs.
pub(crate) fn other_properties(
    id: &PartitionId,
    existing: &PartitionSpec,
    requested: &PartitionSpec,
) -> Option<Failure> {
    let fields = |spec: &PartitionSpec| {
        let allocation = spec.allocation.as_ref().map(ToString::to_string);
        [
            ("size", spec.size.to_string()),
            ("num-gcds", spec.gcds.to_string()),
            ("num-replicas", spec.replicas.to_string()),
            ("reconfigurable", spec.reconfigurable.to_string()),
            ("allocation", allocation.unwrap_or_else(|| "any".to_owned())),
        ]
    };
    let differences: Vec<String> = fields(existing)
        .into_iter()
        .zip(fields(requested))
        .filter(|(existing, requested)| existing != requested)
        .map(|((name, existing), (_, requested))| format!("{name} is {existing}, requested {requested}"))
        .collect();
    let text = format!(
        "partition {id} exists with other properties ({}); use its values, or remove it first",
        differences.join("; ")
    );
    (!differences.is_empty()).then(|| Failure::new(Code::Data, text))
}

/// Maps an error of the ledger to an exit code.
pub(crate) fn ledger_failure(error: LedgerError) -> Failure {
    if let LedgerError::DoesNotFit { id, waiting } = &error {
        return does_not_fit(id, &waiting.reason);
    }
    let code = match &error {
        LedgerError::Illegal(TransitionError::NotTheOwner { .. } | TransitionError::Foreign { .. }) => {
            Code::Denied
        }
        LedgerError::Illegal(TransitionError::OtherSpec { .. }) => Code::Data,
        LedgerError::Illegal(
            TransitionError::QueueFull { .. } | TransitionError::NamespaceQueueFull { .. },
        ) => Code::NoCapacity,
        LedgerError::Illegal(TransitionError::StaleAttempt { .. }) => Code::Bug,
        LedgerError::Store(_) => Code::Host,
        LedgerError::Refused { .. } => Code::Impossible,
        _ => Code::Unavailable,
    };
    Failure::because(code, "ledger", error)
}

/// Prints that the simulated IPU-POD is used: once for each state directory, and always with `-v`.
fn report_simulator(is_nested: bool, state: &StateDir, global: &Global, output: &Output) {
    let text = if is_nested {
        "This job runs on the simulated Pod16: using the same Pod16."
    } else {
        "No V-IPU controller is configured (--vipu, IPUOF_VIPU_API_HOST): using a simulated Pod16."
    };
    let is_first = || !is_nested && !global.quiet && state.mark_simulator_notice();
    if global.verbose > 0 || is_first() {
        output.say(text);
    }
}

/// Returns the controller of the flags, else of the environment.
fn configured_endpoint(global: &Global) -> Result<Option<ControllerEndpoint>, Failure> {
    if let Some(text) = &global.vipu {
        return endpoint("--vipu", text).map(Some);
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(host) = variable("IPUOF_VIPU_API_HOST") else {
        return Ok(None);
    };
    match variable("IPUOF_VIPU_API_PORT") {
        Some(port) => {
            let source = "IPUOF_VIPU_API_HOST:IPUOF_VIPU_API_PORT";
            endpoint(source, &format!("{host}:{port}")).map(Some)
        }
        None => endpoint("IPUOF_VIPU_API_HOST", &host).map(Some),
    }
}

/// Parses the address of a controller; `source` is the option or variable with the value.
fn endpoint(source: &str, text: &str) -> Result<ControllerEndpoint, Failure> {
    text.parse()
        .map_err(|error| Failure::because(Code::Usage, format!("invalid value {text:?} for {source}"), error))
}

/// Returns whether a parent `ipuctl` serves the simulated IPU-POD of this state directory at `address`. Its
/// partitions are in this ledger, so that the controller must keep its name there.
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
        .map_err(|error| Failure::because(Code::Host, "start the simulated IPU-POD", error))
}

fn options(global: &Global) -> Result<ConnectOptions, Failure> {
    let ControllerCredentials {
        tls_ca,
        tls_cert,
        tls_key,
        user_id,
        access_key_file,
    } = &global.credentials;
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
            return Err(Failure::new(Code::Usage, "--user-id requires --access-key-file"));
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
