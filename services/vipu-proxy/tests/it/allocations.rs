//! Partitions in allocations that an administrator makes while the proxy runs.

use http::StatusCode;
use ipu_core::{AllocationId, ControllerName};
use ipu_proxy_client::{ClientOptions, ProxyClient};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use crate::binary::{RunningProxy, http, start_with_controllers};
use crate::support::{Harness, request_body};

/// A proxy with a controller of 16 IPUs.
struct Site {
    proxy: RunningProxy,
    simulator: Simulator,
}

impl Site {
    async fn new() -> Self {
        let builder = Simulator::builder(ipu_core::hardware::Topology::pod16());
        let simulator = builder.start().await.unwrap();
        let controller = simulator.addr().to_string();
        let proxy = start_with_controllers(&controller, "memory", &[]).await;
        Self { proxy, simulator }
    }

    /// Sends a request to the simulated controller.
    async fn simulate(&self, path: &str, body: &Value) {
        let url = format!("http://{}{path}", self.simulator.addr());
        let response = http().post(url).json(body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 201, "{response:?}");
    }

    async fn allocate(&self, id: &str, agents: &[&str]) {
        let body = json!({"id": id, "cluster": "cl1", "agents": agents});
        self.simulate("/sim/allocations", &body).await;
    }

    /// Requests a partition in an allocation, on machines of it.
    async fn put(&self, id: &str, size: u32, allocation: &str, machines: &[&str]) -> Value {
        let mut body = request_body(id, size);
        body["allocation"] = json!(allocation);
        body["machines"] = json!(machines);
        let put = http().put(format!("{}/v1/partitions/{id}?wait=5s", self.proxy.url));
        put.json(&body).send().await.unwrap().json().await.unwrap()
    }
}

#[tokio::test]
async fn an_allocation_serves_a_request_at_once_after_it_was_made() {
    let site = Site::new().await;
    for (id, machines, size) in [("c1", ["a1", "a2"], 8), ("c2", ["a3", "a4"], 4)] {
        site.allocate(id, &machines).await;
        let active = site.put(&format!("of-{id}"), size, id, &machines).await;
        assert_eq!(
            (&active["state"], &active["allocation"]),
            (&json!("active"), &json!(id)),
            "{active}"
        );
    }
    let outside = site.put("other", 4, "c1", &["a4"]).await;
    let rule = outside["rule"].as_str().unwrap();
    assert!(
        rule.contains("must be in allocation c1, and a4 is not"),
        "{outside}"
    );
}

#[tokio::test]
async fn partitions_without_record_are_listed_and_removed_and_others_stay() {
    let site = Site::new().await;
    site.allocate("c7", &["a1", "a2", "a3"]).await;
    let recorded = site.put("recorded", 8, "c7", &["a1", "a2", "a3"]).await;
    assert_eq!(recorded["state"], "active", "{recorded}");
    let user = json!({"requirements": {"id": "user", "size": 4, "allocationId": "c7"}});
    let url = format!("http://{}/v1/partitions", site.simulator.addr());
    let created = http().post(url).json(&user).send().await.unwrap();
    assert!(created.status().is_success(), "{created:?}");

    let client = ProxyClient::new(&site.proxy.url, ClientOptions::default()).unwrap();
    let controller: ControllerName = site.simulator.addr().to_string().parse().unwrap();
    let allocation: AllocationId = "c7".parse().unwrap();
    let listed = client
        .unrecorded_partitions(&controller, &allocation)
        .await
        .unwrap();
    let shown: Vec<_> = listed
        .partitions
        .iter()
        .map(|one| (one.id.as_str(), one.size))
        .collect();
    assert_eq!(shown, [("user", 4)]);
    let removed = client
        .remove_unrecorded_partitions(&controller, &allocation)
        .await
        .unwrap();
    assert_eq!(removed, listed);
    let listed = client
        .unrecorded_partitions(&controller, &allocation)
        .await
        .unwrap();
    assert_eq!(listed.partitions, []);
    let get = http().get(format!("{}/v1/partitions/recorded", site.proxy.url));
    let kept: Value = get.send().await.unwrap().json().await.unwrap();
    assert_eq!(kept["state"], "active", "{kept}");

    let unknown = client
        .unrecorded_partitions(&controller, &"c8".parse().unwrap())
        .await;
    let problem = unknown.unwrap_err();
    assert_eq!(problem.problem().unwrap().code, "ControllerRefused", "{problem}");
}

#[tokio::test]
async fn the_controller_is_named_and_on_the_list() {
    let harness = Harness::new().await;
    let base = "/v1/allocations/c7/partitions";
    for (query, rule) in [
        ("", "must be set"),
        ("?controller=nowhere:1", "must be on the list of this proxy"),
        ("?controller=a%20b", "without blanks"),
    ] {
        for method in ["GET", "DELETE"] {
            let (status, problem) = harness.call(method, &format!("{base}{query}"), "").await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
            assert_eq!(problem["field"], "controller", "{problem}");
            assert!(problem["rule"].as_str().unwrap().contains(rule), "{problem}");
        }
    }
}
