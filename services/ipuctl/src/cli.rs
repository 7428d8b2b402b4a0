//! The command line: commands, flags and environment variables.

mod connection_args;
mod render_args;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipu_core::hardware::Topology;
use ipu_core::{AllocationId, IpuCount, PartitionId};
use ipu_proxy_client::cli::CordonSelector;
use serde::Serialize;

pub(crate) use self::connection_args::{ControllerCredentials, PlacementArgs, ProxyArgs};
pub(crate) use self::render_args::{MacvlanArgs, Render, Runtime};
use crate::option_value;
use crate::output::Colour;

/// Run IPUJobs on this host and manage partitions of Graphcore IPUs.
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
  ipuctl run examples/mnist-training.yaml
      Run a job; without a controller, on a simulated Pod16
  ipuctl run job.yaml --set spec.ipusPerJobInstance=4
      Change a field of the manifest first
  ipuctl plan job.yaml
      Check a manifest and whether its partitions fit
  ipuctl --vipu 10.5.212.116:8090 partition list
      List the partitions of a V-IPU controller and their owners
  ipuctl gc
      Clean up after runs that were killed
  ipuctl --proxy http://vipu-proxy:8080 stats
      Show used and free IPUs of a shared cluster

Exit codes:
  0      success
  N      exit code of the job (ipuctl run)
  64     invalid command line
  65     invalid manifest or input
  66     file, program or partition not found, or a file not readable
  69     controller or proxy unavailable
  70     internal error
  71     error of this host
  75     does not fit now
  76     runs nothing: suspended, or no instances
  77     permission denied
  78     can never fit
  128+N  terminated by signal N";

/// Time after which a local server without clients, partitions and requests ends: a script finds it running
/// between two commands.
const DEFAULT_SERVER_IDLE_MILLIS: u64 = 60_000;

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Address of the V-IPU controller [default: IPUOF_VIPU_API_HOST, else a simulated Pod16]
    #[arg(long, global = true, value_name = "HOST[:PORT]")]
    pub(crate) vipu: Option<String>,

    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,

    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, env = "IPUCTL_COLOR")]
    pub(crate) color: Colour,

    /// Directory of the local server, the simulated IPU-POD and runs [default: ~/.local/state/ipuctl]
    #[arg(long, global = true, value_name = "DIR", env = "IPUCTL_STATE_DIR")]
    #[arg(hide_short_help = true)]
    pub(crate) state_dir: Option<PathBuf>,

    /// Timeout of a call to the controller or proxy, in seconds
    #[arg(long, global = true, value_name = "SECONDS", env = "IPUCTL_TIMEOUT")]
    #[arg(default_value_t = 30, hide_short_help = true)]
    #[arg(value_parser = option_value::number(
        1_u64..=3600,
        "must be a number of seconds from 1 to 3600; use 30, for example",
    ))]
    pub(crate) timeout: u64,

    /// Time after which an unused local server ends, for tests
    #[arg(
        long,
        global = true,
        value_name = "MILLISECONDS",
        env = "IPUCTL_SERVER_IDLE_MILLIS"
    )]
    #[arg(default_value_t = DEFAULT_SERVER_IDLE_MILLIS, hide = true, hide_env = true)]
    pub(crate) server_idle_millis: u64,

    /// Print warnings and errors only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Print more: -v target and steps, -vv calls, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(flatten)]
    pub(crate) credentials: ControllerCredentials,

    #[command(flatten)]
    pub(crate) proxy_args: ProxyArgs,

    #[command(flatten)]
    pub(crate) placement_args: PlacementArgs,
}

/// Output format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Table.
    #[default]
    Table,
    /// Table with more columns (`partition list` and `partition get`).
    Wide,
    /// Names only (`list`, `cordons`, `partition list` and `partition get`).
    Name,
    /// JSON document.
    Json,
    /// YAML document.
    Yaml,
    /// Comma-separated values with a header (`usage` and `cordons`).
    Csv,
}

impl Format {
    /// Returns whether the result is text for people and not a document.
    pub(crate) const fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an IPUJob on this host
    Run(RunArgs),
    /// Check IPUJobs and whether their partitions fit; changes nothing
    Plan(Plan),
    /// Compute a plan from a job and its observed state (JSON)
    Decide(Decide),
    /// Create, inspect, reset and remove partitions
    #[command(subcommand)]
    Partition(Partition),
    /// Test and score a placement policy in a WebAssembly module
    #[command(subcommand)]
    Policy(Policy),
    /// Count the partitions of a size that fit now
    Query(Query),
    /// List active and finished runs of this user
    #[command(visible_alias = "ls")]
    List,
    /// Print the map of the simulated IPU-POD
    Map,
    /// Show map, queue and controllers, live on a terminal
    Top,
    /// Show used and available IPUs by namespace
    Stats,
    /// List queued requests with position, reason and blockers
    Waiting,
    /// List the controllers of the proxy with state and free IPUs
    Controllers,
    /// List finished holds with owner, size and duration
    Usage(Usage),
    /// Mark hardware unschedulable; existing partitions are kept
    Cordon(Cordon),
    /// Mark hardware schedulable
    Uncordon(Uncordon),
    /// List cordons with owner, age and reason
    Cordons,
    /// Cordon hardware and wait until no partition uses it
    Drain(Drain),
    /// Print version and address of the controller
    ServerVersion(ServerVersion),
    /// Print configuration files for IPUs without host network
    #[command(subcommand)]
    Render(Render),
    /// Clean up after killed runs of this host
    Gc,
    /// Repair the ledger of the proxy now
    Repair,
    /// Print shell completions
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
}

