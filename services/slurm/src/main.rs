//! The program `ipu-slurm`: hooks of Slurm that give IPUs to jobs, and the agent that takes back what a hook
//! could not.
//!
//! Slurm starts hooks without arguments, so each is also reachable by the name that the program is linked as,
//! such as `prolog-slurmctld`. A hook prints nothing on standard output but what Slurm reads there.

mod agent;
mod cli;
mod conf_facts;
mod conf_files;
mod doctor;
mod epilog_slurmctld;
mod failure;
#[cfg(test)]
mod fake_slurm;
mod host_map;
mod ipuof_directory;
mod leftovers;
mod partition;
mod pool;
mod pool_directory;
mod process;
mod prolog_slurmctld;
mod proxy;
mod render_command;
mod report;
mod run_file;
mod safe_file;
#[cfg(test)]
mod scripted_proxy;
mod slurm_commands;
mod task_prolog;

use std::future::Future;
use std::process::ExitCode;

use ipu_slurm::HookEnvironment;

use crate::cli::Command;
use crate::failure::Failure;

fn main() -> ExitCode {
    let command = cli::parse();
    let variables = HookEnvironment::new(std::env::vars_os());
    let result = match &command {
        Command::Render(arguments) => return render_command::render(arguments),
        Command::Check(arguments) => return render_command::check(arguments),
        Command::Doctor(arguments) => return doctor::doctor(arguments),
        Command::TaskProlog => task_prolog::run(&variables),
        Command::Prolog => pool::node_hooks::prolog(&variables),
        Command::Epilog => pool::node_hooks::epilog(&variables),
        Command::Pool(command) => pool::command::run(command),
        Command::PrologSlurmctld => prolog_slurmctld::run(&variables),
        Command::EpilogSlurmctld => epilog_slurmctld::run(&variables),
        Command::Agent(arguments) => block_on(agent::run(arguments.metrics_file.as_deref())),
        Command::Gc => block_on(agent::run_once()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report::failure(command.name(), &failure);
            ExitCode::FAILURE
        }
    }
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(future)
}
