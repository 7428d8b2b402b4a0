//! The configuration of a bed: `slurm.conf` and the small files next to it.

use std::fmt::Write as _;

use crate::accounting;
use crate::options::BED;
use crate::options::BedOptions;

/// Names of the nodes.
pub const NODES: [&str; 4] = ["ipu-host-1", "ipu-host-2", "ipu-host-3", "ipu-host-4"];

/// Hosts of slurmctld in a bed with a backup: the primary one first.
pub const CONTROLLERS: [&str; 2] = ["ctl", "ctl2"];

/// Addresses of [`CONTROLLERS`], which have one port.
const CONTROLLER_ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// Directory of the process id of slurmctld in a bed with a backup, a file system of each controller.
pub(crate) const CONTROLLER_RUN: &str = "/run/slurmctld";

/// Port of slurmctld. The network namespace has no other services.
const PORT: usize = 6817;
/// Port of the first slurmd; those of the others follow. 6819 is that of slurmdbd.
const NODE_PORT: usize = 6821;

/// Minimum lifetime of a credential that Slurm accepts, from 24.11 on.
const MIN_CREDENTIAL_SECONDS: u32 = 5;

/// Settings of every bed. Timeouts are short enough for tests of failing nodes. `SlurmdTimeout` below 20 s
/// makes nodes flap when slurmctld restarts.
const SETTINGS: &str = "\
ClusterName=testbed
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
SlurmctldDebug=debug
SlurmdDebug=debug
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=20
MessageTimeout=10
KillWait=2
UnkillableStepTimeout=5
GresTypes=vipu
";

/// Returns the text of `slurm.conf`.
pub(crate) fn render(options: &BedOptions) -> String {
    let mut text = String::from(SETTINGS);
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    if options.has_backup {
        for (host, address) in CONTROLLERS.iter().zip(CONTROLLER_ADDRESSES) {
            line(format!("SlurmctldHost={host}({address})"));
        }
        // Each listens at the address of its own name.
        line("CommunicationParameters=NoCtldInAddrAny".into());
    } else {
        line("SlurmctldHost=localhost(127.0.0.1)".into());
    }
    line(format!("SlurmctldPort={PORT}"));
    line(format!("StateSaveLocation={BED}/state"));
    line(format!("SlurmdSpoolDir={BED}/spool/%n"));
    let pid_directory = match options.has_backup {
        true => CONTROLLER_RUN.to_owned(),
        false => format!("{BED}/state"),
    };
    line(format!("SlurmctldPidFile={pid_directory}/slurmctld.pid"));
    line(format!("SlurmdPidFile={BED}/spool/%n/slurmd.pid"));
    line(format!("SlurmctldLogFile={BED}/log/slurmctld.log"));
    line(format!("SlurmdLogFile={BED}/log/slurmd-%n.log"));
    if let Some(seconds) = options.requeue_delay_seconds {
        line(format!(
            "AuthInfo=cred_expire={}",
            seconds.saturating_sub(1).max(MIN_CREDENTIAL_SECONDS)
        ));
    }
    for (hook, path) in &options.hooks {
        line(format!("{}={path}", hook.key()));
    }
    for (index, node) in NODES.iter().enumerate() {
        // A build without --enable-multiple-slurmd requires one NodeHostName a node.
        let mut node_line = format!(
            "NodeName={node} NodeHostName={node} NodeAddr=127.0.0.1 Port={} CPUs=16 RealMemory=4096",
            NODE_PORT + index
        );
        if !options.node_gres.is_empty() {
            // A String is always written.
            let _ = write!(node_line, " Gres={}", options.node_gres);
        }
        line(format!("{node_line} State=UNKNOWN"));
    }
    let exclusive = if options.exclusive_nodes {
        " OverSubscribe=EXCLUSIVE"
    } else {
        ""
    };
    line(format!(
        "PartitionName=ipu Nodes={} Default=YES MaxTime=INFINITE{exclusive} State=UP",
        NODES.join(",")
    ));
    if options.has_accounting {
        text.push_str(accounting::SETTINGS);
    }
    for extra in &options.lines {
        text.push_str(&format!("{extra}\n"));
    }
    text
}

/// Returns the text of `/etc/hosts` of a bed with a backup.
pub(crate) fn render_hosts() -> String {
    let hosts = CONTROLLERS.iter().zip(CONTROLLER_ADDRESSES);
    let hosts: String = hosts
        .map(|(host, address)| format!("{address} {host}\n"))
        .collect();
    format!("127.0.0.1 localhost\n{hosts}")
}

/// Returns the text of `cgroup.conf`: slurmd loads a cgroup plugin in any case. Version 1 then touches
/// nothing, and from 23.11 on there is a way to disable it.
pub(crate) const fn render_cgroup(slurm_version: u32) -> &'static str {
    if slurm_version >= 2311 {
        "CgroupPlugin=disabled\n"
    } else {
        "CgroupPlugin=cgroup/v1\n"
    }
}
