//! The command line: every command, flag and environment variable, and nothing of what they do.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipu_core::{AllocationId, IpuCount, PartitionId};

use crate::output::Colour;

/// Runs IPUJobs on this host and looks after partitions of Graphcore IPUs.
#[derive(Debug, Parser)]
#[command(
    name = "ipuctl",
    version,
    arg_required_else_help = true,
    propagate_version = true
)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ipuctl run examples/mnist-training.yaml            run a job; without a controller, on a simulated Pod16
  ipuctl run job.yaml --set spec.ipusPerJobInstance=4
  ipuctl --vipu 10.5.212.116:8090 partition list     what exists at a real controller, and whose it is
  ipuctl plan job.yaml                               what would be done, and why it cannot if not
  ipuctl gc                                          end and release what a killed ipuctl left behind

Exit codes: 0 done; a job's own code; 64 command line; 65 manifest; 66 not found; 69 controller; 70 bug; 71 host;
75 no room now; 77 denied; 78 can never fit; 128+n ended by signal n.";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// V-IPU controller; without this and without IPUOF_VIPU_API_HOST, a simulated Pod16
    #[arg(long, global = true, value_name = "HOST[:PORT]")]
    pub(crate) vipu: Option<String>,

    /// Form of results
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,

    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, env = "IPUCTL_COLOR")]
    pub(crate) color: Colour,

    /// Where the ledger, the simulated Pod and the files of runs are kept [default: ~/.local/state/ipuctl]
    #[arg(long, global = true, value_name = "DIR", env = "IPUCTL_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Seconds to wait for one answer of the controller
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 30,
        env = "IPUCTL_TIMEOUT"
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,

    /// Say less: warnings and errors only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Log what happens below: -v steps, -vv calls, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) secure: Secure,
}

/// Flags for controllers that ask who is there.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Secured controllers")]
pub(crate) struct Secure {
    /// Certificate authority that signed the controller's certificate; turns TLS on
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_TLS_CA")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Certificate of this client
    #[arg(
        long,
        global = true,
        value_name = "PEM FILE",
        env = "IPUCTL_TLS_CERT",
        requires = "tls_key"
    )]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of this client
    #[arg(
        long,
        global = true,
        value_name = "PEM FILE",
        env = "IPUCTL_TLS_KEY",
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// V-IPU user
    #[arg(long, global = true, value_name = "ID", env = "IPUCTL_USER_ID")]
    pub(crate) user_id: Option<String>,

    /// File that holds the V-IPU user's access key
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "IPUCTL_ACCESS_KEY_FILE",
        requires = "user_id"
    )]
    pub(crate) access_key_file: Option<PathBuf>,
}

/// The form of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an IPUJob on this host
    Run(Run),
    /// Show what running IPUJobs would do, and why it cannot if not
    Plan(Plan),
    /// Decide: a job and an observation as JSON in, the plan as JSON out
    Decide(Decide),
    /// Make, look at, reset and remove partitions
    #[command(subcommand)]
    Partition(Partition),
    /// How many partitions of a size fit now
    Query(Query),
    /// The controller's version and address
    ServerVersion(ServerVersion),
    /// End what killed runs left on this host and release their partitions
    Gc,
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Which IPUJob of which file, with which changes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Manifest {
    /// File with IPUJobs, YAML or JSON; `-` for standard input
    #[arg(value_name = "JOB.yaml")]
    pub(crate) file: PathBuf,

    /// Which IPUJob of the file, if it holds several
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Change a field first, such as `spec.ipusPerJobInstance=4`; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl run examples/mnist-training.yaml
  ipuctl run job.yaml --set spec.jobInstances=2 --no-wait
  ipuctl run job.yaml -o json 2>log | jq .exitCode")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) manifest: Manifest,

    /// Refuse instead of waiting in the line when the partitions do not fit now
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// V-IPU allocation to draw from
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,

    /// Place in the line: larger is served earlier
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,

    /// Seconds that processes may take to end when they are told to, before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) grace: u64,

    /// Network interface for Open MPI's TCP traffic (`btl_tcp_if_include`) in launcher jobs
    #[arg(
        long,
        value_name = "INTERFACE",
        default_value = "lo",
        env = "IPUCTL_MPI_INTERFACE"
    )]
    pub(crate) mpi_interface: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl plan job.yaml
  ipuctl plan jobs.yaml -o json | jq '.jobs[].partitions[].size'")]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) manifest: Manifest,

    /// V-IPU allocation to draw from
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ipuctl decide request.json      where request.json is {\"format\": 1, \"job\": {…}, \"observation\": {…}}

The form is described in docs/ipuctl.md.")]
pub(crate) struct Decide {
    /// File with the request; standard input if absent or `-`
    #[arg(value_name = "REQUEST.json")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Partition {
    /// Make a partition and wait until it is active
    Create {
        /// Its id
        id: PartitionId,
        /// How many IPUs: a power of two
        #[arg(long, value_name = "IPUS")]
        size: IpuCount,
        /// Graph compilation domains
        #[arg(long, value_name = "N", default_value_t = 1)]
        num_gcds: u32,
        /// Model replicas over all GCDs [default: the number of GCDs]
        #[arg(long, value_name = "N")]
        num_replicas: Option<u32>,
        /// Let Poplar pick devices of any aligned size
        #[arg(long)]
        reconfigurable: bool,
        /// V-IPU allocation to draw from
        #[arg(long, value_name = "ID")]
        allocation: Option<AllocationId>,
        /// Refuse instead of waiting in the line
        #[arg(long)]
        no_wait: bool,
    },
    /// Show one partition
    Get {
        /// Which
        id: PartitionId,
    },
    /// List partitions, with owner and state in the ledger
    List,
    /// Reset a partition and wait until it is active again
    Reset {
        /// Which
        id: PartitionId,
    },
    /// Give a partition back
    Remove {
        /// Which
        id: PartitionId,
        /// Also if it is held by a run, or was not made by this ledger
        #[arg(long)]
        force: bool,
    },
    /// Print the IPUoF configuration of a partition as JSON
    Config {
        /// Which
        id: PartitionId,
        /// Which GCD only
        #[arg(long, value_name = "N")]
        gcd: Option<u32>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ipuctl query 4 -o json")]
pub(crate) struct Query {
    /// IPUs of each partition: a power of two
    pub(crate) size: IpuCount,
    /// V-IPU allocation to draw from
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,
}

#[derive(Debug, Args)]
pub(crate) struct ServerVersion {
    /// As a JSON object with the string keys version and host
    #[arg(long, alias = "showjson")]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
