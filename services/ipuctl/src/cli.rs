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
  ipuctl --proxy http://vipu-proxy:8080 stats        what is used and free where a proxy shares a cluster

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

    #[command(flatten)]
    pub(crate) through: ProxyArgs,
}

/// Flags for going through a proxy.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Through a V-IPU proxy")]
pub(crate) struct ProxyArgs {
    /// Proxy that owns the ledger, instead of a controller: http://HOST:PORT or https://…
    #[arg(long, global = true, value_name = "URL", env = "IPUCTL_PROXY")]
    pub(crate) proxy: Option<String>,

    /// File that holds the token for the proxy; it is read anew for every request
    #[arg(long, global = true, value_name = "FILE", env = "IPUCTL_PROXY_TOKEN_FILE")]
    pub(crate) proxy_token_file: Option<PathBuf>,

    /// Certificate authority that signed the proxy's certificate, for https
    #[arg(long, global = true, value_name = "PEM FILE", env = "IPUCTL_PROXY_CA")]
    pub(crate) proxy_ca: Option<PathBuf>,

    /// Certificate of this client for the proxy
    #[arg(
        long,
        global = true,
        value_name = "PEM FILE",
        env = "IPUCTL_PROXY_CERT",
        requires_all = ["proxy_key", "proxy_ca"]
    )]
    pub(crate) proxy_cert: Option<PathBuf>,

    /// Private key of that certificate
    #[arg(
        long,
        global = true,
        value_name = "PEM FILE",
        env = "IPUCTL_PROXY_KEY",
        requires = "proxy_cert"
    )]
    pub(crate) proxy_key: Option<PathBuf>,
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
    /// Comma-separated values with a line of headings; of `usage` only.
    Csv,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an IPUJob on this host
    Run(RunArgs),
    /// Show what running IPUJobs would do, and why it cannot if not
    Plan(Plan),
    /// Decide: a job and an observation as JSON in, the plan as JSON out
    Decide(Decide),
    /// Make, look at, reset and remove partitions
    #[command(subcommand)]
    Partition(Partition),
    /// How many partitions of a size fit now
    Query(Query),
    /// IPUs used and available, by namespace and in total (with --proxy)
    Stats,
    /// Who waits in the line, first come first, and why (with --proxy)
    Waiting,
    /// The proxy's controllers: whether they answer, and what is free (with --proxy)
    Controllers,
    /// Who held what for how long (with --proxy)
    Usage(Usage),
    /// Have hardware get nothing new; who holds something there keeps it (with --proxy)
    Cordon(Cordon),
    /// Let hardware get something new again (with --proxy)
    Uncordon(Uncordon),
    /// Cordon, and wait until nobody holds anything there any more (with --proxy)
    Drain(Drain),
    /// The controller's version and address
    ServerVersion(ServerVersion),
    /// End what killed runs left on this host and release their partitions; with --proxy, have it repair its ledger now
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
pub(crate) struct RunArgs {
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
  ipuctl plan jobs.yaml -o json | jq '.jobs[].partitions[].size'
  ipuctl --proxy http://vipu-proxy:8080 plan --size 16,16 --if-ended training")]
pub(crate) struct Plan {
    /// File with IPUJobs, YAML or JSON; `-` for standard input
    #[arg(value_name = "JOB.yaml", required_unless_present = "size")]
    pub(crate) file: Option<PathBuf>,

    /// Which IPUJob of the file, if it holds several
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Change a field first, such as `spec.ipusPerJobInstance=4`; may be repeated
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,

    /// Instead of a file: partitions of so many IPUs each, side by side (with --proxy)
    #[arg(long, value_name = "IPUS,…", value_delimiter = ',', conflicts_with = "file")]
    pub(crate) size: Vec<IpuCount>,

    /// As if these partitions had ended (with --proxy)
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) if_ended: Vec<PartitionId>,

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
        #[arg(value_parser = |text: &str| PartitionId::requested(text))]
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
        /// Namespace that it is counted in, with --proxy [default: your user name]
        #[arg(short, long, value_name = "NAME")]
        namespace: Option<String>,
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
    #[command(visible_alias = "delete")]
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
#[command(after_help = "\
Examples:
  ipuctl usage --since 30d -o csv > usage.csv
  ipuctl usage --since 2026-11-01 -o json")]
pub(crate) struct Usage {
    /// Holds that ended then or later: a time such as 24h or 7d ago, or 2026-11-01, or 2026-11-01T08:30:00Z
    #[arg(long, value_name = "WHEN", default_value = "1970-01-01")]
    pub(crate) since: String,
}

/// What to cordon, and why.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl cordon a1 --reason 'a fan is broken'           machine a1, if there is one controller
  ipuctl cordon pod1:8090/a1/2 --reason 'ECC errors'    IPU 2 of machine a1 of that controller
  ipuctl cordon pod1:8090 --reason 'new firmware'       all of a controller")]
pub(crate) struct Cordon {
    /// What: CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU; without the controller if there is one only
    pub(crate) target: String,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Name of the cordon [default: made from what is cordoned]
    #[arg(long)]
    pub(crate) id: Option<String>,
}

/// What to uncordon.
#[derive(Debug, Args)]
pub(crate) struct Uncordon {
    /// What, as it was cordoned
    #[arg(required_unless_present = "id")]
    pub(crate) target: Option<String>,
    /// Name of the cordon
    #[arg(long, conflicts_with = "target")]
    pub(crate) id: Option<String>,
}

/// What to drain, and for how long.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ipuctl drain a1 --reason 'a fan is broken' --wait-for 3600 && replace-the-fan

Exit codes: 0 nobody holds anything there any more; 75 somebody still does after that time. It stays cordoned.")]
pub(crate) struct Drain {
    #[command(flatten)]
    pub(crate) cordon: Cordon,
    /// Seconds to wait; without it for as long as it takes
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait_for: Option<u64>,
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
