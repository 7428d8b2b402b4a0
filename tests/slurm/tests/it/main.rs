//! Tests of the test beds.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ipu_test_slurm::{BED, Bed, BedOptions, Daemon, Hook, NODES, bed};

/// Environment variable that marks the process to be killed.
const VICTIM: &str = "IPU_TEST_SLURM_VICTIM";

/// A script that appends the hook's environment to `records/<context>` of the bed.
const RECORD: &str = r#"env >>/run/slurm-bed/records/$SLURM_SCRIPT_CONTEXT"#;

#[test]
fn a_job_runs_on_all_nodes() {
    let Some(bed) = bed("a_job_runs_on_all_nodes", BedOptions::new()) else {
        return;
    };
    let output = bed.succeed("srun", &["-N4", "sh", "-c", "echo $SLURMD_NODENAME"]);
    let mut names: Vec<&str> = output.lines().collect();
    names.sort_unstable();
    assert_eq!(names, NODES);
}

#[test]
fn two_concurrent_beds_are_isolated() {
    let name = "two_concurrent_beds_are_isolated";
    let (Some(first), Some(second)) = (
        bed(name, BedOptions::new().licenses("pod64:64")),
        bed(name, BedOptions::new().licenses("pod16:16")),
    ) else {
        return;
    };
    first.succeed("sbatch", &["--hold", "--wrap", "true"]);
    assert_eq!(first.job_ids(), ["1"]);
    assert!(second.job_ids().is_empty());
    assert!(first.succeed("scontrol", &["show", "lic"]).contains("pod64"));
    assert!(second.succeed("scontrol", &["show", "lic"]).contains("pod16"));
}

#[test]
fn every_hook_runs_with_its_context() {
    let hooks = [
        (Hook::PrologSlurmctld, "prolog_slurmctld"),
        (Hook::Prolog, "prolog_slurmd"),
        (Hook::TaskProlog, "prolog_task"),
        (Hook::TaskEpilog, "epilog_task"),
        (Hook::Epilog, "epilog_slurmd"),
        (Hook::EpilogSlurmctld, "epilog_slurmctld"),
    ];
    let mut options = BedOptions::new().licenses("pod64:64");
    for (hook, _) in hooks {
        options = options.hook_script(hook, RECORD);
    }
    let Some(bed) = bed("every_hook_runs_with_its_context", options) else {
        return;
    };
    // An ordinary user, whose hooks can write into the directory of records.
    let mut sbatch = bed.command_as("daemon", "sbatch");
    let output = sbatch
        .args(["--licenses=pod64:4", "-o", "/dev/null", "--wrap", "true"])
        .output();
    assert!(output.unwrap().status.success());
    for (hook, context) in hooks {
        let path = bed.directory().join("records").join(context);
        bed.wait_until(&format!("{} has run", hook.key()), || {
            read(&path).contains("SLURM_JOB_ID=1\n")
        });
    }
    let prolog = read(&bed.directory().join("records/prolog_slurmctld"));
    assert!(prolog.contains("SLURM_JOB_LICENSES=pod64:4\n"), "{prolog}");
}

#[test]
fn a_running_job_survives_a_killed_slurmctld() {
    let Some(mut bed) = bed("a_running_job_survives_a_killed_slurmctld", BedOptions::new()) else {
        return;
    };
    let script = format!("echo started >{BED}/records/job; tail -f --pid=$$ /dev/null");
    let job = bed.succeed("sbatch", &["--parsable", "-o", "/dev/null", "--wrap", &script]);
    wait_for_state_file(&bed, &job);
    bed.kill_daemon(&Daemon::Slurmctld);
    assert!(!bed.run("scontrol", &["ping"]).stdout.contains(" UP"));
    bed.start_daemon(Daemon::Slurmctld);
    bed.wait_until("slurmctld shows the job", || {
        bed.show_job(&job).contains("JobState=RUNNING")
    });
    bed.succeed("scancel", &[&job]);
    bed.wait_until("the job has ended", || bed.job_ids().is_empty());
}

#[test]
fn a_daemon_of_a_node_restarts() {
    let Some(mut bed) = bed("a_daemon_of_a_node_restarts", BedOptions::new()) else {
        return;
    };
    let slurmd = Daemon::Slurmd(NODES[1].into());
    bed.stop_daemon(&slurmd);
    bed.start_daemon(slurmd);
    let output = bed.succeed("srun", &["-w", NODES[1], "sh", "-c", "echo $SLURMD_NODENAME"]);
    assert_eq!(output, NODES[1]);
}

/// The body of the killed process: it starts a bed, prints its directory, and waits.
#[test]
fn the_victim_starts_a_bed_if_it_is_asked_to() {
    if env::var_os(VICTIM).is_none() {
        return;
    }
    let bed = bed("the_victim_starts_a_bed_if_it_is_asked_to", BedOptions::new()).unwrap();
    println!("directory={}", bed.directory().display());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn all_processes_of_a_bed_end_with_the_killed_test() {
    let Some(probe) = bed(
        "all_processes_of_a_bed_end_with_the_killed_test",
        BedOptions::new(),
    ) else {
        return;
    };
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["the_victim_starts_a_bed", "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let directory = lines
        .map_while(Result::ok)
        .find_map(|line| {
            line.split_once("directory=")
                .map(|(_, directory)| directory.to_owned())
        })
        .unwrap();
    assert!(processes_with(&directory) > 0);
    victim.kill().unwrap();
    victim.wait().unwrap();
    probe.wait_until("no process has the directory of the killed test", || {
        processes_with(&directory) == 0
    });
}

/// Counts processes whose mounts include this directory.
fn processes_with(directory: &str) -> usize {
    let name = directory.rsplit('/').next().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| read(&entry.path().join("mountinfo")).contains(name))
        .count()
}

/// Waits until the job runs and slurmctld has saved that, so that a kill does not lose it.
fn wait_for_state_file(bed: &Bed, job: &str) {
    bed.wait_until("the job has started", || {
        !read(&bed.directory().join("records/job")).is_empty()
    });
    let log = bed.directory().join("state/job_state");
    let modified = || fs::metadata(&log).and_then(|data| data.modified()).ok();
    let before = modified();
    // A change of the job makes slurmctld save the state again, the start included.
    bed.succeed("scontrol", &["update", &format!("JobId={job}"), "Comment=saved"]);
    bed.wait_until("slurmctld has saved the job", || modified() != before);
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
