//! The binary `vipu-sim`: a simulated V-IPU controller from the command line.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C, or certificates written; 1 could not start; 2 wrong usage.

mod certs;
mod cli;

use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use cli::{Arguments, LogFormat};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match arguments.log_format {
        LogFormat::Text => layer
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(layer)
        .with(arguments.log.clone())
        .init();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %format_chain(&*failure), "cannot serve");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM or SIGINT.
async fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(directory) = &arguments.tls_init {
        certs::init(directory)?;
        info!(directory = %directory.display(), "wrote certificates for server and clients");
        return Ok(());
    }
    // Installed before the address is printed: a script that reads it may send a signal immediately.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let topology = arguments.topology.clone();
    let simulator = arguments.builder().start().await?;
    #[expect(clippy::print_stdout, reason = "scripts wait for this line")]
    {
        println!("vipu-sim serves {topology} on {}", simulator.addr());
    }
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
    }
    simulator.shutdown().await;
    Ok(())
}

/// Formats an error with its sources.
fn format_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
