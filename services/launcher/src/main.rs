//! The binary `ipu-launcher`: waits for the workers of a job, and runs commands in them through the API server.

mod cli;
mod exec;
mod exit;
mod hostfile;
mod install_self;
mod pipe;
mod pod_readiness;
mod readiness_tracker;
mod remote_exec;
mod signals;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;
use kube::{Client, Config};

use crate::cli::{Arguments, Command};
use crate::exit::Failure;
use crate::remote_exec::ExecRequest;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let code = match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(failure) => {
            report(&failure.to_string());
            failure.code()
        }
    };
    // A thread may still read from standard input, and nobody is to wait for it.
    std::process::exit(code.into())
}

async fn run(arguments: Arguments) -> Result<u8, Failure> {
    match arguments.command {
        Command::Wait(options) => {
            if let Some(folder) = &options.install {
                install_self::install(folder)?;
            }
            let (client, namespace) = connect(arguments.namespace).await?;
            wait::wait(client, &namespace, &options).await
        }
        Command::Exec(options) => {
            let (client, namespace) = connect(arguments.namespace).await?;
            let wanted = ExecRequest::command(options.pod, options.container, options.command, options.plain);
            remote_exec::run(&client, &namespace, wanted).await
        }
        Command::Agent(options) => {
            let (client, namespace) = connect(arguments.namespace).await?;
            let wanted = ExecRequest::shell(options.host, options.container, &options.words.join(" "));
            remote_exec::run(&client, &namespace, wanted).await
        }
    }
}

/// A client of the cluster that this runs in, or of `KUBECONFIG`, and the namespace to work in.
async fn connect(namespace: Option<String>) -> Result<(Client, String), Failure> {
    let config = Config::infer()
        .await
        .map_err(|error| Failure::Configuration(error.to_string()))?;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| Failure::Configuration(error.to_string()))?;
    Ok((client, namespace))
}

/// Tells what happens, one line each.
#[expect(
    clippy::print_stdout,
    reason = "a command-line tool answers on standard output"
)]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Tells what went wrong: standard output belongs to the remote command.
#[expect(clippy::print_stderr, reason = "a command-line tool talks on standard error")]
pub(crate) fn report(text: &str) {
    eprintln!("ipu-launcher: {text}");
}
