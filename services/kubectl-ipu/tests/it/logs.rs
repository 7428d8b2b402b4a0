//! Logs on an API server of scripted answers: the cluster of the other tests has no kubelet.

use std::io::{BufRead as _, BufReader};

use serde_json::json;

use crate::fake_api::{FakeAnswer, FakeApi, Request};
use crate::harness::{Run, program};

/// Answers with one worker of a job, whose log never ends.
fn endless(request: &Request) -> FakeAnswer {
    if request.line.contains("/log?") {
        return FakeAnswer::Endless("one line\n");
    }
    FakeAnswer::Document(200, pods("Running"))
}

/// Answers with a worker that waits for its image.
fn waiting(request: &Request) -> FakeAnswer {
    if request.line.contains("/log?") {
        let message = "container \"main\" in pod \"w\" is waiting to start: ContainerCreating";
        let status = json!({"kind": "Status", "status": "Failure", "code": 400, "reason": "BadRequest",
            "message": message});
        return FakeAnswer::Document(400, status);
    }
    FakeAnswer::Document(200, pods("Pending"))
}

fn pods(phase: &str) -> serde_json::Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [{
        "metadata": {"name": "training-worker-0-0", "namespace": "default"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }]})
}

#[test]
fn a_followed_log_ends_with_its_reader() {
    let api = FakeApi::start(endless);
    for arguments in [
        &["logs", "-f", "training"][..],
        &["logs", "-f", "--all", "training"],
    ] {
        let mut child = program(&api.kubeconfig(), arguments).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "one line\n");
        drop(reader);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_ends_a_log_and_a_result_with_the_code_of_the_host() {
    let api = FakeApi::start(endless);
    for arguments in [&["logs", "training"][..], &["get", "-o", "json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program(&api.kubeconfig(), arguments)
            .stdout(full)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(71), "{arguments:?}: {error}");
        assert!(error.contains("cannot write to standard output"), "{error}");
    }
}

#[test]
fn a_container_that_has_not_started_has_no_log_yet() {
    let api = FakeApi::start(waiting);
    let run: Run = program(&api.kubeconfig(), &["logs", "training"])
        .output()
        .unwrap()
        .into();
    assert_eq!(run.code, 66, "{}", run.err);
    assert!(
        run.err.contains("has no log yet") && run.err.contains("--follow"),
        "{}",
        run.err
    );
}
