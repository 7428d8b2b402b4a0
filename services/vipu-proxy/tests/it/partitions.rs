//! Lifecycle of partitions over the API.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Harness, request_body};

#[tokio::test]
async fn a_partition_is_created_reset_and_deleted() {
    let harness = Harness::new().await;
    let (status, created) = harness.put("training", "mnist", 4).await;
    assert_eq!(status, StatusCode::OK, "{created}");
    assert_eq!(
        (&created["state"], &created["attempt"]),
        (&json!("active"), &json!(0))
    );
    assert_eq!(created["controller"]["name"], json!(harness.controller));
    assert_eq!(created["reason"], json!(null));
    // A request for one partition queries its IPUs from the controller.
    let shown = harness.get("/v1/partitions/training").await;
    assert_eq!(shown["ipus"].as_array().map(Vec::len), Some(4), "{shown}");
    assert_eq!(
        harness.put("training", "mnist", 4).await,
        (StatusCode::OK, shown.clone())
    );
    assert_eq!(
        harness.get("/v1/partitions").await,
        json!({"partitions": [shown]})
    );

    let mut newer = request_body("mnist", 4);
    newer["attempt"] = json!(1);
    let path = "/v1/partitions/training?wait=5s";
    let (status, renewed) = harness.call("PUT", path, &newer.to_string()).await;
    assert_eq!(
        (status, &renewed["attempt"]),
        (StatusCode::OK, &json!(1)),
        "{renewed}"
    );
    let (_, reset) = harness
        .call("POST", "/v1/partitions/training/reset", r#"{"attempt": 2}"#)
        .await;
    assert_eq!(reset["attempt"], 2, "{reset}");

    let gone = (StatusCode::OK, json!({"id": "training", "state": "gone"}));
    assert_eq!(harness.call("DELETE", path, "").await, gone);
    assert_eq!(harness.call("DELETE", path, "").await, gone);
    let (status, problem) = harness.call("GET", "/v1/partitions/training", "").await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound"))
    );
    assert!(harness.ids_at_controller().await.is_empty());
}

#[tokio::test]
async fn a_partition_that_is_deleted_while_its_request_waits_is_not_created() {
    let harness = Harness::new().await;
    harness.put("first", "first", 32).await;
    let body = request_body("second", 4).to_string();
    let pending = harness.call("PUT", "/v1/partitions/second?wait=30s", &body);
    let deletion = async {
        harness
            .until("/v1/partitions/second", |shown| shown["state"] == "waiting")
            .await;
        harness.call("DELETE", "/v1/partitions/second", "").await
    };
    let ((status, problem), (_, deleted)) = tokio::join!(pending, deletion);
    assert_eq!(deleted["state"], "gone");
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound")),
        "{problem}"
    );
    harness.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    assert_eq!(harness.get("/v1/partitions").await, json!({"partitions": []}));
    assert!(harness.ids_at_controller().await.is_empty());
}

#[tokio::test]
async fn a_request_that_does_not_fit_waits_with_a_reason_or_is_refused_with_nowait() {
    let harness = Harness::new().await;
    harness.put("first", "first", 32).await;
    let put = async |path: &str| {
        harness
            .call("PUT", path, &request_body("second", 16).to_string())
            .await
    };
    let (status, queued) = put("/v1/partitions/second").await;
    assert_eq!(
        (status, &queued["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{queued}"
    );
    assert_eq!(queued["waiting"]["position"], 1);
    assert_eq!(queued["waiting"]["reason"]["code"], "NotEnoughFree");
    assert_eq!(queued["reason"], queued["waiting"]["reason"]);
    assert_eq!(queued["waiting"]["blockers"][0]["id"], "first");
    assert_eq!(harness.get("/v1/waiting").await["waiting"][0]["id"], "second");
    let (status, refused) = put("/v1/partitions/third?nowait").await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("DoesNotFit")),
        "{refused}"
    );
    assert_eq!(refused["waiting"]["position"], 2);
    assert_eq!(
        refused["fix"],
        "send the request without nowait to join the queue"
    );
    let impossible = request_body("fourth", 64).to_string();
    let (_, refused) = harness
        .call("PUT", "/v1/partitions/fourth?nowait", &impossible)
        .await;
    assert_eq!(refused["waiting"]["reason"]["code"], "TooLarge");
    let fix = "change the request: it cannot fit while hardware and quotas are as they are";
    assert_eq!(refused["fix"], fix);

    harness.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    let (status, active) = put("/v1/partitions/second?wait=5s").await;
    assert_eq!(
        (status, &active["waiting"]),
        (StatusCode::OK, &Value::Null),
        "{active}"
    );
}
