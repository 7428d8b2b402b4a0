//! The binary `ipu-launcher`: waits for the workers of a job, and runs commands in them through the API
//! server.

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
            print_error(&failure.to_string());
            failure.code()
        }
    };
    // A thread may still block on standard input; `exit` does not wait for it.
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
            let request =
                ExecRequest::command(options.pod, options.container, options.command, options.plain);
            remote_exec::run(&client, &namespace, request).await
        }
        Command::Agent(options) => {
            let (client, namespace) = connect(arguments.namespace).await?;
            let request = ExecRequest::shell(options.host, options.container, &options.command.join(" "));
            remote_exec::run(&client, &namespace, request).await
        }
    }
}

/// Creates a client of the cluster this process runs in, or of `KUBECONFIG`, and returns the namespace to
/// use.
async fn connect(namespace: Option<String>) -> Result<(Client, String), Failure> {
    let config = Config::infer()
        .await
        .map_err(|error| Failure::Configuration(error.to_string()))?;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).map_err(|error| Failure::Configuration(error.to_string()))?;
    Ok((client, namespace))
}

/// Prints a progress line to standard output.
#[expect(
    clippy::print_stdout,
    reason = "a command-line tool writes results to standard output"
)]
pub(crate) fn print_progress(text: &str) {
    println!("{text}");
}

/// Prints an error to standard error; standard output belongs to the remote command.
#[expect(
    clippy::print_stderr,
    reason = "a command-line tool writes errors to standard error"
)]
pub(crate) fn print_error(text: &str) {
    eprintln!("ipu-launcher: {text}");
}
