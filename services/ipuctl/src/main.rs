//! `ipuctl`: runs IPUJobs on this host and looks after partitions. It holds no decision about jobs: those are
//! `ipu_core::plan`'s, and those about partitions are `ipu-ledger`'s.

mod cli;
mod clock;
mod commands;
mod connection;
mod display;
mod env_expand;
mod exit_code;
mod manifest;
mod output;
mod process;
mod run;
mod state_dir;
mod table;
mod time;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Cli, Command, Format};
use crate::exit_code::{Code, Failure};
use crate::output::{Output, Stream};

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // The two commands that are started often, and whose arguments are somebody else's: no parser in their way.
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some("__supervise") => return process::supervise_main(arguments.split_off(2)),
        Some("__exec") => return run::exec(&arguments.split_off(2)),
        _ => {}
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() {
                Code::Usage
            } else {
                Code::Done
            };
            // Nothing can be done about a terminal that is gone.
            let _ = error.print();
            return code.into();
        }
    };
    // A document stands alone on standard output; what workers print goes beside it then.
    let workers = if cli.global.output == Format::Table {
        Stream::Out
    } else {
        Stream::Err
    };
    let output = Output::new(cli.global.color, workers, cli.global.quiet);
    log(cli.global.verbose, &output);
    match dispatch(cli, &output) {
        Ok(code) => code.into(),
        Err(failure) => {
            output.error(&failure.chain());
            failure.code.into()
        }
    }
}

fn dispatch(cli: Cli, output: &Output) -> Result<Code, Failure> {
    let Cli { global, command } = cli;
    match command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ipuctl", &mut text);
            output.result(&String::from_utf8_lossy(&text));
            Ok(Code::Done)
        }
        Command::Decide(arguments) => commands::decide::run(&arguments, global.output, output),
        command => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(|error| Failure::because(Code::Host, "start threads", error))?;
            runtime.block_on(asynchronous(command, &global, output))
        }
    }
}

async fn asynchronous(command: Command, global: &cli::Global, output: &Output) -> Result<Code, Failure> {
    if let Some(proxy) = commands::proxy::client(global)? {
        return commands::proxy::run(command, &proxy, global, output).await;
    }
    match command {
        Command::Run(arguments) => run::run(arguments, global, output).await,
        Command::Plan(arguments) => commands::plan::run(arguments, global, output).await,
        Command::Partition(command) => commands::partition::run(command, global, output).await,
        Command::Query(arguments) => commands::query::run(arguments, global, output).await,
        Command::ServerVersion(arguments) => commands::server_version::run(&arguments, global, output).await,
        Command::Gc => commands::gc::run(global, output).await,
        Command::Stats => Err(commands::proxy::needed("stats")),
        Command::Waiting => Err(commands::proxy::needed("waiting")),
        Command::Controllers => Err(commands::proxy::needed("controllers")),
        Command::Usage(_) => Err(commands::proxy::needed("usage")),
        Command::Cordon(_) => Err(commands::proxy::needed("cordon")),
        Command::Uncordon(_) => Err(commands::proxy::needed("uncordon")),
        Command::Drain(_) => Err(commands::proxy::needed("drain")),
        Command::Completions { .. } | Command::Decide(_) => Ok(Code::Done),
    }
}

/// Logs, to standard error: those of this project from the first `-v` on, those of the libraries below from the third.
fn log(verbose: u8, output: &Output) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;

    let (below, ours) = match verbose {
        0 => (LevelFilter::ERROR, LevelFilter::ERROR),
        1 => (LevelFilter::WARN, LevelFilter::INFO),
        2 => (LevelFilter::INFO, LevelFilter::DEBUG),
        _ => (LevelFilter::DEBUG, LevelFilter::TRACE),
    };
    // All crates of the project have names that begin so.
    let filter = Targets::new()
        .with_default(below)
        .with_targets([("ipu", ours), ("vipu", ours)]);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(output.has_colour(Stream::Err))
        .with_writer(std::io::stderr)
        // It would panic where nobody reads standard error any more.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
}
