//! What can be set, and where from: flags, then the environment, then the file, then the default.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::{SelectionOrder, Topology};
use ipu_serve::{ClientCertificates, TlsFiles};
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};
use serde::Deserialize;

use crate::limits::Limits;

/// The documented port (`vipuProxy.proxyPort`).
const PORT: u16 = 8080;
/// The documented `vipuProxy.proxyReadTimeoutSeconds`.
const READ_TIMEOUT: u64 = 30;
/// The documented `vipuProxy.proxyWriteTimeoutSeconds`.
const WRITE_TIMEOUT: u64 = 300;
/// The documented `vipuProxy.proxyIdleTimeoutSeconds`.
const IDLE_TIMEOUT: u64 = 60;
/// Half of the minute within which changes are promised to be noticed.
const REPAIR_INTERVAL: u64 = 30;
/// Enough for every job of the largest documented system to wait for its partition at the same time.
const MAX_REQUESTS: u32 = 1024;
/// Whom the tokens of service accounts are for.
const AUDIENCE: &str = "vipu-proxy";
/// Where the simulated controller listens: always the same, because the ledger remembers controllers by their address.
const SIM_LISTEN: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ipu_vipu_client::DEFAULT_PORT);
/// Long enough to see that making a partition takes time, short enough not to wait for.
const SIM_DELAY: u64 = 200;

