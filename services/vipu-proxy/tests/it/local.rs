//! Users of the host of a proxy without tokens and certificates.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::binary::{http, start};
use crate::support::{found_or_skipped, request_body};

/// User id of `nobody`, which runs no other process.
pub(crate) const OTHER_USER: u32 = 65_534;

const STAND_ALONE: [&str; 6] = [
    "--sim",
    "pod16",
    "--listen",
    "127.0.0.1:0",
    "--sim-listen",
    "127.0.0.1:0",
];

/// Returns whether this test can run `curl` as another user.
pub(crate) fn can_change_user(test: &str) -> bool {
    let curl = Command::new("curl").arg("--version").output().ok();
    let curl = curl.filter(|_| rustix::process::geteuid().is_root());
    found_or_skipped(test, curl, "root and curl").is_some()
}

#[tokio::test]
async fn another_user_of_the_host_can_read_and_cannot_write() {
    if !can_change_user("another_user_of_the_host_can_read_and_cannot_write") {
        return;
    }
    let running = start(&STAND_ALONE).await;
    let as_other = |method: &str, path: &str, body: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-X", method, "-H", "content-type: application/json"]);
        curl.args(["-d", body, &format!("{}{path}", running.url)]);
        let done = curl.uid(OTHER_USER).gid(OTHER_USER).output().unwrap();
        serde_json::from_slice::<Value>(&done.stdout).unwrap()
    };
    let body = request_body("mnist", 4).to_string();
    for (method, path) in [
        ("PUT", "/v1/partitions/p"),
        ("DELETE", "/v1/partitions/p"),
        ("POST", "/v1/repair"),
    ] {
        let refused = as_other(method, path, &body);
        assert_eq!(refused["code"], "Unauthenticated", "{refused}");
        assert!(refused.to_string().contains("--token-file"), "{refused}");
    }
    assert_eq!(as_other("POST", "/query", r#"{"size": 4}"#)["numOfPartitions"], 4);

    let put = http().put(format!("{}/v1/partitions/p?wait=30s", running.url));
    let response = put.json(&request_body("mnist", 4)).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn event_streams_of_another_user_leave_some_to_the_user_of_the_proxy() {
    if !can_change_user("event_streams_of_another_user_leave_some_to_the_user_of_the_proxy") {
        return;
    }
    let running = start(&STAND_ALONE).await;
    let url = format!("{}/v1/events", running.url);
    let mut streams = Vec::new();
    let refused = loop {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-i", "-N", &url]).stdout(Stdio::piped());
        let mut other = curl.uid(OTHER_USER).gid(OTHER_USER).spawn().unwrap();
        let mut status = String::new();
        BufReader::new(other.stdout.take().unwrap())
            .read_line(&mut status)
            .unwrap();
        streams.push(other);
        if !status.contains(" 200 ") {
            break status;
        }
    };
    assert!(refused.contains(" 503 "), "{refused}");
    assert_eq!(http().get(&url).send().await.unwrap().status(), 200);
    for mut other in streams {
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
