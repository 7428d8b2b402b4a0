//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipu_proxy_client::cli::CordonSelector;

/// Submit, explain and follow IPUJobs, and diagnose an installation.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-ipu",
    bin_name = "kubectl ipu",
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
  kubectl ipu submit training.yaml --wait
      Submit a job, and end with its exit code
  kubectl ipu why training
      Explain why a job waits, does not start, or has failed
  kubectl ipu logs -f training
      Follow the log of the launcher, or of the workers
  kubectl ipu doctor
      Find faults of the installation, each with the command that fixes it

Exit codes:
  0      success
  N      exit code of the job (submit --wait)
  64     invalid command line
  65     invalid manifest, or rejected by the API server
  66     file, job, Pod or installation not found
  69     API server or proxy unavailable, or doctor has findings
  70     internal error
  71     error of this host
  75     timed out (drain --wait-for)
  77     permission denied, or doctor could not check everything
  78     can never fit (partition create --wait)
  128+N  terminated by signal N";

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Namespace of the jobs [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Context of the kubeconfig [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// File with the kubeconfig [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,

    /// Namespace of the operator [default: found by its labels]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) operator_namespace: Option<String>,

    /// ServiceAccount of the operator's namespace whose token the proxy accepts [default: its administrator]
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) service_account: Option<String>,

    /// File with a token of the audience `vipu-proxy`; requires --operator-namespace or --proxy-ca [default:
    /// a new token of the account]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) proxy_token_file: Option<PathBuf>,

    /// File with the CA certificates of the proxy [default: `ca.crt` of its Secret]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) proxy_ca: Option<PathBuf>,
}

