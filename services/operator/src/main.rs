//! The binary `ipu-operator`: command line of the Kubernetes operator for IPUJobs.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 cannot start or continue; 2 invalid usage or
//! configuration.

use std::process::ExitCode;

use clap::Parser;
use ipu_operator::{Config, Operator, SettingError, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

const EXIT_CODES: &str = "\
Exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  cannot start or continue; the log has the reason
  2  invalid usage or configuration";

/// Kubernetes operator for IPUJobs.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Arguments {
    /// Log level: 1 warnings, 2 events, 3 and above details.
    #[arg(short = 'v', long = "verbosity", env = "IPU_OPERATOR_VERBOSITY", value_name = "1..6", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=6))]
    verbosity: u8,
    /// Settings file (YAML). Keys are the flag names without leading dashes; flags and environment
    /// variables take precedence.
    #[arg(long, env = "IPU_OPERATOR_CONFIG", value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let stderr_layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::registry()
        .with(stderr_layer)
        .with(filter(arguments.verbosity))
        .init();
    let kube = match kube::Config::infer().await {
        Ok(kube) => kube,
        Err(failure) => {
            error!(error = %chain(&failure), "no cluster configuration: set KUBECONFIG, or run inside a cluster");
            return ExitCode::FAILURE;
        }
    };
    let config = match configure(arguments, &kube.default_namespace) {
        Ok(config) => config,
        Err(invalid) => {
            error!("{invalid}");
            return ExitCode::from(2);
        }
    };
    match run(config, kube).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %chain(&*failure), "the operator has failed");
            ExitCode::FAILURE
        }
    }
}

/// Merges flags, environment and file, and checks the result.
fn configure(arguments: Arguments, namespace: &str) -> Result<Config, SettingError> {
    let settings = match &arguments.config {
        None => arguments.settings,
        Some(path) => arguments.settings.or(Settings::from_file(path)?),
    };
    settings.check(namespace)
}

/// Runs until a termination signal or a fatal error.
async fn run(config: Config, kube: kube::Config) -> Result<(), Box<dyn std::error::Error>> {
    // Handlers are installed before the addresses are printed: a reader of the line may send a signal at
    // once.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut operator = Operator::start(config, kube).await?;
    #[expect(clippy::print_stdout, reason = "the one line that scripts wait for")]
    {
        println!(
            "ipu-operator serves webhooks on {}, metrics on {}, probes on {}",
            operator.webhooks(),
            operator.metrics(),
            operator.probes()
        );
    }
    let failed = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        failure = operator.wait_for_failure() => Some(failure),
    };
    info!("shutting down");
    operator.shutdown().await;
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Maps the verbosity to log levels: first for the crates of this project, then for their libraries.
fn filter(verbosity: u8) -> Targets {
    let (ours, libraries) = match verbosity {
        0 | 1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 => (LevelFilter::INFO, LevelFilter::WARN),
        3 => (LevelFilter::DEBUG, LevelFilter::INFO),
        4 => (LevelFilter::DEBUG, LevelFilter::DEBUG),
        5 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let crates = ["ipu_operator", "ipu_serve", "ipu_k8s", "ipu_proxy_client"];
    Targets::new()
        .with_default(libraries)
        .with_targets(crates.map(|name| (name, ours)))
}

/// Formats an error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
