//! Changes of the list of controllers while the proxy runs.

use std::time::Instant;

use ipu_core::hardware::Topology;
use ipu_test_cluster::shared;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, until};

/// Returns the controllers of the proxy, with whether each is draining.
async fn controllers(proxy: &Proxy) -> Vec<(String, bool)> {
    let document = proxy.get("/v1/controllers").await;
    let documents = document["controllers"].as_array().unwrap().iter();
    let summary = |one: &Value| {
        let name = format!("{}:{}", one["host"].as_str().unwrap(), one["port"]);
        (name, one["draining"] == json!(true))
    };
    documents.map(summary).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_list_is_applied_and_a_removed_controller_is_drained() {
    let name = "a_changed_list_is_applied_and_a_removed_controller_is_drained";
    let Some(cluster) = shared(name) else { return };
    let old = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let new = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let (old_name, new_name) = (old.addr().to_string(), new.addr().to_string());
    let installation = Installation::new(cluster, "edited-list", &[&old]);
    let mut proxy = installation.proxy(&[]).await;
    proxy.until_active("before", 4).await;
    assert_eq!(controllers(&proxy).await, [(old_name.clone(), false)]);

    installation.edit_list(&[&new]);
    let edited = Instant::now();
    let drained = [(new_name.clone(), false), (old_name, true)];
    until(async || {
        let shown = controllers(&proxy).await;
        (shown == drained).then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
    println!(
        "the changed list was applied after {} ms",
        edited.elapsed().as_millis()
    );

    // The existing partition stays, and a new one of any size is created at the new controller.
    proxy.until_active("after", 1).await;
    assert_eq!(new.state().unwrap().partitions.len(), 1);
    assert_eq!(old.state().unwrap().partitions.len(), 1);
    assert_eq!(proxy.get("/v1/partitions/before").await["state"], "active");

    // A new proxy still reaches the removed controller, because the ledger has recorded its address.
    proxy.crash().await;
    let proxy = installation.proxy(&[]).await;
    proxy.until_gone("before").await;
    assert!(old.state().unwrap().partitions.is_empty());
    until(async || {
        let shown = controllers(&proxy).await;
        let removed = shown == [(new_name.clone(), false)];
        removed.then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_or_deleted_list_changes_nothing() {
    let name = "an_invalid_or_deleted_list_changes_nothing";
    let Some(cluster) = shared(name) else { return };
    let old = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let new = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "broken-list", &[&old]);
    let proxy = installation.proxy(&[]).await;
    let configmap = installation.controllers();
    let patch = json!({"data": {"controllers.yaml": "pod1:port"}}).to_string();
    installation.kubectl(&["patch", "configmap", &configmap, "--type=merge", "-p", &patch]);
    proxy.until_active("one", 4).await;
    installation.kubectl(&["delete", "configmap", &configmap]);
    proxy.until_active("other", 4).await;
    assert_eq!(controllers(&proxy).await, [(old.addr().to_string(), false)]);

    let list = format!("--from-literal=controllers.yaml={}", new.addr());
    installation.kubectl(&["create", "configmap", &configmap, &list]);
    until(async || {
        let shown = controllers(&proxy).await;
        let used = shown.contains(&(new.addr().to_string(), false));
        used.then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
}
