//! The `vipu-proxy` command: serves the partition API.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 failed to start; 2 invalid usage or configuration.

use std::process::ExitCode;

use clap::Parser;
use ipu_core::ErrorChain;
use ipu_serve::{LogFormat, init_log};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use vipu_proxy::{Config, Proxy, SettingError, Settings};

const EXAMPLES: &str = "\
Examples:
  vipu-proxy --sim pod64 --sim-machines 8 --store file:ledger.db
  curl http://127.0.0.1:8080/stats

Exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  failed to start; see the log
  2  invalid usage or configuration";

/// The partition API between schedulers and V-IPU controllers.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// Log verbosity: 1 warnings, 2 informational messages, 3 to 6 increasing debug detail.
    #[arg(short = 'v', long = "verbosity", env = "PROXY_VERBOSITY", value_name = "1..6", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=6))]
    verbosity: u8,
    /// Format of the log on standard error.
    #[arg(
        long,
        env = "PROXY_LOG_FORMAT",
        value_name = "text|json",
        value_enum,
        default_value_t
    )]
    log_format: LogFormat,
    /// Settings file (YAML). Its keys are the flag names without the leading dashes. Flags and environment
    /// variables take precedence.
    #[arg(long, env = "VIPU_PROXY_CONFIG", value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let format = arguments.log_format;
    init_log(arguments.verbosity, format);
    let config = match configure(arguments) {
        Ok(config) => config,
        Err(error) => {
            error!("{error}");
            return ExitCode::from(2);
        }
    };
    match run(config, format).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %ErrorChain(&*error), "failed to start");
            ExitCode::FAILURE
        }
    }
}

/// Merges flags, environment and settings file.
fn configure(arguments: Arguments) -> Result<Config, SettingError> {
    match arguments.config {
        None => arguments.settings.check(),
        Some(path) => {
            let settings = arguments.settings.or(Settings::from_file(&path)?);
            Ok(settings.check()?.with_config_file(path))
        }
    }
}

/// Serves until SIGTERM or SIGINT.
async fn run(config: Config, format: LogFormat) -> Result<(), Box<dyn std::error::Error>> {
    // Installed before the address is printed: a reader of the address may send a signal at once.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let proxy = Proxy::start(config).await?;
    let address = proxy.listen_address();
    #[expect(clippy::print_stdout, reason = "scripts wait for this line")]
    match format {
        LogFormat::Json => info!("vipu-proxy serves on {address}"),
        _ => println!("vipu-proxy serves on {address}"),
    }
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
        why = proxy.ended() => return Err(why.into()),
    }
    proxy.shutdown().await;
    Ok(())
}
