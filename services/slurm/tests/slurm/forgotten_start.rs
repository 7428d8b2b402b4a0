//! Starts that slurmctld has forgotten, and hooks that outlive their slurmctld.

use std::collections::BTreeMap;
use std::fs;

use ipu_test_slurm::{BED, Daemon, slurm_version};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::crash::{PROCESS, id_of, ipus};

/// Node of the first start. From 24.11 on, slurmd refuses to start the run there again.
const FIRST_NODE: &str = "ipu-host-1";
/// First version of Slurm whose hooks have `SLURM_JOB_SLUID`.
pub(crate) const SLUID_VERSION: u32 = 2511;
/// Prints the variables of the partition, and runs until it is killed.
const STAY: &str = "env | grep ^IPUOF_; echo started; exec sleep 98765";

/// Starts a job whose start slurmctld forgets, and kills slurmctld. The state that was saved has a hold.
fn forget_start(cluster: &mut Cluster) -> String {
    let options = ["--licenses=pod64:4", "--hold", "--open-mode=append"];
    let job = cluster.submit(&options, STAY);
    cluster.wait_for_saved_state(&job);
    cluster.bed.succeed("scontrol", &["release", &job]);
    cluster.wait_for_line(&job, "started");
    cluster.bed.kill_daemon(&Daemon::Slurmctld);
    job
}

/// Starts slurmctld, and the job again on another node.
fn start_again(cluster: &mut Cluster, job: &str) {
    cluster.start_slurmctld();
    let is_pending = cluster.job_value(job, "JobState").starts_with("PENDING");
    assert!(is_pending, "slurmctld has forgotten the start");
    release_to_another_node(cluster, job);
}

/// Releases a job that is held, and waits until it has started on another node.
fn release_to_another_node(cluster: &Cluster, job: &str) {
    drain_first_node(cluster);
    cluster.bed.succeed("scontrol", &["release", job]);
    cluster.bed.wait_until("the job has started again", || {
        cluster.output(job).matches("started").count() == 2
    });
}

/// Keeps jobs away from the node of the first start.
pub(crate) fn drain_first_node(cluster: &Cluster) {
    let node = format!("NodeName={FIRST_NODE}");
    let drain = ["update", &node, "State=DRAIN", "Reason=test"];
    cluster.bed.succeed("scontrol", &drain);
}

/// Makes the node of the first start available again.
pub(crate) fn resume_first_node(cluster: &Cluster) {
    let node = format!("NodeName={FIRST_NODE}");
    cluster
        .bed
        .succeed("scontrol", &["update", &node, "State=RESUME"]);
}

/// Gives the hooks a SLUID, unless Slurm does.
fn set_sluid(cluster: &Cluster, hooks: &[&str]) {
    if slurm_version().unwrap() < SLUID_VERSION {
        for hook in hooks {
            let script = format!("SLURM_JOB_SLUID=s7TEST exec {BED}/hooks/ipu-slurm {hook}");
            cluster.replace_hook(hook, &script);
        }
    }
}

