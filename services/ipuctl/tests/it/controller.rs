//! A real controller: another process, slow operations, partitions of other programs.

use std::time::{Duration, Instant};

use ipu_core::hardware::Topology;
use serde_json::json;
use vipu_sim::{Fault, FaultKind, Method, Simulator};

use crate::harness::{Home, Running, example, job};

/// A simulated Pod16 with a delay of its operations, served until it is dropped.
struct Pod {
    _runtime: tokio::runtime::Runtime,
    simulator: Simulator,
    address: String,
}

impl Pod {
    fn new(delay: Duration) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let simulator = runtime
            .block_on(Simulator::builder(Topology::pod16()).delay(delay).start())
            .unwrap();
        let address = simulator.addr().to_string();
        Self {
            _runtime: runtime,
            simulator,
            address,
        }
    }
}

#[test]
fn a_job_runs_with_a_slow_controller() {
    let (pod, home) = (Pod::new(Duration::from_millis(150)), Home::new());
    let done = home.run(&["--vipu", &pod.address, "run", &example("inference.yaml")]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.err.contains("simulated"), "{done:?}");
    assert!(done.err.contains(&format!("of {}", pod.address)), "{done:?}");
    assert_eq!(
        home.json(&["--vipu", &pod.address, "partition", "list"]),
        json!([])
    );
    let version = home.run(&["--vipu", &pod.address, "server-version"]);
    assert!(
        version.out.ends_with(&format!("host: {}\n", pod.address)),
        "{version:?}"
    );
    let target = format!("Target: V-IPU controller {}", pod.address);
    assert!(version.err.contains(&target), "{version:?}");
    let map = home.run(&["--vipu", &pod.address, "map"]);
    assert!(
        map.code == 64 && map.err.contains("simulated IPU-POD only"),
        "{map:?}"
    );
}

#[test]
fn partitions_of_other_programs_take_room_and_are_kept() {
    let (pod, mine, theirs) = (Pod::new(Duration::ZERO), Home::new(), Home::new());
    let create = ["partition", "create", "theirs", "--size", "8"];
    let created = theirs.run(&[&["--vipu", &pod.address], &create[..]].concat());
    assert_eq!(created.code, 0, "{created:?}");
    assert_eq!(mine.run(&["--vipu", &pod.address, "query", "16"]).code, 75);
    let planned = mine.run(&["--vipu", &pod.address, "plan", &example("training-mpirun.yaml")]);
    assert!(
        planned.code == 75 && planned.out.contains("blocked by theirs"),
        "{planned:?}"
    );
    assert_eq!(mine.run(&["--vipu", &pod.address, "gc"]).code, 0);
    let listed = mine.json(&["--vipu", &pod.address, "partition", "list"]);
    let facts = ["id", "state", "size"].map(|field| &listed[0][field]);
    assert_eq!(
        facts,
        [&json!("theirs"), &json!("foreign"), &json!(8)],
        "{listed}"
    );
    let table = mine.run(&["--vipu", &pod.address, "partition", "list"]);
    let row: Vec<&str> = table
        .out
        .lines()
        .nth(1)
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(row[..3], ["theirs", "foreign", "8"], "{table:?}");
    let stats = mine.run(&["--vipu", &pod.address, "stats"]);
    let note = format!(
        "Used by partitions of other programs: theirs (8 IPUs at {})",
        pod.address
    );
    assert!(stats.err.contains(&note), "{stats:?}");
    let remove = ["partition", "remove", "theirs", "--force"];
    let unknown = mine.run(&[&["--vipu", &pod.address], &remove[..]].concat());
    assert_eq!(unknown.code, 66, "{unknown:?}");
    let removed = theirs.run(&[&["--vipu", &pod.address], &remove[..]].concat());
    assert_eq!(removed.code, 0, "{removed:?}");
    // A listing may be as old as a quarter of a second.
    let (begun, query) = (Instant::now(), ["--vipu", &pod.address, "query", "16"]);
    while mine.run(&query).code != 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{:?}",
            mine.run(&query)
        );
    }
}

#[test]
fn a_run_without_a_terminal_reports_an_unavailable_controller() {
    let (pod, home) = (Pod::new(Duration::ZERO), Home::new());
    let fault = Fault::new(FaultKind::Error { rate: 1.0, seed: 0 });
    pod.simulator
        .faults()
        .add(fault.for_method(Method::CreatePartition));
    let job = example("mnist-training.yaml");
    let mut run = Running::start(home.command(&["--vipu", &pod.address, "run", &job]));
    run.wait_for(&format!("controller {} ", pod.address));
    run.signal("-KILL");
    run.end();
}

#[test]
fn a_hanging_controller_does_not_delay_the_end_of_workers() {
    let (pod, home) = (Pod::new(Duration::ZERO), Home::new());
    let file = home.file("hung.yaml", &job("hung", 1, "echo on; exec sleep 3600"));
    let arguments = [
        "--vipu",
        &pod.address,
        "--timeout",
        "3600",
        "run",
        file.to_str().unwrap(),
    ];
    let mut run = Running::start(home.command(&arguments));
    run.wait_for("worker-0 | on");
    pod.simulator.faults().add(Fault::new(FaultKind::Hang).times(1));
    // Until the next check of the partition.
    while !pod.simulator.faults().list().is_empty() {
        std::thread::sleep(Duration::from_millis(50));
    }
    run.signal("-TERM");
    let (code, output) = run.end();
    assert_eq!(code, 143, "{output:#?}");
    assert!(
        output.iter().any(|line| line.ends_with(" released")),
        "{output:#?}"
    );
    assert!(output.iter().any(|line| line == "Interrupted."), "{output:#?}");
    assert_eq!(
        home.json(&["--vipu", &pod.address, "partition", "list"]),
        json!([])
    );
}

#[test]
fn a_lost_answer_is_retried() {
    let (pod, home) = (Pod::new(Duration::ZERO), Home::new());
    let fault = Fault::new(FaultKind::Error { rate: 1.0, seed: 0 });
    pod.simulator
        .faults()
        .add(fault.for_method(Method::GetVersion).times(2));
    let done = home.run(&["--vipu", &pod.address, "run", &example("mnist-training.yaml")]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn an_unreachable_controller_has_its_own_exit_code() {
    let home = Home::new();
    let job = example("mnist-training.yaml");
    let create = ["partition", "create", "p", "--size", "1"];
    for command in [&["server-version"][..], &["run", &job], &create] {
        let done = home.run(&[&["--vipu", "127.0.0.1:1", "--timeout", "1"], command].concat());
        assert_eq!(done.code, 69, "{command:?}: {done:?}");
        assert!(done.err.contains("127.0.0.1:1"), "{command:?}: {done:?}");
    }
    assert_eq!(home.run(&["--vipu", "not a host", "server-version"]).code, 64);
}

#[test]
fn an_interrupted_creation_releases_the_partition_in_progress() {
    let (pod, home) = (Pod::new(Duration::from_secs(2)), Home::new());
    let create = ["--vipu", &pod.address, "partition", "create", "p", "--size", "4"];
    let running = Running::start(home.command(&create));
    let list = ["--vipu", &pod.address, "partition", "list"];
    while home.json(&list)[0]["state"] != "creating" {}
    running.signal("-TERM");
    let (code, output) = running.end();
    assert_eq!(code, 143, "{output:#?}");
    assert_eq!(home.json(&list), json!([]));
}
