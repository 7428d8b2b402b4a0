//! The command line, and the names that the program is linked as.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use crate::pool::command::PoolCommand;
use crate::render_command::{CheckArguments, RenderArguments};

const EXAMPLES: &str = "\
Hooks of slurm.conf take no arguments. Link the program by the name of the hook:
  ln -s ipu-slurm /usr/lib/ipu-slurm/prolog-slurmctld

The configuration is vipu.conf next to slurm.conf: in the directory of SLURM_CONF, or in /etc/slurm.

Exit codes:
  0  done
  1  failed; one line on standard error and in the system log has the reason. For check and
     doctor: there is an error
  2  invalid usage";

/// IPUs for Slurm jobs.
#[derive(Debug, Parser)]
#[command(name = "ipu-slurm", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The work of the program.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Command {
    /// PrologSlurmctld: gets the partition of a job, and writes its files.
    PrologSlurmctld,
    /// EpilogSlurmctld: waits until the nodes are done with a job, and releases its partition.
    EpilogSlurmctld,
    /// Prolog: allocates the static partitions of a job on a node.
    Prolog,
    /// Epilog: frees the static partitions of a job on a node.
    Epilog,
    /// TaskProlog: prints the variables of the job's partition.
    TaskProlog,
    /// Releases partitions of jobs that have ended, withholds licenses of IPUs that others use, and explains
    /// waits. Runs until SIGTERM.
    Agent(AgentArguments),
    /// Runs one pass of the agent.
    Gc,
    /// Writes the files that a stock Slurm needs, from those of Graphcore's plugin.
    Render(RenderArguments),
    /// Reports errors in the configuration, and changes nothing.
    Check(CheckArguments),
    /// Reports also errors of this host: hooks, directories, tokens and the SPANK plugin. Run it as root.
    Doctor(CheckArguments),
    /// Static partitions of a node.
    #[command(subcommand)]
    Pool(PoolCommand),
}

/// Options of the agent.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct AgentArguments {
    /// File for metrics, such as /var/lib/prometheus/node-exporter/ipu-slurm.prom, which node_exporter reads
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
}

impl Command {
    /// The commands without arguments, which links can name.
    const ALL: [Self; 7] = [
        Self::PrologSlurmctld,
        Self::EpilogSlurmctld,
        Self::Prolog,
        Self::Epilog,
        Self::TaskProlog,
        Self::Agent(AgentArguments { metrics_file: None }),
        Self::Gc,
    ];

    /// Returns the name on the command line.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::PrologSlurmctld => "prolog-slurmctld",
            Self::EpilogSlurmctld => "epilog-slurmctld",
            Self::Prolog => "prolog",
            Self::Epilog => "epilog",
            Self::TaskProlog => "task-prolog",
            Self::Agent(_) => "agent",
            Self::Gc => "gc",
            Self::Render(_) => "render",
            Self::Check(_) => "check",
            Self::Doctor(_) => "doctor",
            Self::Pool(_) => "pool",
        }
    }

    /// Returns the command of the name that the program is linked as, with or without `ipu-slurm-`.
    fn of_link(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        let name = name.strip_prefix("ipu-slurm-").unwrap_or(name);
        Self::ALL.into_iter().find(|command| command.name() == name)
    }
}

/// Returns the command of this process. Prints help or a usage error and exits if there is none.
pub(crate) fn parse() -> Command {
    let program = std::env::args_os().next();
    match program.as_deref().and_then(Command::of_link) {
        Some(command) => command,
        None => Arguments::parse().command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_link_names_the_command() {
        let command_of = |program: &str| Command::of_link(OsStr::new(program));
        assert_eq!(
            command_of("/usr/lib/ipu-slurm/task-prolog"),
            Some(Command::TaskProlog)
        );
        assert_eq!(
            command_of("ipu-slurm-epilog-slurmctld"),
            Some(Command::EpilogSlurmctld)
        );
        assert_eq!(command_of("/usr/bin/ipu-slurm"), None);
    }

    #[test]
    fn every_command_is_found_by_its_name() {
        for command in Command::ALL {
            let parsed = Arguments::try_parse_from(["ipu-slurm", command.name()]).unwrap();
            assert_eq!(parsed.command, command);
        }
    }
}
