//! The list of controllers, edited while the proxy runs.

use std::time::Instant;

use ipu_core::Topology;
use ipu_test_cluster::shared;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, until};

/// The controllers that the proxy shows, with whether each is drained.
async fn shown(proxy: &Proxy) -> Vec<(String, bool)> {
    let document = proxy.get("/v1/controllers").await;
    let all = document["controllers"].as_array().unwrap().iter();
    let shown = |one: &Value| {
        let name = format!("{}:{}", one["host"].as_str().unwrap(), one["port"]);
        (name, one["draining"] == json!(true))
    };
    all.map(shown).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_of_the_list_is_used_and_a_controller_that_is_taken_off_it_is_drained() {
    let name = "an_edit_of_the_list_is_used_and_a_controller_that_is_taken_off_it_is_drained";
    let Some(cluster) = shared(name) else { return };
    let old = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let new = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let (old_name, new_name) = (old.addr().to_string(), new.addr().to_string());
    let installation = Installation::new(cluster, "edited-list", &[&old]);
    let mut proxy = installation.proxy(&[]).await;
    proxy.until_active("before", 4).await;
    assert_eq!(shown(&proxy).await, [(old_name.clone(), false)]);

    installation.edit_list(&[&new]);
    let edited = Instant::now();
    let drained = [(new_name.clone(), false), (old_name, true)];
    until(async || {
        let shown = shown(&proxy).await;
        (shown == drained).then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
    println!("the edit was used after {} ms", edited.elapsed().as_millis());

    // What is there stays, and what is new goes elsewhere, however small it is.
    proxy.until_active("after", 1).await;
    assert_eq!(new.state().unwrap().partitions.len(), 1);
    assert_eq!(old.state().unwrap().partitions.len(), 1);
    assert_eq!(proxy.get("/v1/partitions/before").await["state"], "active");

    // A proxy that comes up now finds its way to it too: the ledger remembers where it is.
    proxy.crash().await;
    let proxy = installation.proxy(&[]).await;
    proxy.until_gone("before").await;
    assert!(old.state().unwrap().partitions.is_empty());
    until(async || {
        let shown = shown(&proxy).await;
        let let_go = shown == [(new_name.clone(), false)];
        let_go.then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_cannot_be_read_or_is_gone_changes_nothing() {
    let name = "a_list_that_cannot_be_read_or_is_gone_changes_nothing";
    let Some(cluster) = shared(name) else { return };
    let old = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let new = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "broken-list", &[&old]);
    let proxy = installation.proxy(&[]).await;
    let controllers = installation.controllers();
    let patch = json!({"data": {"controllers.yaml": "pod1:port"}}).to_string();
    installation.kubectl(&["patch", "configmap", &controllers, "--type=merge", "-p", &patch]);
    proxy.until_active("one", 4).await;
    installation.kubectl(&["delete", "configmap", &controllers]);
    proxy.until_active("other", 4).await;
    assert_eq!(shown(&proxy).await, [(old.addr().to_string(), false)]);

    let list = format!("--from-literal=controllers.yaml={}", new.addr());
    installation.kubectl(&["create", "configmap", &controllers, &list]);
    until(async || {
        let shown = shown(&proxy).await;
        let used = shown.contains(&(new.addr().to_string(), false));
        used.then_some(()).ok_or(format!("{shown:?}"))
    })
    .await;
}
