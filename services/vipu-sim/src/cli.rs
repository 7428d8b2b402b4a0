//! Command-line arguments of the binary.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use ipu_core::hardware::Topology;
use ipu_serve::LogFormat;
use vipu_sim::{ClientCertificates, Simulator, SimulatorBuilder, TlsFiles};

const EXAMPLES: &str = "\
Examples:
  vipu-sim --topology pod64 --state /var/tmp/pod64.json
  curl http://127.0.0.1:8090/sim/map

  vipu-sim --tls-init vipu-certs
  vipu-sim --secure --certs vipu-certs --user alice:wonder_land

Exit codes:
  0  stopped by SIGTERM or Ctrl-C, or certificates written
  1  could not start; see the log
  2  wrong usage";

/// A simulated V-IPU controller: gRPC and REST on one port.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// IPU-POD topology: pod4, pod16, pod64, pod128, pod256, or link domains such as 2x16,1x4.
    #[arg(
        long,
        env = "VIPU_SIM_TOPOLOGY",
        default_value = "pod16",
        value_name = "TOPOLOGY"
    )]
    pub(crate) topology: Topology,
    /// Listen address; port 0 selects a free port.
    #[arg(
        long,
        env = "VIPU_SIM_LISTEN",
        default_value = "127.0.0.1:8090",
        value_name = "ADDRESS:PORT"
    )]
    listen: SocketAddr,
    /// File that stores the state; several processes may share it. Without it, the state is lost at exit.
    #[arg(long, env = "VIPU_SIM_STATE", value_name = "FILE")]
    state: Option<PathBuf>,
    /// Duration of create, reset and remove [default: 200, or the value in the state file].
    #[arg(long, env = "VIPU_SIM_DELAY_MS", value_name = "MILLISECONDS")]
    delay_ms: Option<u64>,
    /// Controller version to report [default: 1.18.0-sim].
    #[arg(long, env = "VIPU_SIM_REPORT_VERSION", value_name = "VERSION")]
    report_version: Option<String>,
    /// Refuse create calls that name IPUs, as a controller without this parameter does.
    #[arg(long, env = "VIPU_SIM_REFUSE_IPUS")]
    refuse_ipus: bool,
    /// Require mutual TLS, and a user id with its access key in the headers of every call.
    #[arg(long, env = "VIPU_SIM_SECURE", requires = "users")]
    secure: bool,
    /// Directory with server/cert.pem, server/key.pem and server/ca.pem (the issuer of client
    /// certificates).
    #[arg(
        long,
        env = "VIPU_SIM_CERTS",
        default_value = "vipu-certs",
        value_name = "DIRECTORY"
    )]
    certs: PathBuf,
    /// User to admit with --secure; repeatable.
    #[arg(long = "user", id = "users", env = "VIPU_SIM_USERS", hide_env_values = true, value_delimiter = ',', value_name = "ID:KEY", value_parser = parse_user)]
    users: Vec<(String, String)>,
    /// Write new server and client certificates into this directory, and exit.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) tls_init: Option<PathBuf>,
    /// Log filter: a level, or `target=level` pairs such as `warn,vipu_sim=debug`.
    #[arg(long, env = "VIPU_SIM_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: tracing_subscriber::filter::Targets,
    /// Log format on stderr.
    #[arg(
        long,
        env = "VIPU_SIM_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormat,
}

/// Long enough to observe that create is asynchronous, short enough for interactive use.
const DEFAULT_DELAY: Duration = Duration::from_millis(200);

fn parse_user(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((id, key)) if !id.is_empty() && !key.is_empty() => Ok((id.to_owned(), key.to_owned())),
        // The text may hold a secret, so the message does not repeat it.
        _ => Err("must be a user id, a colon and an access key".to_owned()),
    }
}

impl Arguments {
    /// Returns the configured simulator builder.
    pub(crate) fn builder(self) -> SimulatorBuilder {
        let mut builder = Simulator::builder(self.topology).listen(self.listen);
        let is_new = self.state.as_ref().is_none_or(|path| !path.exists());
        if let Some(delay) = self
            .delay_ms
            .map(Duration::from_millis)
            .or(is_new.then_some(DEFAULT_DELAY))
        {
            builder = builder.delay(delay);
        }
        if let Some(path) = self.state {
            builder = builder.state_file(path);
        }
        if let Some(version) = self.report_version {
            builder = builder.version(version);
        }
        if self.refuse_ipus {
            builder = builder.refuse_ipus();
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
