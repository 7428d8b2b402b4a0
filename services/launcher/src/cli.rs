//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes of `wait`:
  0    all workers are ready
  1    cannot start: no cluster configuration, no hostfile, or no folder to install in
  2    wrong usage
  3    a worker can never be ready
  4    the deadline has passed

Exit codes of `exec` and `agent`:
  that of the remote command; 128 plus the number of the signal that ended it
  254  the command was not started
  255  the connection broke: the command may still be running";

/// Waits for the workers of a job, and runs commands in them through the API server.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// Namespace of the workers [default: that of the service account, or of KUBECONFIG]
    #[arg(short, long, global = true, env = "IPU_LAUNCHER_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Waits until all workers of the hostfile are running and ready.
    Wait(WaitArgs),
    /// Runs a command in a Pod.
    Exec(Exec),
    /// Runs a command line in the shell of a worker, as the remote agent of `mpirun`.
    Agent(Agent),
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// File that lists the workers, one per line, in the format of mpirun.
    #[arg(
        long,
        env = "IPU_LAUNCHER_HOSTFILE",
        default_value = "/etc/mpi/hostfile",
        value_name = "FILE"
    )]
    pub(crate) hostfile: PathBuf,
    /// Copies this program into a folder first, for a container whose image lacks it.
    #[arg(long, env = "IPU_LAUNCHER_INSTALL", value_name = "FOLDER")]
    pub(crate) install: Option<PathBuf>,
    /// Gives up after this many seconds [default: no limit while the workers can still become ready]
    #[arg(long, env = "IPU_LAUNCHER_DEADLINE", value_name = "SECONDS")]
    pub(crate) deadline: Option<u64>,
    /// Accepts a Pod as a worker only if it has these labels besides its name.
    #[arg(long, env = "IPU_LAUNCHER_SELECTOR", value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Seconds within which a deleted worker must be created again.
    #[arg(
        long = "gone-grace",
        env = "IPU_LAUNCHER_GONE_GRACE",
        default_value_t = 30,
        value_name = "SECONDS"
    )]
    pub(crate) recreation_timeout: u64,
    /// File for the reason of giving up; written only if the file exists.
    #[arg(long, default_value = "/dev/termination-log", value_name = "FILE")]
    pub(crate) termination_log: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the Pod.
    pub(crate) pod: String,
    /// Container [default: the one in the Pod's default-container annotation, or the first]
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Starts the command without the wrapping shell; signals are then not forwarded.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Command and arguments.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Container [default: the one in the Pod's default-container annotation, or the first]
    #[arg(long, env = "IPU_LAUNCHER_CONTAINER")]
    pub(crate) container: Option<String>,
    /// Worker, as named in the hostfile.
    pub(crate) host: String,
    /// Command line for the worker's shell; arguments are joined with spaces.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<String>,
}
