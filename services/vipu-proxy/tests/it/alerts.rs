//! The alerts of `deploy/monitoring`: unit tests by promtool, and a Prometheus that scrapes a proxy.

use std::path::Path;
use std::process::Stdio;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Harness, POLL_INTERVAL, found_or_skipped, request_body};

const ALERTS: &str = include_str!("../../../../deploy/monitoring/alerts.yaml");

/// Returns whether there is a program of Prometheus.
fn is_installed(test: &str, program: &str) -> bool {
    let version = std::process::Command::new(program).arg("--version").output();
    found_or_skipped(test, version.ok(), program).is_some()
}

#[test]
fn every_alert_fires_for_its_cause_only() {
    if !is_installed("every_alert_fires_for_its_cause_only", "promtool") {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let output = std::process::Command::new("promtool")
        .args(["test", "rules", "alerts_test.yaml"])
        .current_dir(folder)
        .output()
        .unwrap();
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{printed}");
}

/// A Prometheus that scrapes a proxy, and is killed on drop.
struct Prometheus {
    _process: Child,
    url: String,
    _folder: TempDir,
}

impl Prometheus {
    async fn start(harness: &Harness) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = harness.proxy.url.trim_start_matches("http://");
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
            "scrape_configs": [{
                "job_name": "vipu-proxy", "honor_labels": true,
                "static_configs": [{"targets": [target], "labels": {"namespace": "ipu-operator-system"}}],
            }],
        });
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg("--web.listen-address=127.0.0.1:0")
            .kill_on_drop(true)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = loop {
            let line = log.next_line().await.unwrap().expect("the log has the address");
            if let Some((_, address)) = line.split_once("msg=\"Listening on\" address=") {
                break address.to_owned();
            }
        };
        // A full pipe would stop the process.
        tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        Self {
            _process: process,
            url: format!("http://{address}/api/v1/query?query="),
            _folder: folder,
        }
    }

    /// Returns the labels of the present results of an expression.
    async fn query(&self, harness: &Harness, expression: &str) -> Vec<Value> {
        let query = utf8_percent_encode(expression, NON_ALPHANUMERIC);
        let answer = harness
            .http
            .get(format!("{}{query}", self.url))
            .send()
            .await
            .unwrap();
        let status = answer.status();
        if status == 503 {
            return Vec::new();
        }
        let answer: Value = answer.json().await.unwrap();
        assert!(status.is_success(), "{expression}: {answer}");
        let results = answer["data"]["result"].as_array().unwrap().iter();
        results.map(|result| result["metric"].clone()).collect()
    }

    /// Waits until an expression has exactly one result with these labels.
    async fn wait_for(&self, harness: &Harness, expression: &str, labels: Value) {
        while self.query(harness, expression).await != [labels.clone()] {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Returns the expression of an alert.
fn expression(alert: &str) -> String {
    let rules: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
    rule["expr"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn prometheus_finds_the_planted_cause_of_each_alert_in_the_metrics_of_a_proxy() {
    let name = "prometheus_finds_the_planted_cause_of_each_alert_in_the_metrics_of_a_proxy";
    if !is_installed(name, "prometheus") {
        return;
    }
    let harness = Harness::with("quotas: [{namespace: default, max-ipus: 8}]").await;
    let prometheus = Prometheus::start(&harness).await;
    harness.put("half", "half", 4).await;
    let controller = json!({"controller": harness.controller});
    let is_up = "max by (controller) (vipu_proxy_controller_up) == 1";
    prometheus.wait_for(&harness, is_up, controller.clone()).await;
    let half = "max by (namespace) (vipu_proxy_quota_used / vipu_proxy_quota_limit) == 0.5";
    prometheus
        .wait_for(&harness, half, json!({"namespace": "default"}))
        .await;
    let [silent, unowned, quota, leader] = [
        "ControllerSilent",
        "PartitionUnowned",
        "QuotaNearLimit",
        "NoLeader",
    ]
    .map(|name| expression(&format!("Ipu{name}")));
    // The test does not wait for hours.
    let waits = expression("IpuRequestWaitsLong").replace("> 21600", "> 0");
    for quiet in [&silent, &unowned, &quota, &leader, &waits] {
        let results = prometheus.query(&harness, quiet).await;
        assert!(results.is_empty(), "{quiet}: {results:?}");
    }

    harness.put("rest", "rest", 4).await;
    let full = json!({"namespace": "default", "unit": "ipus"});
    prometheus.wait_for(&harness, &quota, full).await;
    let path = "/v1/partitions/more?wait=1ms";
    harness
        .call("PUT", path, &request_body("more", 4).to_string())
        .await;
    prometheus
        .wait_for(&harness, &waits, json!({"reason": "QuotaExceeded"}))
        .await;
    let body = json!({"requirements": {"id": "mine", "size": 4}});
    harness
        .simulate(Method::POST, "/v1/partitions", Some(&body))
        .await;
    harness.get("/v1/controllers").await;
    let foreign = json!({"controller": harness.controller, "kind": "foreign"});
    prometheus.wait_for(&harness, &unowned, foreign).await;
    harness.start_outage().await;
    prometheus.wait_for(&harness, &silent, controller).await;
}
