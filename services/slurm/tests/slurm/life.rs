//! The life of a partition: from the start of a job to the end of its processes.

use crate::cluster::Cluster;

/// A script that prints the variables of its partition, and runs until it is cancelled.
const PRINT_AND_STAY: &str = "env | grep ^IPUOF_; echo started; exec tail -f /dev/null";

#[test]
fn a_job_with_licenses_has_a_partition_while_it_runs() {
    let Some(cluster) = Cluster::start("a_job_with_licenses_has_a_partition_while_it_runs", 60) else {
        return;
    };
    let job = cluster.submit(&["--licenses=pod64:4"], PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    let ledger = cluster.ledger();
    assert_eq!(ledger.len(), 1, "{ledger:?}");
    let id = ledger[0]["id"].as_str().unwrap();
    assert_eq!(ledger[0]["state"], "active");
    assert_eq!(ledger[0]["size"], 4);
    assert_eq!(ledger[0]["owner"]["kind"], "SlurmJob");
    assert_eq!(ledger[0]["owner"]["namespace"], "testbed");
    assert_eq!(ledger[0]["owner"]["name"], format!("slurm-{job}"));
    assert_eq!(cluster.hardware(), [id]);
    assert_eq!(
        cluster.files(),
        [format!("{id}.conf"), format!("testbed-{job}.env")]
    );

    let output = cluster.output(&job);
    assert!(
        output.contains(&format!("IPUOF_VIPU_API_PARTITION_ID={id}\n")),
        "{output}"
    );
    assert!(output.contains("IPUOF_VIPU_API_HOST=127.0.0.1\n"), "{output}");
    assert!(output.contains("IPUOF_VIPU_API_PORT=8090\n"), "{output}");

    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn a_start_asks_slurmctld_twice() {
    let Some(cluster) = Cluster::start("a_start_asks_slurmctld_twice", 60) else {
        return;
    };
    for command in ["scontrol", "squeue"] {
        let note = "echo \"$0 $*\" >>/run/slurm-bed/records/calls; exec $real \"$@\"";
        cluster.wrap_command(command, note);
    }
    let job = cluster.submit(&["--licenses=pod64:4"], PRINT_AND_STAY);
    cluster.wait_for_line(&job, "started");
    let calls = std::fs::read_to_string(cluster.bed.directory().join("records/calls")).unwrap();
    let asked = calls
        .lines()
        .filter(|call| call.ends_with(&format!("--jobs={job}")));
    assert_eq!((asked.count(), calls.lines().count()), (2, 2), "{calls}");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn a_job_that_ends_by_itself_leaves_nothing() {
    let Some(cluster) = Cluster::start("a_job_that_ends_by_itself_leaves_nothing", 60) else {
        return;
    };
    let job = cluster.submit(
        &["--licenses=pod64:16", "-N2"],
        "srun -N2 env | grep PARTITION_ID",
    );
    cluster.wait_for_end(&job);
    let output = cluster.output(&job);
    assert_eq!(output.lines().count(), 2, "{output}\n{}", cluster.bed.logs());
    cluster.assert_nothing_left();
}

#[test]
fn a_task_does_not_inherit_the_variables_of_a_login_shell() {
    let name = "a_task_does_not_inherit_the_variables_of_a_login_shell";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let inherited = [
        "IPUOF_CONFIG_PATH",
        "IPUOF_VIPU_API_PARTITION_ID",
        "IPUOF_VIPU_API_ANY",
    ];
    // Slurm 26.05 fetches the environment of a login for `--export=ALL,NAME=value`.
    let variables = inherited.map(|name| format!("{name}=mine"));
    for (licenses, has_ipus) in [(None, false), (Some("--licenses=pod64:4"), true)] {
        let options: Vec<&str> = licenses.into_iter().collect();
        let job = cluster.submit_with(&variables, &options, "env | grep ^IPUOF_; echo started");
        cluster.wait_for_line(&job, "started");
        let output = cluster.output(&job);
        assert!(!output.contains("=mine"), "{output}");
        let has_partition = output.contains("IPUOF_VIPU_API_PARTITION_ID=p-slurm-");
        assert_eq!(has_partition, has_ipus, "{output}");
        cluster.wait_for_end(&job);
    }
    cluster.assert_nothing_left();
}

#[test]
fn a_job_without_ipus_makes_no_call() {
    let Some(mut cluster) = Cluster::start("a_job_without_ipus_makes_no_call", 60) else {
        return;
    };
    cluster.kill_proxy();
    for options in [&[][..], &["--licenses=other:1"]] {
        let job = cluster.submit(options, "env | grep -c ^IPUOF_");
        cluster.wait_for_end(&job);
        assert_eq!(cluster.output(&job), "0\n");
    }
}

#[test]
fn a_job_that_a_job_submits_does_not_inherit_its_partition() {
    let Some(cluster) = Cluster::start("a_job_that_a_job_submits_does_not_inherit_its_partition", 60) else {
        return;
    };
    // From Slurm 24.11 on, the script of the parent has the variable.
    let script = "export SLURM_JOB_LICENSES=pod64:4; \
                  sbatch -o /run/slurm-bed/work/child.out --wrap 'env | grep -c ^IPUOF_'; echo submitted; \
                  exec tail -f /dev/null";
    let parent = cluster.submit(&["--licenses=pod64:4"], script);
    cluster.wait_for_line(&parent, "submitted");
    assert_eq!(cluster.wait_for_line("child", ""), "0");
    cluster.bed.succeed("scancel", &[&parent]);
    cluster.wait_for_end(&parent);
    cluster.assert_nothing_left();
}

#[test]
fn a_step_from_outside_has_the_partition_of_its_job_and_of_its_cluster() {
    let name = "a_step_from_outside_has_the_partition_of_its_job_and_of_its_cluster";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let with_ipus = cluster.submit(&["--licenses=pod64:4"], PRINT_AND_STAY);
    let without = cluster.submit(&[], "echo started; exec tail -f /dev/null");
    let id = cluster.wait_for_line(&with_ipus, "IPUOF_VIPU_API_PARTITION_ID=");
    cluster.wait_for_line(&without, "started");
    let ipuof = cluster.bed.directory().join("ipuof");
    let file = std::fs::read_to_string(ipuof.join(format!("testbed-{with_ipus}.env"))).unwrap();
    // Another cluster shares the directory.
    for job in [&with_ipus, &without] {
        std::fs::write(
            ipuof.join(format!("other-{job}.env")),
            file.replace(&id, "p-other"),
        )
        .unwrap();
    }
    let step = |job: &str, variables: &[&str]| {
        let command = ["srun", "--jobid", job, "--overlap", "env"];
        let mut step = cluster.bed.command_as("daemon", "env");
        let output = step.args(variables).args(command).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let variables = String::from_utf8(output.stdout).unwrap();
        let mut lines = variables.lines();
        lines.find_map(|line| Some(line.strip_prefix("IPUOF_VIPU_API_PARTITION_ID=")?.to_owned()))
    };
    for variables in [&[][..], &["SLURM_CLUSTER_NAME=other"]] {
        assert_eq!(step(&with_ipus, variables), Some(id.clone()), "{variables:?}");
        assert_eq!(step(&without, variables), None, "{variables:?}");
    }
    for job in [&with_ipus, &without] {
        std::fs::remove_file(ipuof.join(format!("other-{job}.env"))).unwrap();
    }
    cluster.bed.succeed("scancel", &[&with_ipus, &without]);
    cluster.wait_for_end(&with_ipus);
    cluster.wait_for_end(&without);
    cluster.assert_nothing_left();
}

#[test]
fn a_requeued_job_has_a_new_partition_once_its_processes_are_gone() {
    let Some(cluster) = Cluster::start(
        "a_requeued_job_has_a_new_partition_once_its_processes_are_gone",
        60,
    ) else {
        return;
    };
    // It ignores SIGTERM, so that the node needs KillWait.
    let script = "env | grep ^IPUOF_; trap '' TERM; echo started; while :; do sleep 0.1; done";
    let job = cluster.submit(&["--licenses=pod64:4", "--requeue", "--open-mode=append"], script);
    let first = cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=");
    cluster.wait_for_line(&job, "started");
    let process = format!("job0*{job}/slurm_script");
    cluster.bed.succeed("pgrep", &["-f", &process]);
    cluster.bed.succeed("scontrol", &["requeue", &job]);
    cluster.bed.wait_until("the first partition is released", || {
        let is_held = cluster.hardware().contains(&first);
        let runs = cluster.bed.run("pgrep", &["-f", &process]).success;
        assert!(is_held || !runs, "released while the process runs");
        !is_held
    });
    cluster.bed.wait_until("the job has started again", || {
        cluster.output(&job).matches("started").count() == 2
    });
    let second = cluster.hardware();
    assert_eq!(second.len(), 1);
    assert_ne!(second[0], first);
    let line = format!("IPUOF_VIPU_API_PARTITION_ID={}\n", second[0]);
    assert!(cluster.output(&job).contains(&line), "{}", cluster.output(&job));
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}
