//! Settings of the proxy, by precedence: flags, environment, settings file, defaults.

mod limits;
mod listen_address;
mod messages;
mod reload;
mod values;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::allocator::SelectionOrder;
use ipu_core::hardware::Topology;
use ipu_core::placement::PlacementMode;
use ipu_core::{ControllerName, ErrorChain};
use ipu_serve::{ClientCertificates, TlsFiles};
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};
use serde::Deserialize;

pub(crate) use limits::Limits;
pub use listen_address::{InvalidListenAddress, ListenAddress};
use messages::SettingsMessages;
pub(crate) use reload::keys_for_restart;
pub use values::{Auth, PlacementSetting, PrioritySetting, QuotaSetting, ReadAccess, Selection};

/// The documented port (`vipuProxy.proxyPort`).
const PORT: u16 = 8080;
/// The documented `vipuProxy.proxyReadTimeoutSeconds`.
const READ_TIMEOUT: u64 = 30;
/// The documented `vipuProxy.proxyWriteTimeoutSeconds`.
const WRITE_TIMEOUT: u64 = 300;
/// The documented `vipuProxy.proxyIdleTimeoutSeconds`.
const IDLE_TIMEOUT: u64 = 60;
/// Half of the minute within which repair detects changes.
const REPAIR_INTERVAL: u64 = 30;
/// Twice the longest observed silence of a controller that resets a large partition.
const CONTROLLER_DEADLINE: u64 = 10;
/// Enough for concurrent waits of all jobs of the largest documented system.
const MAX_REQUESTS: u32 = 1024;
/// Default audience of service account tokens.
const AUDIENCE: &str = "vipu-proxy";
/// Address of the simulated controller: constant, because the ledger identifies controllers by their address.
const SIM_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ipu_vipu_client::DEFAULT_PORT);
/// Delay of the simulated controller in milliseconds: noticeable, and short for interactive use.
const SIM_DELAY: u64 = 200;