/// Everything that can be set. In the file, keys are the names of the flags without the dashes before them.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// Where to listen [default: port 8080, of every address if it is asked who asks, of 127.0.0.1 otherwise].
    #[arg(long, env = "VIPU_PROXY_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The port to listen on, instead of the one of --listen.
    #[arg(long, env = "PROXY_PORT", value_name = "PORT")]
    pub port: Option<u16>,
    /// Where to answer /stats, /query, /metrics and probes over plain HTTP, and nothing else, beside the address that speaks TLS
    /// [default: nowhere].
    #[arg(long, env = "VIPU_PROXY_PLAIN_LISTEN", value_name = "ADDRESS:PORT")]
    pub plain_listen: Option<SocketAddr>,
    /// Where the ledger is kept: file:PATH, kubernetes (a ConfigMap), or memory (it ends with the process).
    #[arg(long, env = "VIPU_PROXY_STORE", value_name = "STORE")]
    pub store: Option<String>,
    /// The V-IPU controllers: host:port:key=value[,...], in the order in which they are tried.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS", value_name = "LIST")]
    pub controllers: Option<String>,
    /// Read the list of controllers from this file instead; a change of it is applied within seconds.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_FILE", value_name = "FILE")]
    pub controllers_file: Option<PathBuf>,
    /// Or watch it in this ConfigMap, under the key controllers.yaml.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_CONFIGMAP", value_name = "NAME")]
    pub controllers_configmap: Option<String>,
    /// Certificates and keys for the controllers: a directory with a folder HOST_PORT for each, or `default`; a change of them
    /// is applied within seconds.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS_SECRETS", value_name = "DIRECTORY")]
    pub controllers_secrets: Option<PathBuf>,
    /// The namespace of the ConfigMaps [default: the one that the proxy runs in].
    #[arg(long, env = "PROXY_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// The ConfigMap of the ledger [default: ipu-partitions-tracker].
    #[arg(long, env = "PROXY_PARTITION_TRACKER", value_name = "NAME")]
    pub tracker: Option<String>,
    /// Whom tokens of service accounts are for, with --store kubernetes [default: vipu-proxy].
    #[arg(long, env = "VIPU_PROXY_AUDIENCE", value_name = "NAME")]
    pub audience: Option<String>,
    /// Which service accounts may change something, for owners of every namespace: system:serviceaccount:NAMESPACE:NAME[,...]
    /// [default: every one, for owners of its own namespace].
    #[arg(long, env = "VIPU_PROXY_ACCOUNTS", value_name = "LIST")]
    pub accounts: Option<String>,
    /// In which order controllers are tried that have room: serial (the order of the list), tightest or most-free [default: serial].
    #[arg(long, env = "VIPU_PROXY_SELECTION", value_name = "ORDER")]
    pub selection: Option<Selection>,
    /// Who may change something: a file of lines `TOKEN NAME [NAMESPACE,...]`; a change of it is applied within seconds.
    #[arg(long, env = "VIPU_PROXY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Accept tokens of --token-file without TLS on an address that other hosts reach: they can be read in the traffic.
    #[arg(long, env = "VIPU_PROXY_ALLOW_PLAIN_HTTP", num_args = 0..=1, default_missing_value = "true", value_name = "BOOLEAN")]
    pub allow_plain_http: Option<bool>,
    /// Speak TLS with this certificate (PEM, with its chain).
    #[arg(long, env = "VIPU_PROXY_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM).
    #[arg(long, env = "VIPU_PROXY_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Whoever has a certificate of these issuers (PEM) may change something.
    #[arg(long, env = "VIPU_PROXY_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Who may read: everybody, or only who may change something [default: open].
    #[arg(long, env = "VIPU_PROXY_READING", value_name = "open|closed")]
    pub reading: Option<ReadAccess>,
    /// Authentication if neither tokens nor certificates are set: by default the proxy listens on this host alone and admits
    /// its own user and root; `none` admits every client on every address.
    #[arg(long, env = "VIPU_PROXY_AUTH", value_name = "none")]
    pub auth: Option<Auth>,
    /// Most requests that are worked on at a time; further ones are answered 503 [default: 1024].
    #[arg(long, env = "VIPU_PROXY_MAX_REQUESTS", value_name = "NUMBER")]
    pub max_requests: Option<u32>,
    /// How long the body of a request may take [default: 30].
    #[arg(long, env = "PROXY_READ_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub read_timeout: Option<u64>,
    /// How long an answer may take, and wait to be taken [default: 300].
    #[arg(long, env = "PROXY_WRITE_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub write_timeout: Option<u64>,
    /// After how long a connection on which nothing is asked for is closed [default: 60].
    #[arg(long, env = "PROXY_IDLE_TIMEOUT", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: Option<u64>,
    /// How often ledger, controllers and owners are compared [default: 30].
    #[arg(long, env = "VIPU_PROXY_REPAIR_INTERVAL", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub repair_interval: Option<u64>,
    /// Instead of controllers: simulate one of this Pod, such as pod64 or 1x8, in this process.
    #[arg(long, env = "VIPU_PROXY_SIM", value_name = "TOPOLOGY")]
    pub sim: Option<String>,
    /// Only that many machines of the simulated Pod, of four IPUs each.
    #[arg(long, env = "VIPU_PROXY_SIM_MACHINES", value_name = "NUMBER")]
    pub sim_machines: Option<u32>,
    /// Where the simulated controller listens [default: 127.0.0.1:8090].
    #[arg(long, env = "VIPU_PROXY_SIM_LISTEN", value_name = "ADDRESS:PORT")]
    pub sim_listen: Option<SocketAddr>,
    /// Keep what the simulated controller has in this file [default: it ends with the process].
    #[arg(long, env = "VIPU_PROXY_SIM_STATE", value_name = "FILE")]
    pub sim_state: Option<PathBuf>,
    /// How long the simulated controller takes to create, reset and remove [default: 200].
    #[arg(long, env = "VIPU_PROXY_SIM_DELAY_MS", value_name = "MILLISECONDS")]
    pub sim_delay_ms: Option<u64>,
    /// Most requests that one namespace may have in the queue [default: 1000, and with --store kubernetes as many as fit into a
    /// tenth of the ledger].
    #[arg(long, env = "VIPU_PROXY_MAX_QUEUED_PER_NAMESPACE", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_queued_per_namespace: Option<u32>,
    /// In the file only: the most that a namespace or an account may hold. A change is applied within seconds.
    #[arg(skip)]
    pub quotas: Vec<QuotaSetting>,
    /// In the file only: the highest priority of a namespace. A change is applied within seconds.
    #[arg(skip)]
    pub priorities: Vec<PrioritySetting>,
}

/// In which order controllers that have room are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Selection {
    /// The order of the list.
    Serial,
    /// The smallest largest free block first.
    Tightest,
    /// The most free IPUs first.
    MostFree,
}

/// Who may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ReadAccess {
    /// Everybody.
    Open,
    /// Who may change something.
    Closed,
}

