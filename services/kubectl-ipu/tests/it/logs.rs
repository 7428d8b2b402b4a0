//! Logs on an API server of scripted answers: the cluster of the other tests has no kubelet.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::OnceLock;

use serde_json::{Value, json};

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

/// Set when the program has read the state of the job, and watches it.
static WATCHED: OnceLock<()> = OnceLock::new();
/// Set when the Pod of the job exists.
static CREATED: OnceLock<()> = OnceLock::new();

/// Answers with the job `training` that waits and then gets a Pod, the job `deleted`, and the job `failed`.
fn queued(request: &Request) -> FakeAnswer {
    let line = &request.line;
    if line.contains("/log?") {
        return FakeAnswer::Endless("one line\n");
    }
    let is_watch = line.contains("watch=true");
    if line.contains("/pods") {
        if is_watch && line.contains("training") {
            WATCHED.wait();
            let _ = CREATED.set(());
            let mut pod = pods("Running")["items"][0].take();
            pod["metadata"]["resourceVersion"] = json!("2");
            return FakeAnswer::Watch(vec![json!({"type": "ADDED", "object": pod})]);
        }
        if is_watch {
            return FakeAnswer::Watch(Vec::new());
        }
        let mut list = pods("Running");
        list["metadata"]["resourceVersion"] = json!("1");
        if !line.contains("training") || CREATED.get().is_none() {
            list["items"] = json!([]);
        }
        return FakeAnswer::Document(200, list);
    }
    let name = ["training", "deleted", "failed"]
        .into_iter()
        .find(|name| line.contains(name));
    let job = job(name.unwrap());
    if is_watch {
        if name == Some("training") {
            let _ = WATCHED.set(());
        }
        let deleted = json!({"type": "DELETED", "object": job});
        let events = if name == Some("deleted") {
            vec![deleted]
        } else {
            Vec::new()
        };
        return FakeAnswer::Watch(events);
    }
    if line.contains("/ipujobs/") {
        return FakeAnswer::Document(200, job);
    }
    let list = json!({"kind": "IPUJobList", "apiVersion": "graphcore.ai/v1alpha1", "metadata": {"resourceVersion": "1"},
        "items": [job]});
    FakeAnswer::Document(200, list)
}

fn job(name: &str) -> Value {
    let mut status =
        json!({"phase": "Pending", "launcherStatus": "Pending", "lastMessage": "0 IPUs are free"});
    if name == "failed" {
        let failure = json!({"instance": 0, "attempt": 0, "name": "w", "kind": "Worker", "reason": "exit code 3",
            "log": "the last line"});
        status = json!({"phase": "Failed", "launcherStatus": "Failed", "lastMessage": "worker failed",
            "firstFailure": failure});
    }
    json!({"kind": "IPUJob", "apiVersion": "graphcore.ai/v1alpha1", "status": status,
        "metadata": {"name": name, "namespace": "default", "uid": "1", "resourceVersion": "1"}})
}

#[test]
fn a_followed_log_of_a_queued_job_waits_for_its_pod_and_shows_the_reason() {
    let api = FakeApi::start(queued);
    let mut child = program(&api.kubeconfig(), &["logs", "-f", "training"])
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "one line\n");
    drop(reader);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut progress = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut progress)
        .unwrap();
    assert_eq!(
        progress,
        "Waiting for a Pod of IPUJob default/training\nPending: 0 IPUs are free\n"
    );
}

#[test]
fn a_followed_log_ends_with_its_job() {
    let api = FakeApi::start(queued);
    let run = |job| Run::from(program(&api.kubeconfig(), &["logs", "-f", job]).output().unwrap());
    let deleted = run("deleted");
    assert_eq!((deleted.code, deleted.out.as_str()), (66, ""), "{}", deleted.err);
    assert!(
        deleted
            .err
            .contains("default/deleted was deleted before it had finished"),
        "{}",
        deleted.err
    );
    let failed = run("failed");
    assert_eq!(
        (failed.code, failed.out.as_str()),
        (0, "the last line\n"),
        "{}",
        failed.err
    );
}
