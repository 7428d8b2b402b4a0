//! A namespace with what the guide says, proxies in it, and how they are asked.

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

/// What a proxy may do, as it is shipped and as the guide shows it.
const ACCESS: &str = include_str!("../../../../../deploy/kubernetes/proxy-access.yaml");

/// The ledger's ConfigMap.
pub(super) const TRACKER: &str = "ipu-partitions-tracker";

/// The service account that may change something.
const CALLER: &str = "caller";

/// After this something is broken; far more than a slow machine needs.
const TIMEOUT: Duration = Duration::from_secs(180);

/// What is there before a proxy is started.
pub(super) struct Installation<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: String,
    kubeconfig: PathBuf,
    /// A token of [`CALLER`] for the proxy.
    pub(super) token: String,
}

/// A running proxy; it is killed when this is dropped.
pub(super) struct Proxy {
    child: Child,
    pub(super) url: String,
    token: String,
}

impl<'a> Installation<'a> {
    /// The namespace `namespace` with what is shipped for it under names of its own, a list of these controllers and a caller.
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

    /// `kubectl` in the namespace.
    pub(super) fn kubectl(&self, words: &[&str]) -> String {
        let words = [&["--namespace", self.namespace.as_str()], words].concat();
        self.cluster.kubectl(&words).unwrap()
    }

    pub(super) fn apply(&self, text: &str) {
        let file = self.cluster.directory().join(format!("{}.yaml", self.namespace));
        fs::write(&file, text).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// The service account of proxies.
    pub(super) fn proxies(&self) -> String {
        format!("{}-vipu-proxy", self.namespace)
    }

    /// The ConfigMap with the list of controllers.
    pub(super) fn controllers(&self) -> String {
        format!("{}-vipu-controllers", self.namespace)
    }

    /// Makes a service account.
    pub(super) fn account(&self, name: &str) {
        self.kubectl(&["create", "serviceaccount", name]);
    }

    /// A token of the service account `name`, for the API server unless the options say otherwise.
    pub(super) fn token_for(&self, name: &str, options: &[&str]) -> String {
        let words = [&["create", "token", name], options].concat();
        self.kubectl(&words).trim().to_owned()
    }

    /// What the proxy has in its Kubernetes Pod: the token of its service account and the authority to trust.
    fn write_kubeconfig(&self) {
        let authority = self.kubeconfig.with_extension("ca.crt");
        fs::write(&authority, self.cluster.ca_pem()).unwrap();
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pod",
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
            "clusters": [{"name": "pod", "cluster": {"server": self.cluster.url(), "certificate-authority": authority}}],
            "users": [{"name": "pod", "user": {"token": self.token_for(&self.proxies(), &[])}}],
        });
        fs::write(&self.kubeconfig, config.to_string()).unwrap();
    }

    /// Makes these the list of controllers.
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

    /// The ledger's ConfigMap as it is.
    pub(super) fn tracker(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "configmap", TRACKER, "-o", "json"])).unwrap()
    }

    /// A proxy that has just begun to serve. Its log lies beside those of the API server.
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
    /// Ends it as a crash does.
    pub(super) async fn crash(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// One call as the caller that may change something.
    pub(super) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        settled(&self.url, method, path, Some(&self.token), body).await
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, document) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{document}");
        document
    }

    /// Asks for the partition `id` of `size` IPUs until it is there.
    pub(super) async fn until_active(&self, id: &str, size: u32) -> Value {
        let path = format!("/v1/partitions/{id}?wait=30s");
        until(
            async || match self.call(Method::PUT, &path, Some(&wanted(id, size))).await {
                (StatusCode::OK, document) => Ok(document),
                (status, document) => Err(format!("{status}: {document}")),
            },
        )
        .await
    }

    /// Gives the partition `id` back until it is gone.
    pub(super) async fn until_gone(&self, id: &str) {
        let path = format!("/v1/partitions/{id}?wait=30s");
        until(async || match self.call(Method::DELETE, &path, None).await {
            (StatusCode::OK, _) => Ok(()),
            (status, document) => Err(format!("{status}: {document}")),
        })
        .await;
    }
}

/// A call to the proxy at `url`; none if there is no answer.
pub(super) async fn ask(
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
    let answer = request.timeout(Duration::from_secs(60)).send().await.ok()?;
    let status = answer.status();
    Some((status, answer.json().await.ok()?))
}

/// The same, repeated as long as the API server is too busy to be asked.
pub(super) async fn settled(
    url: &str,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    until(async || match ask(url, method.clone(), path, token, body).await {
        Some((StatusCode::SERVICE_UNAVAILABLE, problem)) => Err(problem.to_string()),
        Some(answer) => Ok(answer),
        None => Err(format!("{method} {path} is not answered")),
    })
    .await
}

/// The body of a request for the partition `id`, of an owner whom no API server knows.
pub(super) fn wanted(id: &str, size: u32) -> Value {
    json!({"owner": {"kind": "Job", "namespace": "default", "name": id, "uid": format!("uid-{id}")}, "size": size})
}

/// What `look` finds at last; its last complaint if it never finds it.
pub(super) async fn until<T>(look: impl AsyncFn() -> Result<T, String>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(complaint) => assert!(Instant::now() < end, "{complaint}"),
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
