//! Guarantees for clients while a V-IPU controller fails, one test for each failure mode. `docs/proxy.md`
//! documents them.

use std::time::Duration;

use http::StatusCode;
use ipu_testkit::{CallKind, Fault};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Harness, request_body};

/// Exceeds the timeout of every controller call.
const A_MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn requests_wait_and_releases_are_recorded_during_a_controller_outage_and_both_continue_after_it() {
    let harness = Harness::new();
    harness.put("held", "held", 4).await;
    harness.controller.start_outage();
    // The next call does not use an earlier listing of the controller.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (status, queued) = harness.put("new", "new", 4).await;
    assert_eq!(
        (status, &queued["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{queued}"
    );
    assert_eq!(queued["waiting"]["reason"]["code"], "ControllerUnavailable");
    let (status, deleted) = harness.call("DELETE", "/v1/partitions/held", "").await;
    assert_eq!(
        (status, &deleted["state"]),
        (StatusCode::ACCEPTED, &json!("releasing")),
        "{deleted}"
    );
    let query = harness.call("POST", "/query", r#"{"size": 2}"#).await.1;
    assert_eq!(query["available"], false, "{query}");

    harness.controller.end_outage();
    tokio::time::sleep(A_MINUTE).await;
    let (status, created) = harness.put("new", "new", 4).await;
    assert_eq!(
        (status, &created["state"]),
        (StatusCode::OK, &json!("active")),
        "{created}"
    );
    let (status, deleted) = harness.call("DELETE", "/v1/partitions/held?wait=5s", "").await;
    assert_eq!(
        (status, &deleted["state"]),
        (StatusCode::OK, &json!("gone")),
        "{deleted}"
    );
    assert_eq!(harness.controller.ids().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_controller_delays_no_request_after_its_detection() {
    let harness = Harness::with_two_controllers();
    for _ in 0..20 {
        harness.controller.inject(CallKind::List, Fault::Slow(A_MINUTE));
    }
    // The other controller serves the requests, which wait for the first one at most a second.
    for name in ["first", "second", "third"] {
        let started = Instant::now();
        let (status, created) = harness.put(name, name, 2).await;
        assert_eq!(status, StatusCode::OK, "{created}");
        assert_eq!(created["controller"]["name"], "other:8090", "{created}");
        let elapsed = started.elapsed();
        assert!(
            elapsed < Duration::from_millis(1_500),
            "{elapsed:?} of virtual time"
        );
    }
    let detected = Instant::now();
    let (status, created) = harness.put("fourth", "fourth", 2).await;
    assert_eq!(status, StatusCode::OK, "{created}");
    let elapsed = detected.elapsed();
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?} of virtual time");
}

#[tokio::test(start_paused = true)]
async fn a_pending_partition_shows_whether_its_controller_creates_it_or_is_unavailable() {
    let harness = Harness::new();
    harness.controller.inject(CallKind::Create, Fault::Slow(A_MINUTE));
    for _ in 0..3 {
        harness.controller.inject(CallKind::Status, Fault::Slow(A_MINUTE));
    }
    let body = request_body("job", 4).to_string();
    let (status, created) = harness.call("PUT", "/v1/partitions/job", &body).await;
    assert_eq!(
        (status, &created["state"], &created["reason"]["code"]),
        (StatusCode::ACCEPTED, &json!("intent"), &json!("Creating")),
        "{created}"
    );
    tokio::time::sleep(Duration::from_secs(15)).await;
    let shown = harness.get("/v1/partitions/job").await;
    assert_eq!(shown["state"], "intent", "{shown}");
    assert_eq!(shown["reason"]["code"], "ControllerUnavailable", "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_requested_repair_returns_its_actions() {
    let harness = Harness::new();
    let (status, unchanged) = harness.call("POST", "/v1/repair", "").await;
    let settled = json!({"done": [], "later": [], "silent": [], "quarantined": 0});
    assert_eq!((status, unchanged), (StatusCode::OK, settled));
    harness.put("job", "job", 4).await;
    harness.controller.lose_partitions();
    let (_, repaired) = harness.call("POST", "/v1/repair", "").await;
    assert_eq!(
        repaired["done"],
        json!([{"action": "lost", "id": "job"}]),
        "{repaired}"
    );
    let shown = harness.get("/v1/partitions/job").await;
    assert_eq!(
        (&shown["state"], &shown["reason"]["code"]),
        (&json!("failed"), &json!("PartitionFailed"))
    );
    harness.controller.start_outage();
    let (_, unresponsive) = harness.call("POST", "/v1/repair", "").await;
    assert_eq!(
        unresponsive["silent"][0]["controller"], "pod:8090",
        "{unresponsive}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_after_a_completed_call_neither_duplicates_nor_leaks_a_partition() {
    let harness = Harness::new();
    harness.controller.inject(CallKind::Create, Fault::FailedAfter);
    let (status, created) = harness.put("job", "job", 4).await;
    assert_eq!(
        (status, &created["state"]),
        (StatusCode::OK, &json!("active")),
        "{created}"
    );
    assert_eq!(harness.controller.ids().len(), 1);
    harness.controller.mark_in_use(&"job".parse().unwrap());

    harness.controller.mark_unused(&"job".parse().unwrap());
    harness.controller.inject(CallKind::Reset, Fault::FailedAfter);
    let mut newer = request_body("job", 4);
    newer["attempt"] = json!(1);
    let path = "/v1/partitions/job?wait=60s";
    let (status, renewed) = harness.call("PUT", path, &newer.to_string()).await;
    assert_eq!(
        (status, &renewed["attempt"]),
        (StatusCode::OK, &json!(1)),
        "{renewed}"
    );
    harness.controller.mark_in_use(&"job".parse().unwrap());

    harness.controller.mark_unused(&"job".parse().unwrap());
    harness.controller.inject(CallKind::Remove, Fault::FailedAfter);
    let (status, deleted) = harness.call("DELETE", path, "").await;
    assert_eq!(
        (status, &deleted["state"]),
        (StatusCode::OK, &json!("gone")),
        "{deleted}"
    );
    assert_eq!(harness.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_lost_its_state_fails_its_partitions_and_a_newer_attempt_recreates_them() {
    let harness = Harness::new();
    harness.put("job", "job", 4).await;
    harness.controller.lose_partitions();
    let (status, problem) = harness.put("job", "job", 4).await;
    assert_eq!(problem["code"], "PartitionFailed", "{status}: {problem}");
    // Its IPUs stay allocated, because its workers may still run on them.
    let query = harness.call("POST", "/query", r#"{"size": 4}"#).await.1;
    assert_eq!(query["numOfPartitions"], 7, "{query}");
    let mut newer = request_body("job", 4);
    newer["attempt"] = json!(1);
    let (status, created) = harness
        .call("PUT", "/v1/partitions/job?wait=30s", &newer.to_string())
        .await;
    assert_eq!(
        (status, &created["state"]),
        (StatusCode::OK, &json!("active")),
        "{created}"
    );
    harness.controller.mark_in_use(&"job".parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_response_shows_the_partition_of_another_owner_while_a_controller_is_slow() {
    let harness = Harness::new();
    harness.put("training", "a", 4).await;
    harness.controller.inject(CallKind::Status, Fault::Slow(A_MINUTE));
    let (a, b) = (request_body("a", 4).to_string(), request_body("b", 2).to_string());
    let (first, second) = tokio::join!(
        harness.call("PUT", "/v1/partitions/training", &a),
        harness.call("PUT", "/v1/partitions/training", &b),
    );
    assert_eq!((first.0, &first.1["state"]), (StatusCode::OK, &json!("active")));
    let (status, refused) = second;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("NotTheOwner")),
        "{refused}"
    );
    assert_eq!(refused["env"], json!(null));
}
