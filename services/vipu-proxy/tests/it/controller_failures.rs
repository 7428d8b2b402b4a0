//! What clients are promised while a V-IPU controller fails, one test for each way to fail. The promises are in
//! `docs/proxy.md`, "When things go wrong".

use std::time::Duration;

use http::StatusCode;
use ipu_testkit::{CallKind, Fault};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Bench, wanted};

/// Longer than any call to a controller may take.
const A_MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn while_a_controller_is_down_requests_wait_and_releases_are_recorded_and_both_go_on_when_it_is_back() {
    let bench = Bench::new();
    bench.put("held", "held", 4).await;
    bench.controller.go_down();
    // Nobody is let go by what the controller listed before.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (status, waits) = bench.put("new", "new", 4).await;
    assert_eq!(
        (status, &waits["state"]),
        (StatusCode::ACCEPTED, &json!("waiting")),
        "{waits}"
    );
    assert_eq!(waits["waiting"]["reason"]["code"], "ControllerUnavailable");
    let (status, gone) = bench.call("DELETE", "/v1/partitions/held", "").await;
    assert_eq!(
        (status, &gone["state"]),
        (StatusCode::ACCEPTED, &json!("releasing")),
        "{gone}"
    );
    let query = bench.call("POST", "/query", r#"{"size": 2}"#).await.1;
    assert_eq!(query["available"], false, "{query}");

    bench.controller.come_up();
    tokio::time::sleep(A_MINUTE).await;
    let (status, made) = bench.put("new", "new", 4).await;
    assert_eq!(
        (status, &made["state"]),
        (StatusCode::OK, &json!("active")),
        "{made}"
    );
    let (status, gone) = bench.call("DELETE", "/v1/partitions/held?wait=5s", "").await;
    assert_eq!(
        (status, &gone["state"]),
        (StatusCode::OK, &json!("gone")),
        "{gone}"
    );
    assert_eq!(bench.controller.ids().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_hangs_slows_down_nobody_once_that_is_known() {
    let bench = Bench::two();
    for _ in 0..20 {
        bench.controller.inject(CallKind::List, Fault::Slow(A_MINUTE));
    }
    // Whoever asks is served by the other one all the same, and waits for the first no longer than a second.
    for name in ["first", "second", "third"] {
        let began = Instant::now();
        let (status, made) = bench.put(name, name, 2).await;
        assert_eq!(status, StatusCode::OK, "{made}");
        assert_eq!(made["controller"]["name"], "other:8090", "{made}");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1_500), "{took:?} of virtual time");
    }
    let known = Instant::now();
    let (status, made) = bench.put("fourth", "fourth", 2).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    let took = known.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?} of virtual time");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ready_says_whether_its_controller_makes_it_or_does_not_answer() {
    let bench = Bench::new();
    bench.controller.inject(CallKind::Create, Fault::Slow(A_MINUTE));
    for _ in 0..3 {
        bench.controller.inject(CallKind::Status, Fault::Slow(A_MINUTE));
    }
    let body = wanted("job", 4).to_string();
    let (status, made) = bench.call("PUT", "/v1/partitions/job", &body).await;
    assert_eq!(
        (status, &made["state"], &made["reason"]["code"]),
        (StatusCode::ACCEPTED, &json!("intent"), &json!("Creating")),
        "{made}"
    );
    tokio::time::sleep(Duration::from_secs(15)).await;
    let shown = bench.get("/v1/partitions/job").await;
    assert_eq!(shown["state"], "intent", "{shown}");
    assert_eq!(shown["reason"]["code"], "ControllerUnavailable", "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_repair_on_demand_says_what_it_found() {
    let bench = Bench::new();
    let (status, nothing) = bench.call("POST", "/v1/repair", "").await;
    let settled = json!({"done": [], "later": [], "silent": [], "quarantined": 0});
    assert_eq!((status, nothing), (StatusCode::OK, settled));
    bench.put("job", "job", 4).await;
    bench.controller.lose_partitions();
    let (_, mended) = bench.call("POST", "/v1/repair", "").await;
    assert_eq!(
        mended["done"],
        json!([{"action": "lost", "id": "job"}]),
        "{mended}"
    );
    let shown = bench.get("/v1/partitions/job").await;
    assert_eq!(
        (&shown["state"], &shown["reason"]["code"]),
        (&json!("failed"), &json!("PartitionFailed"))
    );
    bench.controller.go_down();
    let (_, silent) = bench.call("POST", "/v1/repair", "").await;
    assert_eq!(silent["silent"][0]["controller"], "pod:8090", "{silent}");
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_call_was_done_makes_no_second_partition_and_leaves_none_behind() {
    let bench = Bench::new();
    bench.controller.inject(CallKind::Create, Fault::FailedAfter);
    let (status, made) = bench.put("job", "job", 4).await;
    assert_eq!(
        (status, &made["state"]),
        (StatusCode::OK, &json!("active")),
        "{made}"
    );
    assert_eq!(bench.controller.ids().len(), 1);
    bench.controller.use_it(&"job".parse().unwrap());

    bench.controller.leave(&"job".parse().unwrap());
    bench.controller.inject(CallKind::Reset, Fault::FailedAfter);
    let mut newer = wanted("job", 4);
    newer["attempt"] = json!(1);
    let path = "/v1/partitions/job?wait=60s";
    let (status, again) = bench.call("PUT", path, &newer.to_string()).await;
    assert_eq!(
        (status, &again["attempt"]),
        (StatusCode::OK, &json!(1)),
        "{again}"
    );
    bench.controller.use_it(&"job".parse().unwrap());

    bench.controller.leave(&"job".parse().unwrap());
    bench.controller.inject(CallKind::Remove, Fault::FailedAfter);
    let (status, gone) = bench.call("DELETE", path, "").await;
    assert_eq!(
        (status, &gone["state"]),
        (StatusCode::OK, &json!("gone")),
        "{gone}"
    );
    assert_eq!(bench.controller.ids(), []);
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_lost_its_state_fails_what_it_had_and_a_newer_attempt_makes_it_again() {
    let bench = Bench::new();
    bench.put("job", "job", 4).await;
    bench.controller.lose_partitions();
    let (status, problem) = bench.put("job", "job", 4).await;
    assert_eq!(problem["code"], "PartitionFailed", "{status}: {problem}");
    // Its IPUs are kept for it: its workers may still run on them.
    let query = bench.call("POST", "/query", r#"{"size": 4}"#).await.1;
    assert_eq!(query["numOfPartitions"], 7, "{query}");
    let mut newer = wanted("job", 4);
    newer["attempt"] = json!(1);
    let (status, made) = bench
        .call("PUT", "/v1/partitions/job?wait=30s", &newer.to_string())
        .await;
    assert_eq!(
        (status, &made["state"]),
        (StatusCode::OK, &json!("active")),
        "{made}"
    );
    bench.controller.use_it(&"job".parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_answer_shows_the_partition_of_another_owner_while_a_controller_is_slow() {
    let bench = Bench::new();
    bench.put("training", "a", 4).await;
    bench.controller.inject(CallKind::Status, Fault::Slow(A_MINUTE));
    let (a, b) = (wanted("a", 4).to_string(), wanted("b", 2).to_string());
    let (first, second) = tokio::join!(
        bench.call("PUT", "/v1/partitions/training", &a),
        bench.call("PUT", "/v1/partitions/training", &b),
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
