//! A cluster with fake nodes on which operator and proxy run as installed: with their own service accounts,
//! RBAC and webhooks, as release-mode processes.

mod audit;
mod baseline;
mod load;
mod process;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ipu_test_cluster::{
    Audit, Cluster, ClusterLifetime, ClusterProfile, FakeNodes, FakeOptions, Options, Tools,
};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

pub use audit::Writes;
pub use baseline::MinimalController;
pub use load::{LoadFixture, LoadKind, RunTimings};
pub use process::{Process, ResourceUsage};

/// Namespace of the installation.
const SYSTEM: &str = "ipu-operator-system";
/// Topology with more IPUs than jobs: 64 link domains of 16 machines.
const TOPOLOGY: &str = "64x16";

/// The installed product; it ends on drop.
pub struct Installed {
    /// The operator.
    pub operator: Process,
    /// The proxy, with a zero-latency simulated controller.
    pub proxy: Process,
    /// The cluster.
    pub cluster: Cluster,
    _nodes: FakeNodes,
    _folder: tempfile::TempDir,
}

impl Installed {
    /// Starts cluster, operator and proxy, and waits until jobs are admitted. Prints the reason and returns
    /// `None` without the tools of a cluster.
    ///
    /// # Panics
    ///
    /// If a component does not start.
    pub async fn start(operator: &Path, proxy: &Path) -> Option<Self> {
        // Another component may have installed a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tools = match Tools::find_for(ClusterProfile::Controllers) {
            Ok(tools) => tools,
            Err(error) => {
                print_line(&format!("skipped: {error}"));
                return None;
            }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(ClusterLifetime::WithThisProcess)
            .profile(ClusterProfile::Controllers)
            .audit(Audit::Writes);
        let cluster =
            Cluster::start_with(&tools, &folder.path().join("cluster"), options).expect("a cluster");
        let mut fake = FakeOptions::default();
        fake.labels.insert("vipu-ctrl".to_owned(), "vctl1".to_owned());
        let nodes = FakeNodes::start(client(&cluster.kubeconfig()).await, fake)
            .await
            .expect("nodes");
        let port = free_port();
        install(&cluster, folder.path(), port);
        let account = |name: &str| account(&cluster, folder.path(), name);
        let mut command = Command::new(proxy);
        command
            .env("KUBECONFIG", account("ipu-operator-vipu-proxy"))
            .args(["--store", "kubernetes", "--namespace", SYSTEM])
            .args([
                "--sim",
                TOPOLOGY,
                "--sim-delay-ms",
                "0",
                "--sim-listen",
                "127.0.0.1:0",
            ])
            .args(["-v=1", "--listen"])
            .arg(format!("127.0.0.1:{}", privileged_port()))
            .arg(format!(
                "--accounts=system:serviceaccount:{SYSTEM}:ipu-operator-controller"
            ));
        let (proxy, line) = Process::start(command, " serves on ");
        let address = line.rsplit(' ').next().unwrap_or_default().to_owned();
        let file = token(
            &cluster,
            folder.path(),
            "ipu-operator-controller",
            Some("vipu-proxy"),
        );
        let mut command = Command::new(operator);
        command
            .env("KUBECONFIG", account("ipu-operator-controller"))
            .env("POD_NAMESPACE", SYSTEM)
            .arg(format!("--vipu-proxy-svc=http://{address}"))
            .arg(format!("--proxy-token-file={}", file.display()))
            .arg(format!("--webhooks-port={port}"))
            .args([
                "--webhook-cert-names=127.0.0.1",
                "--metrics-bind-address=127.0.0.1:0",
            ])
            .args(["--health-probe-bind-address=127.0.0.1:0", "-v=1"]);
        let (operator, _) = Process::start(command, " serves webhooks on ");
        let installed = Self {
            operator,
            proxy,
            cluster,
            _nodes: nodes,
            _folder: folder,
        };
        installed.wait_until_admitted().await;
        Some(installed)
    }

    /// Returns the path of the audit log.
    #[must_use]
    pub fn audit(&self) -> PathBuf {
        self.cluster.directory().join("logs/audit.log")
    }

    /// Returns an administrator client with its own connection.
    pub async fn client(&self) -> Client {
        client(&self.cluster.kubeconfig()).await
    }

    /// Waits until the webhooks admit a job.
    async fn wait_until_admitted(&self) {
        let load = LoadFixture::of(self, LoadKind::Worker).await;
        for _ in 0..600 {
            if load.is_admitted().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the webhooks never admitted a job");
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

/// Writes a token of a service account for `audience`, or for the API server, to a file, as in a Pod.
fn token(cluster: &Cluster, folder: &Path, name: &str, audience: Option<&str>) -> PathBuf {
    let mut arguments = vec!["--namespace", SYSTEM, "create", "token", name, "--duration=2h"];
    arguments.extend(audience.map(|_| "--audience"));
    arguments.extend(audience);
    let token = cluster.kubectl(&arguments).expect("a token");
    let file = folder.join(format!("{name}-{}.token", audience.unwrap_or("apiserver")));
    std::fs::write(&file, token.trim()).expect("a file");
    file
}

/// Writes a kubeconfig for a program that runs as a service account.
fn account(cluster: &Cluster, folder: &Path, name: &str) -> PathBuf {
    let admin = std::fs::read_to_string(cluster.kubeconfig()).expect("the administrator's kubeconfig");
    let mut config: Value = serde_json::from_str(&admin).expect("a kubeconfig");
    config["users"][0]["user"] = serde_json::json!({"tokenFile": token(cluster, folder, name, None)});
    let file = folder.join(format!("{name}.kubeconfig"));
    std::fs::write(&file, config.to_string()).expect("a file");
    file
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

/// Returns a free port that only root may bind: the operator sends its token to no other port of its host.
fn privileged_port() -> u16 {
    let free = (512..1024).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a free port below 1024, as root")
}

/// Applies `deploy/kubernetes`, with operator and proxy replaced by local processes.
fn install(cluster: &Cluster, folder: &Path, port: u16) {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
    let manifests = cluster.kubectl(&["kustomize", shipped]).expect("the manifests");
    let file = folder.join("installation.yaml").display().to_string();
    std::fs::write(&file, &manifests).expect("a file");
    cluster
        .kubectl(&["apply", "-f", &file])
        .expect("the manifests apply");
    cluster
        .kubectl(&["--namespace", SYSTEM, "delete", "deployments", "--all", "--wait"])
        .expect("the deployments are deleted");
    for (kind, path) in [("mutating", "mutate"), ("validating", "validate")] {
        let kind = format!("{kind}webhookconfiguration");
        let url = format!("https://127.0.0.1:{port}/{path}-graphcore-ai-v1alpha1-ipujob");
        let patch = serde_json::json!([
            {"op": "remove", "path": "/webhooks/0/clientConfig/service"},
            {"op": "add", "path": "/webhooks/0/clientConfig/url", "value": url},
        ]);
        cluster
            .kubectl(&[
                "patch",
                &kind,
                "ipu-operator-admission",
                "--type=json",
                "-p",
                &patch.to_string(),
            ])
            .expect("webhooks");
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its progress")]
fn print_line(text: &str) {
    println!("{text}");
}

/// Returns the phase of an object.
pub(crate) fn phase(object: &Value) -> &str {
    object["status"]["phase"].as_str().unwrap_or_default()
}
