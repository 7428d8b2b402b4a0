//! Every example of the repository runs as its description says.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::harness::{Home, Running, example, finish};

#[test]
fn mnist_training_runs_and_releases_its_partition() {
    let home = Home::new();
    let done = home.run(&["run", &example("mnist-training.yaml")]);
    assert_eq!(done.code, 0, "{done:?}");
    for expected in [
        "worker-0 | IPUOF_VIPU_API_PARTITION_ID=p-mnist-training-0-",
        "worker-0 | epoch 3/3",
    ] {
        assert!(done.out.contains(expected), "{expected}: {done:?}");
    }
    for expected in [
        "simulated Pod16",
        "is active: IPU",
        "released",
        "image (graphcore/pytorch-tutorials:latest)",
    ] {
        assert!(done.err.contains(expected), "{expected}: {done:?}");
    }
    assert!(
        done.out.lines().all(|line| line.starts_with("worker-0 | ")),
        "{done:?}"
    );
    home.assert_nothing_held();
    assert_eq!(home.processes(), Vec::<String>::new());
}

#[test]
fn training_with_mpirun_starts_one_rank_on_each_worker() {
    if !std::env::var("PATH")
        .unwrap()
        .split(':')
        .any(|directory| std::path::Path::new(directory).join("mpirun").exists())
    {
        assert!(std::env::var_os("CI").is_none(), "mpirun is required in CI");
        println!("skipped: training_with_mpirun_starts_one_rank_on_each_worker: mpirun is not installed");
        return;
    }
    let home = Home::new();
    let done = home.run(&["run", &example("training-mpirun.yaml")]);
    assert_eq!(done.code, 0, "{done:?}");
    for gcd in 0..4 {
        assert_eq!(
            done.out
                .matches(&format!("on GCD {gcd} of p-training-mpirun-0-"))
                .count(),
            1,
            "{done:?}"
        );
        assert_eq!(
            done.out.matches(&format!("rank {gcd} of 4")).count(),
            1,
            "{done:?}"
        );
    }
    home.assert_nothing_held();
}

#[test]
fn inference_has_a_partition_for_each_of_three_instances() {
    let home = Home::new();
    let done = home.run(&["run", &example("inference.yaml")]);
    assert_eq!(done.code, 0, "{done:?}");
    for instance in 0..3 {
        let line = format!("worker-{instance} | serving on p-inference-{instance}-");
        assert!(done.out.contains(&line), "{line}: {done:?}");
    }
    assert_eq!(done.err.matches("released").count(), 3, "{done:?}");
    home.assert_nothing_held();
}

#[test]
fn an_interactive_job_without_terminal_prints_its_variables_and_ends_after_its_ttl() {
    let home = Home::new();
    let done = home.run(&["run", &example("interactive.yaml"), "--set", "interactive.ttl=1"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.out
            .contains("export IPUOF_VIPU_API_PARTITION_ID='p-interactive-0-"),
        "{done:?}"
    );
    assert!(done.out.contains("export IPUOF_VIPU_API_GCD_ID='0'"), "{done:?}");
    home.assert_nothing_held();
}

#[test]
fn an_interactive_job_without_terminal_ends_with_a_signal_too() {
    let home = Home::new();
    let mut run = Running::start(home.command(&[
        "run",
        &example("interactive.yaml"),
        "--set",
        "interactive.ttl=3600",
    ]));
    run.wait_for("export IPUOF_VIPU_API_PARTITION_ID=");
    run.signal("-TERM");
    assert_eq!(run.end().0, 143);
    home.assert_nothing_held();
}

/// `script` of util-linux provides the terminal.
#[test]
fn an_interactive_job_on_a_terminal_opens_a_shell_with_its_variables() {
    if Command::new("script").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "script is required in CI");
        println!("skipped: an_interactive_job_on_a_terminal_opens_a_shell_with_its_variables: no script(1)");
        return;
    }
    let home = Home::new();
    let (binary, job) = (env!("CARGO_BIN_EXE_ipuctl"), example("interactive.yaml"));
    let inner = home.command(&[]);
    let mut command = Command::new("script");
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("SHELL", "/bin/sh");
    command.args([
        "-qec",
        &format!("'{binary}' run '{job}' --set interactive.ttl=60"),
        "/dev/null",
    ]);
    command.stdin(Stdio::piped());
    let mut run = Running::start(command);
    run.wait_for("with the partition's variables");
    let mut input = run.process.stdin.take().unwrap();
    writeln!(
        input,
        "echo partition=$IPUOF_VIPU_API_PARTITION_ID gcd=$IPUOF_VIPU_API_GCD_ID"
    )
    .unwrap();
    run.wait_for("partition=p-interactive-0-");
    writeln!(input, "exit 5").unwrap();
    assert_eq!(run.end().0, 5);
    home.assert_nothing_held();
}

