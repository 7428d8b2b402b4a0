//! Runs of one user share the simulated IPU-POD, and queue in order.

use crate::harness::{Home, Running, job};

#[test]
fn three_queued_runs_start_in_order() {
    let home = Home::new();
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let holder = home.file("holder.yaml", &job("holder", 16, &script));
    let mut holding = Running::start(home.command(&["run", holder.to_str().unwrap()]));
    holding.wait_for("worker-0 | holding");

    let started = home.path("started");
    let mut queued = Vec::new();
    for (position, name) in ["first", "second", "third"].into_iter().enumerate() {
        let script = format!("echo {name} >> '{}'", started.display());
        let file = home.file(&format!("{name}.yaml"), &job(name, 16, &script));
        let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
        let line = run.wait_for(&format!("Queued at position {}: ", position + 1));
        assert!(line.contains("16 IPUs requested, 0 free; blocked by "), "{line}");
        assert!(line.contains("/holder"), "{line}");
        queued.push(run);
    }
    let planned = home.run(&["plan", home.path("first.yaml").to_str().unwrap()]);
    assert_eq!(planned.code, 75, "{planned:?}");
    assert!(
        planned.out.contains("ahead in the queue: p-first-0-"),
        "{planned:?}"
    );
    assert!(planned.out.contains("and 2 more"), "{planned:?}");
    let rejected = home.run(&["run", home.path("first.yaml").to_str().unwrap(), "--no-wait"]);
    assert_eq!(rejected.code, 75, "{rejected:?}");

    std::fs::write(&gate, "").unwrap();
    assert_eq!(holding.end().0, 0);
    for run in queued {
        let (code, output) = run.end();
        assert_eq!(code, 0, "{output:#?}");
    }
    assert_eq!(
        std::fs::read_to_string(started).unwrap(),
        "first\nsecond\nthird\n"
    );
    home.assert_nothing_held();
}

#[test]
fn a_request_that_must_not_queue_leaves_a_queued_one() {
    let home = Home::new();
    assert_eq!(home.run(&["partition", "create", "all", "--size", "16"]).code, 0);
    let create = ["partition", "create", "more", "--size", "4"];
    let mut queued = Running::start(home.command(&create));
    queued.wait_for("Queued at position 1");
    let rejected = home.run(&[&create[..], &["--no-wait"]].concat());
    assert_eq!(
        (rejected.code, rejected.err.as_str()),
        (
            75,
            "error: partition more does not fit now: 4 IPUs requested, 0 free\n"
        )
    );
    assert_eq!(home.json(&["partition", "get", "more"])["state"], "waiting");
    assert_eq!(home.run(&["partition", "remove", "all"]).code, 0);
    let (code, output) = queued.end();
    assert_eq!(code, 0, "{output:#?}");
}

#[test]
fn runs_that_fit_share_the_ipu_pod() {
    let home = Home::new();
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let file = home.file("share.yaml", &job("share", 8, &script));
    let mut runs: Vec<Running> = (0..2)
        .map(|_| Running::start(home.command(&["run", file.to_str().unwrap()])))
        .collect();
    for run in &mut runs {
        run.wait_for("worker-0 | holding");
    }
    assert_eq!(home.json(&["partition", "list"]).as_array().unwrap().len(), 2);
    assert_eq!(home.run(&["query", "1"]).code, 75);
    std::fs::write(&gate, "").unwrap();
    for run in runs {
        assert_eq!(run.end().0, 0);
    }
    home.assert_nothing_held();
}

#[test]
fn active_and_finished_runs_are_listed() {
    let home = Home::new();
    assert!(home.run(&["list"]).err.ends_with("No runs found.\n"));
    let failed = home.file("failed.yaml", &job("failed", 1, "exit 3"));
    assert_eq!(home.run(&["run", failed.to_str().unwrap()]).code, 3);
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let file = home.file("active.yaml", &job("active", 16, &script));
    let mut running = Running::start(home.command(&["run", file.to_str().unwrap()]));
    running.wait_for("worker-0 | holding");
    let file = home.file("queued.yaml", &job("queued", 16, "true"));
    let mut queued = Running::start(home.command(&["run", file.to_str().unwrap()]));
    queued.wait_for("position 1");

    let table = home.run(&["list"]).out;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "PHASE", "PARTITION", "AGE", "EXIT"]);
    assert_eq!(rows[1][..2], ["queued", "Queued"], "{table}");
    assert_eq!(rows[2][..2], ["active", "Running"], "{table}");
    assert_eq!((rows[3][0], rows[3][1], rows[3][4]), ("failed", "Failed", "3"));
    assert!(rows[2][2].starts_with("p-active-0-"), "{table}");

    queued.signal("-INT");
    assert_eq!(queued.end().0, 130);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(running.end().0, 0);
    let records = home.json(&["list"]);
    let phases: Vec<&str> = records
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["phase"].as_str().unwrap())
        .collect();
    assert_eq!(phases, ["Interrupted", "Completed", "Failed"], "{records}");
    assert_eq!(records[0]["exitCode"], 130);
    assert_eq!(home.run(&["ls", "-o", "name"]).out, "queued\nactive\nfailed\n");
}
