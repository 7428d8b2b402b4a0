//! Whether the operator says truly that it goes on and is ready.

use http::StatusCode;
use ipu_test_cluster::shared;

use crate::support::{probe, ready, settings, start};

#[tokio::test]
async fn an_operator_is_ready_when_it_has_its_certificate_and_its_caches() {
    let Some(cluster) = shared("an_operator_is_ready_when_it_has_its_certificate_and_its_caches") else {
        return;
    };
    crate::webhooks::resource(cluster);
    let operator = start(cluster, settings("probed")).await;
    ready(&operator).await;
    operator.progress().await_ready("ipujobs");
    let (status, words) = probe(&operator, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(words, "waits for ipujobs\n");
    operator.progress().ready("ipujobs");
    ready(&operator).await;
    assert_eq!(
        probe(&operator, "/healthz").await,
        (StatusCode::OK, "ok\n".into())
    );
    assert_eq!(probe(&operator, "/metrics").await.0, StatusCode::NOT_FOUND);
    operator.shutdown().await;
}
