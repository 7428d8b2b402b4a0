//! Tests of the metrics, with and without the binding of the V-IPU guide §6.10.

use http::StatusCode;
use ipu_operator::Operator;
use ipu_test_cluster::shared;
use serde_json::json;

use crate::support::{apply, http, local_address, settings, start, wait_until, wait_until_ready};

async fn scrape(operator: &Operator, token: Option<&str>) -> (StatusCode, String) {
    let mut request = http().get(format!("https://{}/metrics", local_address(operator.metrics())));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn vipu_guide_6_10_metrics_are_served_to_accounts_with_the_metrics_reader_role() {
    let Some(cluster) = shared("vipu_guide_6_10_metrics_are_served_to_accounts_with_the_metrics_reader_role")
    else {
        return;
    };
    apply(
        cluster,
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "gc-metrics-reader", "labels": {"component": "metrics-reader"}},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
        }),
    );
    cluster
        .kubectl(&["create", "serviceaccount", "prometheus"])
        .unwrap();
    let token = cluster.kubectl(&["create", "token", "prometheus"]).unwrap();
    let token = token.trim();
    crate::webhooks::install_permissive_crd(cluster);
    let operator = start(cluster, settings("measured")).await;
    wait_until_ready(&operator).await;

    let (status, text) = scrape(&operator, None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
    let (status, text) = scrape(&operator, Some("a.b.c")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
    let (status, text) = scrape(&operator, Some(token)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        text.contains("system:serviceaccount:default:prometheus"),
        "{text}"
    );

    cluster
        .kubectl(&[
            "create",
            "clusterrolebinding",
            "metrics",
            "--clusterrole=gc-metrics-reader",
            "--serviceaccount=default:prometheus",
        ])
        .unwrap();
    // The API server observes the binding with a delay.
    wait_until("the binding is effective", async || {
        scrape(&operator, Some(token)).await.0 == StatusCode::OK
    })
    .await;
    let (_, all) = scrape(&operator, Some(token)).await;
    assert!(all.contains("ipu_operator_leader 1"), "{all}");
    assert!(all.ends_with("# EOF\n"), "{all}");
    operator.shutdown().await;
}
