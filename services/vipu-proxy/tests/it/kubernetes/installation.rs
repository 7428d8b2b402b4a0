//! A namespace with the shipped resources, proxies in it, and requests to them.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipu_test_cluster::Cluster;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use vipu_sim::Simulator;

use crate::binary::http;

/// Shipped role of the proxy, as in the guide.
const ACCESS: &str = include_str!("../../../../../deploy/kubernetes/proxy-access.yaml");

/// ConfigMap of the ledger.
pub(super) const TRACKER: &str = "ipu-partitions-tracker";

/// Service account with write access.
const CALLER: &str = "caller";

/// Timeout of every condition, far longer than on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(180);

/// Resources that exist before a proxy starts.
pub(super) struct Installation<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: String,
    kubeconfig: PathBuf,
    /// Token of [`CALLER`] for the proxy.
    pub(super) token: String,
}

/// Running proxy, which is killed on drop.
pub(super) struct Proxy {
    child: Child,
    pub(super) url: String,
    pub(super) token: String,
}

impl<'a> Installation<'a> {
    /// Creates the namespace with the shipped resources under unique names, a list of these controllers and a
    /// caller.
    pub(super) fn new(cluster: &'a Cluster, namespace: &str, controllers: &[&Simulator]) -> Self {
        cluster.kubectl(&["create", "namespace", namespace]).unwrap();
        let mut installation = Self {
            cluster,
            namespace: namespace.to_owned(),
            kubeconfig: cluster.directory().join(format!("{namespace}.kubeconfig")),
            token: String::new(),
        };
        let access = ACCESS.replace("ipu-operator-system", namespace);
        installation.apply(&access.replace("ipu-operator", namespace));
        let list = format!("--from-literal=controllers.yaml={}", list(controllers));
        installation.kubectl(&["create", "configmap", &installation.controllers(), &list]);
        installation.write_kubeconfig();
        installation.account(CALLER);
        installation.token = installation.token_for(CALLER, &["--audience", "vipu-proxy"]);
        installation
    }

    /// Runs `kubectl` in the namespace.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> String {
        let arguments = [&["--namespace", self.namespace.as_str()], arguments].concat();
        self.cluster.kubectl(&arguments).unwrap()
    }

    pub(super) fn apply(&self, text: &str) {
        let file = self.cluster.directory().join(format!("{}.yaml", self.namespace));
        fs::write(&file, text).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// Service account of the proxies.
    pub(super) fn proxy_account(&self) -> String {
        format!("{}-vipu-proxy", self.namespace)
    }

    /// ConfigMap of the list of controllers.
    pub(super) fn controllers(&self) -> String {
        format!("{}-vipu-controllers", self.namespace)
    }

    /// Creates a service account.
    pub(super) fn account(&self, name: &str) {
        self.kubectl(&["create", "serviceaccount", name]);
    }

    /// Creates a token of the service account `name`, for the API server unless `options` name another
    /// audience.
    pub(super) fn token_for(&self, name: &str, options: &[&str]) -> String {
        let arguments = [&["create", "token", name], options].concat();
        self.kubectl(&arguments).trim().to_owned()
    }

    /// Writes a kubeconfig with the credentials of a Pod: the service account token and the CA.
    fn write_kubeconfig(&self) {
        let authority = self.kubeconfig.with_extension("ca.crt");
        fs::write(&authority, self.cluster.ca_pem()).unwrap();
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pod",
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
            "clusters": [{"name": "pod", "cluster": {"server": self.cluster.url(), "certificate-authority": authority}}],
            "users": [{"name": "pod", "user": {"token": self.token_for(&self.proxy_account(), &[])}}],
        });
        fs::write(&self.kubeconfig, config.to_string()).unwrap();
    }

    /// Replaces the list of controllers.
    pub(super) fn edit_list(&self, controllers: &[&Simulator]) {
        let patch = json!({"data": {"controllers.yaml": list(controllers)}}).to_string();
        self.kubectl(&[
            "patch",
            "configmap",
            &self.controllers(),
            "--type=merge",
            "-p",
            &patch,
        ]);
    }

    /// Returns the ConfigMap of the ledger.
    pub(super) fn tracker(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "configmap", TRACKER, "-o", "json"])).unwrap()
    }

    /// Returns the keys of entries in the ConfigMap of the ledger.
    pub(super) fn held(&self) -> Vec<String> {
        let tracker = self.tracker();
        let keys = tracker["data"]
            .as_object()
            .into_iter()
            .flat_map(|data| data.keys());
        keys.filter(|key| key.starts_with("partition."))
            .cloned()
            .collect()
    }

    /// Starts a proxy and waits until it serves. Its log is in the directory of the API server logs.
    pub(super) async fn proxy(&self, more: &[&str]) -> Proxy {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let log = format!("logs/{}-{number}.log", self.namespace);
        let log = fs::File::create(self.cluster.directory().join(log)).unwrap();
        let account = format!("system:serviceaccount:{}:{CALLER}", self.namespace);
        let accounts = if more.contains(&"--accounts") {
            Vec::new()
        } else {
            vec!["--accounts", &account]
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_vipu-proxy"))
            .args([
                "--store",
                "kubernetes",
                "--controllers-configmap",
                &self.controllers(),
            ])
            .args(["--listen", "127.0.0.1:0"])
            .args(accounts)
            .args(["--repair-interval", "1", "-v", "3"])
            .args(more)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PROXY_NAMESPACE", &self.namespace)
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).await.unwrap();
        let address = line.trim().strip_prefix("vipu-proxy serves on ").unwrap();
        Proxy {
            child,
            url: format!("http://{address}"),
            token: self.token.clone(),
        }
    }
}

