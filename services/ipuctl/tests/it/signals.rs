//! A signal to a run ends its workers with all their descendants, and releases its partitions. A signal to
//! `partition create` withdraws its request.

use crate::harness::{Home, Running, job};

/// Returns a worker with a detached child, a detached grandchild, and a handler of SIGTERM.
fn script(on_term: &str) -> String {
    format!(
        "setsid sleep 600 & (setsid sleep 600 &); trap '{on_term}' TERM; echo ready; while :; do sleep 0.05; done"
    )
}

#[test]
fn the_first_signal_terminates_the_workers_and_sets_the_exit_code() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let home = Home::new();
        let file = home.file("job.yaml", &job("graceful", 4, &script("echo saved; exit 0")));
        let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
        run.wait_for("worker-0 | ready");
        run.signal(signal);
        let (exit_code, output) = run.end();
        assert_eq!(exit_code, code, "{signal}: {output:#?}");
        for expected in ["worker-0 | saved", "Interrupted."] {
            assert!(
                output.iter().any(|line| line == expected),
                "{expected}: {signal}: {output:#?}"
            );
        }
        assert_eq!(home.processes(), Vec::<String>::new());
        home.assert_nothing_held();
    }
}

#[test]
fn the_second_signal_kills_the_workers() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("ignoring", 4, &script("echo ignored")));
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap(), "--grace", "3600"]));
    run.wait_for("worker-0 | ready");
    run.signal("-INT");
    run.wait_for("worker-0 | ignored");
    run.signal("-INT");
    let (code, output) = run.end();
    assert_eq!(code, 130, "{output:#?}");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}

#[test]
fn an_interrupted_run_leaves_the_queue() {
    let home = Home::new();
    let created = home.run(&["partition", "create", "all", "--size", "16"]);
    assert_eq!(created.code, 0, "{created:?}");
    let file = home.file("job.yaml", &job("queued", 4, "true"));
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
    run.wait_for("position 1");
    run.signal("-INT");
    let (code, output) = run.end();
    assert_eq!(code, 130);
    assert!(
        output
            .iter()
            .any(|line| line == "warning: withdrawing the request from the queue"),
        "{output:#?}"
    );
    assert!(
        output.iter().all(|line| !line.contains("the workers")),
        "{output:#?}"
    );
    assert_eq!(home.run(&["partition", "remove", "all"]).code, 0);
    home.assert_nothing_held();
}

#[test]
fn an_interrupted_creation_leaves_the_queue() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let home = Home::new();
        assert_eq!(home.run(&["partition", "create", "all", "--size", "16"]).code, 0);
        let mut queued = Running::start(home.command(&["partition", "create", "more", "--size", "4"]));
        queued.wait_for("Queued at position 1");
        queued.signal(signal);
        let (exit_code, output) = queued.end();
        assert_eq!(exit_code, code, "{output:#?}");
        assert_eq!(output.last().map(String::as_str), Some("Interrupted."));
        // `partition list` does not clean up.
        assert_eq!(home.run(&["partition", "list", "-o", "name"]).out, "all\n");
    }
}
