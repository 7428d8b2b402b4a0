//! Read endpoints: controllers, dry run, metrics, health.

use http::StatusCode;
use serde_json::json;

use crate::support::Harness;

#[tokio::test(start_paused = true)]
async fn controllers_are_listed_with_their_capacity_or_their_error() {
    let harness = Harness::new();
    harness.put("training", "mnist", 4).await;
    let shown = harness.get("/v1/controllers").await["controllers"][0].clone();
    assert_eq!(
        (&shown["name"], &shown["available"]),
        (&json!("pod:8090"), &json!(true)),
        "{shown}"
    );
    assert_eq!(
        (&shown["free"], &shown["largestBlock"]),
        (&json!(28), &json!(16)),
        "{shown}"
    );
    assert!(shown["version"].is_string(), "{shown}");
    let fits = |size: u32, count: u32| json!({"size": size, "count": count});
    assert_eq!(
        shown["fits"],
        json!([
            fits(1, 28),
            fits(2, 14),
            fits(4, 7),
            fits(8, 3),
            fits(16, 1),
            fits(32, 0)
        ])
    );
    harness.controller.start_outage();
    let shown = harness.get("/v1/controllers").await["controllers"][0].clone();
    assert_eq!(
        (&shown["available"], &shown["free"], &shown["fits"]),
        (&json!(false), &json!(null), &json!(null)),
        "{shown}"
    );
    assert!(shown["error"].is_string(), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_plan_returns_the_placement_if_others_ended_and_changes_nothing() {
    let harness = Harness::new();
    harness.put("half", "half", 16).await;
    harness.put("quarter", "quarter", 8).await;
    let plan = async |body: serde_json::Value| {
        let (status, document) = harness.call("POST", "/v1/plan", &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{document}");
        let fits = document["planned"].as_array().unwrap().iter();
        fits.map(|planned| planned["fits"].as_bool().unwrap())
            .collect::<Vec<_>>()
    };
    // Records the IPUs of the partition.
    harness.get("/v1/partitions/half").await;
    let before = harness.get("/v1/partitions").await;
    assert_eq!(plan(json!({"sizes": [8, 8]})).await, [true, false]);
    assert_eq!(
        plan(json!({"sizes": [16], "ifTheseEnded": ["half"]})).await,
        [true]
    );
    assert_eq!(
        plan(json!({"sizes": [32], "ifTheseEnded": ["half"]})).await,
        [false]
    );
    assert_eq!(harness.get("/v1/partitions").await, before);
    for broken in [
        json!({"sizes": []}),
        json!({"sizes": [3]}),
        json!({"sizes": [1], "ifTheseEnded": ["a b"]}),
    ] {
        let (status, problem) = harness.call("POST", "/v1/plan", &broken.to_string()).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_count_ledger_entries_and_requests() {
    let harness = Harness::new();
    harness.put("training", "mnist", 4).await;
    harness.put("large", "large", 32).await;
    let text = harness.text("/metrics").await;
    for line in [
        "vipu_proxy_partitions{state=\"active\",controller=\"pod:8090\"} 1",
        "vipu_proxy_ipus{kind=\"used\"} 4",
        "vipu_proxy_ipus{kind=\"available\"} 28",
        "vipu_proxy_waiting{reason=\"NotEnoughFree\"} 1",
        "vipu_proxy_quarantined 0",
        "vipu_proxy_request_seconds_count{method=\"PUT\",path=\"/v1/partitions/{id}\",status=\"200\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(text.matches("# EOF").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_probes_of_a_ready_proxy_succeed() {
    let harness = Harness::new();
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(harness.get(path).await, json!({"status": "ok"}));
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_that_fits_now_shows_that_it_is_next() {
    let harness = Harness::new();
    harness.put("all", "all", 32).await;
    let (_, queued) = harness.put("waits", "waits", 4).await;
    assert_eq!(queued["state"], "waiting", "{queued}");
    harness.call("DELETE", "/v1/partitions/all?wait=5s", "").await;
    // The harness has no queue worker, so that the request stays queued.
    let single = harness.get("/v1/partitions/waits").await;
    let list = harness.get("/v1/partitions").await["partitions"][0].clone();
    let queue = harness.get("/v1/waiting").await["waiting"][0].clone();
    for shown in [single, list, queue] {
        assert_eq!(
            (
                &shown["state"],
                &shown["reason"]["code"],
                &shown["waiting"]["position"]
            ),
            (&json!("waiting"), &json!("NextInLine"), &json!(1)),
            "{shown}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_active_partition_has_its_variables_at_a_proxy_with_another_controller_list() {
    let harness = Harness::new();
    let (_, created) = harness.put("training", "mnist", 4).await;
    let other = harness.second_proxy("elsewhere:8090");
    let shown = other.get("/v1/partitions/training").await;
    assert_eq!(shown["state"], "active", "{shown}");
    let expected = json!({
        "IPUOF_VIPU_API_HOST": "pod", "IPUOF_VIPU_API_PORT": "8090",
        "IPUOF_VIPU_API_PARTITION_ID": "training", "IPUOF_VIPU_API_GCD_ID": "0",
    });
    for (variable, value) in expected.as_object().unwrap() {
        assert_eq!(&shown["env"][variable], value, "{shown}");
    }
    assert_eq!(shown["env"], created["env"]);
    // The document shows that the controller is not on the list.
    assert_eq!(shown["controller"]["host"], json!(null), "{shown}");
    let (status, repeated) = other.put("training", "mnist", 4).await;
    assert_eq!(
        (status, &repeated["env"]),
        (StatusCode::OK, &created["env"]),
        "{repeated}"
    );
}
