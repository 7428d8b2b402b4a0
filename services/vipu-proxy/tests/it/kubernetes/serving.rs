//! The proxy serves from the ConfigMap and recovers from a crash.

use ipu_core::hardware::Topology;
use ipu_test_cluster::shared;
use reqwest::Method;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, TRACKER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_serves_from_its_configmap_with_the_shipped_role_and_recovers_from_sigkill() {
    let name = "the_proxy_serves_from_its_configmap_with_the_shipped_role_and_recovers_from_sigkill";
    let Some(cluster) = shared(name) else { return };
    let simulator = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let installation = Installation::new(cluster, "serving", &[&simulator]);
    let mut proxy = installation.proxy(&[]).await;
    let made = proxy.until_active("training", 4).await;
    assert_eq!(made["env"]["IPUOF_VIPU_API_PARTITION_ID"], "training", "{made}");

    let tracker = installation.tracker();
    assert_eq!(
        tracker["metadata"]["annotations"]["ledger.graphcore.ai/layout"],
        "1"
    );
    let entries = tracker["data"].as_object().unwrap();
    assert_eq!(entries.keys().collect::<Vec<_>>(), ["partition.training"]);
    let entry: Value = serde_json::from_str(entries["partition.training"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&entry["phase"]["is"], &entry["spec"]["size"]),
        (&json!("active"), &json!(4)),
        "{entry}"
    );

    proxy.crash().await;
    let proxy = installation.proxy(&[]).await;
    let four_used = json!({"used": 4, "available": 12});
    let stats = json!({"default": four_used, "total": four_used});
    assert_eq!(proxy.get("/stats").await, stats);
    // A repeated request has the same attempt, so that nothing is created or reset.
    let repeated = proxy.until_active("training", 4).await;
    assert_eq!(repeated["attempt"], 0, "{repeated}");
    assert_eq!(simulator.state().unwrap().partitions.len(), 1);
    proxy.until_gone("training").await;
    assert_eq!(installation.held(), Vec::<String>::new());
    assert!(simulator.state().unwrap().partitions.is_empty());
    let (status, ready) = proxy.call(Method::GET, "/readyz", None).await;
    assert!(status.is_success(), "{ready}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_role_allows_only_the_calls_of_the_proxy() {
    let name = "the_shipped_role_allows_only_the_calls_of_the_proxy";
    let Some(cluster) = shared(name) else { return };
    let installation = Installation::new(cluster, "least", &[]);
    let can = |verb: &str, resource: &str| {
        let account = format!("system:serviceaccount:least:{}", installation.proxy_account());
        let arguments = [
            "auth",
            "can-i",
            verb,
            resource,
            "--as",
            &account,
            "--namespace",
            "least",
        ];
        // kubectl exits with an error for "no".
        cluster
            .kubectl(&arguments)
            .is_ok_and(|output| output.trim() == "yes")
    };
    let controllers = format!("configmap/{}", installation.controllers());
    assert!(can("patch", &format!("configmap/{TRACKER}")) && can("get", &controllers));
    for (verb, resource) in [
        ("delete", "configmap/ipu-partitions-tracker"),
        ("get", "configmap/another"),
        ("patch", &*controllers),
        ("list", "configmaps"),
        ("get", "secrets"),
        ("delete", "pods"),
        ("delete", "ipujobs.graphcore.ai"),
        ("create", "serviceaccounts"),
    ] {
        assert!(!can(verb, resource), "the role allows {verb} {resource}");
    }
}