/// The IPUJob of a file, and changes to it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Manifest {
    /// File with IPUJobs (YAML or JSON); `-` reads standard input
    #[arg(value_name = "JOB.yaml")]
    pub(crate) file: PathBuf,

    /// Name of the IPUJob, if the file has several
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Set a field first, such as `spec.ipusPerJobInstance=4`; repeatable
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

    /// Fail instead of queueing if the partitions do not fit now
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// V-IPU allocation
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,

    /// Queue priority; higher values are served first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = option_value::number(
        i32::MIN..=i32::MAX,
        "must be a whole number from -2147483648 to 2147483647; use 10, for example",
    ))]
    pub(crate) priority: Option<i32>,

    /// Grace period between SIGTERM and SIGKILL, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = option_value::number(
        0_u64..=86_400,
        "must be a number of seconds from 0 to 86400; use 10, for example",
    ))]
    pub(crate) grace: u64,

    /// Network interface of Open MPI's TCP traffic (`btl_tcp_if_include`)
    #[arg(long, value_name = "INTERFACE", env = "IPUCTL_MPI_INTERFACE")]
    #[arg(default_value = "lo")]
    pub(crate) mpi_interface: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl plan job.yaml
  ipuctl plan jobs.yaml -o json | jq '.jobs[].partitions[].size'
  ipuctl --proxy http://vipu-proxy:8080 plan --size 16,16 --if-ended training")]
pub(crate) struct Plan {
    /// File with IPUJobs (YAML or JSON); `-` reads standard input
    #[arg(value_name = "JOB.yaml", required_unless_present = "size")]
    pub(crate) file: Option<PathBuf>,

    /// Name of the IPUJob, if the file has several
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Set a field first, such as `spec.ipusPerJobInstance=4`; repeatable
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,

    /// Sizes of partitions to plan instead of a file
    #[arg(long, value_name = "IPUS,…", value_delimiter = ',', conflicts_with = "file")]
    pub(crate) size: Vec<IpuCount>,

    /// Partitions to treat as released
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) if_ended: Vec<PartitionId>,

    /// V-IPU allocation
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ipuctl decide request.json
      The request is {\"format\": 1, \"job\": {…}, \"observation\": {…}},
      as described in docs/ipuctl.md")]
pub(crate) struct Decide {
    /// File with the request; standard input if absent or `-`
    #[arg(value_name = "REQUEST.json")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Compare the choices of the policy with brute force, in random situations
    Check {
        /// WebAssembly module
        file: PathBuf,
        /// Let the policy decline requests that fit
        #[arg(long)]
        may_decline: bool,
    },
    /// Replay synthetic jobs with the policy and with the built-in ones, and compare the waits
    Score {
        /// WebAssembly module
        file: PathBuf,
        /// IPU-POD, such as pod64 or 2x16
        #[arg(long, value_name = "TOPOLOGY", default_value = "pod64")]
        topology: Topology,
        /// Number of jobs
        #[arg(long, value_name = "N", default_value_t = 500)]
        jobs: usize,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Partition {
    /// Create a partition and wait until it is active
    Create {
        /// Partition id
        #[arg(value_parser = |text: &str| PartitionId::requested(text))]
        id: PartitionId,
        /// Number of IPUs, a power of two
        #[arg(long, value_name = "IPUS")]
        size: IpuCount,
        /// Number of graph compilation domains (GCDs)
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = option_value::number(
            0..=u32::MAX,
            "must be a whole number that divides the IPUs; use 1, for example",
        ))]
        num_gcds: u32,
        /// Number of model replicas over all GCDs [default: the number of GCDs]
        #[arg(long, value_name = "N")]
        #[arg(value_parser = option_value::number(
            0..=u32::MAX,
            "must be a whole number from the number of GCDs to that of IPUs; leave it out, or use 1",
        ))]
        num_replicas: Option<u32>,
        /// Let Poplar select devices of any aligned size
        #[arg(long)]
        reconfigurable: bool,
        /// V-IPU allocation
        #[arg(long, value_name = "ID")]
        allocation: Option<AllocationId>,
        /// Queue priority; higher values are served first
        #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
        #[arg(value_parser = option_value::number(
            i32::MIN..=i32::MAX,
            "must be a whole number from -2147483648 to 2147483647; use 10, for example",
        ))]
        priority: i32,
        /// Let requests of higher priority demand the partition: you then remove it
        #[arg(long)]
        preemptible: bool,
        /// Fail instead of queueing if the partition does not fit now
        #[arg(long)]
        no_wait: bool,
        /// Namespace of the owner [default: your user name]
        #[arg(short, long, value_name = "NAME")]
        namespace: Option<String>,
    },
    /// Show a partition
    Get {
        /// Partition id
        id: PartitionId,
    },
    /// Show all details of a partition
    Describe {
        /// Partition id
        id: PartitionId,
    },
    /// List partitions with state and owner
    #[command(visible_alias = "ls")]
    List {
        /// List the partitions, then print a line for each change until interrupted
        #[arg(short, long)]
        watch: bool,
    },
    /// Reset a partition and wait until it is active
    Reset {
        /// Partition id
        id: PartitionId,
    },
    /// Release a partition
    #[command(visible_alias = "delete")]
    Remove {
        /// Partition id
        id: PartitionId,
        /// Also remove a partition that a run uses or whose owner is unknown
        #[arg(long)]
        force: bool,
    },
    /// Print the IPUoF configuration of a partition (JSON)
    Config {
        /// Partition id
        id: PartitionId,
        /// Number of the GCD [default: all]
        #[arg(long, value_name = "N")]
        #[arg(value_parser = option_value::number(
            0..=u32::MAX,
            "must be the number of a GCD; use 0 for the first one",
        ))]
        gcd: Option<u32>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ipuctl query 4 -o json