impl Proxy {
    /// Kills the proxy.
    pub(super) async fn crash(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Sends a request with the token of [`CALLER`].
    pub(super) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        send_until_available(&self.url, method, path, Some(&self.token), body).await
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, document) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{document}");
        document
    }

    /// Requests the partition `id` of `size` IPUs until it is active.
    pub(super) async fn until_active(&self, id: &str, size: u32) -> Value {
        let path = format!("/v1/partitions/{id}?wait=30s");
        until(
            async || match self.call(Method::PUT, &path, Some(&request_body(id, size))).await {
                (StatusCode::OK, document) => Ok(document),
                (status, document) => Err(format!("{status}: {document}")),
            },
        )
        .await
    }

    /// Deletes the partition `id` until the release is complete.
    pub(super) async fn until_gone(&self, id: &str) {
        let path = format!("/v1/partitions/{id}?wait=30s");
        until(async || match self.call(Method::DELETE, &path, None).await {
            (StatusCode::OK, _) => Ok(()),
            (status, document) => Err(format!("{status}: {document}")),
        })
        .await;
    }
}

/// Sends a request to the proxy at `url`; returns none without a response.
pub(super) async fn send(
    url: &str,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let mut request = http().request(method, format!("{url}{path}"));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.timeout(Duration::from_secs(60)).send().await.ok()?;
    let status = response.status();
    Some((status, response.json().await.ok()?))
}

/// Repeats a request while the API server is unavailable.
pub(super) async fn send_until_available(
    url: &str,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    until(
        async || match send(url, method.clone(), path, token, body).await {
            Some((StatusCode::SERVICE_UNAVAILABLE, problem)) => Err(problem.to_string()),
            Some(response) => Ok(response),
            None => Err(format!("{method} {path} gets no response")),
        },
    )
    .await
}

/// Returns a request body for the partition `id`, of an owner without an object at the API server.
pub(super) fn request_body(id: &str, size: u32) -> Value {
    json!({"owner": {"kind": "Job", "namespace": "default", "name": id, "uid": format!("uid-{id}")}, "size": size})
}

/// Repeats `check` until it succeeds; panics with its last error after [`TIMEOUT`].
pub(super) async fn until<T>(check: impl AsyncFn() -> Result<T, String>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        match check().await {
            Ok(result) => return result,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn list(controllers: &[&Simulator]) -> String {
    let entries: Vec<String> = controllers
        .iter()
        .map(|controller| format!("{}:pod=a", controller.addr()))
        .collect();
    entries.join(",")
}
