//! Tests of `ipu-launcher wait`; the test replaces scheduler and kubelet.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use ipu_test_cluster::{private, shared};
use serde_json::json;

use crate::support::{Fixture, read_text};

#[test]
fn wait_reports_each_blocking_condition_until_all_workers_are_ready() {
    let Some(cluster) = shared("wait_reports_each_blocking_condition_until_all_workers_are_ready") else {
        return;
    };
    let fixture = Fixture::new(cluster, "ready", &["w-0", "w-1"]);
    let mut waiting = fixture.wait(&["w-0", "w-1"], &[]);
    waiting.wait_for_line("w-1 does not exist yet");
    fixture.pod("w-0", "");
    waiting.wait_for_line("waiting for w-0: waits for a node");
    fixture.status(
        "w-0",
        &json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]}),
    );
    waiting.wait_for_line("waiting for w-0: is not scheduled: Unschedulable: no node fits");
    let pull = json!({"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}});
    fixture.status("w-0", &json!({"conditions": [], "containerStatuses": [pull]}));
    waiting.wait_for_line("waiting for w-0: main: ErrImagePull: no such image");
    fixture.set_ready("w-0");
    waiting.wait_for_line("w-0 is ready (1 of 2)");
    fixture.pod("w-1", "");
    fixture.set_ready("w-1");
    waiting.wait_for_line("all 2 workers are ready");
    assert_eq!(waiting.wait_for_exit().code(), Some(0));
    assert_eq!(read_text(&fixture.termination_log()), "");
}

#[test]
fn wait_exits_with_the_reason_once_a_worker_has_failed() {
    let Some(cluster) = shared("wait_exits_with_the_reason_once_a_worker_has_failed") else {
        return;
    };
    let fixture = Fixture::new(cluster, "failed", &["w-0", "w-1"]);
    let mut waiting = fixture.wait(&["w-0", "w-1"], &[]);
    fixture.pod("w-0", "");
    waiting.wait_for_line("waiting for w-0");
    fixture.status(
        "w-0",
        &json!({"phase": "Failed", "reason": "Evicted", "message": "no memory"}),
    );
    assert_eq!(waiting.wait_for_exit().code(), Some(3));
    assert_eq!(
        read_text(&fixture.termination_log()),
        "w-0 has failed: Evicted: no memory"
    );
}

#[test]
fn wait_exits_if_a_deleted_worker_is_not_created_again() {
    let Some(cluster) = shared("wait_exits_if_a_deleted_worker_is_not_created_again") else {
        return;
    };
    let fixture = Fixture::new(cluster, "deleted", &["w-0"]);
    fixture.pod("w-0", "");
    let mut waiting = fixture.wait(&["w-0"], &["--gone-grace", "0"]);
    waiting.wait_for_line("waiting for w-0");
    fixture
        .kubectl(&["delete", "pod", "w-0", "--force", "--grace-period=0"])
        .unwrap();
    assert_eq!(waiting.wait_for_exit().code(), Some(3));
    assert!(read_text(&fixture.termination_log()).starts_with("w-0 was deleted"));
}

#[test]
fn wait_continues_once_a_deleted_worker_is_created_again() {
    let Some(cluster) = shared("wait_continues_once_a_deleted_worker_is_created_again") else {
        return;
    };
    let fixture = Fixture::new(cluster, "again", &["w-0", "w-1"]);
    fixture.pod("w-0", "");
    fixture.set_ready("w-0");
    let mut waiting = fixture.wait(&["w-0", "w-1"], &["--gone-grace", "600"]);
    waiting.wait_for_line("w-0 is ready");
    fixture
        .kubectl(&["delete", "pod", "w-0", "--force", "--grace-period=0"])
        .unwrap();
    waiting.wait_for_line("w-0: was deleted");
    fixture.pod("w-1", "");
    fixture.set_ready("w-1");
    waiting.wait_for_line("w-1 is ready (1 of 2)");
    fixture.pod("w-0", "");
    fixture.set_ready("w-0");
    assert_eq!(waiting.wait_for_exit().code(), Some(0));
}

#[test]
fn wait_exits_at_its_deadline_and_names_the_missing_workers() {
    let Some(cluster) = shared("wait_exits_at_its_deadline_and_names_the_missing_workers") else {
        return;
    };
    let fixture = Fixture::new(cluster, "deadline", &["w-0", "w-1"]);
    fixture.pod("w-0", "");
    fixture.set_ready("w-0");
    let waiting = fixture.wait(&["w-0", "w-1"], &["--deadline", "1"]);
    assert_eq!(waiting.wait_for_exit().code(), Some(4));
    assert!(read_text(&fixture.termination_log()).contains("w-1 does not exist yet"));
}

#[test]
fn wait_survives_an_api_server_restart_and_a_restored_snapshot() {
    let name = "wait_survives_an_api_server_restart_and_a_restored_snapshot";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let (mut waiting, snapshot) = {
        let fixture = Fixture::new(&cluster, "outage", &["w-0"]);
        fixture.pod("w-0", "");
        let snapshot = cluster.directory().join("snapshot");
        cluster.snapshot(&snapshot).unwrap();
        let mut waiting = fixture.wait(&["w-0"], &[]);
        waiting.wait_for_line("waits for a node");
        fixture.status("w-0", &json!({"phase": "Running"}));
        waiting.wait_for_line("runs and is not ready");
        (waiting, snapshot)
    };
    cluster.kill_apiserver();
    waiting.wait_for_line("cannot watch Pods");
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
    assert_eq!(waiting.wait_for_exit().code(), Some(0));
}

#[test]
fn wait_reports_a_forbidden_watch_and_continues_once_it_is_granted() {
    let Some(cluster) = shared("wait_reports_a_forbidden_watch_and_continues_once_it_is_granted") else {
        return;
    };
    let fixture = Fixture::without_permissions(cluster, "late");
    let mut waiting = fixture.wait(&["w-0"], &[]);
    waiting.wait_for_line("is forbidden");
    fixture.grant(&["w-0"]);
    fixture.pod("w-0", "");
    fixture.set_ready("w-0");
    assert_eq!(waiting.wait_for_exit().code(), Some(0));
}

#[test]
fn wait_exits_at_once_on_sigterm() {
    let Some(cluster) = shared("wait_exits_at_once_on_sigterm") else {
        return;
    };
    let fixture = Fixture::new(cluster, "terminated", &["w-0"]);
    let mut waiting = fixture.wait(&["w-0"], &[]);
    waiting.wait_for_line("does not exist yet");
    waiting.signal("TERM");
    assert_eq!(waiting.wait_for_exit().code(), Some(143));
}

#[test]
fn wait_installs_an_executable_copy_before_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("opt");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipu-launcher"));
    command
        .args(["wait", "--hostfile", "/dev/null", "--install"])
        .arg(&into);
    // The command fails after the copy, because neither a cluster nor a worker exists.
    command.env("KUBECONFIG", "/dev/null");
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    let copied = into.join("ipu-launcher");
    let mode = std::fs::metadata(&copied).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "every user may run the copy");
    let copied = Command::new(copied).arg("--version").output().unwrap();
    assert!(copied.status.success());
}
