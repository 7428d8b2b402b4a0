//! Deletion of partitions without force, with the real `vipu-proxy` and a simulated controller.

use std::path::Path;

use ipu_proxy_client::{ClientError, ClientOptions, DeletePartition, ProxyClient};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use crate::binary::{RunningProxy, http, start_with_controllers};
use crate::support::{Harness, request_body};

/// A proxy with a controller of 16 IPUs, and its ledger in a file.
struct Site {
    proxy: RunningProxy,
    simulator: Simulator,
    scratch: tempfile::TempDir,
}

async fn start_proxy(simulator: &Simulator, scratch: &Path) -> RunningProxy {
    let controller = simulator.addr().to_string();
    let store = format!("file:{}", scratch.join("ledger.db").display());
    start_with_controllers(&controller, &store, &[]).await
}

impl Site {
    async fn new() -> Self {
        let builder = Simulator::builder(ipu_core::hardware::Topology::pod16());
        let simulator = builder.start().await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        Self {
            proxy: start_proxy(&simulator, scratch.path()).await,
            simulator,
            scratch,
        }
    }

    /// Kills the proxy and starts another one on the same ledger.
    async fn restart(mut self) -> Self {
        self.proxy.kill().await;
        self.proxy = start_proxy(&self.simulator, self.scratch.path()).await;
        self
    }

    fn client(&self) -> ProxyClient {
        ProxyClient::new(&self.proxy.url, ClientOptions::default()).unwrap()
    }

    async fn create(&self, id: &str) {
        let put = http().put(format!("{}/v1/partitions/{id}?wait=30s", self.proxy.url));
        let response = put.json(&request_body(id, 4)).send().await.unwrap();
        let created: Value = response.json().await.unwrap();
        assert_eq!(created["state"], "active", "{created}");
    }

    async fn get(&self, path: &str) -> Value {
        let response = http().get(format!("{}{path}", self.proxy.url)).send().await;
        response.unwrap().json().await.unwrap()
    }

    async fn delete(&self, query: &str) -> Value {
        let url = format!("{}/v1/partitions/job?wait=30s&{query}", self.proxy.url);
        let response = http().delete(url).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        response.json().await.unwrap()
    }

    /// Breaks an IPU of the first machine, so that the partition there is in error.
    async fn break_ipu(&self) {
        let url = format!("http://{}/sim/ipus/a1/0", self.simulator.addr());
        let post = http().post(url).json(&json!({"health": "bad"}));
        assert!(post.send().await.unwrap().status().is_success());
    }

    async fn ids_at_controller(&self) -> Vec<String> {
        let url = format!("http://{}/v1/partitions", self.simulator.addr());
        let listed: Value = http().get(url).send().await.unwrap().json().await.unwrap();
        let partitions = listed["partitions"].as_array().into_iter().flatten();
        partitions
            .map(|partition| partition["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn a_partition_in_error_is_kept_through_a_kill_until_it_is_deleted_with_force() {
    let site = Site::new().await;
    site.create("job").await;
    site.break_ipu().await;
    let refused = site.delete("force=false").await;
    assert_eq!(refused["state"], "releasing", "{refused}");
    assert_eq!(refused["refusal"]["code"], "RemovalRefused", "{refused}");

    let site = site.restart().await;
    let shown = site.get("/v1/partitions/job").await;
    assert_eq!(shown["state"], "releasing", "{shown}");
    assert_eq!(shown["reason"], refused["refusal"], "{shown}");
    let message = shown["reason"]["message"].as_str().unwrap();
    for part in [
        &site.simulator.addr().to_string(),
        "refuses to remove the partition without force",
        "release it with force",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(site.ids_at_controller().await, ["job"]);
    assert_eq!(site.get("/stats").await["total"]["used"], 4);
    let mut options = DeletePartition::default();
    options.without_force = true;
    let id = "job".parse().unwrap();
    let timeout = std::time::Duration::from_secs(60);
    let client = site.client();
    let error = client.wait_released(&id, &options, timeout, &mut |_| ()).await;
    assert!(
        matches!(&error, Err(ClientError::RemovalRefused { reason, .. }) if reason.code == "RemovalRefused"),
        "{error:?}"
    );
    assert_eq!(site.ids_at_controller().await, ["job"]);

    let deleted = site.delete("force=true").await;
    assert_eq!(deleted["state"], "gone", "{deleted}");
    assert_eq!(site.ids_at_controller().await, Vec::<String>::new());
    assert_eq!(site.get("/stats").await["total"]["used"], 0);
}

#[tokio::test]
async fn a_healthy_partition_is_deleted_without_force() {
    let site = Site::new().await;
    site.create("job").await;
    let deleted = site.delete("force=false").await;
    assert_eq!(deleted, json!({"id": "job", "state": "gone"}));
    assert_eq!(site.ids_at_controller().await, Vec::<String>::new());
}

#[tokio::test]
async fn force_is_true_or_false_and_occurs_once() {
    let harness = Harness::new().await;
    for query in ["force=no", "force=false&force=true"] {
        let path = format!("/v1/partitions/job?{query}");
        let (status, problem) = harness.call("DELETE", &path, "").await;
        assert_eq!(
            (status, &problem["field"]),
            (http::StatusCode::UNPROCESSABLE_ENTITY, &json!("force")),
            "{problem}"
        );
    }
}
