//! A backup slurmctld that takes over.

use ipu_test_slurm::{BedOptions, CONTROLLERS, Daemon};

use crate::cluster::Cluster;
use crate::crash::PROCESS;

#[test]
fn a_run_that_the_primary_slurmctld_has_not_saved_keeps_its_partition_after_a_takeover() {
    let name = "a_run_that_the_primary_slurmctld_has_not_saved_keeps_its_partition_after_a_takeover";
    let options = BedOptions::new().backup_slurmctld();
    let Some(mut cluster) = Cluster::start_with(name, 60, "", options) else {
        return;
    };
    cluster.start_agent();
    cluster.wait_for_agent("agent of the cluster");
    // slurmctld saves its state at most every 5 s: it saves this job, and not the next one.
    let saved = cluster.submit(&["--hold"], "true");
    cluster.wait_for_saved_state(&saved);
    let script = format!("trap '' TERM; env | grep ^IPUOF_; exec {PROCESS}");
    let job = cluster.submit(&["--licenses=pod64:4", "--no-requeue"], &script);
    let id = cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=");
    cluster
        .bed
        .kill_daemon(&Daemon::SlurmctldOn(CONTROLLERS[0].into()));
    // The backup has started before the job, and gets control after it.
    cluster.wait_for_agent("another slurmctld has control");
    cluster.collect();
    assert!(
        cluster.ledger().iter().any(|entry| entry["id"] == *id),
        "{id} is held"
    );
    // A slow machine may have saved the job, which the backup then starts again.
    cluster.bed.succeed("scancel", &["--user=daemon"]);
    cluster.wait_for_release(&id, PROCESS);

    // The jobs of the backup get IPUs, and their hooks release them.
    let next = cluster.submit(&["--licenses=pod64:64"], "echo started");
    cluster.wait_for_line(&next, "started");
    cluster.wait_for_end(&next);
    cluster.bed.wait_until("nothing is held", || {
        cluster.ledger().is_empty() && cluster.files().is_empty()
    });
}
