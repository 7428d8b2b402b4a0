//! Completions by the real `kubectl`, which runs `kubectl_complete-ipu`.

use std::path::Path;
use std::process::Command;

use ipu_test_cluster::{Tool, find_tools, shared};
use serde_json::json;

use crate::harness::{DEPLOY, install_crd, run};
use crate::jobs::JOB;

#[test]
fn kubectl_completes_commands_and_the_names_of_jobs() {
    let name = "kubectl_completes_commands_and_the_names_of_jobs";
    let (Some(cluster), Some(tools)) = (shared(name), find_tools(name, &[Tool::Kubectl])) else {
        return;
    };
    install_crd(cluster);
    cluster.kubectl(&["create", "namespace", "completing"]).unwrap();
    let submitted = run(cluster, &["-n", "completing", "submit", JOB]);
    assert_eq!(submitted.code, 0, "{}", submitted.err);
    let programs = Path::new(env!("CARGO_BIN_EXE_kubectl-ipu")).parent().unwrap();
    let path = format!(
        "{DEPLOY}/krew:{}:{}",
        programs.display(),
        std::env::var("PATH").unwrap()
    );
    let complete = |words: &[&str]| {
        let output = Command::new(tools.path(Tool::Kubectl))
            .args(["__complete", "ipu"])
            .args(words)
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("PATH", &path)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let commands = complete(&[""]);
    assert!(commands.contains("\nwhy\tExplain why a job waits"), "{commands}");
    assert!(!commands.contains("__complete"), "{commands}");
    assert_eq!(complete(&["-n", "completing", "why", "tr"]), "training\n:4\n");
    assert_eq!(complete(&["why", "-n", "completing", "other"]), ":4\n");
    // No message disturbs the line of a user without access.
    assert_eq!(complete(&["--kubeconfig", "/absent", "why", ""]), ":4\n");
}

#[test]
fn completions_end_while_a_credential_plugin_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "test", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["90"],
            "interactiveMode": "Never",
        }}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let output = Command::new("timeout")
        .args([
            "60",
            env!("CARGO_BIN_EXE_kubectl-ipu"),
            "__complete",
            "--",
            "why",
            "",
        ])
        .env("KUBECONFIG", &kubeconfig)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b":4\n");
}
