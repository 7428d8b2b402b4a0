//! It serves from the ConfigMap, dies and goes on.

use ipu_core::Topology;
use ipu_test_cluster::shared;
use reqwest::Method;
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, TRACKER};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_serves_from_its_configmap_with_the_shipped_role_alone_and_goes_on_after_sigkill() {
    let name = "the_proxy_serves_from_its_configmap_with_the_shipped_role_alone_and_goes_on_after_sigkill";
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
    assert_eq!(entries.keys().collect::<Vec<_>>(), ["training"]);
    let entry: Value = serde_json::from_str(entries["training"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&entry["s"], &entry["z"]),
        (&json!("active"), &json!(4)),
        "{entry}"
    );

    proxy.crash().await;
    let proxy = installation.proxy(&[]).await;
    let four_used = json!({"used": 4, "available": 12});
    let stats = json!({"default": four_used, "total": four_used});
    assert_eq!(proxy.get("/stats").await, stats);
    // The same again is no other attempt: nothing is made or reset.
    let again = proxy.until_active("training", 4).await;
    assert_eq!(again["attempt"], 0, "{again}");
    assert_eq!(simulator.state().unwrap().partitions.len(), 1);
    proxy.until_gone("training").await;
    assert_eq!(installation.tracker()["data"], Value::Null);
    assert!(simulator.state().unwrap().partitions.is_empty());
    let (status, ready) = proxy.call(Method::GET, "/readyz", None).await;
    assert!(status.is_success(), "{ready}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_role_allows_nothing_but_what_the_proxy_does() {
    let name = "the_shipped_role_allows_nothing_but_what_the_proxy_does";
    let Some(cluster) = shared(name) else { return };
    let installation = Installation::new(cluster, "least", &[]);
    let may = |verb: &str, what: &str| {
        let account = format!("system:serviceaccount:least:{}", installation.proxies());
        let words = [
            "auth",
            "can-i",
            verb,
            what,
            "--as",
            &account,
            "--namespace",
            "least",
        ];
        // It fails to say no.
        cluster.kubectl(&words).is_ok_and(|answer| answer.trim() == "yes")
    };
    let controllers = format!("configmap/{}", installation.controllers());
    assert!(may("patch", &format!("configmap/{TRACKER}")) && may("get", &controllers));
    for (verb, what) in [
        ("delete", "configmap/ipu-partitions-tracker"),
        ("get", "configmap/another"),
        ("patch", &*controllers),
        ("list", "configmaps"),
        ("get", "secrets"),
        ("delete", "pods"),
        ("delete", "ipujobs.graphcore.ai"),
        ("create", "serviceaccounts"),
    ] {
        assert!(!may(verb, what), "it may {verb} {what}");
    }
}