/// Settings of the proxy. The keys of the settings file are the flag names without the leading dashes.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// Listen address: ADDRESS:PORT, or unix:PATH for a Unix socket, which admits the user of the proxy and
    /// root [default: port 8080, on all addresses with authentication and on 127.0.0.1 without].
    #[arg(long, env = "VIPU_PROXY_LISTEN", value_name = "ADDRESS:PORT|unix:PATH")]
    pub listen: Option<ListenAddress>,
    /// Listen port, which replaces the port of --listen.
    #[arg(long, env = "PROXY_PORT", value_name = "PORT")]
    pub port: Option<u16>,
    /// Additional plain HTTP address of a proxy with TLS, for /stats, /query, /metrics and probes only
    /// [default: none].
    #[arg(long, env = "VIPU_PROXY_PLAIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub plain_listen: Option<SocketAddr>,
    /// Store of the ledger: file:PATH, kubernetes (a ConfigMap), or memory (lost when the process ends).
    #[arg(long, env = "VIPU_PROXY_STORE", value_name = "STORE")]
    pub store: Option<String>,
    /// V-IPU controllers in the order of their use: `HOST[:PORT][:KEY=VALUE]`, separated by commas.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS", value_name = "LIST")]
    pub controllers: Option<String>,
    /// File with the list of controllers; a change applies within seconds.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_FILE", value_name = "FILE")]
    pub controllers_file: Option<PathBuf>,
    /// ConfigMap with the list of controllers, under the key controllers.yaml; a change applies within
    /// seconds.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_CONFIGMAP", value_name = "NAME")]
    pub controllers_configmap: Option<String>,
    /// Directory of certificates and keys for the controllers, with a folder HOST_PORT for each, or
    /// `default`; a change applies within seconds.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_SECRETS", value_name = "DIRECTORY")]
    pub controllers_secrets: Option<PathBuf>,
    /// Namespace of the ConfigMaps [default: the namespace of the proxy].
    #[arg(long, env = "PROXY_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// ConfigMap of the ledger [default: ipu-partitions-tracker].
    #[arg(long, env = "PROXY_PARTITION_TRACKER", value_name = "NAME")]
    pub tracker: Option<String>,
    /// Audience of service account tokens, with --store kubernetes [default: vipu-proxy].
    #[arg(long, env = "VIPU_PROXY_AUDIENCE", value_name = "NAME")]
    pub audience: Option<String>,
    /// Service accounts with write access for owners of every namespace:
    /// system:serviceaccount:NAMESPACE:NAME[,...] [default: all, each for owners of its own namespace].
    #[arg(long, env = "VIPU_PROXY_ACCOUNTS", value_name = "LIST")]
    pub accounts: Option<String>,
    /// Service accounts that may cordon hardware, repair, and release partitions, but not request them:
    /// system:serviceaccount:NAMESPACE:NAME[,...].
    #[arg(long, env = "VIPU_PROXY_ADMINISTRATORS", value_name = "LIST")]
    pub administrators: Option<String>,
    /// Order of the controllers with enough capacity: serial (the order of the list), tightest or most-free
    /// [default: serial].
    #[arg(long, env = "VIPU_PROXY_SELECTION", value_name = "ORDER")]
    pub selection: Option<Selection>,
    /// Placement of new partitions: the policy first-fit or best-fit, the policy in a WebAssembly module
    /// (wasm:FILE), or the V-IPU controller (delegated). Controllers that do not report their hardware always
    /// choose [default: first-fit].
    #[arg(long, env = "VIPU_PROXY_PLACEMENT", value_name = "PLACEMENT")]
    pub placement: Option<PlacementSetting>,
    /// Let queued requests preempt preemptible partitions of lower priority: their owners are asked to
    /// release them [default: false].
    #[arg(long, env = "VIPU_PROXY_PREEMPTION", num_args = 0..=1, default_missing_value = "true", value_name = "BOOLEAN")]
    pub preemption: Option<bool>,
    /// File of tokens with write access, one line `TOKEN NAME [NAMESPACE,...]` each; a change applies within
    /// seconds.
    #[arg(long, env = "VIPU_PROXY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Accept tokens of --token-file without TLS on an address that other hosts reach, where the network can
    /// read them [default: false].
    #[arg(long, env = "VIPU_PROXY_ALLOW_PLAIN_HTTP", num_args = 0..=1, default_missing_value = "true", value_name = "BOOLEAN")]
    pub allow_plain_http: Option<bool>,
    /// TLS certificate (PEM, with its chain).
    #[arg(long, env = "VIPU_PROXY_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the TLS certificate (PEM).
    #[arg(long, env = "VIPU_PROXY_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Issuers (PEM) of client certificates with write access.
    #[arg(long, env = "VIPU_PROXY_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Read access: open for every client, closed for authenticated clients only [default: open].
    #[arg(long, env = "VIPU_PROXY_READING", value_name = "open|closed")]
    pub reading: Option<ReadAccess>,
    /// Authentication without tokens and certificates. By default the proxy listens on a loopback address and
    /// admits its own user and root; `none` admits every client on every address.
    #[arg(long, env = "VIPU_PROXY_AUTH", value_name = "none")]
    pub auth: Option<Auth>,
    /// Maximum number of concurrent requests; the proxy answers further ones with 503 [default: 1024].
    #[arg(long, env = "VIPU_PROXY_MAX_REQUESTS", value_name = "NUMBER")]
    pub max_requests: Option<u32>,
    /// Timeout of a request body [default: 30].
    #[arg(long, env = "PROXY_READ_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub read_timeout: Option<u64>,
    /// Timeout of a response, and of its transfer to the client [default: 300].
    #[arg(long, env = "PROXY_WRITE_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub write_timeout: Option<u64>,
    /// Timeout of an idle connection [default: 60].
    #[arg(long, env = "PROXY_IDLE_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: Option<u64>,
    /// Interval of the repair, which compares ledger, controllers and owners [default: 30].
    #[arg(long, env = "VIPU_PROXY_REPAIR_INTERVAL", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub repair_interval: Option<u64>,
    /// Time within which a controller answers a call. The calls of a killed proxy may take effect for three
    /// times as long; its operations go on after that [default: 10].
    #[arg(long, env = "VIPU_PROXY_CONTROLLER_DEADLINE", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub controller_deadline: Option<u64>,
    /// Simulate a controller of this IPU-POD in this process, such as pod64 or 1x8, instead of --controllers.
    #[arg(long, env = "VIPU_PROXY_SIM", value_name = "TOPOLOGY")]
    pub sim: Option<String>,
    /// Number of machines of the simulated IPU-POD, with four IPUs each [default: all].
    #[arg(long, env = "VIPU_PROXY_SIM_MACHINES", value_name = "NUMBER")]
    pub sim_machines: Option<u32>,
    /// Listen address of the simulated controller [default: 127.0.0.1:8090].
    #[arg(long, env = "VIPU_PROXY_SIM_LISTEN", value_name = "ADDRESS:PORT")]
    pub sim_listen: Option<SocketAddr>,
    /// State file of the simulated controller [default: none, the state is lost when the process ends].
    #[arg(long, env = "VIPU_PROXY_SIM_STATE", value_name = "FILE")]
    pub sim_state: Option<PathBuf>,
    /// Delay of create, reset and remove calls of the simulated controller [default: 200].
    #[arg(long, env = "VIPU_PROXY_SIM_DELAY_MS", value_name = "MILLISECONDS")]
    pub sim_delay_ms: Option<u64>,
    /// Name of the simulated controller in the ledger, for programs that embed the proxy [default: its
    /// address].
    #[arg(skip)]
    #[serde(skip)]
    pub sim_name: Option<ControllerName>,
    /// Maximum number of queued requests of one namespace [default: 1000, and with --store kubernetes as many
    /// as fit into a tenth of the ledger].
    #[arg(long, env = "VIPU_PROXY_MAX_QUEUED_PER_NAMESPACE", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_queued_per_namespace: Option<u32>,
    /// Placements of single controllers by `HOST:PORT`, in the settings file only.
    #[arg(skip)]
    pub placements: BTreeMap<ControllerName, PlacementSetting>,
    /// Quotas of namespaces and accounts, in the settings file only. A change applies within seconds.
    #[arg(skip)]
    pub quotas: Vec<QuotaSetting>,
    /// Highest priorities of namespaces, in the settings file only. A change applies within seconds.
    #[arg(skip)]
    pub priorities: Vec<PrioritySetting>,
}

