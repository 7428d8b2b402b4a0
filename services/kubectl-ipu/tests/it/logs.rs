//! Logs and commands on an API server of scripted answers: the cluster of the other tests has no kubelet. A
//! script stands for `kubectl`, and prints its arguments.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::fake_api::{FakeAnswer, FakeApi, Request};
use crate::harness::{Run, program};

/// Runs the program with a `kubectl` that prints its arguments.
fn run(api: &FakeApi, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("kubectl");
    std::fs::write(&script, "#!/bin/sh\necho \"$@\"\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = program(&api.kubeconfig(), arguments);
    let run = command.env("PATH", path).output().unwrap();
    run.into()
}

/// Returns the arguments of `kubectl`, without the kubeconfig and the namespace.
fn arguments(run: &Run, kubeconfig: &Path) -> String {
    let prefix = format!("--kubeconfig {} --namespace=default ", kubeconfig.display());
    let rest = run.out.strip_prefix(&prefix);
    rest.unwrap_or_else(|| panic!("{} {}", run.out, run.err))
        .trim()
        .to_owned()
}

fn pod(name: &str, role: &str, instance: u32, worker: u32) -> Value {
    let labels = json!({
        "graphcore.ai/role": role, "graphcore.ai/instance": instance.to_string(),
        "graphcore.ai/worker": worker.to_string(),
    });
    json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels, "resourceVersion": "2"},
        "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"},
    })
}

fn pods(items: &[Value]) -> FakeAnswer {
    let metadata = json!({"resourceVersion": "1"});
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items});
    FakeAnswer::Document(200, list)
}

/// Answers with the Pods of a job, with a launcher in instance 0.
fn running(_: &Request) -> FakeAnswer {
    pods(&[
        pod("w-1-0", "worker", 1, 0),
        pod("w-0-1", "worker", 0, 1),
        pod("w-0-0", "worker", 0, 0),
        pod("launcher", "launcher", 0, 0),
    ])
}

#[test]
fn logs_and_exec_use_the_launcher_by_default_and_worker_0_without_one() {
    let api = FakeApi::start(running);
    for (line, expected) in [
        ("logs training", "logs launcher --container=main"),
        (
            "logs -f training --worker 1",
            "logs --follow w-0-1 --container=main",
        ),
        (
            "logs training --instance 1 -- --tail=5",
            "logs w-1-0 --container=main --tail=5",
        ),
        (
            "logs --all training",
            "logs --selector=graphcore.ai/ipujob-name=training --max-log-requests=1024 --prefix --tail=-1 --ignore-errors",
        ),
        (
            "logs --all training --container side",
            "logs --selector=graphcore.ai/ipujob-name=training --max-log-requests=1024 --prefix --tail=-1 --ignore-errors --container=side",
        ),
        (
            "exec -it training -- sh -c id",
            "exec --stdin --tty launcher -- sh -c id",
        ),
        ("exec training --worker 0 -- ls", "exec w-0-0 -- ls"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = run(&api, &words);
        assert_eq!(arguments(&run, &api.kubeconfig()), expected, "{line}");
    }
    let absent = run(&api, &["logs", "training", "--launcher", "--instance", "1"]);
    assert_eq!(absent.code, 66, "{}", absent.err);
    let text = "instance 1 of IPUJob training has no launcher; existing Pods: w-0-0, w-0-1, launcher, w-1-0";
    assert!(absent.err.contains(text), "{}", absent.err);
}

/// Answers with a Pod in which an injector put its sidecar in front of the job's container.
fn injected(_: &Request) -> FakeAnswer {
    let mut pod = pod("w-0-0", "worker", 0, 0);
    pod["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "main"});
    pod["spec"]["containers"] = json!([{"name": "mesh-proxy"}, {"name": "main"}]);
    pods(&[pod])
}

#[test]
fn logs_are_of_the_container_of_the_job_or_of_the_named_one() {
    let api = FakeApi::start(injected);
    for (line, container) in [
        ("logs training", "main"),
        ("logs --all training", "main"),
        ("logs training --container mesh-proxy", "mesh-proxy"),
        ("logs training -c mesh-proxy", "mesh-proxy"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = run(&api, &words);
        let expected = format!("logs w-0-0 --container={container}");
        assert_eq!(arguments(&run, &api.kubeconfig()), expected, "{line}");
    }
}

#[test]
fn a_full_disk_ends_a_result_with_the_code_of_the_host() {
    let api = FakeApi::start(running);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = program(&api.kubeconfig(), &["get", "-o", "json"]);
    let output = command.stdout(full).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(71), "{error}");
    assert!(error.contains("cannot write to standard output"), "{error}");
}

/// Set when the program has read the state of the job, and watches it.
static WATCHED: OnceLock<()> = OnceLock::new();
/// Set when the Pod of the job exists.
static CREATED: OnceLock<()> = OnceLock::new();

/// Answers with the job `training` that waits and then gets a Pod, the job `deleted`, and the job `failed`.
fn queued(request: &Request) -> FakeAnswer {
    let line = &request.line;
    let is_watch = line.contains("watch=true");
    let worker = pod("training-worker-0-0", "worker", 0, 0);
    if line.contains("/pods") {
        if is_watch && line.contains("training") {
            WATCHED.wait();
            let _ = CREATED.set(());
            return FakeAnswer::Watch(vec![json!({"type": "ADDED", "object": worker})]);
        }
        if is_watch {
            return FakeAnswer::Watch(Vec::new());
        }
        let exists = line.contains("training") && CREATED.get().is_some();
        return pods(if exists {
            std::slice::from_ref(&worker)
        } else {
            &[]
        });
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
    let run = run(&api, &["logs", "-f", "training"]);
    let expected = "logs --follow training-worker-0-0 --container=main";
    assert_eq!(arguments(&run, &api.kubeconfig()), expected);
    let progress = "Waiting for a Pod of IPUJob default/training\nPending: 0 IPUs are free\n";
    assert_eq!(run.err, progress);
}

#[test]
fn a_followed_log_ends_with_its_job() {
    let api = FakeApi::start(queued);
    let deleted = run(&api, &["logs", "-f", "deleted"]);
    assert_eq!((deleted.code, deleted.out.as_str()), (66, ""), "{}", deleted.err);
    let text = "default/deleted was deleted before it had finished";
    assert!(deleted.err.contains(text), "{}", deleted.err);
    let failed = run(&api, &["logs", "-f", "failed"]);
    let result = (failed.code, failed.out.as_str());
    assert_eq!(result, (0, "the last line\n"), "{}", failed.err);
}