/// Who is asked to prove who he is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Auth {
    /// Nobody.
    None,
}

/// The most that a namespace or an account may hold.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct QuotaSetting {
    /// Whose: a namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Or an account.
    #[serde(default)]
    pub account: Option<String>,
    /// The namespaces that may charge the account, `*` for all of them. Required for an account.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Most IPUs; none is no limit.
    #[serde(default)]
    pub max_ipus: Option<u32>,
    /// Most partitions; none is no limit.
    #[serde(default)]
    pub max_partitions: Option<u32>,
}

/// The highest priority of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct PrioritySetting {
    /// Of owners of this namespace; without it, of every namespace that has no entry of its own.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The highest priority.
    pub max_priority: i32,
}

/// Why settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value:?}: {rule}")]
#[non_exhaustive]
pub struct SettingError {
    /// The name of the flag, and of the key in the file.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What is wrong with that, and what to do.
    pub rule: String,
}

/// Where the ledger is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreChoice {
    Memory,
    File(PathBuf),
    Kubernetes,
}

/// What is asked of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesChoice {
    pub(crate) namespace: Option<String>,
    pub(crate) tracker: Option<String>,
    pub(crate) audience: String,
    pub(crate) accounts: Vec<String>,
    pub(crate) controllers: Option<String>,
}

/// Where the partitions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hardware {
    Controllers(Vec<ControllerEndpoint>),
    /// The list is in this file.
    Listed(PathBuf),
    /// The list is in a ConfigMap that is watched.
    Watched,
    Simulated {
        topology: Topology,
        listen: SocketAddr,
        state: Option<PathBuf>,
        delay: Duration,
    },
}

/// Settings that fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    /// Where documented reads are answered without TLS.
    pub(crate) plain_listen: Option<SocketAddr>,
    pub(crate) store: StoreChoice,
    pub(crate) hardware: Hardware,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) repair_interval: Duration,
    pub(crate) order: SelectionOrder,
    /// The cluster, if something of it is used.
    pub(crate) kubernetes: Option<KubernetesChoice>,
    /// Whether it is asked who asks.
    pub(crate) asks: bool,
    /// Whether the users of this host are told apart, because neither tokens nor certificates are set.
    pub(crate) local_users: bool,
    /// Where the secrets of the controllers are.
    pub(crate) secrets: Option<PathBuf>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) reading: ReadAccess,
    pub(crate) max_requests: usize,
    /// The most requests of a namespace in the queue, if that is set.
    pub(crate) max_queued: Option<usize>,
    pub(crate) limits: Limits,
    /// The file that the settings came from, to be looked at for other limits.
    pub(crate) file: Option<PathBuf>,
}

impl Config {
    /// The same, of which the limits follow this file of settings from then on.
    #[must_use]
    pub fn following(mut self, file: PathBuf) -> Self {
        self.file = Some(file);
        self
    }
}

impl Settings {
    /// The settings of a file, of which those that may change while the proxy runs are looked at from then on.
    ///
    /// # Errors
    ///
    /// [`SettingError`] if it cannot be read or understood.
    pub fn from_file(path: &std::path::Path) -> Result<Self, SettingError> {
        let wrong = |rule: String| wrong("config", &path.display().to_string(), &rule);
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        read_settings(&text).map_err(wrong)
    }

