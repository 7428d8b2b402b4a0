//! Guarantees for clients while a V-IPU controller fails, one test for each failure mode. `docs/proxy.md`
//! documents them.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use vipu_sim::{Fault, FaultKind, Method, Simulator};

use crate::binary::{http, start_with_controllers};
use crate::support::{Harness, POLL_INTERVAL, request_body};

/// Delay in milliseconds that exceeds the timeout of every controller call.
const A_MINUTE: u64 = 60_000;

#[tokio::test]
async fn requests_wait_and_releases_are_recorded_during_a_controller_outage_and_both_continue_after_it() {
    let harness = Harness::new().await;
    harness.put("held", "held", 4).await;
    harness.start_outage().await;
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

    harness.end_outage().await;
    harness
        .until("/v1/partitions/new", |shown| shown["state"] == "active")
        .await;
    harness
        .until("/v1/partitions/held", |shown| shown["code"] == "NotFound")
        .await;
    assert_eq!(harness.ids_at_controller().await.len(), 1);
}

#[tokio::test]
async fn a_hanging_controller_delays_no_request_after_its_detection() {
    let (hanging, healthy) = (
        Simulator::builder(ipu_core::hardware::Topology::pod16())
            .start()
            .await
            .unwrap(),
        Simulator::builder(ipu_core::hardware::Topology::pod16())
            .start()
            .await
            .unwrap(),
    );
    let hang = Fault::new(FaultKind::Hang);
    hanging.faults().add(hang.for_method(Method::ListPartitions));
    let list = format!("{},{}", hanging.addr(), healthy.addr());
    let proxy = start_with_controllers(&list, "memory", &[]).await;
    while http()
        .get(format!("{}/readyz", proxy.url))
        .send()
        .await
        .unwrap()
        .status()
        != 200
    {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let is_detected = |shown: &Value| {
        let all = shown["controllers"].as_array().unwrap();
        all.iter().any(|controller| controller["available"] == false)
    };
    let controllers = format!("{}/v1/controllers", proxy.url);
    while !is_detected(
        &http()
            .get(&controllers)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap(),
    ) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // The other controller serves each request, long before the call to the first one has timed out.
    for id in ["first", "second", "third", "fourth"] {
        let put = http().put(format!("{}/v1/partitions/{id}?wait=30s", proxy.url));
        let put = put.timeout(Duration::from_secs(60)).json(&request_body(id, 2));
        let created: Value = put.send().await.unwrap().json().await.unwrap();
        assert_eq!(
            created["controller"]["name"],
            healthy.addr().to_string(),
            "{created}"
        );
        assert_eq!(created["state"], "active", "{created}");
    }
}

#[tokio::test]
async fn a_pending_partition_shows_whether_its_controller_creates_it_or_is_unavailable() {
    let harness = Harness::new().await;
    let slow = ["CreatePartition", "GetPartitionStatus", "ListPartitions"];
    let slow = slow.map(|call| json!({"kind": "latency", "millis": A_MINUTE, "method": call}));
    harness.set_faults(&json!(slow)).await;
    let body = request_body("job", 4).to_string();
    let (status, created) = harness.call("PUT", "/v1/partitions/job", &body).await;
    assert_eq!(
        (status, &created["state"], &created["reason"]["code"]),
        (StatusCode::ACCEPTED, &json!("creating"), &json!("Creating")),
        "{created}"
    );
    let is_unavailable = |shown: &Value| shown["reason"]["code"] == "ControllerUnavailable";
    let shown = harness.until("/v1/partitions/job", is_unavailable).await;
    assert_eq!(shown["state"], "creating", "{shown}");
}

#[tokio::test]
async fn a_requested_repair_returns_its_actions() {
    let harness = Harness::new().await;
    let (status, unchanged) = harness.call("POST", "/v1/repair", "").await;
    let settled = json!({"done": [], "unfinished": [], "unavailable": [], "quarantined": 0});
    assert_eq!((status, unchanged), (StatusCode::OK, settled));
    harness.put("job", "job", 4).await;
    harness.lose_partitions().await;
    harness.call("POST", "/v1/repair", "").await;
    let shown = harness
        .until("/v1/partitions/job", |shown| shown["state"] == "failed")
        .await;
    assert_eq!(shown["reason"]["code"], "PartitionFailed");
    harness.start_outage().await;
    let (_, unresponsive) = harness.call("POST", "/v1/repair", "").await;
    assert_eq!(
        unresponsive["unavailable"][0]["controller"],
        json!(harness.controller),
        "{unresponsive}"
    );
}

#[tokio::test]
async fn an_error_after_a_completed_call_neither_duplicates_nor_leaks_a_partition() {
    let harness = Harness::new().await;
    let lose_reply_of = async |call: &str| {
        let fault = json!([{"kind": "dropReply", "method": call, "count": 1}]);
        harness.set_faults(&fault).await;
    };
    lose_reply_of("CreatePartition").await;
    let (status, created) = harness.put("job", "job", 4).await;
    assert_eq!(
        (status, &created["state"]),
        (StatusCode::OK, &json!("active")),
        "{created}"
    );
    assert_eq!(harness.ids_at_controller().await.len(), 1);

    lose_reply_of("ResetPartition").await;
    let mut newer = request_body("job", 4);
    newer["attempt"] = json!(1);
    let path = "/v1/partitions/job?wait=60s";
    let (status, renewed) = harness.call("PUT", path, &newer.to_string()).await;
    assert_eq!(
        (status, &renewed["attempt"]),
        (StatusCode::OK, &json!(1)),
        "{renewed}"
    );

    lose_reply_of("RemovePartition").await;
    let (status, deleted) = harness.call("DELETE", path, "").await;
    assert_eq!(
        (status, &deleted["state"]),
        (StatusCode::OK, &json!("gone")),
        "{deleted}"
    );
    assert!(harness.ids_at_controller().await.is_empty());
}

#[tokio::test]
async fn a_controller_that_lost_its_state_fails_its_partitions_and_a_newer_attempt_recreates_them() {
    let harness = Harness::new().await;
    harness.put("job", "job", 4).await;
    harness.lose_partitions().await;
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
    assert_eq!(harness.ids_at_controller().await, ["job"]);
}

#[tokio::test]
async fn no_response_shows_the_partition_of_another_owner_while_a_controller_is_slow() {
    let harness = Harness::new().await;
    harness.put("training", "a", 4).await;
    let slow = json!([{"kind": "latency", "millis": 2_000, "method": "GetPartitionStatus", "count": 1}]);
    harness.set_faults(&slow).await;
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
