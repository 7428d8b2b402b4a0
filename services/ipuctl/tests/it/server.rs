//! The local server: one for each state directory, started on demand, independent of its starter, and clean
//! after kill -9.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use ipu_core::hardware::Topology;
use vipu_sim::Simulator;

use crate::harness::{Home, Running, job};

/// Returns the process ids of the server of `home`; another one may be about to start.
fn servers(home: &Home) -> Vec<u32> {
    let directory = home.path(".local/state/ipuctl");
    let is_server = |pid: u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = command.split(|byte| *byte == 0);
        arguments.nth(1) == Some(b"__serve".as_slice())
            && arguments.any(|argument| argument == directory.as_os_str().as_encoded_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_server(*pid)).collect()
}

#[track_caller]
fn server(home: &Home) -> u32 {
    match servers(home).as_slice() {
        [one] => *one,
        others => panic!("expected one server, found {others:?}"),
    }
}

fn kill(signal: &str, target: &str) {
    let status = Command::new("kill").args([signal, "--", target]).status();
    assert!(status.unwrap().success());
}

/// Waits until the server has ended.
fn wait_for_end(home: &Home) {
    while !servers(home).is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn twenty_runs_at_once_start_one_server() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("many", 1, "true"));
    let runs: Vec<Running> = (0..20)
        .map(|_| Running::start(home.command(&["run", file.to_str().unwrap()])))
        .collect();
    for run in runs {
        let (code, output) = run.end();
        assert_eq!(code, 0, "{output:#?}");
    }
    server(&home);
    let log = std::fs::read_to_string(home.path(".local/state/ipuctl/server.log")).unwrap();
    assert_eq!(log.matches("serving pid=").count(), 1, "{log}");
    home.assert_nothing_held();
}

#[test]
fn the_server_survives_signals_to_the_process_group_of_its_starter() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("starter", 1, "echo ready; exec sleep 600"));
    let mut command = home.command(&["run", file.to_str().unwrap()]);
    command.process_group(0);
    let mut starter = Running::start(command);
    starter.wait_for("worker-0 | ready");
    let pid = server(&home);
    let group = format!("-{}", starter.process.id());
    kill("-TSTP", &group);
    assert_eq!(home.json(&["partition", "list"]).as_array().unwrap().len(), 1);
    kill("-CONT", &group);
    kill("-INT", &group);
    assert_eq!(starter.end().0, 130);
    home.assert_nothing_held();
    assert_eq!(server(&home), pid);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit_once(") ")
        .unwrap()
        .1
        .split(' ')
        .nth(3)
        .unwrap()
        .to_owned();
    assert_eq!(session, pid.to_string(), "the server has a session of its own");
}

#[test]
fn the_server_ends_when_it_is_idle_and_never_while_a_partition_is_held_or_queued() {
    let home = Home::new();
    let run = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("IPUCTL_SERVER_IDLE_MILLIS", "50");
        crate::harness::finish(command)
    };
    assert_eq!(run(&["partition", "create", "p", "--size", "16"]).code, 0);
    let pid = server(&home);
    // Longer than the idle time.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(server(&home), pid, "a partition is held");
    let mut queued = Running::start(home.command(&["partition", "create", "q", "--size", "1"]));
    queued.wait_for("Queued at position 1");
    assert_eq!(run(&["partition", "remove", "p"]).code, 0);
    assert_eq!(queued.end().0, 0);
    assert_eq!(server(&home), pid);
    assert_eq!(run(&["partition", "remove", "q"]).code, 0);
    wait_for_end(&home);
    home.assert_nothing_held();
}

#[test]
fn the_server_ends_with_its_state_directory() {
    let home = Home::new();
    home.assert_nothing_held();
    server(&home);
    std::fs::remove_dir_all(home.path(".local")).unwrap();
    wait_for_end(&home);
}