Exit codes:
  0   at least one partition fits
  75  none fits now
  78  can never fit")]
pub(crate) struct Query {
    /// Number of IPUs of each partition, a power of two
    pub(crate) size: IpuCount,
    /// V-IPU allocation
    #[arg(long, value_name = "ID")]
    pub(crate) allocation: Option<AllocationId>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl usage --since 30d -o csv > usage.csv
  ipuctl usage --since 2026-11-01 -o json
  ipuctl usage --by month -o csv")]
pub(crate) struct Usage {
    /// Earliest end of a hold: 24h or 7d (ago), 2026-11-01 or 2026-11-01T08:30:00Z
    #[arg(long, value_name = "TIME", default_value = "1970-01-01")]
    pub(crate) since: String,
    /// Sums instead of holds. A hold counts in each month (UTC) with the part that lies in it
    #[arg(long, value_name = "GROUP")]
    pub(crate) by: Option<UsageGroup>,
}

/// Property by which holds are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UsageGroup {
    /// Namespace of the owner.
    Namespace,
    /// Account that is charged.
    Account,
    /// Month in UTC.
    Month,
}

/// Target and reason of a cordon.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ipuctl cordon a1 --reason 'a fan is broken'
      Machine a1, if there is one controller
  ipuctl cordon pod1:8090/a1/2 --reason 'ECC errors'
      IPU 2 of machine a1 of controller pod1:8090
  ipuctl cordon pod1:8090 --reason 'new firmware'
      All hardware of a controller")]
pub(crate) struct Cordon {
    /// CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU; a sole controller may be omitted
    pub(crate) target: CordonSelector,
    /// Reason, shown to users
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Name of the cordon [default: derived from the target]
    #[arg(long)]
    pub(crate) id: Option<String>,
}

/// Target of an uncordon.
#[derive(Debug, Args)]
pub(crate) struct Uncordon {
    /// Target, as given to `cordon`
    pub(crate) target: Option<CordonSelector>,
    /// Name of the cordon
    #[arg(long, conflicts_with = "target")]
    pub(crate) id: Option<String>,
}

/// Target and timeout of a drain.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ipuctl drain a1 --reason 'a fan is broken' --wait-for 3600 && replace-the-fan

Exit codes:
  0   no partition uses the hardware
  75  partitions still use it after the timeout; it remains cordoned")]
pub(crate) struct Drain {
    #[command(flatten)]
    pub(crate) cordon: Cordon,
    /// Timeout in seconds [default: none]
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = option_value::number(
        0..=u64::MAX,
        "must be a number of seconds; use 3600, for example, or leave it out",
    ))]
    pub(crate) wait_for: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ServerVersion {
    /// Print a JSON object with the string keys version and host
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

    #[test]
    fn the_reference_of_the_commands_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/ipuctl.md");
        let options = clap_markdown::MarkdownOptions::new()
            .title("Commands of ipuctl".to_owned())
            .show_footer(false);
        let text = clap_markdown::help_markdown_command_custom(&Cli::command(), &options);
        let mut document =
            String::from("<!-- generated by `UPDATE=1 cargo test -p ipuctl reference` -->\n\n");
        // Examples and exit codes are aligned text.
        let mut is_aligned = false;
        for line in text.trim().lines().map(str::trim_end) {
            let starts = !is_aligned && matches!(line, "Example:" | "Examples:" | "Exit codes:");
            if is_aligned && line.starts_with(['*', '#']) || starts {
                document.push_str(if starts { "```text\n" } else { "```\n\n" });
                is_aligned = starts;
            }
            document.push_str(&format!("{line}\n"));
        }
        let text = document;
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap_or_default(),
            text,
            "{path} is stale"
        );
    }
}
