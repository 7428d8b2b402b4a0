//! Runs of one user share the simulated Pod, and wait for one another in order.

use crate::harness::{Home, Running, job};

#[test]
fn three_runs_that_compete_for_the_last_block_are_served_in_order() {
    let home = Home::new();
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let holder = home.file("holder.yaml", &job("holder", 16, &script));
    let mut holding = Running::start(home.command(&["run", holder.to_str().unwrap()]));
    holding.wait_for("worker-0 | holding");

    let served = home.path("served");
    let mut waiting = Vec::new();
    for (position, name) in ["first", "second", "third"].into_iter().enumerate() {
        let script = format!("echo {name} >> '{}'", served.display());
        let file = home.file(&format!("{name}.yaml"), &job(name, 16, &script));
        let mut run = Running::start(home.command(&["run", file.to_str().unwrap()]));
        let line = run.wait_for(&format!("position {}", position + 1));
        assert!(line.contains("holder"), "who is in the way is named: {line}");
        waiting.push(run);
    }
    let planned = home.run(&["plan", home.path("first.yaml").to_str().unwrap()]);
    assert_eq!(planned.code, 75, "{planned:?}");
    assert!(
        planned.out.contains("ahead in the line are p-first-0-"),
        "{planned:?}"
    );
    assert!(planned.out.contains("and 2 more"), "{planned:?}");
    let refused = home.run(&["run", home.path("first.yaml").to_str().unwrap(), "--no-wait"]);
    assert_eq!(refused.code, 75, "{refused:?}");

    std::fs::write(&gate, "").unwrap();
    assert_eq!(holding.end().0, 0);
    for run in waiting {
        let (code, seen) = run.end();
        assert_eq!(code, 0, "{seen:#?}");
    }
    assert_eq!(std::fs::read_to_string(served).unwrap(), "first\nsecond\nthird\n");
    home.assert_nothing_held();
}

#[test]
fn runs_that_fit_share_the_pod() {
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
