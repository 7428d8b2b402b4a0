//! Cordons, leases, and what was used.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Bench, wanted};

async fn cordon(bench: &Bench, body: Value) -> (StatusCode, Value) {
    bench.call("POST", "/v1/exclusions", &body.to_string()).await
}

#[tokio::test(start_paused = true)]
async fn what_is_cordoned_gets_nothing_new_until_it_is_lifted_and_its_holders_are_named() {
    let bench = Bench::new();
    bench.put("training", "mnist", 32).await;
    let wanted =
        json!({"id": "maintenance", "controller": "pod:8090", "machine": "a1", "reason": "a fan is broken"});
    let (status, cordoned) = cordon(&bench, wanted.clone()).await;
    assert_eq!(status, StatusCode::OK, "{cordoned}");
    assert_eq!(cordoned["exclusion"]["owner"], "anonymous");
    assert_eq!(cordoned["holders"][0]["id"], "training");
    assert_eq!(cordon(&bench, wanted).await, (status, cordoned.clone()));
    assert_eq!(
        bench.get("/v1/exclusions").await,
        json!({"exclusions": [cordoned["exclusion"]]})
    );
    bench.call("DELETE", "/v1/partitions/training?wait=30s", "").await;
    assert_eq!(
        bench.get("/stats").await["total"],
        json!({"used": 0, "available": 28})
    );
    let (status, lifted) = bench.call("DELETE", "/v1/exclusions/maintenance", "").await;
    assert_eq!(
        (status, &lifted["lifted"]["machine"]),
        (StatusCode::OK, &json!("a1")),
        "{lifted}"
    );
    assert_eq!(bench.get("/stats").await["total"]["available"], 32);
    let (status, lifted) = bench.call("DELETE", "/v1/exclusions/maintenance", "").await;
    assert_eq!((status, lifted), (StatusCode::OK, json!({"lifted": null})));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_cordoned_is_refused_with_a_reason() {
    let bench = Bench::new();
    let refused = async |change: Value| {
        let mut body = json!({"id": "x", "controller": "pod:8090", "machine": "a1", "reason": "because"});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let (status, problem) = cordon(&bench, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
        problem["code"].clone()
    };
    assert_eq!(refused(json!({"machine": "a99"})).await, "CannotExclude");
    assert_eq!(
        refused(json!({"controller": "nowhere:8090"})).await,
        "CannotExclude"
    );
    assert_eq!(refused(json!({"reason": ""})).await, "InvalidValue");
    assert_eq!(refused(json!({"machine": null, "ipu": 1})).await, "InvalidValue");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_by_its_owner_alone() {
    let bench = Bench::new();
    let mut body = wanted("mnist", 4);
    body["leaseSeconds"] = json!(60);
    let (_, made) = bench
        .call("PUT", "/v1/partitions/p?wait=5s", &body.to_string())
        .await;
    assert!(made["leaseUntil"].is_u64(), "{made}");
    let beat = async |body: Value| {
        bench
            .call("POST", "/v1/partitions/p/heartbeat", &body.to_string())
            .await
    };
    let (status, lease) = beat(json!({"seconds": 120})).await;
    assert_eq!((status, &lease["id"]), (StatusCode::OK, &json!("p")), "{lease}");
    let shown = bench.get("/v1/partitions/p").await;
    assert_eq!(shown["leaseUntil"], lease["leaseUntil"]);
    // Who asks again and says nothing of a lease keeps the one that he has.
    let (_, again) = bench.put("p", "mnist", 4).await;
    assert_eq!(again["leaseUntil"], lease["leaseUntil"], "{again}");
    let (status, problem) = beat(json!({"seconds": 120, "uid": "another"})).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::CONFLICT, &json!("NotTheOwner"))
    );
    let (status, _) = beat(json!({"seconds": 0})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_is_recorded_once() {
    let bench = Bench::new();
    bench.put("training", "mnist", 4).await;
    assert_eq!(bench.get("/v1/usage").await, json!({"records": []}));
    bench.call("DELETE", "/v1/partitions/training?wait=30s", "").await;
    let records = bench.get("/v1/usage?since=0").await;
    assert_eq!(records["records"].as_array().map(Vec::len), Some(1), "{records}");
    assert_eq!(
        (&records["records"][0]["size"], &records["records"][0]["end"]),
        (&json!(4), &json!("released"))
    );
}