#[test]
fn a_forgotten_start_keeps_its_partition_while_the_job_starts_again() {
    let name = "a_forgotten_start_keeps_its_partition_while_the_job_starts_again";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = forget_start(&mut cluster);
    let first = id_of(&cluster.ledger()[0]);
    // Its node does not end the processes of the first start.
    cluster.bed.kill_daemon(&Daemon::Slurmd(FIRST_NODE.into()));
    start_again(&mut cluster, &job);
    let prefix = "IPUOF_VIPU_API_PARTITION_ID=";
    let output = cluster.output(&job);
    let ids: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .collect();
    assert_eq!(ids[0], first);
    if slurm_version().unwrap() >= SLUID_VERSION {
        // Both starts have one SLUID, and one partition.
        assert_eq!(ids[1], first);
        assert_eq!(cluster.ledger()[0]["attempt"], 1, "the partition was reset");
        cluster.bed.start_daemon(Daemon::Slurmd(FIRST_NODE.into()));
    } else {
        assert_ne!(ids[1], first, "each start has a partition");
        let (old, new) = (ipus(&cluster, ids[0]), ipus(&cluster, ids[1]));
        assert!(old.is_disjoint(&new), "{old:?} {new:?}");
        cluster.collect();
        assert_eq!(cluster.ledger().len(), 2, "slurmctld has not settled");
        cluster.bed.start_daemon(Daemon::Slurmd(FIRST_NODE.into()));
        cluster.start_agent();
        cluster.wait_for_agent(&format!("partition {first} stays held"));
        assert_eq!(cluster.ledger().len(), 2, "the second start has nodes");
    }
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.wait_for_release(&first, PROCESS);
    resume_first_node(&cluster);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_forgotten_start_whose_file_is_lost_keeps_its_partition_when_the_next_hook_is_cancelled() {
    let name = "a_forgotten_start_whose_file_is_lost_keeps_its_partition_when_the_next_hook_is_cancelled";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    if slurm_version().unwrap() >= SLUID_VERSION {
        // Both starts have one partition.
        return;
    }
    let job = forget_start(&mut cluster);
    let first = id_of(&cluster.ledger()[0]);
    let file = cluster.bed.directory().join(format!("ipuof/testbed-{job}.env"));
    fs::remove_file(&file).unwrap();
    // Its node does not end the processes of the first start.
    cluster.bed.kill_daemon(&Daemon::Slurmd(FIRST_NODE.into()));
    let others = [("a", 32), ("b", 16), ("c", 8), ("d", 4)];
    for (other, size) in others {
        cluster.take(other, size);
    }
    cluster.start_slurmctld();
    drain_first_node(&cluster);
    cluster.bed.succeed("scontrol", &["release", &job]);
    cluster.bed.wait_until("the next hook waits for IPUs", || {
        cluster.ledger().iter().any(|entry| entry["state"] == "waiting")
    });
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    let held: Vec<String> = cluster.ledger().iter().map(id_of).collect();
    assert!(
        held.contains(&first),
        "processes of the first start run: {held:?}"
    );
    for (other, _) in others {
        cluster.release(other);
    }
    cluster.bed.succeed("pkill", &["-KILL", "-f", PROCESS]);
    cluster.bed.start_daemon(Daemon::Slurmd(FIRST_NODE.into()));
    cluster.start_agent();
    cluster
        .bed
        .wait_until("nothing is held", || cluster.ledger().is_empty());
    resume_first_node(&cluster);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_forgotten_start_is_released_even_after_the_loss_of_the_ledger() {
    let name = "a_forgotten_start_is_released_even_after_the_loss_of_the_ledger";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = forget_start(&mut cluster);
    cluster.lose_ledger();
    cluster.bed.wait_until("the partition is quarantined", || {
        let ledger = cluster.ledger();
        ledger.len() == 1 && ledger[0]["state"] == "quarantined"
    });
    start_again(&mut cluster, &job);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    resume_first_node(&cluster);
    cluster.start_agent();
    cluster
        .bed
        .wait_until("nothing is held", || cluster.ledger().is_empty());
    cluster.collect_until_nothing_is_left();
}

#[test]
fn the_partition_of_a_forgotten_start_is_released_while_its_job_pends() {
    let name = "the_partition_of_a_forgotten_start_is_released_while_its_job_pends";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = forget_start(&mut cluster);
    let first = id_of(&cluster.ledger()[0]);
    cluster.start_slurmctld();
    cluster.start_agent();
    cluster.wait_for_release(&first, PROCESS);
    release_to_another_node(&cluster, &job);
    assert_eq!(cluster.ledger().len(), 1);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    resume_first_node(&cluster);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_forgotten_start_with_a_sluid_is_followed_by_a_reset() {
    let Some(mut cluster) = Cluster::start("a_forgotten_start_with_a_sluid_is_followed_by_a_reset", 60)
    else {
        return;
    };
    set_sluid(&cluster, &["prolog-slurmctld", "epilog-slurmctld"]);
    let job = forget_start(&mut cluster);
    let first = cluster.ledger();
    assert_eq!(first[0]["attempt"], 0);
    start_again(&mut cluster, &job);
    let second = cluster.ledger();
    assert_eq!(id_of(&second[0]), id_of(&first[0]));
    assert_eq!(second[0]["attempt"], 1, "the partition was reset");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    resume_first_node(&cluster);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_run_with_a_sluid_that_starts_again_with_other_licenses_has_another_partition() {
    let name = "a_run_with_a_sluid_that_starts_again_with_other_licenses_has_another_partition";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    set_sluid(&cluster, &["prolog-slurmctld"]);
    let job = forget_start(&mut cluster);
    cluster.start_slurmctld();
    let id = format!("JobId={job}");
    cluster
        .bed
        .succeed("scontrol", &["update", &id, "Licenses=pod64:8"]);
    let first = cluster.ledger()[0]["owner"]["uid"].as_str().unwrap().to_owned();
    release_to_another_node(&cluster, &job);
    let ledger = cluster.ledger();
    let uid = |entry: &Value| entry["owner"]["uid"].as_str().unwrap().to_owned();
    let sizes: BTreeMap<String, Value> = ledger
        .iter()
        .map(|entry| (uid(entry), entry["size"].clone()))
        .collect();
    let second = format!("{first}.1");
    let expected = [(first, 4.into()), (second, 8.into())];
    assert_eq!(sizes, BTreeMap::from(expected));
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
}

#[test]
fn a_hook_that_outlives_its_slurmctld_leaves_the_files_of_the_next_run_alone() {
    let name = "a_hook_that_outlives_its_slurmctld_leaves_the_files_of_the_next_run_alone";
    let Some(mut cluster) = Cluster::start(name, 100) else {
        return;
    };
    // A script of the site between slurmctld and the hook.
    let script = format!("{BED}/hooks/ipu-slurm prolog-slurmctld; exit $?");
    cluster.replace_hook("prolog-slurmctld", &script);
    cluster.take("mnist", 32);
    cluster.take("resnet", 16);
    let saved = cluster.submit(&["--hold"], "true");
    cluster.wait_for_saved_state(&saved);
    let old = cluster.submit(&["--licenses=pod64:32"], "echo started");
    cluster.bed.wait_until("the old job waits for IPUs", || {
        cluster.ledger().iter().any(|entry| entry["state"] == "waiting")
    });
    let hook = ["-f", "hooks/ipu-slurm prolog-slurmctld$"];
    let pid = cluster.bed.succeed("pgrep", &hook);
    // It would otherwise end its scripts.
    cluster.bed.succeed("pkill", &["-STOP", "-f", "slurmscriptd"]);
    cluster.bed.kill_daemon(&Daemon::Slurmctld);
    cluster.bed.succeed("pkill", &["-KILL", "-f", "slurmscriptd"]);
    cluster.start_slurmctld();
    let new = cluster.submit(&["--licenses=pod64:8"], STAY);
    assert_eq!(new, old);
    let id = cluster.wait_for_line(&new, "IPUOF_VIPU_API_PARTITION_ID=");
    // It makes no further request, although the IPUs that it waited for are not free.
    cluster.bed.wait_until("the old hook has ended", || {
        !cluster.bed.run("kill", &["-0", &pid]).success
    });
    let file = cluster.bed.directory().join(format!("ipuof/testbed-{new}.env"));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&id), "{text}");
    cluster.release("mnist");
    cluster.bed.succeed("scancel", &[&saved]);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let comment = cluster.job_value(&new, "AdminComment");
    assert!(!comment.contains("no IPUs within"), "{comment}");
    cluster.release("resnet");
    cluster.bed.succeed("scancel", &[&new]);
    cluster.start_agent();
    cluster.wait_until_nothing_is_left();
}
