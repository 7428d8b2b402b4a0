//! A run that is told to end ends its workers with everything that they started, and gives its partitions back.

use crate::harness::{Home, Running, job};

/// A worker with a child that left its session, a grandchild, and its own way of ending.
fn script(on_term: &str) -> String {
    format!(
        "setsid sleep 600 & (setsid sleep 600 &); trap '{on_term}' TERM; echo ready; while :; do sleep 0.05; done"
    )
}

#[test]
fn the_first_signal_asks_and_the_run_ends_with_the_signals_code() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let home = Home::new();
        let file = home.file("job.yaml", &job("asked", 4, &script("echo saved; exit 0")));
        let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
        run.wait_for("worker-0 | ready");
        run.signal(signal);
        let (ended, seen) = run.end();
        assert_eq!(ended, code, "{signal}: {seen:#?}");
        assert!(
            seen.iter().any(|line| line == "worker-0 | saved"),
            "{signal}: {seen:#?}"
        );
        assert_eq!(home.processes(), Vec::<String>::new());
        home.assert_nothing_held();
    }
}

#[test]
fn the_second_signal_kills() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("deaf", 4, &script("echo deaf")));
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap(), "--grace", "3600"]));
    run.wait_for("worker-0 | ready");
    run.signal("-INT");
    run.wait_for("worker-0 | deaf");
    run.signal("-INT");
    let (ended, seen) = run.end();
    assert_eq!(ended, 130, "{seen:#?}");
    assert_eq!(home.processes(), Vec::<String>::new());
    home.assert_nothing_held();
}

#[test]
fn a_run_that_waits_leaves_the_line() {
    let home = Home::new();
    let created = home.run(&["partition", "create", "all", "--size", "16"]);
    assert_eq!(created.code, 0, "{created:?}");
    let file = home.file("job.yaml", &job("waits", 4, "true"));
    let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
    run.wait_for("position 1");
    run.signal("-INT");
    assert_eq!(run.end().0, 130);
    assert_eq!(home.run(&["partition", "remove", "all"]).code, 0);
    home.assert_nothing_held();
}
