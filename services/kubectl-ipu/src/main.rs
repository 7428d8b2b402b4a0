//! `kubectl ipu`: submits, explains and follows IPUJobs with the rights of the caller, and diagnoses an
//! installation of the operator. Words and exit codes are those of `ipuctl`.

mod cli;
mod commands;
mod completion;
mod context;
mod doctor;
mod exit_code;
mod installation;
mod output;
mod proxy;
mod time;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::exit_code::{Code, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
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
    match dispatch(cli) {
        Ok(code) => code.into(),
        Err(failure) => {
            output::say(&format!("error: {}", failure.chain()));
            failure.code.into()
        }
    }
}

fn dispatch(cli: Cli) -> Result<Code, Failure> {
    match cli.command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-ipu", &mut text);
            output::result(&String::from_utf8_lossy(&text))?;
            Ok(Code::Done)
        }
        Command::Exec(arguments) => commands::exec(&arguments, &cli.global),
        _ => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(|error| Failure::because(Code::Host, "start threads", error))?;
            let result = runtime.block_on(async {
                tokio::select! {
                    result = run(cli) => result,
                    _ = tokio::signal::ctrl_c() => Ok(Code::Signal(2)),
                }
            });
            // Without waiting for a task that a credential plugin blocks.
            runtime.shutdown_background();
            result
        }
    }
}

async fn run(cli: Cli) -> Result<Code, Failure> {
    let Cli { global, command } = cli;
    if let Command::Complete { words } = command {
        output::result(&completion::complete(&words).await)?;
        return Ok(Code::Done);
    }
    let context = Context::open(&global).await?;
    let format = global.output;
    match command {
        Command::Submit(arguments) => {
            commands::submit(&arguments, &context, global.namespace.as_deref(), format).await
        }
        Command::Get { job, all_namespaces } => {
            commands::get(job.as_deref(), all_namespaces, &context, format).await
        }
        Command::Why { job } => commands::why(&job, &context, &global).await,
        Command::Logs(arguments) => commands::logs(&arguments, &context).await,
        Command::Scale { job, replicas } => commands::scale(&job, replicas, &context, format).await,
        Command::Stats => commands::stats(&proxy::stats(&context, &global).await?, format),
        Command::Doctor => doctor::run(&context, &global).await,
        Command::Controllers => {
            let proxy = proxy::connect_to_read(&context, &global).await?;
            commands::controllers(&proxy.client, format).await
        }
        Command::Partitions => {
            let proxy = proxy::connect_to_read(&context, &global).await?;
            commands::partitions(&proxy.client, format).await
        }
        Command::Waiting => {
            let proxy = proxy::connect_to_read(&context, &global).await?;
            commands::waiting(&proxy.client, format).await
        }
        Command::Cordons => {
            let proxy = proxy::connect_to_read(&context, &global).await?;
            commands::cordons(&proxy.client, format).await
        }
        Command::Usage { since } => {
            let proxy = proxy::connect_to_read(&context, &global).await?;
            commands::usage(&since, &proxy.client, format).await
        }
        Command::Cordon(arguments) => {
            let proxy = proxy::connect(&context, &global).await?;
            commands::cordon(&arguments, &proxy.client, format).await
        }
        Command::Uncordon { target, id } => {
            let proxy = proxy::connect(&context, &global).await?;
            commands::uncordon(target.as_deref(), id, &proxy.client, format).await
        }
        Command::Drain { cordon, wait_for } => {
            let proxy = proxy::connect_long(&context, &global).await?;
            commands::drain(&cordon, wait_for, &proxy.client, format).await
        }
        Command::Repair => {
            let proxy = proxy::connect(&context, &global).await?;
            commands::repair(&proxy.client, format).await
        }
        Command::Release { id, quarantined } => {
            let proxy = proxy::connect(&context, &global).await?;
            commands::release(&id, quarantined, &proxy.client, format).await
        }
        // Handled above.
        Command::Completions { .. } | Command::Complete { .. } | Command::Exec(_) => Ok(Code::Done),
    }
}
