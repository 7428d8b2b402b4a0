//! What can be set, and where from: flags, then the environment, then the file, then the default.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::Topology;
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};
use serde::Deserialize;

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
    /// Where to listen [default: port 8080 of 127.0.0.1].
    #[arg(long, env = "VIPU_PROXY_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The port to listen on, instead of the one of --listen.
    #[arg(long, env = "PROXY_PORT", value_name = "PORT")]
    pub port: Option<u16>,
    /// Where the ledger is kept: file:PATH, or memory (it ends with the process).
    #[arg(long, env = "VIPU_PROXY_STORE", value_name = "STORE")]
    pub store: Option<String>,
    /// The V-IPU controllers: host:port:key=value[,...], in the order in which they are tried.
    #[arg(long, env = "VIPU_PROXY_CONTROLLERS", value_name = "LIST")]
    pub controllers: Option<String>,
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
}

/// Where the partitions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hardware {
    Controllers(Vec<ControllerEndpoint>),
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
    pub(crate) store: StoreChoice,
    pub(crate) hardware: Hardware,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) repair_interval: Duration,
}

impl Settings {
    /// These settings, and of `others` what is not set here.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            listen: self.listen.or(others.listen),
            port: self.port.or(others.port),
            store: self.store.or(others.store),
            controllers: self.controllers.or(others.controllers),
            read_timeout: self.read_timeout.or(others.read_timeout),
            write_timeout: self.write_timeout.or(others.write_timeout),
            idle_timeout: self.idle_timeout.or(others.idle_timeout),
            repair_interval: self.repair_interval.or(others.repair_interval),
            sim: self.sim.or(others.sim),
            sim_machines: self.sim_machines.or(others.sim_machines),
            sim_listen: self.sim_listen.or(others.sim_listen),
            sim_state: self.sim_state.or(others.sim_state),
            sim_delay_ms: self.sim_delay_ms.or(others.sim_delay_ms),
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
            Some(text) => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => StoreChoice::File(path.into()),
                _ => return Err(wrong("store", text, "must be file:PATH or memory")),
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
        let mut listen = self
            .listen
            .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT));
        if let Some(port) = self.port {
            listen.set_port(port);
        }
        let seconds = |value: Option<u64>, default| Duration::from_secs(value.unwrap_or(default));
        Ok(Config {
            listen,
            store,
            hardware,
            read_timeout: seconds(self.read_timeout, READ_TIMEOUT),
            write_timeout: seconds(self.write_timeout, WRITE_TIMEOUT),
            idle_timeout: seconds(self.idle_timeout, IDLE_TIMEOUT),
            repair_interval: seconds(self.repair_interval, REPAIR_INTERVAL),
        })
    }

    fn hardware(&self) -> Result<Hardware, SettingError> {
        match (&self.controllers, &self.sim) {
            (Some(list), Some(_)) => Err(wrong("controllers", list, "and sim exclude each other")),
            (None, None) => Err(wrong(
                "controllers",
                "",
                "must name the V-IPU controllers, or sim a Pod to simulate",
            )),
            (Some(list), None) => parse_controllers(list)
                .map(Hardware::Controllers)
                .map_err(|error| wrong("controllers", list, &crate::problem::chain(&error))),
            (None, Some(text)) => {
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

fn wrong(name: &'static str, value: &str, rule: &str) -> SettingError {
    SettingError {
        name,
        value: value.to_owned(),
        rule: rule.to_owned(),
    }
}
