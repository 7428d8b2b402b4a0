//! Requests by the options of the SPANK plugin.

use std::collections::BTreeSet;

use crate::cluster::Cluster;

/// Returns the values of a variable in the output of a job.
fn values(output: &str, name: &str) -> BTreeSet<String> {
    let prefix = format!("{name}=");
    let values = output.lines().filter_map(|line| line.strip_prefix(&prefix));
    values.map(str::to_owned).collect()
}

#[test]
fn every_task_of_a_job_with_the_option_has_the_partition_of_the_job() {
    let name = "every_task_of_a_job_with_the_option_has_the_partition_of_the_job";
    let Some(cluster) = Cluster::start_with_plugin(name) else {
        return;
    };
    let script = "env | grep ^IPUOF_; srun -N2 env | grep PARTITION_ID";
    let job = cluster.submit(&["--ipus=4", "-N2"], script);
    cluster.wait_for_end(&job);
    let output = cluster.output(&job);
    assert_eq!(
        output.matches("IPUOF_VIPU_API_PARTITION_ID=").count(),
        3,
        "{output}"
    );
    assert_eq!(
        values(&output, "IPUOF_VIPU_API_PARTITION_ID").len(),
        1,
        "{output}"
    );
    cluster.assert_nothing_left();
}

#[test]
fn srun_and_salloc_have_partitions_too() {
    let Some(cluster) = Cluster::start_with_plugin("srun_and_salloc_have_partitions_too") else {
        return;
    };
    let variables = cluster.bed.succeed("srun", &["--ipus=8", "env"]);
    assert_eq!(values(&variables, "IPUOF_VIPU_API_PARTITION_ID").len(), 1);
    let variables = cluster.bed.succeed("salloc", &["--ipus=8", "srun", "env"]);
    assert_eq!(values(&variables, "IPUOF_VIPU_API_PARTITION_ID").len(), 1);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}

#[test]
fn tasks_share_the_gcds_of_a_reconfigurable_partition() {
    let name = "tasks_share_the_gcds_of_a_reconfigurable_partition";
    let Some(cluster) = Cluster::start_with_plugin(name) else {
        return;
    };
    let script = "srun -n4 env | grep GCD_ID; echo printed; exec tail -f /dev/null";
    let job = cluster.submit(&["--ipus=4", "--ipu-gcds=2", "-n4"], script);
    cluster.wait_for_line(&job, "printed");
    let output = cluster.output(&job);
    let gcds = values(&output, "IPUOF_VIPU_API_GCD_ID");
    assert_eq!(gcds, ["0", "1"].map(str::to_owned).into(), "{output}");
    let names = cluster.files();
    assert_eq!(
        names.iter().filter(|name| name.contains("_gcd")).count(),
        2,
        "{names:?}"
    );
    cluster.bed.succeed("scancel", &[&job]);

    let script = "echo started; exec tail -f /dev/null";
    let flexible = cluster.submit(&["--ipus=4", "--ipu-reconfigurable"], script);
    cluster.wait_for_line(&flexible, "started");
    cluster.wait_for_end(&job);
    assert_eq!(cluster.ledger()[0]["reconfigurable"], true);
    cluster.bed.succeed("scancel", &[&flexible]);
    cluster.wait_for_end(&flexible);
    cluster.assert_nothing_left();
}

#[test]
fn each_task_of_an_array_has_a_partition_of_its_own() {
    let Some(cluster) = Cluster::start_with_plugin("each_task_of_an_array_has_a_partition_of_its_own") else {
        return;
    };
    let script = "env | grep PARTITION_ID; exec tail -f /dev/null";
    let array = cluster.submit(&["--ipus=4", "--array=0-2"], script);
    cluster.bed.wait_until("three partitions are active", || {
        let ledger = cluster.ledger();
        ledger.len() == 3 && ledger.iter().all(|entry| entry["state"] == "active")
    });
    // Slurm can lose the EpilogSlurmctld of a job that is cancelled in its PrologSlurmctld.
    cluster.bed.wait_until("the three tasks run", || {
        let running = cluster.bed.succeed("squeue", &["-h", "-r", "-t", "RUNNING"]);
        running.lines().count() == 3
    });
    cluster.bed.succeed("scancel", &[&array]);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}

#[test]
fn a_step_from_outside_its_job_cannot_request_other_ipus() {
    let Some(cluster) = Cluster::start_with_plugin("a_step_from_outside_its_job_cannot_request_other_ipus")
    else {
        return;
    };
    let job = cluster.submit(&["--ipus=4"], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&job, "started");
    let step = |options: &[&str]| {
        let mut srun = cluster.bed.command_as("daemon", "srun");
        let arguments = ["--jobid", &job, "--overlap"];
        srun.args(arguments).args(options).arg("env").output().unwrap()
    };
    let output = step(&["--ipus=8"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let problem = "--ipus=8: a step has the partition of its job, which has 4 IPUs; leave the option out";
    assert!(!output.status.success() && text.contains(problem), "{output:?}");
    assert!(!text.contains("PARTITION_ID"), "{text}");
    for options in [&[][..], &["--ipus=4"]] {
        let output = step(options);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(values(&text, "IPUOF_VIPU_API_PARTITION_ID").len(), 1, "{text}");
    }
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn all_components_of_a_heterogeneous_job_use_the_partition_of_the_first() {
    let name = "all_components_of_a_heterogeneous_job_use_the_partition_of_the_first";
    let Some(cluster) = Cluster::start_with_plugin(name) else {
        return;
    };
    let later = ["-n1", ":", "-n1", "--ipus=4", "true"];
    let refused = cluster.bed.run("srun", &later);
    let advice = "ask for them on the first component";
    assert!(!refused.success && refused.stderr.contains(advice), "{refused:?}");
    assert!(cluster.bed.job_ids().is_empty());

    let script = "srun --het-group=0,1 env | grep PARTITION_ID; echo printed; exec tail -f /dev/null";
    let job = cluster.submit(&["--ipus=4", "-n1", ":", "-n1"], script);
    cluster.wait_for_line(&job, "printed");
    let output = cluster.output(&job);
    let id = cluster.ledger()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(cluster.ledger().len(), 1);
    assert_eq!(
        values(&output, "IPUOF_VIPU_API_PARTITION_ID"),
        [id].into(),
        "{output}"
    );
    assert_eq!(output.matches("PARTITION_ID=").count(), 2, "{output}");
    cluster.bed.succeed("scancel", &[&job]);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}
