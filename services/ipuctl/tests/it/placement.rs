//! The placement policy decides the IPUs of a run, and a run of higher priority preempts another one.

use serde_json::Value;

use crate::harness::{Home, Running, job};

/// Returns a home whose simulated IPU-POD has the IPUs 0 to 3 and 9 to 15 free.
fn home_with_a_gap() -> Home {
    let home = Home::new();
    for (id, size) in [("first", "4"), ("second", "4"), ("third", "1")] {
        let created = home.run(&["partition", "create", id, "--size", size]);
        assert_eq!(created.code, 0, "{created:?}");
    }
    assert_eq!(home.run(&["partition", "remove", "first"]).code, 0);
    home
}

/// Returns the IPUs of the only partition of a run, as the simulated controller lists them.
fn ipus_of_run(home: &Home) -> Value {
    let listed = home.json(&["partition", "list"]);
    let listed = listed.as_array().unwrap();
    let of_run = |partition: &&Value| partition["id"].as_str().unwrap().starts_with("p-");
    listed.iter().find(of_run).unwrap()["ipus"].clone()
}

#[test]
fn the_policy_decides_the_ipus_of_a_run_as_planned() {
    for (placement, ipu) in [("first-fit", 0), ("best-fit", 9)] {
        let home = home_with_a_gap();
        let gate = home.path("gate");
        let script = format!(
            "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
            gate.display()
        );
        let file = home.file("job.yaml", &job("job", 1, &script));
        let file = file.to_str().unwrap();
        let planned = home.run(&["plan", file, "--placement", placement]);
        let expected = format!("Instance 0 would get IPU {ipu} in link domain 0.");
        assert!(planned.out.contains(&expected), "{planned:?}");
        let mut run = Running::start(home.command(&["run", file, "--placement", placement]));
        run.wait_for("worker-0 | holding");
        let ipus = ipus_of_run(&home);
        assert_eq!(
            ipus,
            serde_json::json!([{"linkDomain": 0, "ipu": ipu}]),
            "{placement}"
        );
        std::fs::write(&gate, "").unwrap();
        assert_eq!(run.end().0, 0);
    }
}

#[test]
fn a_plan_with_delegated_placement_names_no_ipus() {
    let home = home_with_a_gap();
    let file = home.file("job.yaml", &job("job", 1, "true"));
    let file = file.to_str().unwrap();
    let planned = home.json(&["plan", file, "--placement", "delegated"]);
    assert!(planned["jobs"][0]["fit"]["placements"].is_null(), "{planned}");
    let planned = home.run(&["plan", file, "--placement", "delegated"]);
    assert!(
        planned.out.contains("The controller chooses the IPUs."),
        "{planned:?}"
    );
    let planned = home.run(&["plan", file]);
    assert!(
        planned
            .out
            .contains("Instance 0 would get IPU 0 in link domain 0."),
        "{planned:?}"
    );
    let planned = home.json(&["plan", file]);
    assert_eq!(planned["jobs"][0]["fit"]["placements"][0]["ipus"][0]["ipu"], 0);
}

#[test]
fn a_run_of_higher_priority_preempts_a_preemptible_one_which_runs_again() {
    let home = Home::new();
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let spare = job("spare", 16, &script).replace("spec:\n", "spec:\n  preemptible: true\n");
    let spare = home.file("spare.yaml", &spare);
    let mut running = Running::start(home.command(&["run", spare.to_str().unwrap()]));
    running.wait_for("worker-0 | holding");
    let urgent = home.file("urgent.yaml", &job("urgent", 16, "echo urgent"));
    let arguments = ["run", urgent.to_str().unwrap(), "--priority", "5", "--preemption"];
    let done = home.run(&arguments);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.out.contains("urgent"), "{done:?}");
    running.wait_for("preempts it with priority 5");
    running.wait_for("worker-0 | holding");
    std::fs::write(&gate, "").unwrap();
    let (code, output) = running.end();
    assert_eq!(code, 0, "{output:#?}");
    let is_counted = |line: &String| line.contains("every instance succeeded; 1 attempt preempted");
    assert!(output.iter().any(is_counted), "{output:#?}");
    home.assert_nothing_held();
}

#[test]
fn placement_options_are_refused_with_a_proxy() {
    let home = Home::new();
    let proxy = ["--proxy", "http://127.0.0.1:1"];
    for options in [&["--placement", "best-fit"][..], &["--preemption"]] {
        let command = ["plan", "job.yaml"];
        for arguments in [[&proxy, &command, options], [&command, options, &proxy]] {
            let refused = home.run(&arguments.concat());
            assert_eq!(refused.code, 64, "{refused:?}");
            let names = [options[0], "--proxy", "the proxy decides"];
            assert!(names.iter().all(|name| refused.err.contains(name)), "{refused:?}");
        }
    }
    let with_empty_proxy = ["query", "4", "--placement", "best-fit", "--proxy", ""];
    assert_eq!(home.run(&with_empty_proxy).code, 0);
}

#[test]
fn a_created_partition_has_a_priority_and_shows_who_demands_it() {
    let home = Home::new();
    let spare = ["partition", "create", "spare", "--size", "16", "--preemptible"];
    assert_eq!(home.run(&spare).code, 0);
    let described = home.run(&["partition", "describe", "spare"]).out;
    let has = |text: &str, name: &str, value: &str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields
            .filter(|(field, _)| *field == name)
            .any(|(_, found)| found.trim() == value)
    };
    assert!(has(&described, "Preemptible", "true"), "{described}");
    assert!(has(&described, "Preemption", "-"), "{described}");
    let mut urgent = home.command(&["partition", "create", "urgent", "--size", "16"]);
    urgent.args(["--priority", "-3", "--preemption"]);
    // A lower priority than that of the holder demands nothing: only the next request does.
    let mut waiting = Running::start(urgent);
    waiting.wait_for("Queued at position 1");
    assert!(has(
        &home.run(&["partition", "describe", "spare"]).out,
        "Preemption",
        "-"
    ));
    let mut urgent = home.command(&["partition", "create", "first", "--size", "16"]);
    urgent.args(["--priority", "7", "--preemption"]);
    let mut first = Running::start(urgent);
    first.wait_for("Queued at position 1");
    let described = home.run(&["partition", "describe", "spare"]).out;
    assert!(described.contains("first with priority 7, since"), "{described}");
    assert_eq!(home.run(&["partition", "remove", "spare"]).code, 0);
    assert_eq!(first.end().0, 0);
    assert_eq!(home.run(&["partition", "remove", "first"]).code, 0);
    assert_eq!(waiting.end().0, 0);
}
