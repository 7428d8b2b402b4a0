//! `ipu-launcher exec` and `agent` in Kubernetes Pods that really run.

use std::io::Write as _;
use std::process::{Output, Stdio};

use ipu_test_cluster::{ClusterProfile, private_with, shared_with};
use serde_json::json;

use crate::support::{Running, Scene, pod};

/// What a worker does: nothing, and it ends at once when it is told to.
const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

fn run(scene: &Scene<'_>, words: &[&str]) -> Output {
    scene.launcher(words).output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_remote_command_has_its_streams_and_its_exit_code() {
    let name = "a_remote_command_has_its_streams_and_its_exit_code";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let scene = Scene::new(cluster, "streams", &["w-0"]);
    scene.pod("w-0", IDLE);
    scene.until("w-0", "condition=Ready");
    let ended = run(
        &scene,
        &["exec", "w-0", "--", "sh", "-c", "echo out; echo err >&2; exit 3"],
    );
    assert_eq!(
        (code(&ended), out(&ended), err(&ended)),
        (Some(3), "out\n".into(), "err\n".into())
    );
    let words = ["exec", "w-0", "--", "printf", "%s|", "a b", "$HOME", "'"];
    assert_eq!(
        out(&run(&scene, &words)),
        "a b|$HOME|'|",
        "words stay as they are"
    );
    let killed = run(&scene, &["exec", "w-0", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code(&killed), Some(137));
    let absent = run(&scene, &["exec", "w-0", "--", "no-such-program"]);
    assert_eq!(code(&absent), Some(127), "{}", err(&absent));
    let plain = run(&scene, &["exec", "--plain", "w-0", "--", "no-such-program"]);
    assert_eq!(code(&plain), Some(254), "{}", err(&plain));

    let mut cat = scene.launcher(&["exec", "w-0", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.stdin.take().unwrap().write_all(b"through and back").unwrap();
    let ended = cat.wait_with_output().unwrap();
    assert_eq!((code(&ended), out(&ended)), (Some(0), "through and back".into()));
    let long = run(
        &scene,
        &["exec", "w-0", "--", "head", "-c", "5000000", "/dev/zero"],
    );
    assert_eq!((code(&long), long.stdout.len()), (Some(0), 5_000_000));
}

#[test]
fn the_agent_runs_words_by_the_shell_of_the_worker() {
    let name = "the_agent_runs_words_by_the_shell_of_the_worker";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let scene = Scene::new(cluster, "agent", &["w-0", "w-1"]);
    let mut two = pod("w-0", IDLE);
    let mut side = two["spec"]["containers"][0].clone();
    side["name"] = json!("side");
    side["env"] = json!([{"name": "WHO", "value": "side"}]);
    two["spec"]["containers"].as_array_mut().unwrap().push(side);
    two["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "side"});
    scene.apply(&two);
    scene.until("w-0", "condition=Ready");
    let ended = run(
        &scene,
        &[
            "agent",
            "w-0",
            "PATH=$PATH:/x ;",
            "export PATH ;",
            "echo",
            "$WHO",
            "$((1+2))",
            "-v",
        ],
    );
    assert_eq!(
        (code(&ended), out(&ended)),
        (Some(0), "side 3 -v\n".into()),
        "{}",
        err(&ended)
    );
    let first = run(&scene, &["agent", "--container", "main", "w-0", "echo", "/$WHO/"]);
    assert_eq!(out(&first), "//\n");
}

#[test]
fn what_may_not_be_started_or_is_not_there_says_so() {
    let name = "what_may_not_be_started_or_is_not_there_says_so";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let scene = Scene::new(cluster, "refused", &["w-0"]);
    scene.pod("other", IDLE);
    scene.until("other", "condition=Ready");
    let refused = run(&scene, &["exec", "other", "--", "true"]);
    assert_eq!(code(&refused), Some(254));
    assert!(err(&refused).contains("forbidden"), "{}", err(&refused));
    let absent = run(&scene, &["agent", "w-0", "true"]);
    assert_eq!(code(&absent), Some(254));
    assert!(err(&absent).contains("\"w-0\" not found"), "{}", err(&absent));
}

#[test]
fn a_remote_command_ends_with_the_signal_that_the_launcher_gets() {
    let name = "a_remote_command_ends_with_the_signal_that_the_launcher_gets";
    let Some(cluster) = shared_with(name, ClusterProfile::Node) else {
        return;
    };
    let scene = Scene::new(cluster, "signals", &["w-0"]);
    scene.pod("w-0", IDLE);
    scene.until("w-0", "condition=Ready");
    let script = "sleep 12345 & echo begun; while :; do wait; sleep 1; done";
    let mut running = Running::start(scene.launcher(&["agent", "w-0", script]));
    running.says("begun");
    running.signal("TERM");
    assert_eq!(running.ends().code(), Some(143));
    let left = run(&scene, &["exec", "w-0", "--", "ps"]);
    assert!(!out(&left).contains("12345"), "{}", out(&left));

    // One that does not listen is killed when it is told again.
    let script = "trap 'echo heard' TERM; echo begun; while :; do sleep 1; done";
    let mut running = Running::start(scene.launcher(&["agent", "w-0", script]));
    running.says("begun");
    running.signal("TERM");
    running.says("heard");
    running.signal("TERM");
    assert_eq!(running.ends().code(), Some(137));
}

#[test]
fn a_connection_that_breaks_is_told_from_a_command_that_fails() {
    let name = "a_connection_that_breaks_is_told_from_a_command_that_fails";
    let Some(mut cluster) = private_with(name, ClusterProfile::Node) else {
        return;
    };
    let running = {
        let scene = Scene::new(&cluster, "broken", &["w-0"]);
        scene.pod("w-0", IDLE);
        scene.until("w-0", "condition=Ready");
        let mut running =
            Running::start(scene.launcher(&["exec", "w-0", "--", "sh", "-c", "echo begun; sleep 3600"]));
        running.says("begun");
        running
    };
    cluster.kill_apiserver();
    assert_eq!(running.ends().code(), Some(255));
    cluster.start_apiserver().unwrap();
}
