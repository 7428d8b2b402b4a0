//! The life of partitions over the API.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Bench, wanted};

#[tokio::test(start_paused = true)]
async fn a_partition_lives_its_life() {
    let bench = Bench::new();
    let (status, made) = bench.put("training", "mnist", 4).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    assert_eq!((&made["state"], &made["attempt"]), (&json!("active"), &json!(0)));
    assert_eq!(made["controller"]["name"], "pod:8090");
    assert_eq!(made["reason"], json!(null));
    // Where the controller has put it is found out for whoever asks for this one.
    let shown = bench.get("/v1/partitions/training").await;
    assert_eq!(shown["ipus"].as_array().map(Vec::len), Some(4), "{shown}");
    assert_eq!(
        bench.put("training", "mnist", 4).await,
        (StatusCode::OK, shown.clone())
    );
    assert_eq!(bench.get("/v1/partitions").await, json!({"partitions": [shown]}));

    let mut newer = wanted("mnist", 4);
    newer["attempt"] = json!(1);
    let path = "/v1/partitions/training?wait=5s";
    let (status, again) = bench.call("PUT", path, &newer.to_string()).await;
    assert_eq!(
        (status, &again["attempt"]),
        (StatusCode::OK, &json!(1)),
        "{again}"
    );
    let (_, reset) = bench
        .call("POST", "/v1/partitions/training/reset", r#"{"attempt": 2}"#)
        .await;
    assert_eq!(reset["attempt"], 2, "{reset}");

    let gone = (StatusCode::OK, json!({"id": "training", "state": "gone"}));
    assert_eq!(bench.call("DELETE", path, "").await, gone);
    assert_eq!(bench.call("DELETE", path, "").await, gone);
    let (status, problem) = bench.call("GET", "/v1/partitions/training", "").await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound"))
    );
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_while_a_request_for_it_waits_does_not_come_back() {
    let bench = Bench::new();
    bench.put("first", "first", 32).await;
    let body = wanted("second", 4).to_string();
    let waits = bench.call("PUT", "/v1/partitions/second?wait=30s", &body);
    let given_back = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        bench.call("DELETE", "/v1/partitions/second", "").await
    };
    let ((status, told), (_, gone)) = tokio::join!(waits, given_back);
    assert_eq!(gone["state"], "gone");
    assert_eq!(
        (status, &told["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound")),
        "{told}"
    );
    bench.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    assert_eq!(bench.get("/v1/partitions").await, json!({"partitions": []}));
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_fit_waits_and_is_told_why_or_is_refused_with_nowait() {
    let bench = Bench::new();
    bench.put("first", "first", 32).await;
    let put = async |path: &str| bench.call("PUT", path, &wanted("second", 16).to_string()).await;
    let (status, waits) = put("/v1/partitions/second").await;
    assert_eq!(
        (status, &waits["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{waits}"
    );
    assert_eq!(waits["waiting"]["position"], 1);
    assert_eq!(waits["waiting"]["reason"]["code"], "NotEnoughFree");
    assert_eq!(waits["reason"], waits["waiting"]["reason"]);
    assert_eq!(waits["waiting"]["blockers"][0]["id"], "first");
    assert_eq!(bench.get("/v1/waiting").await["waiting"][0]["id"], "second");
    let (status, refused) = put("/v1/partitions/third?nowait").await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("DoesNotFit")),
        "{refused}"
    );
    assert_eq!(refused["waiting"]["position"], 2);

    bench.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    let (status, active) = put("/v1/partitions/second?wait=5s").await;
    assert_eq!(
        (status, &active["waiting"]),
        (StatusCode::OK, &Value::Null),
        "{active}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_is_recorded_while_the_controller_is_down() {
    let bench = Bench::new();
    bench.put("training", "mnist", 4).await;
    bench.controller.go_down();
    let (status, document) = bench.call("DELETE", "/v1/partitions/training", "").await;
    assert_eq!(
        (status, &document["state"]),
        (StatusCode::ACCEPTED, &json!("releasing")),
        "{document}"
    );
    bench.controller.come_up();
    let (status, document) = bench.call("DELETE", "/v1/partitions/training?wait=60s", "").await;
    assert_eq!(
        (status, &document["state"]),
        (StatusCode::OK, &json!("gone")),
        "{document}"
    );
    assert_eq!(bench.controller.ids(), []);
}