#[test]
fn after_kill_9_of_the_server_runs_and_requests_continue() {
    let home = Home::new();
    let gate = home.path("gate");
    let script = format!(
        "echo holding; while [ ! -e '{}' ]; do sleep 0.05; done",
        gate.display()
    );
    let file = home.file("job.yaml", &job("holder", 16, &script));
    let mut holder = Running::start(home.command(&["run", file.to_str().unwrap()]));
    holder.wait_for("worker-0 | holding");
    let mut queued = Running::start(home.command(&["partition", "create", "q", "--size", "1"]));
    queued.wait_for("Queued at position 1");
    let killed = server(&home);
    kill("-KILL", &killed.to_string());
    // The next command starts another server, which has both.
    assert_eq!(home.json(&["partition", "list"]).as_array().unwrap().len(), 2);
    assert_ne!(server(&home), killed);
    std::fs::write(&gate, "").unwrap();
    let (code, output) = holder.end();
    assert_eq!(code, 0, "{output:#?}");
    let (code, output) = queued.end();
    assert_eq!(code, 0, "{output:#?}");
    assert_eq!(home.run(&["partition", "remove", "q"]).code, 0);
    home.assert_nothing_held();
}

#[test]
fn after_kill_9_of_server_and_clients_the_next_command_is_clean() {
    let home = Home::new();
    let file = home.file("job.yaml", &job("victim", 16, "echo ready; sleep 600"));
    let mut victim = Running::start(home.command(&["run", file.to_str().unwrap()]));
    victim.wait_for("worker-0 | ready");
    let mut queued = Running::start(home.command(&["partition", "create", "q", "--size", "1"]));
    queued.wait_for("Queued at position 1");
    kill("-KILL", &server(&home).to_string());
    for client in [&mut victim, &mut queued] {
        client.process.kill().unwrap();
        client.process.wait().unwrap();
    }
    let next = home.file("next.yaml", &job("next", 16, "true"));
    let done = home.run(&["run", next.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(home.run(&["gc"]).code, 0);
    home.assert_nothing_held();
    assert_eq!(home.processes(), Vec::<String>::new());
}

#[test]
fn a_killed_creation_that_was_granted_is_released() {
    let home = Home::new();
    assert_eq!(home.run(&["partition", "create", "all", "--size", "16"]).code, 0);
    let mut queued = Running::start(home.command(&["partition", "create", "q", "--size", "1"]));
    queued.wait_for("Queued at position 1");
    // Stopped, it does not learn of the grant.
    queued.signal("-STOP");
    assert_eq!(home.run(&["partition", "remove", "all"]).code, 0);
    while home.json(&["partition", "list"])[0]["state"] != "active" {}
    queued.process.kill().unwrap();
    queued.process.wait().unwrap();
    assert_eq!(home.run(&["gc"]).code, 0);
    home.assert_nothing_held();
}

#[test]
fn an_unused_server_is_replaced_by_one_for_another_controller() {
    let home = Home::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pod = runtime
        .block_on(Simulator::builder(Topology::pod16()).start())
        .unwrap();
    let address = pod.addr().to_string();
    home.assert_nothing_held();
    let simulated = server(&home);
    let created = home.run(&["--vipu", &address, "partition", "create", "p", "--size", "4"]);
    assert_eq!(created.code, 0, "{created:?}");
    assert_ne!(server(&home), simulated);
    let refused = home.run(&["partition", "list"]);
    assert_eq!(refused.code, 71, "{refused:?}");
    for text in [&*address, "has 1 partition:", "--state-dir"] {
        assert!(refused.err.contains(text), "{text}: {refused:?}");
    }
    let removed = home.run(&["--vipu", &address, "partition", "remove", "p"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    home.assert_nothing_held();
}

#[test]
fn a_server_that_cannot_start_reports_the_cause() {
    let home = Home::new();
    std::fs::create_dir_all(home.path(".local/state/ipuctl/ledger.db")).unwrap();
    let done = home.run(&["query", "1"]);
    assert_eq!(done.code, 71, "{done:?}");
    let cause = "the local server did not start: open the ledger: ";
    assert!(done.err.contains(cause), "{done:?}");
    let long = home.path(&"d".repeat(100));
    let done = home.run(&["--state-dir", long.to_str().unwrap(), "query", "1"]);
    assert_eq!(done.code, 71, "{done:?}");
    assert!(
        done.err.contains("use --state-dir with a shorter path"),
        "{done:?}"
    );
}
