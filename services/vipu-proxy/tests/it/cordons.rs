//! Cordons, leases, and usage records.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Harness, request_body};

async fn cordon(harness: &Harness, body: Value) -> (StatusCode, Value) {
    harness.call("POST", "/v1/cordons", &body.to_string()).await
}

#[tokio::test]
async fn cordoned_hardware_gets_no_new_partition_until_the_cordon_is_lifted_and_its_holders_are_listed() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 32).await;
    let request = json!({"id": "maintenance", "controller": harness.controller, "machine": "a1", "reason": "a fan is broken"});
    let (status, cordoned) = cordon(&harness, request.clone()).await;
    assert_eq!(status, StatusCode::OK, "{cordoned}");
    assert_eq!(cordoned["cordon"]["owner"], "anonymous");
    assert_eq!(cordoned["holders"][0]["id"], "training");
    assert_eq!(cordon(&harness, request).await, (status, cordoned.clone()));
    assert_eq!(
        harness.get("/v1/cordons").await,
        json!({"cordons": [cordoned["cordon"]]})
    );
    harness
        .call("DELETE", "/v1/partitions/training?wait=30s", "")
        .await;
    assert_eq!(
        harness.get("/stats").await["total"],
        json!({"used": 0, "available": 28})
    );
    let (status, lifted) = harness.call("DELETE", "/v1/cordons/maintenance", "").await;
    assert_eq!(
        (status, &lifted["lifted"]["machine"]),
        (StatusCode::OK, &json!("a1")),
        "{lifted}"
    );
    assert_eq!(harness.get("/stats").await["total"]["available"], 32);
    let (status, lifted) = harness.call("DELETE", "/v1/cordons/maintenance", "").await;
    assert_eq!((status, lifted), (StatusCode::OK, json!({"lifted": null})));
}

#[tokio::test]
async fn an_invalid_cordon_is_refused_with_a_code() {
    let harness = Harness::new().await;
    let refused = async |change: Value| {
        let mut body =
            json!({"id": "x", "controller": harness.controller, "machine": "a1", "reason": "because"});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let (status, problem) = cordon(&harness, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        problem["code"].clone()
    };
    assert_eq!(refused(json!({"machine": "a99"})).await, "CannotCordon");
    assert_eq!(
        refused(json!({"controller": "nowhere:8090"})).await,
        "CannotCordon"
    );
    assert_eq!(refused(json!({"reason": ""})).await, "InvalidValue");
    assert_eq!(refused(json!({"machine": null, "ipu": 1})).await, "InvalidValue");
}

#[tokio::test]
async fn only_the_owner_renews_a_lease() {
    let harness = Harness::new().await;
    let mut body = request_body("mnist", 4);
    body["leaseSeconds"] = json!(60);
    let (_, created) = harness
        .call("PUT", "/v1/partitions/p?wait=5s", &body.to_string())
        .await;
    assert!(created["leaseUntil"].is_u64(), "{created}");
    let beat = async |body: Value| {
        harness
            .call("POST", "/v1/partitions/p/heartbeat", &body.to_string())
            .await
    };
    let (status, lease) = beat(json!({"seconds": 120})).await;
    assert_eq!((status, &lease["id"]), (StatusCode::OK, &json!("p")), "{lease}");
    let shown = harness.get("/v1/partitions/p").await;
    assert_eq!(shown["leaseUntil"], lease["leaseUntil"]);
    // A repeated request without a lease keeps the existing lease.
    let (_, renewed) = harness.put("p", "mnist", 4).await;
    assert_eq!(renewed["leaseUntil"], lease["leaseUntil"], "{renewed}");
    let (status, problem) = beat(json!({"seconds": 120, "uid": "another"})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::CONFLICT, &json!("NotTheOwner"))
    );
    let (status, _) = beat(json!({"seconds": 0})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn an_ended_hold_is_recorded_once() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    assert_eq!(harness.get("/v1/usage").await, json!({"records": []}));
    harness
        .call("DELETE", "/v1/partitions/training?wait=30s", "")
        .await;
    let records = harness.get("/v1/usage?since=0").await;
    assert_eq!(records["records"].as_array().map(Vec::len), Some(1), "{records}");
    assert_eq!(
        (&records["records"][0]["size"], &records["records"][0]["end"]),
        (&json!(4), &json!("released"))
    );
}