    /// These settings, and of `others` what is not set here.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            listen: self.listen.or(others.listen),
            port: self.port.or(others.port),
            plain_listen: self.plain_listen.or(others.plain_listen),
            store: self.store.or(others.store),
            controllers: self.controllers.or(others.controllers),
            controllers_file: self.controllers_file.or(others.controllers_file),
            controllers_configmap: self.controllers_configmap.or(others.controllers_configmap),
            controllers_secrets: self.controllers_secrets.or(others.controllers_secrets),
            namespace: self.namespace.or(others.namespace),
            tracker: self.tracker.or(others.tracker),
            audience: self.audience.or(others.audience),
            accounts: self.accounts.or(others.accounts),
            selection: self.selection.or(others.selection),
            token_file: self.token_file.or(others.token_file),
            allow_plain_http: self.allow_plain_http.or(others.allow_plain_http),
            tls_cert: self.tls_cert.or(others.tls_cert),
            tls_key: self.tls_key.or(others.tls_key),
            tls_client_ca: self.tls_client_ca.or(others.tls_client_ca),
            reading: self.reading.or(others.reading),
            auth: self.auth.or(others.auth),
            max_requests: self.max_requests.or(others.max_requests),
            read_timeout: self.read_timeout.or(others.read_timeout),
            write_timeout: self.write_timeout.or(others.write_timeout),
            idle_timeout: self.idle_timeout.or(others.idle_timeout),
            repair_interval: self.repair_interval.or(others.repair_interval),
            sim: self.sim.or(others.sim),
            sim_machines: self.sim_machines.or(others.sim_machines),
            sim_listen: self.sim_listen.or(others.sim_listen),
            sim_state: self.sim_state.or(others.sim_state),
            sim_delay_ms: self.sim_delay_ms.or(others.sim_delay_ms),
            max_queued_per_namespace: self.max_queued_per_namespace.or(others.max_queued_per_namespace),
            quotas: if self.quotas.is_empty() {
                others.quotas
            } else {
                self.quotas
            },
            priorities: if self.priorities.is_empty() {
                others.priorities
            } else {
                self.priorities
            },
        }
    }

    /// Checks that the settings fit together, and fills in the defaults.
    ///
    /// # Errors
    ///
    /// [`SettingError`] for the first that cannot be used.
    pub fn check(self) -> Result<Config, SettingError> {
        let hardware = self.hardware()?;
        let store = match self.store.as_deref() {
            Some("memory") => StoreChoice::Memory,
            Some("kubernetes") => StoreChoice::Kubernetes,
            Some(text) => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => StoreChoice::File(path.into()),
                _ => return Err(wrong("store", text, "must be file:PATH, kubernetes or memory")),
            },
            None if matches!(hardware, Hardware::Simulated { .. }) => StoreChoice::Memory,
            None => {
                return Err(wrong(
                    "store",
                    "",
                    "must say where the ledger is kept, such as file:ledger.db",
                ));
            }
        };
        let tls = self.tls()?;
        // In a cluster tokens of service accounts do, unless it is said that nobody is asked.
        let reviews = store == StoreChoice::Kubernetes && self.auth.is_none();
        let asks = reviews || self.token_file.is_some() || self.tls_client_ca.is_some();
        let kubernetes = self.kubernetes(&store);
        let listen = self.listen(asks)?;
        if let Some(path) = &self.token_file
            && tls.is_none()
            && !listen.ip().is_loopback()
            && !self.allow_plain_http.unwrap_or(false)
        {
            let rule = format!(
                "tokens would be sent to {listen} without TLS; set tls-cert and tls-key, listen on a loopback address, or set \
                 allow-plain-http"
            );
            return Err(wrong("token-file", &path.display().to_string(), &rule));
        }
        if let Some(plain) = self.plain_listen.filter(|_| tls.is_none()) {
            return Err(wrong(
                "plain-listen",
                &plain.to_string(),
                "is for a proxy that speaks TLS: set tls-cert and tls-key, or leave it out",
            ));
        }
        let seconds = |value: Option<u64>, default| Duration::from_secs(value.unwrap_or(default));
        let max_requests = self.max_requests.unwrap_or(MAX_REQUESTS).max(1);
        Ok(Config {
            listen,
            plain_listen: self.plain_listen,
            store,
            hardware,
            read_timeout: seconds(self.read_timeout, READ_TIMEOUT),
            write_timeout: seconds(self.write_timeout, WRITE_TIMEOUT),
            idle_timeout: seconds(self.idle_timeout, IDLE_TIMEOUT),
            repair_interval: seconds(self.repair_interval, REPAIR_INTERVAL),
            order: match self.selection {
                None | Some(Selection::Serial) => SelectionOrder::Serial,
                Some(Selection::Tightest) => SelectionOrder::Tightest,
                Some(Selection::MostFree) => SelectionOrder::MostFree,
            },
            tls,
            kubernetes,
            asks,
            local_users: !asks && self.auth.is_none(),
            reading: self.reading.unwrap_or(ReadAccess::Open),
            max_requests: usize::try_from(max_requests).unwrap_or(usize::MAX),
            max_queued: self
                .max_queued_per_namespace
                .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            limits: Limits::of(&self)?,
            secrets: self.controllers_secrets,
            token_file: self.token_file,
            file: None,
        })
    }

    fn kubernetes(&self, store: &StoreChoice) -> Option<KubernetesChoice> {
        if *store != StoreChoice::Kubernetes && self.controllers_configmap.is_none() {
            return None;
        }
        let accounts = self.accounts.as_deref().unwrap_or_default().split(',');
        let accounts = accounts.map(str::trim).filter(|account| !account.is_empty());
        Some(KubernetesChoice {
            namespace: self.namespace.clone(),
            tracker: self.tracker.clone(),
            audience: self.audience.clone().unwrap_or_else(|| AUDIENCE.to_owned()),
            accounts: accounts.map(str::to_owned).collect(),
            controllers: self.controllers_configmap.clone(),
        })
    }

    /// Everywhere if it is asked who asks; otherwise on this host alone, unless it is said that nobody shall be asked.
    fn listen(&self, asks: bool) -> Result<SocketAddr, SettingError> {
        let anywhere = if asks {
            Ipv4Addr::UNSPECIFIED
        } else {
            Ipv4Addr::LOCALHOST
        };
        let mut listen = self.listen.unwrap_or(SocketAddr::new(IpAddr::V4(anywhere), PORT));
        if let Some(port) = self.port {
            listen.set_port(port);
        }
        if !asks && self.auth.is_none() && !listen.ip().is_loopback() {
            return Err(wrong(
                "listen",
                &listen.to_string(),
                "others reach this address, so set token-file or tls-client-ca, or auth to none",
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
                    // Those who only read need none.
                    Some(path) => ClientCertificates::Welcome(path.clone()),
                    None => ClientCertificates::NotAsked,
                },
            })),
            (None, None, None) => Ok(None),
            _ => Err(wrong(
                "tls-cert",
                "",
                "tls-cert and tls-key belong together, and tls-client-ca to both",
            )),
        }
    }

    fn hardware(&self) -> Result<Hardware, SettingError> {
        let given = [
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
        let given: Vec<_> = given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        if let [(one, _), (other, value), ..] = &given[..] {
            return Err(wrong(other, value, &format!("and {one} exclude each other")));
        }
        if let Some(path) = &self.controllers_file {
            return Ok(Hardware::Listed(path.clone()));
        }
        if self.controllers_configmap.is_some() {
            return Ok(Hardware::Watched);
        }
        match (&self.controllers, &self.sim) {
            (_, None) if self.controllers.is_none() => Err(wrong(
                "controllers",
                "",
                "must name the V-IPU controllers, or sim a Pod to simulate",
            )),
            (Some(list), _) => parse_controllers(list)
                .map(Hardware::Controllers)
                .map_err(|error| wrong("controllers", list, &crate::problem::chain(&error))),
            (None, text) => {
                let text = text.as_deref().unwrap_or_default();
                let topology: Topology = text
                    .parse()
                    .map_err(|error: ipu_core::TopologyError| wrong("sim", text, &error.to_string()))?;
                let topology = match self.sim_machines {
                    None => topology,
                    Some(machines) => topology
                        .with_first_machines(machines)
                        .map_err(|error| wrong("sim-machines", &machines.to_string(), &error.to_string()))?,
                };
                Ok(Hardware::Simulated {
                    topology,
                    listen: self.sim_listen.unwrap_or(SIM_LISTEN),
                    state: self.sim_state.clone(),
                    delay: Duration::from_millis(self.sim_delay_ms.unwrap_or(SIM_DELAY)),
                })
            }
        }
    }
}

/// Reads a file of settings.
///
/// # Errors
///
/// What is wrong with it, in words, with line and column.
pub(crate) fn read_settings(text: &str) -> Result<Settings, String> {
    if text.trim().is_empty() {
        return Ok(Settings::default());
    }
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

pub(crate) fn wrong(name: &'static str, value: &str, rule: &str) -> SettingError {
    SettingError {
        name,
        value: value.to_owned(),
        rule: rule.to_owned(),
    }
}
