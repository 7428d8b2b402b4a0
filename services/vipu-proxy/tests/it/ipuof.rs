//! IPUoF configurations of active partitions.

use http::StatusCode;
use ipu_proxy_client::{ClientOptions, ProxyClient};
use serde_json::{Value, json};

use crate::binary::{http, start};
use crate::support::{Harness, request_body};

/// Creates the partition `training` of 4 IPUs with two GCDs.
async fn with_two_gcds(harness: &Harness) {
    let mut body = request_body("mnist", 4);
    body["gcds"] = json!(2);
    let path = "/v1/partitions/training?wait=5s";
    let (status, created) = harness.call("PUT", path, &body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{created}");
}

#[tokio::test]
async fn an_active_partition_has_a_file_for_each_gcd() {
    let harness = Harness::new().await;
    with_two_gcds(&harness).await;
    let path = "/v1/partitions/training/ipuof-config";
    let all = harness.get(path).await;
    assert_eq!(
        (&all["id"], &all["attempt"]),
        (&json!("training"), &json!(0)),
        "{all}"
    );
    let names = ["training_gcd0_ipuof.conf", "training_gcd1_ipuof.conf"];
    for (gcd, name) in names.iter().enumerate() {
        let file = &all["files"][gcd];
        assert_eq!((&file["gcd"], &file["name"]), (&json!(gcd), &json!(name)));
        assert_eq!(file["config"]["attributes"]["GCD Id"], gcd.to_string());
        // One for each IPU, and one for both of them together.
        assert_eq!(file["config"]["devices"].as_array().map(Vec::len), Some(3));
        let one = harness.get(&format!("{path}?gcd={gcd}")).await;
        assert_eq!(one["files"], json!([file]), "{one}");
    }
}

#[tokio::test]
async fn a_gcd_that_the_partition_does_not_have_is_refused_with_the_range() {
    let harness = Harness::new().await;
    with_two_gcds(&harness).await;
    for gcd in ["2", "4294967295", "-1", "x", ""] {
        let path = format!("/v1/partitions/training/ipuof-config?gcd={gcd}");
        let (status, problem) = harness.call("GET", &path, "").await;
        assert_eq!(
            (status, &problem["field"], &problem["value"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("gcd"), &json!(gcd)),
            "{problem}"
        );
        assert!(problem["rule"].is_string() && problem["fix"].is_string());
    }
    let (_, problem) = harness
        .call("GET", "/v1/partitions/training/ipuof-config?gcd=2", "")
        .await;
    assert_eq!(problem["rule"], "must be from 0 to 1: the partition has 2 GCDs");
}

#[tokio::test]
async fn a_partition_that_is_not_active_is_a_conflict_with_its_reason() {
    let harness = Harness::new().await;
    let conflict = async |id: &str| {
        let path = format!("/v1/partitions/{id}/ipuof-config");
        let (status, problem) = harness.call("GET", &path, "").await;
        assert_eq!(status, StatusCode::CONFLICT, "{problem}");
        assert_eq!(problem["code"], "NotActive", "{problem}");
        problem
    };
    harness.put("all", "all", 32).await;
    harness.put("queued", "queued", 4).await;
    let problem = conflict("queued").await;
    assert_eq!(problem["waiting"]["reason"]["code"], "NotEnoughFree", "{problem}");
    assert_eq!(problem["waiting"]["blockers"][0]["id"], "all", "{problem}");

    harness.lose_partitions().await;
    let problem = conflict("all").await;
    assert_eq!(problem["detail"], "partition all is lost by its controller");
    // The next request records the loss.
    harness.put("all", "all", 32).await;
    assert!(!conflict("all").await["errors"].as_array().unwrap().is_empty());

    let (status, problem) = harness
        .call("GET", "/v1/partitions/unknown/ipuof-config", "")
        .await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound"))
    );
}

#[tokio::test]
async fn a_controller_that_does_not_answer_is_named_and_the_partition_stays_active() {
    let harness = Harness::new().await;
    harness.put("training", "mnist", 4).await;
    let path = "/v1/partitions/training/ipuof-config";
    harness.start_outage().await;
    let (status, problem) = harness.call("GET", path, "").await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("ControllerUnavailable")),
        "{problem}"
    );
    assert!(
        problem["detail"].as_str().unwrap().contains(&harness.controller),
        "{problem}"
    );
    harness.end_outage().await;
    assert_eq!(harness.get("/v1/partitions/training").await["state"], "active");
    harness.until(path, |answer| answer["files"].is_array()).await;
}

#[tokio::test]
async fn the_files_of_a_simulated_pod_name_its_ipuof_servers() {
    let running = start(&[
        "--sim",
        "pod16",
        "--store",
        "memory",
        "--listen",
        "127.0.0.1:0",
        "--sim-listen",
        "127.0.0.1:0",
    ])
    .await;
    let put = http().put(format!("{}/v1/partitions/training?wait=30s", running.url));
    let created: Value = put
        .json(&request_body("mnist", 8))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(created["state"], "active", "{created}");
    let client = ProxyClient::new(&running.url, ClientOptions::default()).unwrap();
    let id = "training".parse().unwrap();
    let document = client.ipuof_config(&id, Some(0)).await.unwrap();
    let file = &document.files[0];
    assert_eq!(file.name, "training_ipuof.conf");
    // One for each IPU, and one for all of them together.
    assert_eq!(file.config.devices.len(), 9);
    let is_complete =
        |device: &ipu_core::render::IpuofDevice| !device.ip.is_empty() && device.server_port > 0;
    assert!(file.config.devices.iter().all(is_complete), "{file:?}");
    let refused = client
        .ipuof_config(&"none".parse().unwrap(), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("NotFound"), "{refused}");
}
