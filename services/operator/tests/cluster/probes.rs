//! Tests of the health and readiness probes.

use http::StatusCode;
use ipu_test_cluster::shared;

use crate::support::{probe, settings, start, wait_until_ready};

#[tokio::test]
async fn an_operator_is_ready_when_it_has_its_certificate_and_its_caches() {
    let Some(cluster) = shared("an_operator_is_ready_when_it_has_its_certificate_and_its_caches") else {
        return;
    };
    crate::webhooks::install_permissive_crd(cluster);
    let operator = start(cluster, settings("probed")).await;
    wait_until_ready(&operator).await;
    operator.health().require("ipujobs");
    let (status, text) = probe(&operator, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text, "waits for ipujobs\n");
    operator.health().mark_ready("ipujobs");
    wait_until_ready(&operator).await;
    assert_eq!(
        probe(&operator, "/healthz").await,
        (StatusCode::OK, "ok\n".into())
    );
    assert_eq!(probe(&operator, "/metrics").await.0, StatusCode::NOT_FOUND);
    operator.shutdown().await;
}
