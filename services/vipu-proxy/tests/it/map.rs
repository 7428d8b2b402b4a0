//! `GET /v1/map`, and the events of queue, cordons and controllers.

use std::time::UNIX_EPOCH;

use http::StatusCode;
use serde_json::{Value, json};

use crate::events::Events;
use crate::support::{Harness, request_body};

/// Returns the runs of a machine of the only controller.
fn runs<'a>(map: &'a Value, machine: &str) -> &'a Value {
    let domains = map["controllers"][0]["linkDomains"].as_array().unwrap().iter();
    let mut machines = domains.flat_map(|domain| domain["machines"].as_array().unwrap());
    &machines.find(|one| one["name"] == machine).unwrap()["runs"]
}

#[tokio::test]
async fn every_ipu_is_on_the_map_with_its_holder_and_cordons() {
    let harness = Harness::with("quotas: [{namespace: default, max-ipus: 16}]").await;
    harness.put("whole", "train", 8).await;
    harness.put("half", "test", 2).await;
    for (id, place) in [
        ("disk", json!({"machine": "a2"})),
        ("ipu", json!({"machine": "a3", "ipu": 3})),
    ] {
        let mut body = json!({"id": id, "controller": harness.controller, "reason": "broken"});
        body.as_object_mut()
            .unwrap()
            .extend(place.as_object().unwrap().clone());
        harness.call("POST", "/v1/cordons", &body.to_string()).await;
    }
    let map = harness.get("/v1/map").await;
    let expected = [
        ("a1", json!([{"ipus": 4, "holder": "whole", "phase": "active"}])),
        (
            "a2",
            json!([{"ipus": 4, "holder": "whole", "phase": "active", "cordons": ["disk"]}]),
        ),
        (
            "a3",
            json!([{"ipus": 2, "holder": "half", "phase": "active"}, {"ipus": 1}, {"ipus": 1, "cordons": ["ipu"]}]),
        ),
        ("a8", json!([{"ipus": 4}])),
    ];
    for (machine, expected) in expected {
        assert_eq!(*runs(&map, machine), expected, "{machine}");
    }
    let controller = &map["controllers"][0];
    assert_eq!(
        (&controller["health"], &controller["name"]),
        (&json!("available"), &json!(harness.controller))
    );
    assert!(controller["version"].is_string(), "{controller}");
    assert_eq!(
        map["quotas"],
        json!([{"namespace": "default", "ipus": 10, "maxIpus": 16, "partitions": 2}])
    );
}

#[tokio::test]
async fn a_client_that_has_the_map_gets_no_copy() {
    let harness = Harness::new().await;
    let get = async |tag: &str| {
        let get = harness.http.get(format!("{}/v1/map", harness.proxy.url));
        let response = get.header("if-none-match", tag).send().await.unwrap();
        let tag = response.headers()["etag"].to_str().unwrap().to_owned();
        (response.status(), tag, response.text().await.unwrap())
    };
    let (status, tag, text) = get("\"other\"").await;
    assert!(status == StatusCode::OK && !text.is_empty());
    assert_eq!(
        get(&tag).await,
        (StatusCode::NOT_MODIFIED, tag.clone(), String::new())
    );
    harness.put("new", "new", 1).await;
    let (status, newer, _) = get(&tag).await;
    assert_eq!(status, StatusCode::OK);
    assert_ne!(newer, tag);
}

#[tokio::test]
async fn a_silent_controller_says_since_when_and_keeps_its_partitions() {
    let now = || u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let before = now();
    let harness = Harness::new().await;
    harness.put("held", "held", 4).await;
    harness.start_outage().await;
    let is_silent = |map: &Value| map["controllers"][0]["health"] == "silent";
    let map = harness.until("/v1/map", is_silent).await;
    let controller = &map["controllers"][0];
    let since = controller["silentSince"].as_u64().unwrap();
    assert!((before..=now()).contains(&since), "{controller}");
    assert!(
        controller["error"].is_string() && controller["version"].is_null(),
        "{controller}"
    );
    assert_eq!(
        (&controller["linkDomains"], &controller["unplaced"]),
        (&json!([]), &json!(["held"]))
    );
    // Every answer names one moment, so that the tag of the map stays.
    assert_eq!(harness.get("/v1/map").await, map);
    harness.end_outage().await;
    harness
        .until("/v1/map", |map| map["controllers"][0]["health"] == "available")
        .await;
}

#[tokio::test]
async fn a_stream_reports_changes_of_queue_cordons_and_controllers() {
    let harness = Harness::new().await;
    let mut events = Events::open(&harness, None).await;
    for subject in ["queue", "cordons", "controllers"] {
        events.until_subject(subject).await;
    }
    harness.put("all", "all", 32).await;
    events.until_subject("controllers").await;
    harness
        .call("PUT", "/v1/partitions/next", &request_body("next", 4).to_string())
        .await;
    events.until_subject("queue").await;
    let cordon = json!({"id": "disk", "controller": harness.controller, "machine": "a1", "reason": "broken"});
    harness.call("POST", "/v1/cordons", &cordon.to_string()).await;
    events.until_subject("cordons").await;
    harness.start_outage().await;
    events.until_subject("controllers").await;
}