#[test]
fn the_launcher_of_each_instance_reaches_its_workers() {
    let home = Home::new();
    let text = "apiVersion: graphcore.ai/v1alpha1\nkind: IPUJob\nmetadata: {name: many}\nspec:\n  jobInstances: 2\n  \
                ipusPerJobInstance: 4\n  workersPerJobInstance: 2\n  launcher: {command: [sh, -c, 'cat \
                $OMPI_MCA_orte_default_hostfile; for w in $(cut -d\" \" -f1 $OMPI_MCA_orte_default_hostfile); do \
                $OMPI_MCA_plm_rsh_agent $w echo on $w \"\\$NAME\"; done']}\n  workers: {replicas: 2, template: {spec: \
                {containers: [{name: a, image: x, env: [{name: NAME, value: gcd-$(IPUOF_VIPU_API_GCD_ID)}]}]}}}\n";
    let file = home.file("many.yaml", text);
    let done = home.run(&["run", file.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{done:?}");
    for (launcher, first) in [("launcher-0", 0), ("launcher-1", 2)] {
        for gcd in 0..2 {
            let worker = first + gcd;
            assert!(
                done.out
                    .contains(&format!("{launcher} | many-worker-{worker} slots=1\n")),
                "{done:?}"
            );
            assert!(
                done.out
                    .contains(&format!("{launcher} | on many-worker-{worker} gcd-{gcd}\n")),
                "{done:?}"
            );
        }
    }
    home.assert_nothing_held();
}

#[test]
fn a_worker_is_restarted_after_a_retryable_exit_code() {
    let home = Home::new();
    let mut command = home.command(&[
        "run",
        &example("restart-exitcode.yaml"),
        "-o",
        "json",
        "--set",
        "restartPolicy.backOffSeconds=0",
    ]);
    command.env("SCRATCH", home.path(""));
    let done = finish(command);
    let report: serde_json::Value =
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    assert_eq!(
        (done.code, &report["restarts"], &report["phase"]),
        (0, &2.into(), &"Completed".into()),
        "{done:?}"
    );
    let codes: Vec<u64> = report["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["exitCode"].as_u64().unwrap())
        .collect();
    assert_eq!(codes, [130, 130, 0]);
    assert_eq!(
        std::fs::read_to_string(home.path("attempts"))
            .unwrap()
            .lines()
            .count(),
        3
    );
    home.assert_nothing_held();
}

#[test]
fn clean_pod_policy_all_acts_as_never_and_ipuctl_returns_the_code_of_the_job() {
    let home = Home::new();
    let done = home.run(&["run", &example("clean-all.yaml")]);
    assert_eq!(done.code, 42, "{done:?}");
    assert_eq!(done.out.matches("about to fail").count(), 1, "{done:?}");
    home.assert_nothing_held();
}

#[test]
fn a_job_that_is_too_large_is_rejected_with_the_reason() {
    let home = Home::new();
    let done = home.run(&["run", &example("too-large.yaml")]);
    assert_eq!(done.code, 78, "{done:?}");
    let reason =
        "a partition of 64 IPUs can never fit: 64 IPUs requested, the largest possible partition is 16";
    assert!(done.err.contains(reason), "{done:?}");
    home.assert_nothing_held();
}

#[test]
fn a_missing_allocation_is_named() {
    let home = Home::new();
    for arguments in [
        vec!["run", "--allocation", "nope", &example("mnist-training.yaml")],
        vec![
            "partition",
            "create",
            "--size",
            "1",
            "--allocation",
            "nope",
            "by-hand",
        ],
    ] {
        let done = home.run(&arguments);
        assert_eq!(done.code, 78, "{done:?}");
        assert!(done.err.contains("there is no allocation nope"), "{done:?}");
    }
    home.assert_nothing_held();
}