/// Error of an invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?}: {rule}")]
#[non_exhaustive]
pub struct SettingError {
    /// Name of the flag, and of the key in the settings file.
    pub name: &'static str,
    /// Invalid value.
    pub value: String,
    /// Broken rule, and the fix.
    pub rule: String,
}

/// Store of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreChoice {
    Memory,
    File(PathBuf),
    Kubernetes,
}

/// Settings of the Kubernetes integration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesChoice {
    pub(crate) namespace: Option<String>,
    pub(crate) tracker: Option<String>,
    pub(crate) audience: String,
    pub(crate) accounts: Vec<String>,
    pub(crate) administrators: Vec<String>,
    pub(crate) controllers: Option<String>,
}

/// Source of the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hardware {
    Controllers(Vec<ControllerEndpoint>),
    /// The list of controllers is in this file.
    File(PathBuf),
    /// The list of controllers is in a watched ConfigMap.
    Watched,
    Simulated {
        topology: Topology,
        listen: SocketAddr,
        state: Option<PathBuf>,
        delay: Duration,
        /// Name of the controller in the ledger, instead of its address.
        name: Option<ControllerName>,
    },
}

/// Validated settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) listen: ListenAddress,
    /// Plain HTTP address of the documented reads.
    pub(crate) plain_listen: Option<SocketAddr>,
    pub(crate) store: StoreChoice,
    pub(crate) hardware: Hardware,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) repair_interval: Duration,
    pub(crate) controller_deadline: Duration,
    pub(crate) order: SelectionOrder,
    pub(crate) placement: PlacementMode,
    pub(crate) placements: BTreeMap<ControllerName, PlacementMode>,
    pub(crate) preemption: bool,
    /// Kubernetes integration, if a setting needs it.
    pub(crate) kubernetes: Option<KubernetesChoice>,
    /// True if clients authenticate with tokens or certificates.
    pub(crate) authenticates: bool,
    /// True if local users are authenticated, because neither tokens nor certificates are set, or because the
    /// proxy listens on a Unix socket.
    pub(crate) local_users: bool,
    /// Directory of the secrets of the controllers.
    pub(crate) secrets: Option<PathBuf>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) reading: ReadAccess,
    pub(crate) max_requests: usize,
    /// Maximum number of queued requests of a namespace, if set.
    pub(crate) max_queued: Option<usize>,
    pub(crate) limits: Limits,
    /// Settings file, which is watched for changed limits.
    pub(crate) file: Option<PathBuf>,
}

