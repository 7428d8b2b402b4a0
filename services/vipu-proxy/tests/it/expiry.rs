//! Requests that the proxy reads after the deadline of their clients.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;
use serde_json::Value;

use crate::server::proxy;
use crate::support::{Harness, request_body};

/// Returns the time in milliseconds since 1970, `seconds` from now.
fn seconds_from_now(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    i64::try_from(now).unwrap() + 1_000 * seconds
}

#[tokio::test]
async fn a_request_that_is_read_after_its_deadline_changes_nothing() {
    let harness = Harness::new().await;
    let body = request_body("mnist", 4).to_string();
    let assert_too_late = |(status, problem): (StatusCode, Value)| {
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::CONFLICT, &"TooLate".into())
        );
        assert!(problem["fix"].as_str().unwrap().contains("notAfter"), "{problem}");
    };
    let (late, in_time) = (seconds_from_now(-1), seconds_from_now(3_600));
    assert_too_late(
        harness
            .call("PUT", &format!("/v1/partitions/p?notAfter={late}"), &body)
            .await,
    );
    assert!(harness.ids_at_controller().await.is_empty());
    let (status, _) = harness
        .call(
            "PUT",
            &format!("/v1/partitions/p?wait=5s&notAfter={in_time}"),
            &body,
        )
        .await;
    assert_eq!(status, StatusCode::OK);

    let before = harness.get("/v1/partitions/p").await;
    assert_too_late(
        harness
            .call("POST", &format!("/v1/partitions/p/reset?notAfter={late}"), "")
            .await,
    );
    assert_too_late(
        harness
            .call("DELETE", &format!("/v1/partitions/p?notAfter={late}"), "")
            .await,
    );
    assert_too_late(
        harness
            .call(
                "DELETE",
                &format!("/v1/partitions/p?uid=uid-mnist&notAfter={late}"),
                "",
            )
            .await,
    );
    assert_eq!(harness.get("/v1/partitions/p").await, before);
    let (status, _) = harness
        .call(
            "DELETE",
            &format!("/v1/partitions/p?wait=5s&notAfter={in_time}"),
            "",
        )
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
