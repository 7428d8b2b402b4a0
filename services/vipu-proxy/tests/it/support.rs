//! A proxy with a simulated controller, and requests to both.

use std::path::Path;
use std::time::Duration;

use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary::{RunningProxy, http, start};

/// Interval between two requests that wait for a state.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Calls of the proxy to a controller.
const CONTROLLER_CALLS: [&str; 8] = [
    "GetVersion",
    "ListPartitions",
    "ListIPUAttributes",
    "CreatePartition",
    "RemovePartition",
    "ResetPartition",
    "GetPartitionIpuofConfig",
    "GetPartitionStatus",
];

/// Proxy with one simulated controller of 32 IPUs, like the examples of the guide.
pub(crate) struct Harness {
    pub(crate) proxy: RunningProxy,
    /// Client whose connections stay open.
    pub(crate) http: reqwest::Client,
    /// Address of the controller, which is its name.
    pub(crate) controller: String,
    _scratch: TempDir,
}

impl Harness {
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// Starts the proxy with more settings, as YAML.
    pub(crate) async fn with(settings: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let config = scratch.path().join("proxy.yaml");
        std::fs::write(&config, settings).unwrap();
        // By default, every request reads the connections of the host.
        Self::start(scratch, &["--auth", "none", "--config", config.to_str().unwrap()]).await
    }

    /// Starts the proxy with these lines of its token file.
    pub(crate) async fn with_tokens(lines: &str, arguments: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let tokens = scratch.path().join("tokens");
        std::fs::write(&tokens, lines).unwrap();
        let arguments = [&["--token-file", tokens.to_str().unwrap()], arguments].concat();
        Self::start(scratch, &arguments).await
    }

    async fn start(scratch: TempDir, arguments: &[&str]) -> Self {
        let fixed = [
            "--sim",
            "1x8",
            "--sim-delay-ms",
            "0",
            "--sim-listen",
            "127.0.0.1:0",
            "--verbosity",
            "1",
        ];
        // Repairs happen only on request.
        let others = ["--listen", "127.0.0.1:0", "--repair-interval", "86400"];
        let proxy = start(&[&fixed[..], &others, arguments].concat()).await;
        let mut harness = Self {
            proxy,
            http: http(),
            controller: String::new(),
            _scratch: scratch,
        };
        while harness.call("GET", "/readyz", "").await.0 != StatusCode::OK {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let controllers = harness.get("/v1/controllers").await;
        controllers["controllers"][0]["name"]
            .as_str()
            .unwrap()
            .clone_into(&mut harness.controller);
        harness
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        self.call_as("", method, path, body).await
    }

    /// Sends a request with a token; without one if `token` is empty.
    pub(crate) async fn call_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, Value) {
        let mut request = self
            .http
            .request(method.parse().unwrap(), format!("{}{path}", self.proxy.url))
            .header("content-type", "application/json");
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        let response = request.body(body.to_owned()).send().await.unwrap();
        let status = response.status();
        let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
        let document = response.json().await.unwrap();
        crate::openapi::check(method, path, status, &content_type, &document);
        (status, document)
    }

    /// Returns a response that is not JSON.
    pub(crate) async fn text(&self, path: &str) -> String {
        let response = self.http.get(format!("{}{path}", self.proxy.url)).send().await;
        response.unwrap().text().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, document) = self.call("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{document}");
        document
    }

    /// Requests a partition of the job `name`, and waits for it if it fits.
    pub(crate) async fn put(&self, id: &str, name: &str, size: u32) -> (StatusCode, Value) {
        let path = format!("/v1/partitions/{id}?wait=5s");
        self.call("PUT", &path, &request_body(name, size).to_string())
            .await
    }

    /// Sends `path` until the response satisfies `is_expected`, and returns it.
    pub(crate) async fn until(&self, path: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (_, document) = self.call("GET", path, "").await;
            if is_expected(&document) {
                return document;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Lets calls of the controller fail as the simulator describes it.
    pub(crate) async fn set_faults(&self, faults: &Value) {
        self.simulate(Method::PUT, "/sim/faults", Some(faults)).await;
    }

    /// Interrupts all calls of the controller, and waits until the proxy knows it.
    pub(crate) async fn start_outage(&self) {
        let faults = CONTROLLER_CALLS.map(|call| json!({"kind": "refuse", "method": call}));
        self.set_faults(&json!(faults)).await;
        let is_down = |shown: &Value| shown["controllers"][0]["available"] == false;
        self.until("/v1/controllers", is_down).await;
    }

    pub(crate) async fn end_outage(&self) {
        self.set_faults(&json!([])).await;
    }

    /// Removes all partitions at the controller.
    pub(crate) async fn lose_partitions(&self) {
        for id in self.ids_at_controller().await {
            self.simulate(Method::DELETE, &format!("/v1/partitions/{id}?force=true"), None)
                .await;
        }
    }

    pub(crate) async fn ids_at_controller(&self) -> Vec<String> {
        let state = self.simulate(Method::GET, "/sim/state", None).await;
        let partitions = state["partitions"].as_array().unwrap().iter();
        partitions
            .map(|partition| partition["id"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(crate) async fn simulate(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let request = self
            .http
            .request(method, format!("http://{}{path}", self.controller));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        response.json().await.unwrap()
    }
}

/// Returns the request body of the job `name`.
pub(crate) fn request_body(name: &str, size: u32) -> Value {
    json!({"owner": {"kind": "IPUJob", "namespace": "default", "name": name, "uid": format!("uid-{name}")}, "size": size})
}

/// Returns what was found. Prints a message if it is missing outside CI.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
pub(crate) fn found_or_skipped<T>(test: &str, found: Option<T>, missing: &str) -> Option<T> {
    assert!(
        found.is_some() || std::env::var_os("CI").is_none(),
        "{test} needs {missing}"
    );
    if found.is_none() {
        println!("skipped: {test}: it needs {missing}");
    }
    found
}

/// Certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for `name`; returns it with its key.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &self.0).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    /// Issues a certificate for `name`, and writes `tls.crt`, `tls.key` and `ca.crt` into `folder`.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        std::fs::create_dir_all(folder).unwrap();
        let (certificate, key) = self.issue(name);
        for (file, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", self.pem())] {
            std::fs::write(folder.join(file), text).unwrap();
        }
    }
}
