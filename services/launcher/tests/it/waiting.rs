//! `ipu-launcher wait`, where the test plays scheduler and kubelet.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use ipu_test_cluster::{private, shared};
use serde_json::json;

use crate::support::{Scene, pod, text};

#[test]
fn it_waits_until_all_workers_are_ready_and_says_what_for() {
    let Some(cluster) = shared("it_waits_until_all_workers_are_ready_and_says_what_for") else {
        return;
    };
    let scene = Scene::new(cluster, "ready", &["w-0", "w-1"]);
    let mut waiting = scene.wait(&["w-0", "w-1"], &[]);
    waiting.says("w-1 does not exist yet");
    scene.pod("w-0", "");
    waiting.says("waiting for w-0: waits for a node");
    scene.status(
        "w-0",
        &json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]}),
    );
    waiting.says("waiting for w-0: is not scheduled: Unschedulable: no node fits");
    let pull = json!({"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}});
    scene.status("w-0", &json!({"conditions": [], "containerStatuses": [pull]}));
    waiting.says("waiting for w-0: main: ErrImagePull: no such image");
    scene.is_ready("w-0");
    waiting.says("w-0 is ready (1 of 2)");
    scene.pod("w-1", "");
    scene.is_ready("w-1");
    waiting.says("all 2 workers are ready");
    assert_eq!(waiting.ends().code(), Some(0));
    assert_eq!(text(&scene.termination_log()), "");
}

#[test]
fn it_gives_up_with_the_reason_when_a_worker_has_failed() {
    let Some(cluster) = shared("it_gives_up_with_the_reason_when_a_worker_has_failed") else {
        return;
    };
    let scene = Scene::new(cluster, "failed", &["w-0", "w-1"]);
    let mut waiting = scene.wait(&["w-0", "w-1"], &[]);
    scene.pod("w-0", "");
    waiting.says("waiting for w-0");
    scene.status(
        "w-0",
        &json!({"phase": "Failed", "reason": "Evicted", "message": "no memory"}),
    );
    assert_eq!(waiting.ends().code(), Some(3));
    assert_eq!(
        text(&scene.termination_log()),
        "w-0 has failed: Evicted: no memory"
    );
}

#[test]
fn it_gives_up_when_a_deleted_worker_is_not_made_again() {
    let Some(cluster) = shared("it_gives_up_when_a_deleted_worker_is_not_made_again") else {
        return;
    };
    let scene = Scene::new(cluster, "deleted", &["w-0"]);
    scene.pod("w-0", "");
    let mut waiting = scene.wait(&["w-0"], &["--gone-grace", "0"]);
    waiting.says("waiting for w-0");
    scene
        .kubectl(&["delete", "pod", "w-0", "--force", "--grace-period=0"])
        .unwrap();
    assert_eq!(waiting.ends().code(), Some(3));
    assert!(text(&scene.termination_log()).starts_with("w-0 was deleted"));
}

#[test]
fn it_goes_on_when_a_deleted_worker_is_made_again() {
    let Some(cluster) = shared("it_goes_on_when_a_deleted_worker_is_made_again") else {
        return;
    };
    let scene = Scene::new(cluster, "again", &["w-0", "w-1"]);
    scene.pod("w-0", "");
    scene.is_ready("w-0");
    let mut waiting = scene.wait(&["w-0", "w-1"], &["--gone-grace", "600"]);
    waiting.says("w-0 is ready");
    scene
        .kubectl(&["delete", "pod", "w-0", "--force", "--grace-period=0"])
        .unwrap();
    waiting.says("w-0: was deleted");
    scene.pod("w-1", "");
    scene.is_ready("w-1");
    waiting.says("w-1 is ready (1 of 2)");
    scene.pod("w-0", "");
    scene.is_ready("w-0");
    assert_eq!(waiting.ends().code(), Some(0));
}

#[test]
fn a_worker_that_fails_because_it_is_deleted_is_waited_for() {
    let Some(cluster) = shared("a_worker_that_fails_because_it_is_deleted_is_waited_for") else {
        return;
    };
    let scene = Scene::new(cluster, "ended", &["w-0"]);
    let mut waiting = scene.wait(&["w-0"], &[]);
    // What is on no node goes at once, and on a real one its kubelet would have a say.
    let mut bound = pod("w-0", "");
    bound["spec"]["nodeName"] = "nowhere".into();
    scene.apply(&bound);
    waiting.says("waiting for w-0");
    scene
        .kubectl(&["delete", "pod", "w-0", "--grace-period=600", "--wait=false"])
        .unwrap();
    waiting.says("waiting for w-0: is being deleted");
    scene.status("w-0", &json!({"phase": "Failed"}));
    scene
        .kubectl(&["delete", "pod", "w-0", "--force", "--grace-period=0"])
        .unwrap();
    waiting.says("w-0: was deleted");
    scene.pod("w-0", "");
    scene.is_ready("w-0");
    assert_eq!(waiting.ends().code(), Some(0));
}

#[test]
fn it_gives_up_at_its_deadline_and_names_who_is_missing() {
    let Some(cluster) = shared("it_gives_up_at_its_deadline_and_names_who_is_missing") else {
        return;
    };
    let scene = Scene::new(cluster, "deadline", &["w-0", "w-1"]);
    scene.pod("w-0", "");
    scene.is_ready("w-0");
    let waiting = scene.wait(&["w-0", "w-1"], &["--deadline", "1"]);
    assert_eq!(waiting.ends().code(), Some(4));
    assert!(text(&scene.termination_log()).contains("w-1 does not exist yet"));
}

#[test]
fn it_outlives_an_api_server_that_is_killed_and_one_whose_versions_go_back() {
    let name = "it_outlives_an_api_server_that_is_killed_and_one_whose_versions_go_back";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let (mut waiting, snapshot) = {
        let scene = Scene::new(&cluster, "outage", &["w-0"]);
        scene.pod("w-0", "");
        let snapshot = cluster.directory().join("snapshot");
        cluster.snapshot(&snapshot).unwrap();
        let mut waiting = scene.wait(&["w-0"], &[]);
        waiting.says("waits for a node");
        scene.status("w-0", &json!({"phase": "Running"}));
        waiting.says("runs and is not ready");
        (waiting, snapshot)
    };
    cluster.kill_apiserver();
    waiting.says("cannot watch Kubernetes Pods");
    cluster.start_apiserver().unwrap();
    cluster.restore(&snapshot).unwrap();
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    cluster
        .kubectl(&[
            "-n",
            "outage",
            "patch",
            "pod",
            "w-0",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ])
        .unwrap();
    assert_eq!(waiting.ends().code(), Some(0));
}

#[test]
fn it_says_that_it_may_not_watch_and_goes_on_when_it_may() {
    let Some(cluster) = shared("it_says_that_it_may_not_watch_and_goes_on_when_it_may") else {
        return;
    };
    let scene = Scene::without_rights(cluster, "late");
    let mut waiting = scene.wait(&["w-0"], &[]);
    waiting.says("is forbidden");
    scene.grant(&["w-0"]);
    scene.pod("w-0", "");
    scene.is_ready("w-0");
    assert_eq!(waiting.ends().code(), Some(0));
}

#[test]
fn it_ends_at_once_when_it_is_told_to() {
    let Some(cluster) = shared("it_ends_at_once_when_it_is_told_to") else {
        return;
    };
    let scene = Scene::new(cluster, "told", &["w-0"]);
    let mut waiting = scene.wait(&["w-0"], &[]);
    waiting.says("does not exist yet");
    waiting.signal("TERM");
    assert_eq!(waiting.ends().code(), Some(143));
}

#[test]
fn it_copies_itself_before_it_waits_and_what_it_copied_runs() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("opt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipu-launcher"));
    command
        .args(["wait", "--hostfile", "/dev/null", "--install"])
        .arg(&into);
    // Neither a cluster nor a worker is there, which it finds out afterwards.
    command.env("KUBECONFIG", "/dev/null");
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    let copied = into.join("ipu-launcher");
    let mode = std::fs::metadata(&copied).unwrap().permissions().mode();
    assert_eq!(
        mode & 0o777,
        0o755,
        "whoever the container runs as that finds it there"
    );
    let copied = Command::new(copied).arg("--version").output().unwrap();
    assert!(copied.status.success());
}
