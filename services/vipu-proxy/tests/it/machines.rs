//! Partitions on given machines.

use http::StatusCode;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use crate::binary::{http, start_with_controllers};
use crate::support::{Harness, request_body};

fn body_on(name: &str, size: u32, machines: &[&str]) -> Value {
    let mut body = request_body(name, size);
    body["machines"] = json!(machines);
    body
}

impl Harness {
    /// Requests the partition `name` on `machines`.
    async fn put_on(&self, name: &str, size: u32, machines: &[&str]) -> (StatusCode, Value) {
        let path = format!("/v1/partitions/{name}?wait=5s");
        let body = body_on(name, size, machines).to_string();
        self.call("PUT", &path, &body).await
    }
}

/// Returns the numbers of the IPUs of a partition.
fn ipus(partition: &Value) -> Vec<u64> {
    let places = partition["ipus"].as_array().unwrap().iter();
    places.map(|place| place["ipu"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_partition_lies_on_the_requested_machines_and_waits_for_them_alone() {
    let harness = Harness::new().await;
    let (status, created) = harness.put_on("first", 8, &["a5", "a6", "a7"]).await;
    assert_eq!(status, StatusCode::OK, "{created}");
    assert_eq!(ipus(&created), (16..24).collect::<Vec<u64>>());
    let (status, queued) = harness.put_on("second", 4, &["a6"]).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{queued}");
    assert_eq!(queued["reason"]["code"], "PinnedIpusBusy", "{queued}");
    let message = queued["reason"]["message"].as_str().unwrap();
    assert!(message.contains("first holds IPUs of a6"), "{message}");
    let blockers = queued["waiting"]["blockers"].as_array().unwrap();
    assert_eq!(blockers.len(), 1, "{queued}");
    assert_eq!(blockers[0]["id"], "first", "{queued}");
    harness.call("DELETE", "/v1/partitions/first?wait=5s", "").await;
    let (status, created) = harness.put_on("second", 4, &["a6"]).await;
    assert_eq!(status, StatusCode::OK, "{created}");
    assert_eq!(ipus(&created), [20, 21, 22, 23]);
}

#[tokio::test]
async fn machines_that_break_a_rule_are_refused_and_nothing_is_recorded() {
    let harness = Harness::new().await;
    let long = "m".repeat(254);
    for (machines, field, value, rule) in [
        (&[][..], "machines", "", "at least one machine"),
        (&["a1", "a1"], "machines", "a1, a1", "a1 occurs twice"),
        (
            &["a1", "rack7"],
            "machines",
            "a1, rack7",
            "no controller has a machine rack7",
        ),
        (
            &["a2", "a3"],
            "machines",
            "a2, a3",
            "the first one at a multiple of the size",
        ),
        (&["a1", "a 2"], "machines[1]", "a 2", "without blanks"),
        (&[&*long], "machines[0]", &*long, "1 to 253"),
    ] {
        let (status, problem) = harness.put_on("job", 8, machines).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("InvalidValue")),
            "{problem}"
        );
        assert_eq!(
            (&problem["field"], &problem["value"]),
            (&json!(field), &json!(value)),
            "{problem}"
        );
        assert!(problem["rule"].as_str().unwrap().contains(rule), "{problem}");
        assert!(problem["fix"].is_string(), "{problem}");
    }
    let (status, _) = harness.call("GET", "/v1/partitions/job", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_repeated_request_names_the_same_machines() {
    let harness = Harness::new().await;
    harness.put_on("job", 4, &["a2"]).await;
    harness.put("free", "free", 4).await;
    for (name, machines) in [("job", ["a3"]), ("free", ["a1"])] {
        let (status, problem) = harness.put_on(name, 4, &machines).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (
                StatusCode::CONFLICT,
                &json!("OtherProperties"),
                &json!("machines")
            ),
            "{problem}"
        );
    }
    let (status, other) = harness
        .call(
            "PUT",
            "/v1/partitions/job",
            &body_on("other", 4, &["a3"]).to_string(),
        )
        .await;
    assert_eq!(
        (status, &other["code"]),
        (StatusCode::CONFLICT, &json!("NotTheOwner"))
    );
    assert_eq!(harness.put_on("job", 4, &["a2"]).await.0, StatusCode::OK);

    harness.start_outage().await;
    assert_eq!(harness.put_on("job", 4, &["a2"]).await.0, StatusCode::OK);
    let (status, problem) = harness.put_on("new", 4, &["a4"]).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("ControllerUnavailable")),
        "{problem}"
    );
    assert!(
        problem["detail"].as_str().unwrap().contains(&harness.controller),
        "{problem}"
    );
}

#[tokio::test]
async fn machines_of_two_real_controllers_are_distinguished_by_the_controller() {
    let mut simulators = Vec::new();
    for _ in 0..2 {
        let builder = Simulator::builder(ipu_core::hardware::Topology::pod16());
        simulators.push(builder.start().await.unwrap());
    }
    let names: Vec<String> = simulators.iter().map(|one| one.addr().to_string()).collect();
    let list = names.join(",");
    let running = start_with_controllers(&list, "memory", &[]).await;
    let put = async |body: &Value| {
        let put = http().put(format!("{}/v1/partitions/job?wait=30s", running.url));
        let response = put.json(body).send().await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    let mut body = body_on("job", 4, &["a3"]);
    let refused = put(&body).await;
    assert_eq!(refused["field"], "machines", "{refused}");
    for name in &names {
        assert!(refused["rule"].as_str().unwrap().contains(name), "{refused}");
    }
    assert_eq!(refused["fix"], "set `controller` to one of them");
    body["controller"] = json!(names[1]);
    let created = put(&body).await;
    assert_eq!(created["controller"]["name"], json!(names[1]), "{created}");
    assert_eq!(ipus(&created), [8, 9, 10, 11]);
}
