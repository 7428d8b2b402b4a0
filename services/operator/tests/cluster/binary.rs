//! Tests of the binary.

use std::process::Stdio;

use ipu_test_cluster::shared;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipu-operator"));
    command.args(arguments).kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_help_shows_flag_variable_and_default_of_every_setting() {
    let output = command(&["--help"]).output().await.unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for flag in [
        "--vipu-proxy-svc",
        "--launcher-image-pull-policy",
        "--webhooks-port",
        "--leader-elect",
        "--max-ipus-per-instance",
    ] {
        let (_, rest) = help.split_once(flag).unwrap();
        let description = rest.split("\n      --").next().unwrap();
        assert!(
            description.contains("[default:") && description.contains("[env: IPU_OPERATOR_"),
            "{flag}{description}"
        );
    }
    assert!(help.contains("Exit codes:"));
}

#[tokio::test]
async fn the_binary_prints_its_addresses_and_shuts_down_on_sigterm() {
    let Some(cluster) = shared("the_binary_prints_its_addresses_and_shuts_down_on_sigterm") else {
        return;
    };
    let mut child = command(&[
        "--webhooks-port=0",
        "--metrics-bind-address=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        "--leader-election-id=binary",
        "--webhook-secret=binary",
        "--mutating-webhook-configuration=binary",
        "--validating-webhook-configuration=binary",
    ])
    .env("KUBECONFIG", cluster.kubeconfig())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("ipu-operator serves webhooks on "), "{line}");
    let pid = child.id().unwrap().to_string();
    let holder = || {
        let lease = ["get", "lease", "binary", "-o", "jsonpath={.spec.holderIdentity}"];
        cluster.kubectl(&lease).unwrap_or_default()
    };
    crate::support::wait_until("the operator is the leader", async || !holder().is_empty()).await;
    let killed = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
    assert!(killed.success());
    assert!(child.wait().await.unwrap().success());
    assert_eq!(holder(), "");
}

#[tokio::test]
async fn an_invalid_setting_is_named_and_ends_with_exit_code_2() {
    let Some(cluster) = shared("an_invalid_setting_is_named_and_ends_with_exit_code_2") else {
        return;
    };
    let output = command(&["--max-ipus-per-instance=48"])
        .env("KUBECONFIG", cluster.kubeconfig())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("max-ipus-per-instance"), "{errors}");
}
