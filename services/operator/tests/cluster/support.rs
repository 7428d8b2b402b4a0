//! Operators in this process on a real API server, and requests to both.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use ipu_operator::{Operator, Rotation, Settings};
use ipu_test_cluster::{Cluster, ContainerEnd};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// Annotation with the time in milliseconds after which containers on a fake node exit, and their exit code.
pub(crate) const LIFE: &str = "test/life";

/// Reads the configuration from a kubeconfig file.
pub(crate) async fn config_of(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// Returns the administrator's configuration of `cluster`.
pub(crate) async fn config(cluster: &Cluster) -> Config {
    config_of(&cluster.kubeconfig()).await
}

/// Returns settings of a single operator on this host whose objects are called `name`.
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

/// Returns the loopback address of a listener on all interfaces.
pub(crate) fn local_address(address: SocketAddr) -> String {
    format!("127.0.0.1:{}", address.port())
}

pub(crate) fn http() -> reqwest::Client {
    // Fails for every test but the first, which installs the same provider.
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::builder()
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap()
}

/// Returns status and text of `path` of the probes.
pub(crate) async fn probe(operator: &Operator, path: &str) -> (StatusCode, String) {
    let url = format!("http://{}{path}", operator.probes());
    let response = http().get(url).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// Waits until the operator is ready.
pub(crate) async fn wait_until_ready(operator: &Operator) {
    wait_until("the operator is ready", async || {
        probe(operator, "/readyz").await.0 == StatusCode::OK
    })
    .await;
}

/// Waits until a condition holds; fails after two minutes.
pub(crate) async fn wait_until(description: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        for pause in pauses() {
            if condition().await {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    assert!(waited.is_ok(), "timed out: {description}");
}

/// Returns the pauses between two looks at a cluster. Many looks are a `kubectl`, which takes a tenth of a
/// second of processor time.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    let longer = |pause: &Duration| Some((*pause * 5 / 4).min(Duration::from_millis(800)));
    std::iter::successors(Some(Duration::from_millis(50)), longer)
}

/// Applies a JSON object.
pub(crate) fn apply(cluster: &Cluster, object: &Value) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap()
}

/// Returns the end of the containers of a Pod on a fake node, by [`LIFE`]. Workers of a launcher never exit
/// by themselves.
pub(crate) fn container_end(pod: &Value) -> ContainerEnd {
    let serves_launcher = pod["spec"]["containers"][0]["command"]
        .as_array()
        .is_some_and(|command| {
            command
                .iter()
                .any(|word| word.as_str().is_some_and(|word| word.contains("365d")))
        });
    let annotation = pod["metadata"]["annotations"][LIFE].as_str();
    let annotation = annotation.and_then(|annotation| annotation.split_once(':'));
    match annotation.filter(|_| !serves_launcher) {
        Some((millis, code)) => ContainerEnd::After {
            time: Duration::from_millis(millis.parse().unwrap()),
            exit_code: code.parse().unwrap(),
        },
        None => ContainerEnd::Never,
    }
}
