//! The metrics, with and without the binding of seed 000 §6.10.

use http::StatusCode;
use ipu_operator::Operator;
use ipu_test_cluster::shared;
use serde_json::json;

use crate::support::{apply, here, http, ready, settings, start, until};

async fn scrape(operator: &Operator, token: Option<&str>) -> (StatusCode, String) {
    let mut request = http().get(format!("https://{}/metrics", here(operator.metrics())));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

#[tokio::test]
async fn seed_000_6_10_metrics_are_for_whom_the_metrics_reader_is_bound_to() {
    let Some(cluster) = shared("seed_000_6_10_metrics_are_for_whom_the_metrics_reader_is_bound_to") else {
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
    crate::webhooks::resource(cluster);
    let operator = start(cluster, settings("measured")).await;
    ready(&operator).await;

    let (status, words) = scrape(&operator, None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{words}");
    let (status, words) = scrape(&operator, Some("a.b.c")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{words}");
    let (status, words) = scrape(&operator, Some(token)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(
        words.contains("system:serviceaccount:default:prometheus"),
        "{words}"
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
    // The API server hears of the binding a little later.
    until("the binding counts", async || {
        scrape(&operator, Some(token)).await.0 == StatusCode::OK
    })
    .await;
    let (_, all) = scrape(&operator, Some(token)).await;
    assert!(all.contains("ipu_operator_leader 1"), "{all}");
    assert!(all.ends_with("# EOF\n"), "{all}");
    operator.shutdown().await;
}
