//! The binary `ipu-operator`: the Kubernetes operator of IPUJobs from the command line.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C; 1 could not start, or could not go on; 2 wrong usage or configuration.

use std::process::ExitCode;

use clap::Parser;
use ipu_operator::{Config, Operator, SettingError, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

const EXAMPLES: &str = "\
Exit codes:
  0  stopped by SIGTERM or Ctrl-C
  1  could not start, or could not go on; the log says why
  2  wrong usage or configuration";

/// The Kubernetes operator of IPUJobs.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// How much is logged: 1 warnings, 2 what happens, 3 and more what is done for it.
    #[arg(short = 'v', long = "verbosity", env = "IPU_OPERATOR_VERBOSITY", value_name = "1..6", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=6))]
    verbosity: u8,
    /// A file of settings (YAML). Keys are the names of the flags without the dashes before them; flags and the environment
    /// win over it.
    #[arg(long, env = "IPU_OPERATOR_CONFIG", value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::registry()
        .with(lines)
        .with(filter(arguments.verbosity))
        .init();
    let kube = match kube::Config::infer().await {
        Ok(kube) => kube,
        Err(failure) => {
            error!(error = %chain(&failure), "no cluster is known: set KUBECONFIG, or run in one");
            return ExitCode::FAILURE;
        }
    };
    let config = match configure(arguments, &kube.default_namespace) {
        Ok(config) => config,
        Err(wrong) => {
            error!("{wrong}");
            return ExitCode::from(2);
        }
    };
    match run(config, kube).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %chain(&*failure), "the operator does not run");
            ExitCode::FAILURE
        }
    }
}

/// What flags, environment and file come to.
fn configure(arguments: Arguments, namespace: &str) -> Result<Config, SettingError> {
    let settings = match &arguments.config {
        None => arguments.settings,
        Some(path) => arguments.settings.or(Settings::from_file(path)?),
    };
    settings.check(namespace)
}

/// Runs until a signal says to stop, or it cannot go on.
async fn run(config: Config, kube: kube::Config) -> Result<(), Box<dyn std::error::Error>> {
    // Before the addresses are told: whoever reads them may send a signal at once.
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
        failure = operator.failed() => Some(failure),
    };
    info!("stops");
    operator.shutdown().await;
    failed.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Ours first, then those of the libraries that it is built on.
fn filter(verbosity: u8) -> Targets {
    let (ours, others) = match verbosity {
        0 | 1 => (LevelFilter::WARN, LevelFilter::WARN),
        2 => (LevelFilter::INFO, LevelFilter::WARN),
        3 => (LevelFilter::DEBUG, LevelFilter::INFO),
        4 => (LevelFilter::DEBUG, LevelFilter::DEBUG),
        5 => (LevelFilter::TRACE, LevelFilter::DEBUG),
        _ => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let all = ["ipu_operator", "ipu_serve", "ipu_k8s", "ipu_proxy_client"];
    Targets::new()
        .with_default(others)
        .with_targets(all.map(|name| (name, ours)))
}

/// An error with its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
