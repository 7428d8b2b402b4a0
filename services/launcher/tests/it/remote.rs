//! Tests of `ipu-launcher exec` and `agent` in running Pods.

use std::io::Write as _;
use std::process::{Output, Stdio};

use ipu_test_cluster::{ClusterProfile, private_with, shared_with};
use serde_json::json;

use crate::support::{Fixture, Running, pod};

/// Script of an idle worker that ends at once on SIGTERM.
const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

fn run(fixture: &Fixture<'_>, words: &[&str]) -> Output {
    fixture.launcher(words).output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_remote_command_has_its_streams_and_its_exit_code() {
    let name = "a_remote_command_has_its_streams_and_its_exit_code";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let fixture = Fixture::new(cluster, "streams", &["w-0"]);
    fixture.pod("w-0", IDLE);
    fixture.wait_until("w-0", "condition=Ready");
    let output = run(
        &fixture,
        &["exec", "w-0", "--", "sh", "-c", "echo out; echo err >&2; exit 3"],
    );
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (Some(3), "out\n".into(), "err\n".into())
    );
    let words = ["exec", "w-0", "--", "printf", "%s|", "a b", "$HOME", "'"];
    assert_eq!(
        stdout(&run(&fixture, &words)),
        "a b|$HOME|'|",
        "arguments are not changed"
    );
    let killed = run(&fixture, &["exec", "w-0", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code(&killed), Some(137));
    let absent = run(&fixture, &["exec", "w-0", "--", "no-such-program"]);
    assert_eq!(code(&absent), Some(127), "{}", stderr(&absent));
    let plain = run(&fixture, &["exec", "--plain", "w-0", "--", "no-such-program"]);
    assert_eq!(code(&plain), Some(254), "{}", stderr(&plain));

    let mut cat = fixture.launcher(&["exec", "w-0", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through and back").unwrap();
    let output = cat.wait_with_output().unwrap();
    assert_eq!(
        (code(&output), stdout(&output)),
        (Some(0), "through and back".into())
    );
    let long = run(
        &fixture,
        &["exec", "w-0", "--", "head", "-c", "5000000", "/dev/zero"],
    );
    assert_eq!((code(&long), long.stdout.len()), (Some(0), 5_000_000));
}

#[test]
fn the_agent_runs_its_arguments_in_the_shell_of_the_worker() {
    let name = "the_agent_runs_its_arguments_in_the_shell_of_the_worker";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let fixture = Fixture::new(cluster, "agent", &["w-0", "w-1"]);
    let mut two = pod("w-0", IDLE);
    let mut side = two["spec"]["containers"][0].clone();
    side["name"] = json!("side");
    side["env"] = json!([{"name": "ROLE", "value": "side"}]);
    two["spec"]["containers"].as_array_mut().unwrap().push(side);
    two["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "side"});
    fixture.apply(&two);
    fixture.wait_until("w-0", "condition=Ready");
    let output = run(
        &fixture,
        &[
            "agent",
            "w-0",
            "PATH=$PATH:/x ;",
            "export PATH ;",
            "echo",
            "$ROLE",
            "$((1+2))",
            "-v",
        ],
    );
    assert_eq!(
        (code(&output), stdout(&output)),
        (Some(0), "side 3 -v\n".into()),
        "{}",
        stderr(&output)
    );
    let first = run(
        &fixture,
        &["agent", "--container", "main", "w-0", "echo", "/$ROLE/"],
    );
    assert_eq!(stdout(&first), "//\n");
}

#[test]
fn exec_reports_a_forbidden_or_missing_pod() {
    let name = "exec_reports_a_forbidden_or_missing_pod";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let fixture = Fixture::new(cluster, "refused", &["w-0"]);
    fixture.pod("other", IDLE);
    fixture.wait_until("other", "condition=Ready");
    let refused = run(&fixture, &["exec", "other", "--", "true"]);
    assert_eq!(code(&refused), Some(254));
    assert!(stderr(&refused).contains("forbidden"), "{}", stderr(&refused));
    let absent = run(&fixture, &["agent", "w-0", "true"]);
    assert_eq!(code(&absent), Some(254));
    assert!(
        stderr(&absent).contains("\"w-0\" not found"),
        "{}",
        stderr(&absent)
    );
}

#[test]
fn a_remote_command_ends_on_the_signal_that_the_launcher_receives() {
    let name = "a_remote_command_ends_on_the_signal_that_the_launcher_receives";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let fixture = Fixture::new(cluster, "signals", &["w-0"]);
    fixture.pod("w-0", IDLE);
    fixture.wait_until("w-0", "condition=Ready");
    let script = "sleep 12345 & echo started; while :; do wait; sleep 1; done";
    let mut running = Running::start(fixture.launcher(&["agent", "w-0", script]));
    running.wait_for_line("started");
    running.signal("TERM");
    assert_eq!(running.wait_for_exit().code(), Some(143));
    let left = run(&fixture, &["exec", "w-0", "--", "ps"]);
    assert!(!stdout(&left).contains("12345"), "{}", stdout(&left));

    // A command that ignores the first signal is killed by the second.
    let script = "trap 'echo trapped' TERM; echo started; while :; do sleep 1; done";
    let mut running = Running::start(fixture.launcher(&["agent", "w-0", script]));
    running.wait_for_line("started");
    running.signal("TERM");
    running.wait_for_line("trapped");
    running.signal("TERM");
    assert_eq!(running.wait_for_exit().code(), Some(137));
}

#[test]
fn a_broken_connection_has_another_exit_code_than_a_failed_command() {
    let name = "a_broken_connection_has_another_exit_code_than_a_failed_command";
    let Some(mut cluster) = private_with(name, ClusterProfile::Node) else {
        return;
    };
    let running = {
        let fixture = Fixture::new(&cluster, "broken", &["w-0"]);
        fixture.pod("w-0", IDLE);
        fixture.wait_until("w-0", "condition=Ready");
        let mut running =
            Running::start(fixture.launcher(&["exec", "w-0", "--", "sh", "-c", "echo started; sleep 3600"]));
        running.wait_for_line("started");
        running
    };
    cluster.kill_apiserver();
    assert_eq!(running.wait_for_exit().code(), Some(255));
    cluster.start_apiserver().unwrap();
}
