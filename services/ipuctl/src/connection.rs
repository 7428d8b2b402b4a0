//! The connection to a proxy: that of `--proxy`, or the local server of this user.

use std::path::PathBuf;
use std::time::Duration;

use ipu_core::hardware::PartitionSpec;
use ipu_core::{PartitionId, Reason, ReasonCode};
use ipu_proxy_client::{
    ClientCertificate, ClientOptions, ControllerStatus, CordonDocument, ProxyClient, SetupError, TlsFiles,
    Token,
};
use ipu_vipu_client::ControllerEndpoint;

use crate::cli::{Global, ProxyArgs};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::local_server::{self, Requirement};
use crate::output::Output;
use crate::server_options::ServerOptions;
use crate::state_dir::StateDir;

/// Pauses before the retries of the first call, so that one lost answer does not count as an unreachable
/// controller.
const RETRY_PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

/// Environment variable that identifies the simulated IPU-POD to an `ipuctl` among the processes of a job.
pub(crate) const SIMULATED_MARK: &str = "IPUCTL_SIMULATED_POD";

/// A proxy, and the state directory of this user.
pub(crate) struct Connection {
    pub(crate) state: StateDir,
    pub(crate) proxy: ProxyClient,
    client_options: ClientOptions,
    /// Options of the local server; none for the proxy of `--proxy`.
    local: Option<ServerOptions>,
}

impl Connection {
    /// Connects to the proxy of `--proxy`, else to the local server. Starts the local server if necessary:
    /// for the controller of `--vipu`, else of `IPUOF_VIPU_API_HOST` and `_PORT`, else with a simulated
    /// Pod16.
    pub(crate) async fn open(
        global: &Global,
        requirement: Requirement,
        output: &Output,
    ) -> Result<Self, Failure> {
        let client_options = client_options(global);
        let proxy = remote_url(global)?
            .map(|url| remote(url, &global.proxy_args, client_options.clone()))
            .transpose()?;
        let configured = match &proxy {
            Some(_) => None,
            None => configured_endpoint(global)?,
        };
        let state = StateDir::open(global.state_dir.as_deref())?;
        if let Some(proxy) = proxy {
            return Ok(Self {
                state,
                proxy,
                client_options,
                local: None,
            });
        }
        let is_nested = configured
            .as_ref()
            .is_some_and(|address| is_own_simulator(address, &state));
        let controller = configured.filter(|_| !is_nested);
        let options = ServerOptions::new(global, controller.as_ref())?;
        if controller.is_none() {
            report_simulator(is_nested, &state, global, output)?;
        }
        let proxy = local_server::connect(&state, &options, requirement, &client_options).await?;
        Ok(Self {
            state,
            proxy,
            client_options,
            local: Some(options),
        })
    }

    pub(crate) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Returns whether the local server simulates an IPU-POD.
    pub(crate) fn is_simulated(&self) -> bool {
        self.local
            .as_ref()
            .is_some_and(|local| local.controller.is_none())
    }

    /// Returns the URL of `--proxy`; none for the local server. Run records contain it, so that a command
    /// recognizes runs of another proxy.
    pub(crate) fn remote_url(&self) -> Option<String> {
        (!self.is_local()).then(|| self.proxy.url().to_owned())
    }

    /// Returns the controller in use, as it is shown to people.
    pub(crate) fn target(&self) -> String {
        match &self.local {
            Some(local) => local.target(self.state.path()),
            None => format!("vipu-proxy {}", self.proxy.url()),
        }
    }

    /// Starts the local server again if it has ended.
    pub(crate) async fn restart_local_server(&self) -> Result<(), Failure> {
        if let Some(local) = &self.local {
            let requirement = Requirement::Controller;
            local_server::connect(&self.state, local, requirement, &self.client_options).await?;
        }
        Ok(())
    }

    /// Checks that the controller of the local server answers. An unreachable controller is an error at the
    /// start, not a reason to wait.
    pub(crate) async fn require_answer(&self) -> Result<(), Failure> {
        if !self.is_local() || self.is_simulated() {
            return Ok(());
        }
        for pause in RETRY_PAUSES {
            if self.controller().await?.available {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
        }
        let status = self.controller().await?;
        if status.available {
            Ok(())
        } else {
            Err(controller_failure(&status))
        }
    }

    /// Returns the only controller of the proxy.
    pub(crate) async fn controller(&self) -> Result<ControllerStatus, Failure> {
        let mut list = self.proxy.controllers().await?.controllers;
        match (list.len(), list.pop()) {
            (1, Some(one)) => Ok(one),
            (count, _) => {
                let count = display::count(count, "controller");
                let message =
                    format!("the proxy has {count}; use `ipuctl controllers`, which shows all of them");
                Err(Failure::new(Code::Usage, message))
            }
        }
    }

    /// Returns the cordons, if a reason refers to them; none if the proxy does not report them.
    pub(crate) async fn cordons_for<'a>(
        &self,
        reasons: impl IntoIterator<Item = &'a Reason>,
    ) -> Vec<CordonDocument> {
        if reasons
            .into_iter()
            .all(|reason| reason.code != ReasonCode::Cordoned)
        {
            return Vec::new();
        }
        let list = self.proxy.cordons().await;
        list.map(|list| list.cordons).unwrap_or_default()
    }
}

