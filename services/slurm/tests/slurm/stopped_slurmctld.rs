//! A slurmctld that is stopped while PrologSlurmctld waits for IPUs.
//!
//! Slurm 22.05 and 24.11 run the hook again. 26.05 counts the killed hook as done: the job is RUNNING, and
//! nothing was launched.

use crate::cluster::Cluster;

/// Prints the partition, and runs until it is cancelled.
const STAY: &str = "echo started $IPUOF_VIPU_API_PARTITION_ID; exec tail -f /dev/null";

#[test]
fn a_slurmctld_that_stops_during_the_prolog_starts_no_task_without_a_partition() {
    let name = "a_slurmctld_that_stops_during_the_prolog_starts_no_task_without_a_partition";
    let Some(mut cluster) = Cluster::start(name, 120) else {
        return;
    };
    cluster.take("mnist", 64);
    let [cancelled, granted] = [(), ()].map(|()| cluster.submit(&["--licenses=pod64:4"], STAY));
    for job in [&cancelled, &granted] {
        cluster.bed.wait_until("the job waits in its prolog", || {
            cluster.job_value(job, "AdminComment").starts_with("vipu: ")
        });
    }
    cluster.bed.restart_slurmctld();
    for job in [&cancelled, &granted] {
        cluster.bed.wait_until("slurmctld goes on with the job", || {
            let state = cluster.job_value(job, "JobState");
            state.starts_with("CONFIGURING") || state.starts_with("RUNNING")
        });
    }
    cluster.bed.succeed("scancel", &[&cancelled]);
    cluster.wait_for_end(&cancelled);

    cluster.release("mnist");
    let state = cluster.bed.wait_for("the other job has its partition", || {
        let is_active = cluster
            .ledger()
            .iter()
            .any(|entry| entry["state"] == "active" && entry["owner"]["name"] == format!("slurm-{granted}"));
        let state = cluster.job_value(&granted, "JobState");
        (is_active && state.starts_with("RUNNING")).then_some(state)
    });
    cluster.collect();
    let held = cluster.ledger();
    let id = held
        .iter()
        .find(|entry| entry["owner"]["name"] == format!("slurm-{granted}"))
        .map(|entry| entry["id"].as_str().unwrap().to_owned());
    assert!(
        id.is_some(),
        "the job is {state}, and has lost its partition: {held:?}"
    );
    cluster.bed.succeed("scancel", &[&granted]);
    cluster.wait_for_end(&granted);
    cluster.start_agent();
    cluster.bed.wait_until("nothing is held", || {
        cluster.ledger().is_empty() && cluster.files().is_empty()
    });
    assert_eq!(cluster.output(&cancelled), "");
    let output = cluster.output(&granted);
    // Slurm may cancel it before its first line, and then writes one of its own.
    let mut started = output.lines().filter(|line| line.starts_with("started"));
    let line = format!("started {}", id.unwrap());
    assert!(started.all(|started| started == line), "{output}");
    println!("the job whose IPUs were released printed {output:?}");
    cluster.assert_nothing_left();
}
