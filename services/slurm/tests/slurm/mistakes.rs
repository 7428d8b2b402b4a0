//! Errors of an administrator: they stop jobs with IPUs, with the reason, and no other job.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use ipu_test_slurm::{BED, CommandOutput};

use crate::cluster::Cluster;

/// Runs a job of an ordinary user.
fn srun(cluster: &Cluster, options: &[&str]) -> CommandOutput {
    let mut command = cluster.bed.command_as("daemon", "srun");
    let output = command.args(options).args(["echo", "started"]).output();
    output.unwrap().into()
}

#[test]
fn a_task_with_licenses_on_a_node_without_configuration_does_not_start() {
    let name = "a_task_with_licenses_on_a_node_without_configuration_does_not_start";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = cluster.submit(&["--licenses=other:1"], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&job, "started");
    // Slurm shows the licenses to TaskProlog from 24.11 on.
    let task_prolog = |job: &str, licenses: &str| -> CommandOutput {
        let mut hook = cluster.bed.command_as("daemon", "env");
        let hook = hook.args([
            "SLURM_SCRIPT_CONTEXT=prolog_task",
            "SLURM_CLUSTER_NAME=testbed",
            "SLURM_PROCID=0",
            licenses,
            &format!("SLURM_JOB_ID={job}"),
            &format!("{BED}/hooks/task-prolog"),
        ]);
        hook.output().unwrap().into()
    };
    let licenses = "SLURM_JOB_LICENSES=other:1";
    let etc = cluster.bed.directory().join("etc");
    assert!(task_prolog(&job, licenses).success);
    fs::remove_file(etc.join("vipu.conf")).unwrap();
    assert!(
        task_prolog(&job, licenses).success,
        "the file of the model explains licenses"
    );
    fs::remove_file(etc.join("pod64.conf")).unwrap();
    let refused = task_prolog(&job, licenses);
    let line = "print ipu-slurm task-prolog: /etc/slurm/vipu.conf is absent on this node, and the licenses other:1 \
                of the job may be IPUs; copy vipu.conf and the files of the models to the node\n";
    assert!(!refused.success && refused.stdout == line, "{refused:?}");
    assert!(task_prolog(&job, "SLURM_JOB_LICENSES=").success);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    // The variable is that of the job that submitted this one.
    let job = cluster.submit(&[], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&job, "started");
    let output = task_prolog(&job, licenses);
    assert!(output.success, "{output:?}");
}