/// Output format of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Table.
    #[default]
    Table,
    /// JSON document.
    Json,
    /// YAML document.
    Yaml,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check the IPUJobs of a file and create them
    Submit(Submit),
    /// List IPUJobs, or show one
    Get {
        /// Name of the job [default: all of the namespace]
        job: Option<String>,
        /// List the jobs of all namespaces
        #[arg(short = 'A', long, conflicts_with = "job")]
        all_namespaces: bool,
    },
    /// Explain why a job waits, does not start, or has failed
    Why {
        /// Name of the job
        job: String,
    },
    /// Print the logs of a job
    Logs(Logs),
    /// Run a command in a Pod of a job
    Exec(Exec),
    /// Set the number of instances of a job
    Scale {
        /// Name of the job
        job: String,
        /// Number of instances
        #[arg(long, value_name = "N")]
        replicas: u32,
    },
    /// Create, list and explain IPUPartitions: IPUs for Pods of any kind
    #[command(subcommand)]
    Partition(Partition),
    /// Show map, queue and controllers, live on a terminal
    Top,
    /// Show used and available IPUs by namespace
    Stats,
    /// List the controllers of the proxy with state and free IPUs
    Controllers,
    /// List the machines of the controllers with state, partitions and cordons
    Machines,
    /// List the partitions of the ledger with state, owner and reason
    Partitions,
    /// List queued requests with position, reason and blockers
    Waiting,
    /// List finished holds with owner, size and duration
    Usage {
        /// Earliest end of a hold: 24h or 7d (ago), 2026-11-01 or 2026-11-01T08:30:00Z
        #[arg(long, value_name = "TIME", default_value = "1970-01-01")]
        since: String,
    },
    /// List cordons with owner, age and reason
    Cordons,
    /// Mark hardware unschedulable; existing partitions are kept
    Cordon(Cordon),
    /// Mark hardware schedulable
    Uncordon {
        /// Target, as given to `cordon`
        target: Option<CordonSelector>,
        /// Name of the cordon
        #[arg(long, conflicts_with = "target")]
        id: Option<String>,
    },
    /// Cordon hardware and wait until no partition uses it
    Drain {
        #[command(flatten)]
        cordon: Cordon,
        /// Timeout in seconds [default: none]
        #[arg(long, value_name = "SECONDS")]
        wait_for: Option<u64>,
    },
    /// Repair the ledger of the proxy now
    Repair,
    /// Release a partition; running processes lose its IPUs
    Release {
        /// Partition id
        id: String,
        /// Also release a partition without a known owner, after a check that no process uses it
        #[arg(long)]
        quarantined: bool,
    },
    /// Find faults of the installation
    Doctor,
    /// Print shell completions
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    /// Complete the last word, for `kubectl_complete-ipu`
    #[command(name = "__complete", hide = true)]
    Complete {
        /// Words after `kubectl ipu`
        #[arg(last = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Submit {
    /// File with IPUJobs (YAML or JSON); `-` reads standard input
    #[arg(value_name = "JOB.yaml")]
    pub(crate) file: PathBuf,
    /// Wait until the job has finished, and end with its exit code
    #[arg(long)]
    pub(crate) wait: bool,
    /// Set a field first, such as `spec.ipusPerJobInstance=4`; repeatable
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Partition {
    /// Create an IPUPartition
    Create(CreatePartition),
    /// List IPUPartitions
    List {
        /// List the IPUPartitions of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Explain why an IPUPartition is not active
    Why {
        /// Name of the IPUPartition
        name: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kubectl ipu partition create train --size 16 --wait
      A Pod uses it by envFrom of the ConfigMap train-ipuof")]
pub(crate) struct CreatePartition {
    /// Name of the IPUPartition
    pub(crate) name: String,
    /// Number of IPUs, a power of two
    #[arg(long, value_name = "N")]
    pub(crate) size: u32,
    /// Number of graph compilation domains (GCDs) [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) gcds: Option<u32>,
    /// Let Poplar pick devices of any aligned size inside the partition
    #[arg(long)]
    pub(crate) reconfigurable: bool,
    /// The only permitted controller
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) controller: Option<String>,
    /// V-IPU allocation that provides the IPUs
    #[arg(long, value_name = "NAME")]
    pub(crate) allocation: Option<String>,
    /// Priority in the queue; larger values are served earlier [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Permit requests of higher priority to preempt it
    #[arg(long)]
    pub(crate) preemptible: bool,
    /// Account that is charged [default: the namespace]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Seconds from the time at which it is active until it is deleted
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ttl: Option<u32>,
    /// Wait until it is active
    #[arg(long)]
    pub(crate) wait: bool,
}

/// Selection of the Pods of a job.
#[derive(Clone, Debug, Args)]
pub(crate) struct PodSelection {
    /// Index of a worker in its instance
    #[arg(long, value_name = "N", conflicts_with = "launcher")]
    pub(crate) worker: Option<u32>,
    /// The launcher
    #[arg(long)]
    pub(crate) launcher: bool,
    /// Index of the instance
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) instance: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Logs {
    /// Name of the job
    pub(crate) job: String,
    /// Follow the log until the Pod has ended; wait for the Pod of a queued job
    #[arg(short, long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// All workers and launchers, each line with the name of its Pod
    #[arg(long, conflicts_with_all = ["worker", "launcher", "instance"])]
    pub(crate) all: bool,
    /// Container [default: the one in the Pod's default-container annotation, or the first]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Options of `kubectl logs`, such as `--tail=20` or `--previous`
    #[arg(last = true, value_name = "OPTION")]
    pub(crate) options: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  kubectl ipu exec -it training --worker 1 -- sh")]
pub(crate) struct Exec {
    /// Name of the job
    pub(crate) job: String,
    #[command(flatten)]
    pub(crate) selection: PodSelection,
    /// Pass standard input to the command
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Standard input is a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Target and reason of a cordon.
#[derive(Debug, Args)]
pub(crate) struct Cordon {
    /// CONTROLLER, CONTROLLER/MACHINE or CONTROLLER/MACHINE/IPU; a sole controller may be omitted
    pub(crate) target: CordonSelector,
    /// Reason, shown to users with your name
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Name of the cordon [default: derived from the target]
    #[arg(long)]
    pub(crate) id: Option<String>,
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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/kubectl-ipu.md");
        let options = clap_markdown::MarkdownOptions::new()
            .title("Commands of kubectl ipu".to_owned())
            .show_footer(false);
        // A blank in the name would break the links.
        let command = Cli::command().bin_name("kubectl-ipu");
        let text = clap_markdown::help_markdown_command_custom(&command, &options);
        let mut document =
            String::from("<!-- generated by `UPDATE=1 cargo test -p kubectl-ipu reference` -->\n\n");
        let text = text.replace("**Usage:** `kubectl-ipu", "**Usage:** `kubectl ipu");
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
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &document).unwrap();
        }
        let actual = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(actual, document, "{path} is stale");
    }
}
