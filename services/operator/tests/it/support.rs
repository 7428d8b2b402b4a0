//! An operator in this process on a real API server, and what tests ask of both.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use ipu_operator::{Operator, Rotation, Settings};
use ipu_test_cluster::Cluster;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// What a file for `KUBECONFIG` says.
pub(crate) async fn config_of(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// How an administrator calls the API server of `cluster`.
pub(crate) async fn config(cluster: &Cluster) -> Config {
    config_of(&cluster.kubeconfig()).await
}

/// Settings of an operator on this host whose objects are called `name`, and that has nobody beside it.
pub(crate) fn settings(name: &str) -> Settings {
    let mut settings = Settings::default();
    settings.namespace = Some("default".into());
    settings.webhooks_port = Some(0);
    settings.metrics_bind_address = Some("127.0.0.1:0".into());
    settings.health_probe_bind_address = Some("127.0.0.1:0".into());
    settings.leader_elect = Some(false);
    settings.webhook_cert_names = Some("127.0.0.1".into());
    settings.webhook_secret = Some(name.into());
    settings.mutating_webhook_configuration = Some(name.into());
    settings.validating_webhook_configuration = Some(name.into());
    settings
}

pub(crate) async fn start(cluster: &Cluster, settings: Settings) -> Operator {
    start_with(cluster, settings, Rotation::default()).await
}

pub(crate) async fn start_with(cluster: &Cluster, settings: Settings, rotation: Rotation) -> Operator {
    let config = settings.check("default").unwrap();
    Operator::start_with(config, self::config(cluster).await, rotation)
        .await
        .unwrap()
}

/// A listener on every address, as this host reaches it.
pub(crate) fn here(address: SocketAddr) -> String {
    format!("127.0.0.1:{}", address.port())
}

pub(crate) fn http() -> reqwest::Client {
    // Fails for every test but the first, which has installed the same one.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap()
}

/// The status and the text of `path` of the probes.
pub(crate) async fn probe(operator: &Operator, path: &str) -> (StatusCode, String) {
    let url = format!("http://{}{path}", operator.probes());
    let answer = http().get(url).send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

/// Waits until the operator is ready.
pub(crate) async fn ready(operator: &Operator) {
    until("the operator is ready", async || {
        probe(operator, "/readyz").await.0 == StatusCode::OK
    })
    .await;
}

/// Waits until something is so; a test that waits for minutes fails.
pub(crate) async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}

/// Applies objects that are JSON.
pub(crate) fn apply(cluster: &Cluster, object: &serde_json::Value) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap()
}
