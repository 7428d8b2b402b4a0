//! Requests that the proxy reads after the deadline of their clients.

use std::io::Write as _;
use std::net::TcpStream;

use http::StatusCode;
use serde_json::Value;

use crate::server::proxy;
use crate::support::{Harness, request_body};

/// Advances the clock of the harness, which starts at 0.
async fn advance(seconds: u64) {
    tokio::time::advance(std::time::Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_read_after_its_deadline_changes_nothing() {
    let harness = Harness::new();
    let body = request_body("mnist", 4).to_string();
    let assert_too_late = |(status, problem): (StatusCode, Value)| {
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::CONFLICT, &"TooLate".into())
        );
        assert!(problem["fix"].as_str().unwrap().contains("notAfter"), "{problem}");
    };
    advance(10).await;
    assert_too_late(harness.call("PUT", "/v1/partitions/p?notAfter=9999", &body).await);
    assert!(harness.controller.ids().is_empty());
    let (status, _) = harness
        .call("PUT", "/v1/partitions/p?wait=5s&notAfter=12000", &body)
        .await;
    assert_eq!(status, StatusCode::OK);

    let before = harness.get("/v1/partitions/p").await;
    assert_too_late(
        harness
            .call("POST", "/v1/partitions/p/reset?notAfter=9999", "")
            .await,
    );
    assert_too_late(harness.call("DELETE", "/v1/partitions/p?notAfter=9999", "").await);
    assert_too_late(
        harness
            .call("DELETE", "/v1/partitions/p?uid=uid-mnist&notAfter=9999", "")
            .await,
    );
    assert_eq!(harness.get("/v1/partitions/p").await, before);
    let (status, _) = harness
        .call("DELETE", "/v1/partitions/p?wait=5s&notAfter=99999", "")
        .await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_request_whose_client_has_closed_the_connection_is_dropped() {
    let running = proxy(|_| {}).await;
    let request = |id: &str| {
        let body = request_body("mnist", 4).to_string();
        let length = body.len();
        format!(
            "PUT /v1/partitions/{id}?wait=10s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    };
    // The server runs on this thread, so that it reads nothing before the connection is closed, like a
    // suspended process.
    let mut abandoned = TcpStream::connect(running.addr()).unwrap();
    abandoned.write_all(request("late").as_bytes()).unwrap();
    drop(abandoned);
    let http = crate::binary::http();
    let url = |path: &str| format!("http://{}/v1/partitions/{path}", running.addr());
    let second = http
        .put(url("second?wait=10s"))
        .json(&request_body("other", 4))
        .send()
        .await
        .unwrap();
    assert_eq!(second.status(), 200);
    assert_eq!(http.get(url("late")).send().await.unwrap().status(), 404);
    running.shutdown().await;
}
