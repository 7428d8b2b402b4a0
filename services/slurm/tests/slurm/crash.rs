//! Killed hooks and daemons: no partition has two users, and none is left.

use std::collections::BTreeSet;
use std::fs;

use ipu_test_slurm::{BED, Daemon, slurm_version};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::forgotten_start::{SLUID_VERSION, drain_first_node, resume_first_node};

/// A process that no other part of a test starts.
pub(crate) const PROCESS: &str = "sleep 98765";

/// A script that prints the variables of its partition, and runs until it is killed.
fn stay() -> String {
    format!("env | grep ^IPUOF_; echo started; exec {PROCESS}")
}

/// Returns the IPUs of a partition as text.
pub(crate) fn ipus(cluster: &Cluster, id: &str) -> BTreeSet<String> {
    let partition = cluster.get(&format!("/v1/partitions/{id}"));
    let ipus = partition["ipus"].as_array().unwrap();
    ipus.iter().map(Value::to_string).collect()
}

/// Returns the id of an entry of the ledger.
pub(crate) fn id_of(entry: &Value) -> String {
    entry["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_killed_epilog_leaves_its_partition_to_the_agent() {
    let Some(mut cluster) = Cluster::start("a_killed_epilog_leaves_its_partition_to_the_agent", 60) else {
        return;
    };
    // It ignores SIGTERM, so that the hook waits for the node.
    let script = "trap '' TERM; echo started; while :; do sleep 1; done";
    let job = cluster.submit(&["--licenses=pod64:4"], script);
    cluster.wait_for_line(&job, "started");
    cluster.bed.succeed("scancel", &[&job]);
    let pid = cluster.bed.wait_for("the hook runs", || {
        let pids = cluster
            .bed
            .run("pgrep", &["-f", "hooks/epilog-slurmctld$"])
            .stdout;
        pids.lines().next().map(str::to_owned)
    });
    cluster.bed.succeed("kill", &["-9", &pid]);
    cluster.wait_for_end(&job);
    assert_eq!(cluster.ledger().len(), 1);
    cluster.start_agent();
    cluster.wait_until_nothing_is_left();
}

#[test]
fn a_prolog_that_a_signal_kills_starts_no_task_without_a_partition() {
    let name = "a_prolog_that_a_signal_kills_starts_no_task_without_a_partition";
    let Some(mut cluster) = Cluster::start(name, 120) else {
        return;
    };
    cluster.take("mnist", 64);
    let job = cluster.submit(&["--licenses=pod64:4"], "echo started");
    cluster.bed.wait_until("the job waits in its prolog", || {
        cluster.job_value(&job, "AdminComment").starts_with("vipu: ")
    });
    let pids = cluster.bed.succeed("pgrep", &["-f", "hooks/prolog-slurmctld$"]);
    // Slurm 22.05 counts that as success, and starts the job.
    cluster.bed.succeed("kill", &["-9", pids.trim()]);
    cluster.wait_for_end(&job);
    let output = cluster.output(&job);
    assert!(!output.contains("started"), "{output}");
    cluster.release("mnist");
    cluster.start_agent();
    cluster.wait_until_nothing_is_left();
}

#[test]
fn jobs_that_are_cancelled_in_the_prolog_leave_nothing_after_two_passes_of_the_agent() {
    let name = "jobs_that_are_cancelled_in_the_prolog_leave_nothing_after_two_passes_of_the_agent";
    let Some(cluster) = Cluster::start(name, 120) else {
        return;
    };
    // After a start of slurmctld, the agent cannot know whether an older hold was forgotten.
    let age = [
        "-c",
        "echo $(($(date +%s) - $(stat -c %Y /proc/$(pgrep -xo slurmctld))))",
    ];
    cluster
        .bed
        .wait_until("slurmctld is older than the skew of clocks", || {
            cluster.bed.succeed("sh", &age).parse::<u32>().unwrap() > 12
        });
    // Slurm loses some: a script of the site notes those that end.
    let epilog = format!("{BED}/hooks/ipu-slurm epilog-slurmctld; code=$?");
    let note = format!("echo $SLURM_JOB_ID >>{BED}/records/epilogs");
    cluster.replace_hook("epilog-slurmctld", &format!("{epilog}; {note}; exit $code"));
    cluster.take("mnist", 64);
    let jobs: Vec<String> = (0..40)
        .map(|_| cluster.submit(&["--licenses=pod64:1"], "echo started"))
        .collect();
    for job in &jobs {
        cluster.bed.wait_until("the job is in its prolog", || {
            cluster.job_value(job, "AdminComment").starts_with("vipu: ")
        });
        cluster.bed.succeed("scancel", &[job]);
    }
    cluster.release("mnist");
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    let held = cluster.ledger().len();
    cluster.collect();
    cluster.collect();
    // The proxy completes the releases by itself.
    cluster
        .bed
        .wait_until("nothing is held", || cluster.ledger().is_empty());
    // The files of a release that was under way go with the next pass.
    cluster.collect();
    for job in &jobs {
        // Slurm may write a line of its own about the cancellation.
        let output = cluster.output(job);
        assert!(
            !output.contains("started"),
            "job {job}: {output}\n{}",
            cluster.bed.logs()
        );
    }
    let epilogs = cluster.bed.directory().join("records/epilogs");
    let ended = fs::read_to_string(epilogs).unwrap_or_default().lines().count();
    println!(
        "of {} jobs, {ended} had a whole EpilogSlurmctld, and {held} left a partition or a request to the agent",
        jobs.len()
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_job_whose_proxy_is_down_at_its_end_is_released_later() {
    let Some(mut cluster) = Cluster::start("a_job_whose_proxy_is_down_at_its_end_is_released_later", 60)
    else {
        return;
    };
    let job = cluster.submit(&["--licenses=pod64:4"], &stay());
    cluster.wait_for_line(&job, "started");
    cluster.start_agent();
    cluster.kill_proxy();
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.start_proxy();
    cluster.wait_until_nothing_is_left();
}

#[test]
fn a_running_job_keeps_its_partition_through_a_killed_slurmctld_and_a_lost_ledger() {
    let name = "a_running_job_keeps_its_partition_through_a_killed_slurmctld_and_a_lost_ledger";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = cluster.submit(&["--licenses=pod64:4"], &stay());
    cluster.wait_for_line(&job, "started");
    cluster.wait_for_saved_state(&job);
    let id = id_of(&cluster.ledger()[0]);
    cluster.bed.kill_daemon(&Daemon::Slurmctld);
    cluster.lose_ledger();
    cluster.start_slurmctld();
    cluster.bed.wait_until("the partition is quarantined", || {
        let ledger = cluster.ledger();
        ledger.len() == 1 && ledger[0]["state"] == "quarantined"
    });
    cluster.collect();
    assert_eq!(id_of(&cluster.ledger()[0]), id);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn a_reused_job_id_gets_a_partition_of_its_own() {
    let Some(mut cluster) = Cluster::start("a_reused_job_id_gets_a_partition_of_its_own", 60) else {
        return;
    };
    // slurmctld saves its state at most every 5 s: it saves this job, and not the next one.
    let saved = cluster.submit(&["--hold"], "true");
    cluster.wait_for_saved_state(&saved);
    // SubmitTime has seconds, and the clock may step back: the two jobs have one.
    cluster.wrap_command(
        "squeue",
        "lines=$($real \"$@\") || exit $?\n\
         [ -z \"$lines\" ] || echo \"$lines\" | sed -E 's/\\|[0-9]{10}\\|/|1764000000|/'",
    );
    let old = cluster.submit(&["--licenses=pod64:4"], &stay());
    let old_id = cluster.wait_for_line(&old, "IPUOF_VIPU_API_PARTITION_ID=");
    cluster.bed.kill_daemon(&Daemon::Slurmctld);
    cluster.start_slurmctld();
    assert_eq!(cluster.bed.job_ids(), [saved], "slurmctld has forgotten the job");
    cluster.start_agent();
    // From 24.11 on, slurmd refuses the new job on the node of the old one.
    drain_first_node(&cluster);
    // Another output: the old process still has its own.
    let new = cluster.submit(
        &["--licenses=pod64:4", "-o", "/run/slurm-bed/work/new.out"],
        "env | grep ^IPUOF_; echo started; exec sleep 87654",
    );
    assert_eq!(new, old);
    let new_id = cluster.wait_for_line("new", "IPUOF_VIPU_API_PARTITION_ID=");
    assert_ne!(new_id, old_id);
    let uids: BTreeSet<String> = cluster
        .ledger()
        .iter()
        .map(|entry| entry["owner"]["uid"].as_str().unwrap().to_owned())
        .collect();
    if slurm_version().unwrap() < SLUID_VERSION {
        let first = format!("{old}.1764000000");
        assert_eq!(uids, BTreeSet::from([first.clone(), format!("{first}.1")]));
    }
    let common: Vec<String> = ipus(&cluster, &new_id)
        .intersection(&ipus(&cluster, &old_id))
        .cloned()
        .collect();
    assert!(common.is_empty(), "{common:?}");

    // A node may take processes of the old run for those of the new one.
    cluster.wait_for_agent(&format!("partition {old_id} stays held"));
    assert_eq!(cluster.ledger().len(), 2);
    cluster.bed.succeed("scancel", &[&new]);
    cluster.wait_for_release(&old_id, PROCESS);
    cluster
        .bed
        .wait_until("nothing is held", || cluster.ledger().is_empty());
    resume_first_node(&cluster);
}

#[test]
fn the_controller_is_forced_only_if_the_model_says_so() {
    let Some(mut cluster) = Cluster::start("the_controller_is_forced_only_if_the_model_says_so", 60) else {
        return;
    };
    let job = cluster.submit(&["--licenses=pod64:4"], &stay());
    cluster.wait_for_line(&job, "started");
    // The partition is in error, and its controller refuses to remove it.
    cluster.break_ipu("a1", 0);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.start_agent();
    let partition = cluster.ledger().remove(0);
    assert_eq!(partition["reason"]["code"], "RemovalRefused", "{partition}");

    let conf = cluster.bed.directory().join("etc/pod64.conf");
    let text = fs::read_to_string(&conf).unwrap() + "ForceDeletePartition=1\n";
    fs::write(&conf, text).unwrap();
    cluster.wait_until_nothing_is_left();
}

#[test]
fn the_agent_releases_the_quarantined_partition_of_a_job_that_ended_without_the_proxy() {
    let name = "the_agent_releases_the_quarantined_partition_of_a_job_that_ended_without_the_proxy";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    // Slurm has lost EpilogSlurmctld.
    cluster.replace_hook("epilog-slurmctld", "exit 0");
    let job = cluster.submit(&["--licenses=pod64:4"], &stay());
    cluster.wait_for_line(&job, "started");
    cluster.start_agent();
    cluster.kill_proxy();
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.remove_ledger();
    cluster.start_proxy();
    cluster.wait_until_nothing_is_left();
}
