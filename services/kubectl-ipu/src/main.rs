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

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::cli::{Cli, Command, Global};
use crate::context::Context;
use crate::exit_code::{Code, Failure};
use crate::proxy::Access;

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
    match start(cli) {
        Ok(code) => code.into(),
        Err(failure) => {
            output::say(&format!("error: {}", failure.chain()));
            failure.code.into()
        }
    }
}

fn start(cli: Cli) -> Result<Code, Failure> {
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

async fn run(Cli { global, command }: Cli) -> Result<Code, Failure> {
    match command {
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-ipu", &mut text);
            output::result(&String::from_utf8_lossy(&text))?;
            return Ok(Code::Done);
        }
        Command::Complete { words } => {
            output::result(&completion::complete(&words).await)?;
            return Ok(Code::Done);
        }
        _ => {}
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
        Command::Logs(arguments) => commands::logs(&arguments, &context, &global).await,
        Command::Exec(arguments) => commands::exec(&arguments, &context, &global).await,
        Command::Scale { job, replicas } => commands::scale(&job, replicas, &context, format).await,
        Command::Partition(command) => commands::partition(command, &context, format).await,
        Command::Doctor => doctor::run(&context, &global).await,
        command => of_proxy(command, &context, &global).await,
    }
}

/// Runs a command that needs the proxy.
async fn of_proxy(command: Command, context: &Context, global: &Global) -> Result<Code, Failure> {
    let access = match &command {
        Command::Drain { .. } => Access::Drain,
        Command::Cordon(_) | Command::Uncordon { .. } | Command::Repair | Command::Release { .. } => {
            Access::Change
        }
        _ => Access::Read,
    };
    let proxy = proxy::connect(context, global, access).await?;
    let (proxy, client, format) = (&proxy.client, &context.client, global.output);
    match command {
        Command::Top => commands::top(proxy, format).await,
        Command::Stats => commands::stats(proxy, format).await,
        Command::Controllers => commands::controllers(proxy, format).await,
        Command::Machines => commands::machines(proxy, format).await,
        Command::Partitions => commands::partitions(proxy, format).await,
        Command::Waiting => commands::waiting(proxy, format).await,
        Command::Cordons => commands::cordons(proxy, format).await,
        Command::Usage { since } => commands::usage(&since, proxy, format).await,
        Command::Cordon(arguments) => commands::cordon(arguments, proxy, client, format).await,
        Command::Uncordon { target, id } => commands::uncordon(target.as_ref(), id, proxy, format).await,
        Command::Drain { cordon, wait_for } => commands::drain(cordon, wait_for, proxy, client, format).await,
        Command::Repair => commands::repair(proxy, format).await,
        Command::Release { id, quarantined } => commands::release(&id, quarantined, proxy, format).await,
        // Commands without the proxy.
        _ => Ok(Code::Done),
    }
}
