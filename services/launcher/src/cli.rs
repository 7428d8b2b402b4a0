//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes of `wait`:
  0    all workers are ready
  1    cannot begin: no configuration of a cluster, no hostfile, no folder to install in
  2    wrong usage
  3    a worker can never be ready
  4    the deadline has passed

Exit codes of `exec` and `agent`:
  that of the remote command; 128 plus the number of the signal that ended it
  254  the command was not started
  255  the connection broke: nobody knows whether the command has ended";

/// Waits for the workers of a job, and runs commands in them through the API server.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// The namespace of the workers; otherwise that of the service account, or of KUBECONFIG.
    #[arg(short, long, global = true, env = "IPU_LAUNCHER_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Waits until all workers of the hostfile are running and ready.
    Wait(WaitArgs),
    /// Runs a command in a Kubernetes Pod.
    Exec(Exec),
    /// Runs words by the shell of a worker: what `mpirun` is given as its remote agent.
    Agent(Agent),
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The file that lists the workers, one a line, as mpirun reads it.
    #[arg(
        long,
        env = "IPU_LAUNCHER_HOSTFILE",
        default_value = "/etc/mpi/hostfile",
        value_name = "FILE"
    )]
    pub(crate) hostfile: PathBuf,
    /// Copies this program into a folder first, for a container whose image does not have it.
    #[arg(long, env = "IPU_LAUNCHER_INSTALL", value_name = "FOLDER")]
    pub(crate) install: Option<PathBuf>,
    /// Gives up after so many seconds; otherwise never, as long as the workers can still become ready.
    #[arg(long, env = "IPU_LAUNCHER_DEADLINE", value_name = "SECONDS")]
    pub(crate) deadline: Option<u64>,
    /// Takes a Kubernetes Pod for a worker only if it has these labels besides its name.
    #[arg(long, env = "IPU_LAUNCHER_SELECTOR", value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// How many seconds a worker that was deleted may take to be made again.
    #[arg(
        long,
        env = "IPU_LAUNCHER_GONE_GRACE",
        default_value_t = 30,
        value_name = "SECONDS"
    )]
    pub(crate) gone_grace: u64,
    /// Where the reason of giving up is written to, if that file exists.
    #[arg(long, default_value = "/dev/termination-log", value_name = "FILE")]
    pub(crate) termination_log: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The Kubernetes Pod.
    pub(crate) pod: String,
    /// The container; otherwise the one that the Kubernetes Pod's annotation names, or the first.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Starts the command as it is, without a shell that marks it: signals are then not passed on.
    #[arg(long)]
    pub(crate) plain: bool,
    /// The command.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// The container; otherwise the one that the Kubernetes Pod's annotation names, or the first.
    #[arg(long, env = "IPU_LAUNCHER_CONTAINER")]
    pub(crate) container: Option<String>,
    /// The worker, as the hostfile names it.
    pub(crate) host: String,
    /// What its shell runs.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) words: Vec<String>,
}
