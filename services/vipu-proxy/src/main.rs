//! The `vipu-proxy` command: serves the partition API.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 failed to start; 2 invalid usage or configuration.

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
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
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::registry()
        .with(log)
        .with(filter(arguments.verbosity))
        .init();
    let config = match configure(arguments) {
        Ok(config) => config,
        Err(error) => {
            error!("{error}");
            return ExitCode::from(2);
        }
    };
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = %chain(&*error), "failed to start");
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
async fn run(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    // Installed before the address is printed: a reader of the address may send a signal at once.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let proxy = Proxy::start(config).await?;
    #[expect(clippy::print_stdout, reason = "scripts wait for this line")]
    {
        println!("vipu-proxy serves on {}", proxy.listen_address());
    }
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
        why = proxy.ended() => return Err(why.into()),
    }
    proxy.shutdown().await;
    Ok(())
}

/// Maps the six verbosity levels of the chart to log levels: of the project's crates first, then of other
/// libraries.
fn filter(verbosity: u8) -> Targets {
    let (project, others) = match verbosity {
        0 | 1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 => (LevelFilter::INFO, LevelFilter::WARN),
        3 => (LevelFilter::DEBUG, LevelFilter::INFO),
        4 => (LevelFilter::DEBUG, LevelFilter::DEBUG),
        5 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    Targets::new().with_default(others).with_targets(
        [
            "vipu_proxy",
            "ipu_serve",
            "ipu_k8s",
            "ipu_allocator",
            "ipu_vipu_client",
            "vipu_sim",
        ]
        .map(|name| (name, project)),
    )
}

/// Returns the text of an error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
