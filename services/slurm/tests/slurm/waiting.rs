//! Jobs that wait for IPUs in PrologSlurmctld, and those that never get any.

use ipu_test_slurm::{BED, slurm_version};

use crate::cluster::Cluster;

#[test]
fn a_job_starts_when_another_owner_releases_its_ipus() {
    let Some(cluster) = Cluster::start("a_job_starts_when_another_owner_releases_its_ipus", 120) else {
        return;
    };
    cluster.take("mnist", 64);
    let job = cluster.submit(&["--licenses=pod64:16"], "env | grep PARTITION_ID");
    let sentence =
        "vipu: waits for 16 IPUs of pod64: 0 free, largest partition 0; held by IPUJob default/mnist (64)";
    cluster
        .bed
        .wait_until("AdminComment says what the job waits for", || {
            cluster
                .job_value(&job, "AdminComment")
                .starts_with("vipu: waits for ")
        });
    assert_eq!(cluster.job_value(&job, "AdminComment"), sentence);
    assert!(cluster.job_value(&job, "JobState").starts_with("CONFIGURING"));
    cluster.release("mnist");
    cluster.wait_for_end(&job);
    assert!(
        cluster
            .output(&job)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    let comment = cluster.job_value(&job, "AdminComment");
    assert!(comment.starts_with("vipu: has partition p-slurm-"), "{comment}");
    cluster.assert_nothing_left();
}

#[test]
fn a_job_without_ipus_in_time_leaves_the_queue_and_says_why() {
    let Some(cluster) = Cluster::start("a_job_without_ipus_in_time_leaves_the_queue_and_says_why", 2) else {
        return;
    };
    cluster.take("mnist", 64);
    for (command, job) in [("srun", "1"), ("salloc", "2")] {
        let output = cluster.bed.run(command, &["--licenses=pod64:16", "true"]);
        assert!(!output.success, "{output:?}");
        let sentence =
            format!("vipu: job {job} no IPUs within 2 s (WaitInProlog): waits for 16 IPUs of pod64: 0 free");
        assert!(output.stderr.contains(&sentence), "{output:?}");
        let comment = cluster.job_value(job, "AdminComment");
        assert!(comment.starts_with("vipu: no IPUs within 2 s"), "{comment}");
        cluster.wait_for_end(job);
    }
    let states: Vec<_> = cluster.ledger().iter().map(|entry| entry["id"].clone()).collect();
    assert_eq!(states, ["mnist"]);
    cluster.release("mnist");
    cluster.assert_nothing_left();
}

#[test]
fn a_request_that_can_never_be_granted_is_held_with_the_rule() {
    let Some(cluster) = Cluster::start("a_request_that_can_never_be_granted_is_held_with_the_rule", 60)
    else {
        return;
    };
    let job = cluster.submit(&["--licenses=pod64:3"], "true");
    cluster.bed.wait_until("the job is held", || {
        cluster
            .job_value(&job, "JobState")
            .starts_with("PENDING Reason=job_requeued_in_held_state")
    });
    let comment = cluster.job_value(&job, "AdminComment");
    assert!(comment.contains("power of two; ask for 4"), "{comment}");
    cluster.bed.succeed("scancel", &[&job]);
    let output = cluster.bed.run("srun", &["--licenses=pod64:3", "true"]);
    assert!(
        !output.success && output.stderr.contains("; ask for 4"),
        "{output:?}"
    );
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}

#[test]
fn a_heterogeneous_job_whose_later_component_has_ipus_is_held() {
    let test = "a_heterogeneous_job_whose_later_component_has_ipus_is_held";
    let Some(cluster) = Cluster::start(test, 60) else {
        return;
    };
    let components = ["--licenses=pod64:2", ":", "--licenses=pod64:2"];
    if slurm_version().unwrap() >= 2411 {
        let refused = cluster
            .bed
            .run("sbatch", &[&components[..], &["--wrap", "true"]].concat());
        assert!(!refused.success, "{refused:?}");
        return;
    }
    let job = cluster.submit(&components, "true");
    cluster.bed.wait_until("the job is held", || {
        let state = cluster.job_value(&job, "JobState");
        state.starts_with("PENDING Reason=job_requeued_in_held_state")
    });
    let later = (job.parse::<u32>().unwrap() + 1).to_string();
    let comment = cluster.job_value(&later, "AdminComment");
    assert!(comment.contains("first component"), "{comment}");
    cluster.bed.succeed("scancel", &[&job]);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_refused_task_of_an_array_leaves_the_other_tasks_alone() {
    let Some(cluster) = Cluster::start("a_refused_task_of_an_array_leaves_the_other_tasks_alone", 60) else {
        return;
    };
    let script = "echo started >> /run/slurm-bed/work/array.out; exec tail -f /dev/null";
    let array = cluster.submit(&["--licenses=pod64:4", "--array=1-2%1"], script);
    let running = format!("{array}_1");
    assert_eq!(cluster.wait_for_line("array", "started"), "");
    let job = format!("JobId={running}");
    cluster
        .bed
        .succeed("scontrol", &["update", &job, "AdminComment=ask Ada"]);
    let conf = cluster.bed.directory().join("etc/pod64.conf");
    let text = std::fs::read_to_string(&conf).unwrap() + "MaxIpusPerJob=2\n";
    std::fs::write(&conf, text).unwrap();
    // The last task has the id of the array.
    let id = format!("JobId={array}");
    cluster
        .bed
        .succeed("scontrol", &["update", &id, "ArrayTaskThrottle=2"]);
    let refused = format!("{array}_2");
    cluster.bed.wait_until("the task is held", || {
        cluster
            .job_value(&refused, "JobState")
            .starts_with("PENDING Reason=job_requeued_in_held_state")
    });
    let comment = cluster.job_value(&refused, "AdminComment");
    assert!(comment.contains("at most 2 IPUs of pod64 per job"), "{comment}");
    assert!(cluster.job_value(&running, "JobState").starts_with("RUNNING"));
    assert_eq!(cluster.job_value(&running, "AdminComment"), "ask Ada");
    assert_eq!(cluster.output("array"), "started\n");
    cluster.bed.succeed("scancel", &[&array]);
    cluster
        .bed
        .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
    cluster.assert_nothing_left();
}

#[test]
fn a_job_waits_for_a_proxy_that_is_down() {
    let Some(mut cluster) = Cluster::start("a_job_waits_for_a_proxy_that_is_down", 120) else {
        return;
    };
    cluster.kill_proxy();
    let job = cluster.submit(&["--licenses=pod64:4"], "env | grep PARTITION_ID");
    cluster.bed.wait_until("AdminComment names the proxy", || {
        let comment = cluster.job_value(&job, "AdminComment");
        comment.starts_with("vipu: the proxy unix:/run/vipu-proxy/socket failed: ")
    });
    cluster.start_proxy();
    cluster.wait_for_end(&job);
    assert!(
        cluster
            .output(&job)
            .starts_with("IPUOF_VIPU_API_PARTITION_ID=p-slurm-")
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_task_that_wants_ipus_does_not_start_without_a_file() {
    let Some(cluster) = Cluster::start("a_task_that_wants_ipus_does_not_start_without_a_file", 60) else {
        return;
    };
    // The variable of the plugin, without its license: no hook of slurmctld sees a request.
    let mut sbatch = cluster.bed.command_as("daemon", "env");
    let output = format!("-o{BED}/work/%j.out");
    let words = [
        "VIPU_IPUS=4",
        "sbatch",
        "--parsable",
        &output,
        "--wrap",
        "echo started",
    ];
    let submitted = sbatch.args(words).output().unwrap();
    assert!(submitted.status.success(), "{submitted:?}");
    let job = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    cluster.wait_for_end(&job);
    assert_eq!(
        cluster.job_value(&job, "JobState").split(' ').next(),
        Some("FAILED")
    );
    let output = cluster.output(&job);
    let line = format!("testbed-{job}.env has not appeared within 20 s");
    assert!(output.contains(&line) && !output.contains("started"), "{output}");
    cluster.assert_nothing_left();
}