/// Returns the failure of a controller that does not answer.
pub(crate) fn controller_failure(status: &ControllerStatus) -> Failure {
    let name = &status.controller.name;
    let error = status.error.as_deref().unwrap_or("it does not answer");
    Failure::new(Code::Unavailable, format!("V-IPU controller {name}: {error}"))
}

/// Returns the failure of a request that can never fit, or that does not fit now and must not queue.
/// `partition` names the requested partition.
pub(crate) fn does_not_fit(partition: &str, reason: &Reason) -> Failure {
    let text = display::reason(reason);
    if reason.code.is_permanent() {
        Failure::new(Code::Impossible, format!("{partition} can never fit: {text}"))
    } else {
        Failure::new(Code::NoCapacity, format!("{partition} does not fit now: {text}"))
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

/// Returns the URL of `--proxy`. An empty URL is none, and overrides the proxy of the environment.
fn remote_url(global: &Global) -> Result<Option<&str>, Failure> {
    let url = global.proxy_args.proxy.as_deref().filter(|url| !url.is_empty());
    if url.is_some() && global.vipu.is_some() {
        let message = "--vipu and --proxy (IPUCTL_PROXY) exclude each other; --proxy '' disables the proxy";
        return Err(Failure::new(Code::Usage, message));
    }
    if url.is_some()
        && let Some(option) = global.placement_args.first_option()
    {
        let message = format!(
            "{option} and --proxy (IPUCTL_PROXY) exclude each other, because the proxy decides; leave out {option}, \
             or use --proxy '' for the local server of this user"
        );
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(url)
}

/// Returns the options of all clients.
fn client_options(global: &Global) -> ClientOptions {
    let mut options = ClientOptions::default();
    options.deadline = Duration::from_secs(global.timeout);
    options
}

/// Returns the client of the proxy at `url`.
fn remote(url: &str, arguments: &ProxyArgs, mut options: ClientOptions) -> Result<ProxyClient, Failure> {
    options.token = arguments.proxy_token_file.clone().map(Token::File);
    options.tls = arguments.proxy_ca.as_ref().map(|ca| {
        let mut files = TlsFiles::new(ca);
        if let (Some(certificate), Some(key)) = (&arguments.proxy_cert, &arguments.proxy_key) {
            files.own = Some(ClientCertificate::new(certificate, key));
        }
        files
    });
    ProxyClient::new(url, options).map_err(|error| {
        let option = match &error {
            SetupError::MissingCaCertificate { .. } => "--proxy-ca is missing",
            SetupError::NotSecure { .. } | SetupError::Url { .. } => "--proxy",
            _ => "--proxy-ca, --proxy-cert and --proxy-key",
        };
        Failure::because(Code::Usage, option, error)
    })
}

/// Prints that the simulated IPU-POD is used: once for each state directory, and always with `-v` or if a
/// configuration file of Graphcore's `vipu` names a controller.
fn report_simulator(
    is_nested: bool,
    state: &StateDir,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    let text = if is_nested {
        "This job runs on the simulated Pod16: using the same Pod16."
    } else {
        "No V-IPU controller is configured (--vipu, IPUOF_VIPU_API_HOST): using a simulated Pod16."
    };
    let unread = vipu_cli_files();
    let hint = match unread.is_empty() || is_nested {
        true => String::new(),
        false => format!(
            " {} of Graphcore's `vipu` is not read: pass the controller that it names with --vipu.",
            unread.join(" and ")
        ),
    };
    // Creates the directory of the notice.
    state.create_simulator_state_path()?;
    let is_first = || !is_nested && !global.quiet && state.mark_simulator_notice();
    let is_surprising = !hint.is_empty() && !global.quiet;
    if global.verbose > 0 || is_surprising || is_first() {
        output.say(&format!("{text}{hint}"));
    }
    Ok(())
}

/// Returns the existing configuration files of Graphcore's command line, which name a controller.
fn vipu_cli_files() -> Vec<String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".vipu.hcl"));
    let files = home.into_iter().chain([PathBuf::from("/etc/vipu/vipu-cli.hcl")]);
    files
        .filter(|file| file.exists())
        .map(|file| file.display().to_string())
        .collect()
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

/// Returns whether the local server of this state directory simulates the controller at `address`: the
/// processes of its jobs have that address in their environment.
fn is_own_simulator(address: &ControllerEndpoint, state: &StateDir) -> bool {
    let mark = simulated_mark(address.host(), address.port(), state);
    std::env::var(SIMULATED_MARK).is_ok_and(|value| value == mark)
}

/// Returns the value of [`SIMULATED_MARK`].
pub(crate) fn simulated_mark(host: &str, port: u16, state: &StateDir) -> String {
    format!("{host}:{port} {}", state.path().display())
}
