//! The command line of the binary.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ipu_core::Topology;
use vipu_sim::{ClientCertificates, Simulator, SimulatorBuilder, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  vipu-sim --topology pod64 --state /var/tmp/pod64.json
  curl http://127.0.0.1:8090/sim/map

  vipu-sim --tls-init vipu-certs
  vipu-sim --secure --certs vipu-certs --user alice:wonder_land

Exit codes:
  0  stopped by SIGTERM or Ctrl-C, or certificates written
  1  could not start; the log says why
  2  wrong usage";

/// A simulated V-IPU controller: gRPC and REST on one port.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
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
        value_name = "ADDRESS:PORT"
    )]
    listen: SocketAddr,
    /// Keep the state in this file; several processes may share it. Without it the state ends with the process.
    #[arg(long, env = "VIPU_SIM_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    /// How long create, reset and remove take [default: 200, or what the state file says].
    #[arg(long, env = "VIPU_SIM_DELAY_MS", value_name = "MILLISECONDS")]
    delay_ms: Option<u64>,
    /// The version to report [default: 1.18.0-sim].
    #[arg(long, env = "VIPU_SIM_REPORT_VERSION", value_name = "VERSION")]
    report_version: Option<String>,
    /// TLS with certificates on both sides, and a user id with its access key in the headers of every call.
    #[arg(long, env = "VIPU_SIM_SECURE", requires = "users")]
    secure: bool,
    /// Where server/cert.pem, server/key.pem and server/ca.pem (the issuer of clients' certificates) are.
    #[arg(
        long,
        env = "VIPU_SIM_CERTS",
        default_value = "vipu-certs",
        value_name = "DIRECTORY"
    )]
    certs: PathBuf,
    /// A user who is admitted with --secure; may be given several times.
    #[arg(long = "user", id = "users", env = "VIPU_SIM_USERS", hide_env_values = true, value_delimiter = ',', value_name = "ID:KEY", value_parser = user)]
    users: Vec<(String, String)>,
    /// Write new certificates for server and clients into this directory, and end.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) tls_init: Option<PathBuf>,
    /// Which events are logged: a level, or `target=level` pairs such as `warn,vipu_sim=debug`.
    #[arg(long, env = "VIPU_SIM_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: tracing_subscriber::filter::Targets,
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

fn user(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((id, key)) if !id.is_empty() && !key.is_empty() => Ok((id.to_owned(), key.to_owned())),
        // The text may hold a secret: it is not repeated.
        _ => Err("must be a user id, a colon and an access key".to_owned()),
    }
}

impl Arguments {
    /// The simulator that is asked for.
    pub(crate) fn builder(self) -> SimulatorBuilder {
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
        if self.secure {
            let server = self.certs.join("server");
            let files = TlsFiles {
                certificate: server.join("cert.pem"),
                key: server.join("key.pem"),
                clients: ClientCertificates::Required(server.join("ca.pem")),
            };
            builder = builder.secure(files, BTreeMap::from_iter(self.users));
        }
        builder
    }
}
