//! `ipuctl`: runs IPUJobs on this host and manages partitions. Decisions about jobs are those of
//! `ipu_core::job::plan`, decisions about partitions those of a `vipu-proxy`: a remote one, or the local
//! server of this user.

mod cli;
mod commands;
mod connection;
mod display;
mod env_expand;
mod exit_code;
mod input;
mod local_server;
mod manifest;
mod option_value;
mod output;
mod process;
mod run;
mod run_record;
mod serve;
mod server_options;
mod signals;
mod state_dir;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use ipu_proxy_client::cli::time;

use crate::cli::{Cli, Command, Format, Partition};
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::local_server::Requirement;
use crate::output::{Output, Stream};
use crate::signals::Signals;

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // Internal commands: they start often, and their arguments are those of another program, so that clap is
    // bypassed.
    match arguments.get(1).and_then(|argument| argument.to_str()) {
        Some("__supervise") => return process::supervise_main(arguments.split_off(2)),
        Some("__serve") => return serve::main(&arguments.split_off(2)),
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
            // A closed terminal cannot be reported.
            let _ = error.print();
            return code.into();
        }
    };
    // With a document on standard output, the output of workers goes to standard error.
    let workers = if cli.global.output.is_text() {
        Stream::Out
    } else {
        Stream::Err
    };
    let output = Output::new(cli.global.color, workers, cli.global.quiet);
    init_logging(cli.global.verbose, &output);
    match dispatch(cli, &output) {
        Ok(code) => code.into(),
        Err(failure) => {
            if failure.is_unreported() {
                output.error(&failure.chain());
            }
            failure.code.into()
        }
    }
}

fn dispatch(cli: Cli, output: &Output) -> Result<Code, Failure> {
    let Cli { global, command } = cli;
    check_format(global.output, &command)?;
    match command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ipuctl", &mut text);
            output.result(&String::from_utf8_lossy(&text));
            Ok(Code::Done)
        }
        Command::Decide(arguments) => commands::decide::run(&arguments, global.output, output),
        Command::Policy(command) => commands::policy::run(&command, global.output, output),
        Command::Render(command) => commands::render::run(&command, global.output, output),
        command => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(|error| Failure::because(Code::Host, "start threads", error))?;
            runtime.block_on(run(command, &global, output))
        }
    }
}

/// Rejects an output format that the command does not support, before the command has an effect.
fn check_format(format: Format, command: &Command) -> Result<(), Failure> {
    let lists_partitions = matches!(
        command,
        Command::Partition(Partition::List { .. } | Partition::Get { .. })
    );
    let is_watch = matches!(command, Command::Partition(Partition::List { watch: true }));
    let has_names = lists_partitions || matches!(command, Command::List | Command::Cordons);
    let message = match format {
        Format::Csv if !matches!(command, Command::Usage(_) | Command::Cordons) => {
            "-o csv is supported by `ipuctl usage` and `cordons` only; use -o json or -o yaml"
        }
        Format::Wide if !lists_partitions => "-o wide is supported by `ipuctl partition list` and `get` only",
        Format::Name if !has_names => {
            "-o name is supported by `ipuctl list`, `cordons`, `partition list` and `get` only"
        }
        Format::Json | Format::Yaml if is_watch => {
            "--watch supports the output formats table, wide and name only; leave out -o json and -o yaml"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Code::Usage, message))
}

async fn run(command: Command, global: &cli::Global, output: &Output) -> Result<Code, Failure> {
    let command = match command {
        Command::Run(arguments) => return run::run(arguments, global, output).await,
        command => command,
    };
    if let Command::Partition(command) = &command {
        commands::partition::check(command)?;
    }
    let places = matches!(
        command,
        Command::Plan(_) | Command::Query(_) | Command::Partition(Partition::Create { .. })
    );
    let requirement = if places {
        Requirement::All
    } else {
        Requirement::Controller
    };
    // This command withdraws its request when it is interrupted.
    let handles_signals = matches!(command, Command::Partition(Partition::Create { .. }));
    let mut signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    let work = async {
        let connection = Connection::open(global, requirement, output).await?;
        execute(command, &connection, global.output, output).await
    };
    tokio::select! {
        result = work => result,
        () = signals.next(), if !handles_signals => {
            output.status(None);
            output.say("Interrupted.");
            Ok(Code::Signal(signals.first().unwrap_or(2)))
        }
    }
}

async fn execute(
    command: Command,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let proxy = &connection.proxy;
    match command {
        Command::Plan(arguments) => commands::plan::run(arguments, connection, format, output).await,
        Command::Partition(command) => commands::partition::run(command, connection, format, output).await,
        Command::Query(arguments) => commands::capacity::query(arguments, proxy, format, output).await,
        Command::ServerVersion(arguments) => {
            commands::server_version::run(&arguments, connection, format, output).await
        }
        Command::Gc => commands::gc::run(connection, format, output).await,
        Command::List => commands::list::run(connection, format, output).await,
        Command::Map => commands::map::run(connection, format, output).await,
        Command::Repair => commands::capacity::repair(proxy, format, output).await,
        Command::Top => commands::top::run(proxy, format, output).await,
        Command::Stats => commands::capacity::stats(proxy, format, output).await,
        Command::Waiting => commands::partition::waiting(connection, format, output).await,
        Command::Controllers => commands::capacity::controllers(proxy, format, output).await,
        Command::Usage(arguments) => commands::usage::run(&arguments, proxy, format, output).await,
        Command::Cordon(arguments) => commands::cordon::cordon(arguments, proxy, format, output).await,
        Command::Uncordon(arguments) => commands::cordon::uncordon(arguments, proxy, format, output).await,
        Command::Cordons => commands::cordon::list(proxy, format, output).await,
        Command::Drain(arguments) => commands::cordon::drain(arguments, proxy, format, output).await,
        Command::Run(_)
        | Command::Completions { .. }
        | Command::Decide(_)
        | Command::Policy(_)
        | Command::Render(_) => Ok(Code::Done),
    }
}

/// Logs to standard error: this project from `-v` on, the libraries in detail from `-vvv` on.
fn init_logging(verbose: u8, output: &Output) {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;

    let (libraries, project) = match verbose {
        0 => (LevelFilter::ERROR, LevelFilter::ERROR),
        1 => (LevelFilter::WARN, LevelFilter::INFO),
        2 => (LevelFilter::INFO, LevelFilter::DEBUG),
        _ => (LevelFilter::DEBUG, LevelFilter::TRACE),
    };
    // The prefixes of all crates of the project.
    let filter = Targets::new()
        .with_default(libraries)
        .with_targets([("ipu", project), ("vipu", project)]);
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(output.has_colour(Stream::Err))
        .with_writer(std::io::stderr)
        // It would panic once standard error is closed.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(layer).with(filter).init();
}
