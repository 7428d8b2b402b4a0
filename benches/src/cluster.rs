//! A cluster without containers on which operator and proxy run as they are installed: their own accounts and rights, their
//! webhooks, their processes in release mode.

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
pub use baseline::Least;
pub use load::{Crowd, LoadKind, Took};
pub use process::{Process, Spent};

/// The namespace of the installation.
const SYSTEM: &str = "ipu-operator-system";
/// More IPUs than jobs: 64 link domains of 16.
const TOPOLOGY: &str = "64x16";

/// All of it; it ends when this is dropped.
pub struct Installed {
    /// The operator.
    pub operator: Process,
    /// The proxy, with a simulated controller without latency in it.
    pub proxy: Process,
    /// What it runs on.
    pub cluster: Cluster,
    _nodes: FakeNodes,
    _folder: tempfile::TempDir,
}

impl Installed {
    /// Starts everything, and waits until jobs are admitted. None, after saying why, without the programs of a cluster.
    ///
    /// # Panics
    ///
    /// If something of it does not start.
    pub async fn start(operator: &Path, proxy: &Path) -> Option<Self> {
        // Somebody else may have installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let tools = match Tools::find_for(ClusterProfile::Controllers) {
            Ok(tools) => tools,
            Err(error) => {
                say(&format!("skipped: {error}"));
                return None;
            }
        };
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(ClusterLifetime::WithThisProcess)
            .extent(ClusterProfile::Controllers)
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
            .args(["--listen", "127.0.0.1:0", "-v=1"])
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
        installed.admits().await;
        Some(installed)
    }

    /// The log of writes.
    #[must_use]
    pub fn audit(&self) -> PathBuf {
        self.cluster.directory().join("logs/audit.log")
    }

    /// A client of an administrator, with a connection of its own.
    pub async fn client(&self) -> Client {
        client(&self.cluster.kubeconfig()).await
    }

    /// Waits until the webhooks admit a job.
    async fn admits(&self) {
        let crowd = Crowd::of(self, LoadKind::Worker).await;
        for _ in 0..600 {
            if crowd.is_admitted().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the webhooks never answered");
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

/// A token of a service account for `audience`, or for the API server, in a file, as a Kubernetes Pod has it.
fn token(cluster: &Cluster, folder: &Path, name: &str, audience: Option<&str>) -> PathBuf {
    let mut words = vec!["--namespace", SYSTEM, "create", "token", name, "--duration=2h"];
    words.extend(audience.map(|_| "--audience"));
    words.extend(audience);
    let token = cluster.kubectl(&words).expect("a token");
    let file = folder.join(format!("{name}-{}.token", audience.unwrap_or("apiserver")));
    std::fs::write(&file, token.trim()).expect("a file");
    file
}

/// The configuration of a program that runs as a service account, with a token of it.
fn account(cluster: &Cluster, folder: &Path, name: &str) -> PathBuf {
    let admin = std::fs::read_to_string(cluster.kubeconfig()).expect("the administrator's");
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

/// `kubectl apply -k deploy/kubernetes`, but that operator and proxy are processes of this machine.
fn install(cluster: &Cluster, folder: &Path, port: u16) {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
    let all = cluster.kubectl(&["kustomize", shipped]).expect("the manifests");
    let file = folder.path_of("installation.yaml");
    std::fs::write(&file, &all).expect("a file");
    cluster.kubectl(&["apply", "-f", &file]).expect("they apply");
    cluster
        .kubectl(&["--namespace", SYSTEM, "delete", "deployments", "--all", "--wait"])
        .expect("nothing runs twice");
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

trait PathOf {
    fn path_of(&self, name: &str) -> String;
}

impl PathOf for Path {
    fn path_of(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark prints what it does")]
fn say(text: &str) {
    println!("{text}");
}

/// What a job says of itself.
pub(crate) fn phase(object: &Value) -> &str {
    object["status"]["phase"].as_str().unwrap_or_default()
}
