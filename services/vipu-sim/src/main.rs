//! The binary `vipu-sim`: a simulated V-IPU controller from the command line.
//!
//! Exit codes: 0 stopped by SIGTERM or Ctrl-C, or certificates written; 1 could not start; 2 wrong usage.

mod certs;
mod cli;

use std::process::ExitCode;

use clap::Parser as _;
use ipu_core::ErrorChain;
use ipu_serve::init_log_with;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};

use cli::Arguments;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    init_log_with(arguments.log.clone(), arguments.log_format);
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(error = %ErrorChain(&*failure), "cannot serve");
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
