//! Read endpoints: controllers, dry run, metrics, health.

use http::StatusCode;
use reqwest::Method;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use crate::binary::{RunningProxy, http, start_with_controllers};
use crate::support::{Harness, request_body};

#[tokio::test]
async fn controllers_are_listed_with_their_capacity_or_their_error() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    let shown = harness.get("/v1/controllers").await["controllers"][0].clone();
    assert_eq!(
        (&shown["name"], &shown["available"]),
        (&json!(harness.controller), &json!(true)),
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
    harness.start_outage().await;
    let shown = harness.get("/v1/controllers").await["controllers"][0].clone();
    assert_eq!(
        (&shown["available"], &shown["free"], &shown["fits"]),
        (&json!(false), &json!(null), &json!(null)),
        "{shown}"
    );
    assert!(shown["error"].is_string(), "{shown}");
}

#[tokio::test]
async fn a_plan_returns_the_placement_if_others_ended_and_changes_nothing() {
    let harness = Harness::new().await;
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

#[tokio::test]
async fn metrics_count_ledger_entries_and_requests() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    harness.put("large", "large", 32).await;
    let text = harness.text("/metrics").await;
    let partitions = format!(
        "vipu_proxy_partitions{{state=\"active\",controller=\"{}\"}} 1",
        harness.controller
    );
    let ipus = |kind: &str, number: u32| {
        let controller = &harness.controller;
        format!("vipu_proxy_ipus{{kind=\"{kind}\",controller=\"{controller}\"}} {number}")
    };
    for line in [
        partitions.as_str(),
        ipus("used", 4).as_str(),
        ipus("available", 28).as_str(),
        "vipu_proxy_used_ipus{namespace=\"default\"} 4",
        "vipu_proxy_waiting{reason=\"NotEnoughFree\"} 1",
        "vipu_proxy_quarantined 0",
        "vipu_proxy_request_seconds_count{method=\"PUT\",path=\"/v1/partitions/{id}\",status=\"200\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(text.matches("# EOF").count(), 1);
}

#[tokio::test]
async fn the_probes_of_a_ready_proxy_succeed() {
    let harness = Harness::new().await;
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(harness.get(path).await, json!({"status": "ok"}));
    }
}

#[tokio::test]
async fn an_active_partition_has_its_variables_at_a_proxy_with_another_controller_list() {
    let scratch = tempfile::tempdir().unwrap();
    let store = format!("file:{}", scratch.path().join("ledger.db").display());
    let mut simulators = Vec::new();
    for _ in 0..2 {
        let builder = Simulator::builder(ipu_core::hardware::Topology::pod16());
        simulators.push(builder.start().await.unwrap());
    }
    let start = async |simulator: &Simulator| {
        let controller = simulator.addr().to_string();
        start_with_controllers(&controller, &store, &[]).await
    };
    let send = async |proxy: &RunningProxy, method: Method| {
        let url = format!("{}/v1/partitions/training", proxy.url);
        let request = if method == Method::PUT {
            http()
                .put(format!("{url}?wait=30s"))
                .json(&request_body("mnist", 4))
        } else {
            http().request(method, url)
        };
        let response = request.send().await.unwrap();
        let status = response.status();
        (status, response.json::<Value>().await.unwrap())
    };
    let mut first = start(&simulators[0]).await;
    let (_, created) = send(&first, Method::PUT).await;
    first.kill().await;
    let other = start(&simulators[1]).await;
    let (_, shown) = send(&other, Method::GET).await;
    assert_eq!(shown["state"], "active", "{shown}");
    let port = simulators[0].addr().port().to_string();
    let expected = json!({
        "IPUOF_VIPU_API_HOST": "127.0.0.1", "IPUOF_VIPU_API_PORT": port,
        "IPUOF_VIPU_API_PARTITION_ID": "training", "IPUOF_VIPU_API_GCD_ID": "0",
    });
    for (variable, value) in expected.as_object().unwrap() {
        assert_eq!(&shown["env"][variable], value, "{shown}");
    }
    assert_eq!(shown["env"], created["env"]);
    let (status, repeated) = send(&other, Method::PUT).await;
    assert_eq!(
        (status, &repeated["env"]),
        (StatusCode::OK, &created["env"]),
        "{repeated}"
    );
}
