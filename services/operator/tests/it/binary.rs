//! The binary, as people start it.

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
async fn every_setting_is_shown_with_its_flag_its_variable_and_its_default() {
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
        let words = rest.split("\n      --").next().unwrap();
        assert!(
            words.contains("[default:") && words.contains("[env: IPU_OPERATOR_"),
            "{flag}{words}"
        );
    }
    assert!(help.contains("Exit codes:"));
}

#[tokio::test]
async fn it_tells_where_it_serves_and_ends_in_order_when_it_is_told_to() {
    let Some(cluster) = shared("it_tells_where_it_serves_and_ends_in_order_when_it_is_told_to") else {
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
    crate::support::until("it leads", async || !holder().is_empty()).await;
    let killed = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
    assert!(killed.success());
    assert!(child.wait().await.unwrap().success());
    assert_eq!(holder(), "");
}

#[tokio::test]
async fn a_setting_that_cannot_be_used_ends_it_with_two_and_is_named() {
    let Some(cluster) = shared("a_setting_that_cannot_be_used_ends_it_with_two_and_is_named") else {
        return;
    };
    let output = command(&["--max-ipus-per-instance=48"])
        .env("KUBECONFIG", cluster.kubeconfig())
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("max-ipus-per-instance"), "{words}");
}