impl Config {
    /// Sets the settings file, from which a running proxy reloads the limits.
    #[must_use]
    pub fn with_config_file(mut self, file: PathBuf) -> Self {
        self.file = Some(file);
        self
    }
}

impl Settings {
    /// Creates the settings of a proxy for tests and examples: with a simulated controller that answers
    /// without delay, on free ports of this host, and with the ledger in memory. `topology` names the
    /// IPU-POD, such as pod64 or 1x8: [`check`](Self::check) refuses another name.
    #[must_use]
    pub fn simulated(topology: &str) -> Self {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            listen: Some(any_port.into()),
            sim: Some(topology.to_owned()),
            sim_listen: Some(any_port),
            sim_delay_ms: Some(0),
            ..Self::default()
        }
    }

    /// Reads a settings file.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if the file is unreadable or invalid.
    pub fn from_file(path: &std::path::Path) -> Result<Self, SettingError> {
        let invalid_setting = |rule: String| invalid_setting("config", &path.display().to_string(), &rule);
        let text = std::fs::read_to_string(path).map_err(|error| invalid_setting(error.to_string()))?;
        read_settings(&text).map_err(invalid_setting)
    }

    /// Fills unset settings from `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        /// Takes these fields from `others` if they are unset, and the collections if they are empty.
        macro_rules! first_set {
            ({ $($field:ident)* } { $($collection:ident)* }) => {
                Self {
                    $($field: self.$field.or(others.$field),)*
                    $($collection: if self.$collection.is_empty() {
                        others.$collection
                    } else {
                        self.$collection
                    },)*
                }
            };
        }
        first_set! {
            {
                listen port plain_listen store controllers controllers_file controllers_configmap
                controllers_secrets namespace tracker audience accounts administrators selection placement
                preemption token_file allow_plain_http tls_cert tls_key tls_client_ca reading auth
                max_requests read_timeout write_timeout idle_timeout repair_interval controller_deadline sim
                sim_machines sim_listen sim_state sim_delay_ms sim_name max_queued_per_namespace
            }
            { placements quotas priorities }
        }
    }

    /// Validates the settings and fills in the defaults.
    ///
    /// # Errors
    ///
    /// [`SettingError`] of the first invalid setting.
    pub fn check(self) -> Result<Config, SettingError> {
        let hardware = self.hardware()?;
        let store = match self.store.as_deref() {
            Some("memory") => StoreChoice::Memory,
            Some("kubernetes") => StoreChoice::Kubernetes,
            Some(text) => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => StoreChoice::File(path.into()),
                _ => {
                    return Err(invalid_setting(
                        "store",
                        text,
                        "must be file:PATH, kubernetes or memory",
                    ));
                }
            },
            None if matches!(hardware, Hardware::Simulated { .. }) => StoreChoice::Memory,
            None => {
                return Err(invalid_setting(
                    "store",
                    "",
                    "must name the store of the ledger, such as file:ledger.db",
                ));
            }
        };
        let tls = self.tls()?;
        // In a cluster, service account tokens authenticate clients, unless authentication is disabled.
        let uses_token_review = store == StoreChoice::Kubernetes && self.auth.is_none();
        let authenticates = uses_token_review || self.token_file.is_some() || self.tls_client_ca.is_some();
        let kubernetes = self.kubernetes(&store);
        let listen = self.listen(authenticates)?;
        if listen.is_unix() && tls.is_some() {
            return Err(invalid_setting(
                "listen",
                &listen.to_string(),
                "a Unix socket has no TLS; remove tls-cert and tls-key, or listen on ADDRESS:PORT",
            ));
        }
        if let Some(path) = &self.token_file
            && tls.is_none()
            && !listen.is_local()
            && !self.allow_plain_http.unwrap_or(false)
        {
            let rule = format!(
                "tokens would be sent to {listen} without TLS; set tls-cert and tls-key, listen on a loopback address, or set \
                 allow-plain-http"
            );
            return Err(invalid_setting("token-file", &path.display().to_string(), &rule));
        }
        if let Some(plain) = self.plain_listen.filter(|_| tls.is_none()) {
            return Err(invalid_setting(
                "plain-listen",
                &plain.to_string(),
                "is for a proxy with TLS: set tls-cert and tls-key, or remove plain-listen",
            ));
        }
        let seconds = |value: Option<u64>, default| Duration::from_secs(value.unwrap_or(default));
        let max_requests = self.max_requests.unwrap_or(MAX_REQUESTS).max(1);
        Ok(Config {
            listen: listen.clone(),
            plain_listen: self.plain_listen,
            store,
            read_timeout: seconds(self.read_timeout, READ_TIMEOUT),
            write_timeout: seconds(self.write_timeout, WRITE_TIMEOUT),
            idle_timeout: seconds(self.idle_timeout, IDLE_TIMEOUT),
            repair_interval: seconds(self.repair_interval, REPAIR_INTERVAL),
            controller_deadline: seconds(self.controller_deadline, CONTROLLER_DEADLINE),
            order: match self.selection {
                None | Some(Selection::Serial) => SelectionOrder::Serial,
                Some(Selection::Tightest) => SelectionOrder::Tightest,
                Some(Selection::MostFree) => SelectionOrder::MostFree,
            },
            placement: match &self.placement {
                Some(placement) => placement.load("placement")?,
                None => PlacementMode::default(),
            },
            placements: self.placements(&hardware)?,
            preemption: self.preemption.unwrap_or(false),
            tls,
            kubernetes,
            authenticates,
            local_users: self.auth.is_none() && (!authenticates || listen.is_unix()),
            reading: self.reading.unwrap_or(ReadAccess::Open),
            max_requests: usize::try_from(max_requests).unwrap_or(usize::MAX),
            max_queued: self
                .max_queued_per_namespace
                .map(|max| usize::try_from(max).unwrap_or(usize::MAX)),
            limits: Limits::of(&self)?,
            secrets: self.controllers_secrets,
            token_file: self.token_file,
            hardware,
            file: None,
        })
    }

    /// Returns the placements of single controllers. Names outside a fixed list are errors. A watched list
    /// may have them later, so that they are only logged (see
    /// [`warn_of_unlisted_placements`](crate::controllers::warn_of_unlisted_placements)).
    fn placements(
        &self,
        hardware: &Hardware,
    ) -> Result<BTreeMap<ControllerName, PlacementMode>, SettingError> {
        if let Hardware::Controllers(endpoints) = hardware {
            let mut names = self.placements.keys();
            if let Some(name) = names.find(|name| endpoints.iter().all(|at| at.name() != *name)) {
                let rule = "is not in the list of controllers; name one of the list as HOST:PORT";
                return Err(invalid_setting("placements", name.as_str(), rule));
            }
        }
        let load = |(name, placement): (&ControllerName, &PlacementSetting)| {
            Ok((name.clone(), placement.load("placements")?))
        };
        self.placements.iter().map(load).collect()
    }

    fn kubernetes(&self, store: &StoreChoice) -> Option<KubernetesChoice> {
        if *store != StoreChoice::Kubernetes && self.controllers_configmap.is_none() {
            return None;
        }
        let list = |setting: Option<&str>| {
            let accounts = setting.unwrap_or_default().split(',');
            let accounts = accounts.map(str::trim).filter(|account| !account.is_empty());
            accounts.map(str::to_owned).collect()
        };
        Some(KubernetesChoice {
            namespace: self.namespace.clone(),
            tracker: self.tracker.clone(),
            audience: self.audience.clone().unwrap_or_else(|| AUDIENCE.to_owned()),
            accounts: list(self.accounts.as_deref()),
            administrators: list(self.administrators.as_deref()),
            controllers: self.controllers_configmap.clone(),
        })
    }

    /// Returns the listen address: by default all addresses with authentication, and loopback without.
    fn listen(&self, authenticates: bool) -> Result<ListenAddress, SettingError> {
        let default_ip = if authenticates {
            Ipv4Addr::UNSPECIFIED
        } else {
            Ipv4Addr::LOCALHOST
        };
        let default = || SocketAddr::new(IpAddr::V4(default_ip), PORT).into();
        let mut listen = self.listen.clone().unwrap_or_else(default);
        match (&mut listen, self.port) {
            (ListenAddress::Tcp(address), Some(port)) => address.set_port(port),
            (ListenAddress::Unix(_), Some(port)) => {
                let rule = "a Unix socket has no port; remove port, or listen on ADDRESS:PORT";
                return Err(invalid_setting("port", &port.to_string(), rule));
            }
            (_, None) => {}
        }
        if !authenticates && self.auth.is_none() && !listen.is_local() {
            return Err(invalid_setting(
                "listen",
                &listen.to_string(),
                "other hosts reach this address: set token-file or tls-client-ca, or set auth to none",
            ));
        }
        Ok(listen)
    }

    fn tls(&self) -> Result<Option<TlsFiles>, SettingError> {
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(certificate), Some(key), client_ca) => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                clients: match client_ca {
                    // Read access needs no certificate.
                    Some(path) => ClientCertificates::Optional(path.clone()),
                    None => ClientCertificates::Disabled,
                },
            })),
            (None, None, None) => Ok(None),
            _ => Err(invalid_setting(
                "tls-cert",
                "",
                "set tls-cert and tls-key together; tls-client-ca needs both",
            )),
        }
    }

    fn hardware(&self) -> Result<Hardware, SettingError> {
        let sources = [
            ("controllers", self.controllers.clone()),
            (
                "controllers-file",
                self.controllers_file
                    .as_ref()
                    .map(|path| path.display().to_string()),
            ),
            ("controllers-configmap", self.controllers_configmap.clone()),
            ("sim", self.sim.clone()),
        ];
        let sources: Vec<_> = sources
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        if let [(one, _), (other, value), ..] = &sources[..] {
            return Err(invalid_setting(
                other,
                value,
                &format!("and {one} exclude each other"),
            ));
        }
        if let Some(path) = &self.controllers_file {
            return Ok(Hardware::File(path.clone()));
        }
        if self.controllers_configmap.is_some() {
            return Ok(Hardware::Watched);
        }
        match (&self.controllers, &self.sim) {
            (_, None) if self.controllers.is_none() => Err(invalid_setting(
                "controllers",
                "",
                "must name the V-IPU controllers; to simulate one, set sim",
            )),
            (Some(list), _) => parse_controllers(list)
                .map(Hardware::Controllers)
                .map_err(|error| invalid_setting("controllers", list, &ErrorChain(&error).to_string())),
            (None, text) => {
                let text = text.as_deref().unwrap_or_default();
                let topology: Topology =
                    text.parse().map_err(|error: ipu_core::hardware::TopologyError| {
                        invalid_setting("sim", text, &error.to_string())
                    })?;
                let count = topology.agents().count();
                let topology = match self.sim_machines {
                    None => topology,
                    Some(machines) if usize::try_from(machines).is_ok_and(|machines| machines > count) => {
                        let rule = format!(
                            "{text} has {count} machines; use a number up to that, or a larger --sim"
                        );
                        return Err(invalid_setting("sim-machines", &machines.to_string(), &rule));
                    }
                    Some(machines) => topology.with_first_machines(machines).map_err(|error| {
                        invalid_setting("sim-machines", &machines.to_string(), &error.to_string())
                    })?,
                };
                Ok(Hardware::Simulated {
                    topology,
                    listen: self.sim_listen.unwrap_or(SIM_LISTEN),
                    state: self.sim_state.clone(),
                    delay: Duration::from_millis(self.sim_delay_ms.unwrap_or(SIM_DELAY)),
                    name: self.sim_name.clone(),
                })
            }
        }
    }
}

/// Parses a settings file.
///
/// # Errors
///
/// The parse error as text, with line and column.
pub(crate) fn read_settings(text: &str) -> Result<Settings, String> {
    if text.trim().is_empty() {
        return Ok(Settings::default());
    }
    serde_saphyr::from_str(text).map_err(|error| error.render_with_formatter(&SettingsMessages))
}

pub(crate) fn invalid_setting(name: &'static str, value: &str, rule: &str) -> SettingError {
    SettingError {
        name,
        value: value.to_owned(),
        rule: rule.to_owned(),
    }
}