#[test]
fn a_hook_whose_job_slurmctld_does_not_start_leaves_the_job_alone() {
    let name = "a_hook_whose_job_slurmctld_does_not_start_leaves_the_job_alone";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let job = cluster.submit(&[], "echo started; exec tail -f /dev/null");
    cluster.wait_for_line(&job, "started");
    // The hook of an earlier run with the id, whose request can never be granted.
    let mut hook = cluster.bed.command_as("slurm", "env");
    let hook = hook.args([
        "SLURM_SCRIPT_CONTEXT=prolog_slurmctld",
        "SLURM_CLUSTER_NAME=testbed",
        "SLURM_JOB_LICENSES=pod64:3",
        &format!("SLURM_JOB_ID={job}"),
        &format!("{BED}/hooks/prolog-slurmctld"),
    ]);
    let output: CommandOutput = hook.output().unwrap().into();
    let rule = "the IPUs of a partition are a power of two";
    assert!(!output.success && output.stderr.contains(rule), "{output:?}");
    assert!(cluster.job_value(&job, "JobState").starts_with("RUNNING"));
    assert_eq!(cluster.job_value(&job, "AdminComment"), "");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn a_hook_that_is_started_by_hand_changes_no_file() {
    let name = "a_hook_that_is_started_by_hand_changes_no_file";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let script = "echo started; exec tail -f /dev/null";
    let job = cluster.submit(&["--licenses=pod64:4"], script);
    cluster.wait_for_line(&job, "started");
    let files = cluster.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let id = format!("SLURM_JOB_ID={job}");
    for (context, expected) in [
        ("A=b", "do not start it by hand"),
        ("SLURM_SCRIPT_CONTEXT=prolog_slurmctld", ""),
    ] {
        let mut hook = cluster.bed.command_as("slurm", "env");
        let hook = hook.args([context, "SLURM_CLUSTER_NAME=testbed", &id]);
        let output: CommandOutput = hook
            .arg(format!("{BED}/hooks/prolog-slurmctld"))
            .output()
            .unwrap()
            .into();
        assert!(output.stderr.contains(expected), "{output:?}");
        assert_eq!(cluster.files(), files, "{context}");
    }
    assert_eq!(cluster.job_value(&job, "AdminComment"), "");
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[track_caller]
fn assert_others_start(cluster: &Cluster) {
    for options in [&[][..], &["--licenses=other:1"]] {
        let output = srun(cluster, options);
        assert_eq!(output.stdout, "started\n", "{options:?} {output:?}");
    }
}

#[track_caller]
fn assert_refused(cluster: &Cluster, problem: &str) {
    let output = srun(cluster, &["--licenses=pod64:4"]);
    let is_named = output.stderr.contains(problem);
    assert!(
        !output.success && is_named && output.stdout.is_empty(),
        "{output:?}"
    );
}

/// Starts a requeued job now. No node has seen a credential of its last start, which Slurm lets expire first.
fn start_requeued(cluster: &Cluster, job: &str) {
    cluster.bed.wait_until("the job is requeued", || {
        cluster.job_value(job, "JobState").starts_with("PENDING")
    });
    let id = format!("JobId={job}");
    cluster.bed.succeed("scontrol", &["update", &id, "StartTime=now"]);
}

#[test]
fn mistakes_of_the_configuration_stop_jobs_with_ipus_only() {
    let name = "mistakes_of_the_configuration_stop_jobs_with_ipus_only";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let etc = cluster.bed.directory().join("etc");
    let (vipu, pod64) = (etc.join("vipu.conf"), etc.join("pod64.conf"));
    let [vipu_text, pod64_text] = [&vipu, &pod64].map(|path| fs::read_to_string(path).unwrap());

    fs::write(&pod64, "ApiHots=127.0.0.1\n").unwrap();
    let mistake = "pod64.conf:1:1: ApiHots = 127.0.0.1: is not a known key; did you mean ApiHost?";
    assert_refused(&cluster, mistake);
    assert_others_start(&cluster);

    fs::write(&pod64, pod64_text.replace("8090", "80 90")).unwrap();
    assert_others_start(&cluster);
    assert_refused(&cluster, "pod64.conf:2:11: ApiPort = 80 90: ");
    fs::write(&pod64, &pod64_text).unwrap();

    fs::write(&vipu, format!("{vipu_text}WaitInProlg=3\n")).unwrap();
    assert_others_start(&cluster);
    assert_refused(&cluster, "WaitInProlg = 3: is not a known key");

    fs::write(&vipu, &vipu_text).unwrap();
    fs::set_permissions(&vipu, Permissions::from_mode(0o600)).unwrap();
    assert_others_start(&cluster);
    assert_refused(&cluster, "cannot read /etc/slurm/vipu.conf: Permission denied");

    fs::remove_file(&vipu).unwrap();
    assert_others_start(&cluster);
    assert_refused(&cluster, "vipu.conf is absent");

    // The nodes alone have an error: the file of the job shows that it has IPUs.
    fs::write(&vipu, &vipu_text).unwrap();
    let script = "echo started; until [ -e go ]; do sleep 0.1; done; srun echo step";
    let job = cluster.submit(&["--licenses=pod64:4"], script);
    cluster.wait_for_line(&job, "started");
    fs::write(&vipu, format!("{vipu_text}WaitInProlg=3\n")).unwrap();
    fs::write(cluster.bed.directory().join("work/go"), "").unwrap();
    cluster.wait_for_line(&job, "ipu-slurm task-prolog: vipu.conf:3:1: WaitInProlg");
    fs::write(&vipu, &vipu_text).unwrap();
    cluster.wait_for_end(&job);
    assert!(
        !cluster.output(&job).contains("step\n"),
        "{}",
        cluster.output(&job)
    );
    // EpilogSlurmctld may have met the error.
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_mistake_in_the_file_of_a_model_stops_its_jobs_only() {
    let name = "a_mistake_in_the_file_of_a_model_stops_its_jobs_only";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let other = cluster.bed.directory().join("etc/other.conf");
    fs::write(
        &other,
        format!("ApiHost=127.0.0.1\nApiPort=80 91\nIpuofDir={BED}/ipuof\n"),
    )
    .unwrap();
    let job = cluster.submit(&["--licenses=pod64:4"], "env | grep PARTITION_ID; srun echo step");
    cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=p-slurm-");
    cluster.wait_for_line(&job, "step");
    cluster.wait_for_end(&job);
    // No agent runs.
    cluster
        .bed
        .wait_until("the partition is released", || cluster.ledger().is_empty());
    assert_eq!(srun(&cluster, &[]).stdout, "started\n");
    let refused = srun(&cluster, &["--licenses=other:1"]);
    assert!(
        refused.stderr.contains("other.conf:2:11: ApiPort = 80 91: "),
        "{refused:?}"
    );
    cluster.assert_nothing_left();
}

#[test]
fn a_read_only_directory_keeps_no_ipus_and_stops_no_job_without_ipus() {
    let name = "a_read_only_directory_keeps_no_ipus_and_stops_no_job_without_ipus";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let ipuof = format!("{BED}/ipuof");
    let script = "echo started; exec tail -f /dev/null";
    let jobs = [(); 4].map(|()| cluster.submit(&["--licenses=pod64:4"], script));
    for job in &jobs {
        cluster.wait_for_line(job, "started");
    }
    cluster.bed.succeed("mount", &["--bind", &ipuof, &ipuof]);
    cluster
        .bed
        .succeed("mount", &["-o", "remount,ro,bind", &ipuof, &ipuof]);
    assert_others_start(&cluster);
    let new = cluster.submit(&["--licenses=pod64:4"], "true");
    cluster
        .bed
        .wait_until("the new job says why it does not start", || {
            let comment = cluster.job_value(&new, "AdminComment");
            comment.starts_with("vipu: cannot write the files of the job to ")
                && comment.ends_with("(os error 30)")
        });
    cluster.bed.succeed("scancel", &[&new]);

    // EpilogSlurmctld releases without an agent.
    let (by_hooks, by_agent) = jobs.split_at(2);
    for job in by_hooks {
        cluster.bed.succeed("scancel", &[job]);
    }
    cluster
        .bed
        .wait_until("the hooks have released two partitions", || {
            cluster.ledger().len() == 2
        });
    // The agent releases what hooks have left, and prints each release and each problem.
    let hook = cluster.bed.directory().join("hooks/epilog-slurmctld");
    fs::remove_file(&hook).unwrap();
    symlink("/usr/bin/true", &hook).unwrap();
    for job in by_agent {
        cluster.bed.succeed("scancel", &[job]);
        cluster.wait_for_end(job);
    }
    let mut printed = String::new();
    let problem = |job: &String| format!("cannot remove {ipuof}/testbed-{job}.env: Read-only file system");
    cluster.bed.wait_until("the agent has released the others", || {
        let mut gc = cluster.bed.command_as("slurm", &format!("{BED}/hooks/ipu-slurm"));
        let pass = gc.arg("gc").output().unwrap();
        printed.push_str(&String::from_utf8(pass.stderr).unwrap());
        let are_named = by_agent.iter().all(|job| printed.contains(&problem(job)));
        cluster.ledger().is_empty() && are_named
    });
    let releases = printed.matches(" has ended: released partition p-slurm-");
    assert_eq!(releases.count(), by_agent.len(), "{printed}");
    assert_eq!(cluster.hardware(), Vec::<String>::new());

    cluster.bed.succeed("umount", &[&ipuof]);
    cluster.collect_until_nothing_is_left();
}

#[test]
fn a_directory_that_users_can_write_stops_jobs_with_ipus_and_says_why() {
    let name = "a_directory_that_users_can_write_stops_jobs_with_ipus_and_says_why";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let ipuof = format!("{BED}/ipuof");
    cluster.bed.succeed("chmod", &["777", &ipuof]);
    assert_refused(&cluster, "/ipuof: others can write there; run chmod 755");
    // A user has made a directory in the place of a file.
    let planted = format!("{ipuof}/testbed-2.env");
    let mut mkdir = cluster.bed.command_as("daemon", "mkdir");
    assert!(mkdir.arg(&planted).output().unwrap().status.success());
    let job = cluster.submit(&[], "true");
    cluster.bed.wait_until("the job says why it does not start", || {
        let comment = cluster.job_value(&job, "AdminComment");
        comment.starts_with(&format!("vipu: cannot remove {planted}: "))
    });
    cluster.bed.succeed("rmdir", &[&planted]);
    cluster.bed.succeed("chmod", &["755", &ipuof]);
    start_requeued(&cluster, &job);
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn a_directory_that_cannot_take_the_files_of_a_job_stops_the_job_and_leaves_nothing() {
    let name = "a_directory_that_cannot_take_the_files_of_a_job_stops_the_job_and_leaves_nothing";
    let Some(cluster) = Cluster::start(name, 60) else {
        return;
    };
    let ipuof = format!("{BED}/ipuof");
    let full = |pages: u32| {
        format!(
            "mount -t tmpfs -o size=8k,mode=755 tmpfs {ipuof}; chown slurm {ipuof}; \
             head -c {} /dev/zero >{ipuof}/fill || true",
            4_096 * pages
        )
    };
    let no_space = "cannot write the files of the job to /run/slurm-bed/ipuof: No space left";
    for (break_directory, problem, repair) in [
        (full(4), no_space, "umount"),
        // Room for the file of the job, and none for the configuration of its partition.
        (full(1), no_space, "umount"),
        (
            format!("mv {ipuof} {ipuof}.moved"),
            "is not a directory: create it, with SlurmUser as owner",
            "mv /run/slurm-bed/ipuof.moved",
        ),
    ] {
        cluster.bed.succeed("sh", &["-ec", &break_directory]);
        assert_refused(&cluster, problem);
        assert_others_start(&cluster);
        cluster
            .bed
            .wait_until("no job is left", || cluster.bed.job_ids().is_empty());
        cluster.bed.succeed("sh", &["-ec", &format!("{repair} {ipuof}")]);
        // No agent runs.
        cluster
            .bed
            .wait_until("the partition is released", || cluster.ledger().is_empty());
        cluster.assert_nothing_left();
    }

    // Links that users made before the directory was closed.
    let precious = cluster.bed.directory().join("work/precious");
    fs::write(&precious, "old").unwrap();
    let job = cluster.submit(&["--licenses=pod64:4", "--hold"], "env | grep PARTITION_ID");
    for name in [format!("testbed-{job}.env"), format!(".testbed-{job}.env.new")] {
        symlink(&precious, cluster.bed.directory().join("ipuof").join(name)).unwrap();
    }
    cluster.bed.succeed("scontrol", &["release", &job]);
    cluster.wait_for_line(&job, "IPUOF_VIPU_API_PARTITION_ID=p-slurm-");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "old");
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}
