//! The binary `ipu-operator`: command line of the Kubernetes operator for IPUJobs.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 cannot start or continue; 2 invalid usage or
//! configuration.

use std::process::ExitCode;

use clap::Parser;
use ipu_core::ErrorChain;
use ipu_operator::{Config, Operator, SettingError, Settings};
use ipu_serve::{LogFormat, init_log};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

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
    /// Format of the log on standard error.
    #[arg(
        long,
        env = "IPU_OPERATOR_LOG_FORMAT",
        value_name = "text|json",
        value_enum,
        default_value_t
    )]
    log_format: LogFormat,
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
    let format = arguments.log_format;
    init_log(arguments.verbosity, format);
    let kube = match kube::Config::infer().await {
        Ok(kube) => kube,
        Err(failure) => {
            error!(error = %ErrorChain(&failure), "no cluster configuration: set KUBECONFIG, or run inside a cluster");
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
    match run(config, kube, format).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %ErrorChain(&*failure), "the operator has failed");
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
async fn run(
    config: Config,
    kube: kube::Config,
    format: LogFormat,
) -> Result<(), Box<dyn std::error::Error>> {
    // Handlers are installed before the addresses are printed: a reader of the line may send a signal at
    // once.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut operator = Operator::start(config, kube).await?;
    let serves = format!(
        "ipu-operator serves webhooks on {}, metrics on {}, probes on {}",
        operator.webhooks(),
        operator.metrics(),
        operator.probes()
    );
    #[expect(clippy::print_stdout, reason = "the one line that scripts wait for")]
    match format {
        LogFormat::Json => info!("{serves}"),
        _ => println!("{serves}"),
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
