//! The command line of the binary.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ipu_core::Topology;
use vipu_sim::{Simulator, SimulatorBuilder};

/// A simulated V-IPU controller: gRPC and REST on one port.
///
/// Exit codes: 0 stopped by SIGTERM or Ctrl-C, 1 could not start, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  vipu-sim --topology pod64 --state /var/tmp/pod64.json\n  curl http://127.0.0.1:8090/sim/map"
)]
pub(crate) struct Arguments {
    /// The Pod: pod4, pod16, pod64, pod128, pod256, or link domains such as 2x16,1x4.
    #[arg(
        long,
        env = "VIPU_SIM_TOPOLOGY",
        default_value = "pod16",
        value_name = "TOPOLOGY"
    )]
    pub(crate) topology: Topology,
    /// The address to listen on; port 0 takes a free one.
    #[arg(
        long,
        env = "VIPU_SIM_LISTEN",
        default_value = "127.0.0.1:8090",
        value_name = "HOST:PORT"
    )]
    listen: SocketAddr,
    /// Keep the state in this file; several processes may share it. Without it the state ends with the process.
    #[arg(long, env = "VIPU_SIM_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    /// How long create, reset and remove take. [default: 200, or what the state file says]
    #[arg(long, env = "VIPU_SIM_DELAY_MS", value_name = "MILLISECONDS")]
    delay_ms: Option<u64>,
    /// The version to report.
    #[arg(long, env = "VIPU_SIM_VERSION", value_name = "VERSION")]
    report_version: Option<String>,
    /// Which events are logged, as tracing filter directives.
    #[arg(long, env = "VIPU_SIM_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
    /// The form of the log on stderr.
    #[arg(
        long,
        env = "VIPU_SIM_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormat,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Long enough to see that create is asynchronous, short enough not to wait for.
const DEFAULT_DELAY: Duration = Duration::from_millis(200);

impl Arguments {
    /// The simulator that is asked for.
    pub(crate) fn builder(self) -> Result<SimulatorBuilder, std::io::Error> {
        let mut builder = Simulator::builder(self.topology).listen(self.listen);
        let fresh = self.state.as_ref().is_none_or(|path| !path.exists());
        if let Some(delay) = self
            .delay_ms
            .map(Duration::from_millis)
            .or(fresh.then_some(DEFAULT_DELAY))
        {
            builder = builder.delay(delay);
        }
        if let Some(path) = self.state {
            builder = builder.state_file(path);
        }
        if let Some(version) = self.report_version {
            builder = builder.version(version);
        }
        Ok(builder)
    }
}
