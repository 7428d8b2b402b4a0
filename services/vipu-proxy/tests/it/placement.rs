//! The placement modes, with the real `vipu-proxy` and a simulated controller: the policy decides the IPUs.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use vipu_sim::{Simulator, SimulatorBuilder};

use crate::binary::{RunningProxy, http, start_with_controllers};
use crate::support::request_body;

/// A proxy with one controller of 16 IPUs.
struct Site {
    proxy: RunningProxy,
    simulator: Simulator,
}

impl Site {
    async fn start(
        change: impl FnOnce(SimulatorBuilder) -> SimulatorBuilder,
        arguments: impl FnOnce(&str) -> Vec<String>,
    ) -> Self {
        let builder = Simulator::builder(ipu_core::hardware::Topology::pod16());
        let simulator = change(builder).start().await.unwrap();
        let controller = simulator.addr().to_string();
        let arguments = arguments(&controller);
        let more: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self {
            proxy: start_with_controllers(&controller, "memory", &more).await,
            simulator,
        }
    }

    async fn placed_by(placement: &str) -> Self {
        Self::start(
            |builder| builder,
            |_| vec!["--placement".into(), placement.into()],
        )
        .await
    }

    /// Requests a partition, and waits up to `wait` for it.
    async fn create(&self, id: &str, size: u32, wait: &str) -> Value {
        create_at(self.proxy.url.clone(), id, size, wait).await
    }

    /// Returns the only controller as `/v1/controllers` shows it.
    async fn controller(&self) -> Value {
        let url = format!("{}/v1/controllers", self.proxy.url);
        let shown: Value = http().get(url).send().await.unwrap().json().await.unwrap();
        shown["controllers"][0].clone()
    }

    async fn release(&self, id: &str) {
        let url = format!("{}/v1/partitions/{id}?uid=uid-{id}&wait=30s", self.proxy.url);
        let response = http().delete(url).send().await.unwrap();
        assert!(
            response.status().is_success(),
            "{}",
            response.text().await.unwrap()
        );
    }

    /// Returns the IPUs of a partition as the controller reports them.
    async fn ipus_at_controller(&self, id: &str) -> Vec<u64> {
        let url = format!("http://{}/v1/partitions", self.simulator.addr());
        let shown: Value = http().get(url).send().await.unwrap().json().await.unwrap();
        let listed = shown["partitions"].as_array().unwrap();
        let found = listed.iter().find(|partition| partition["id"] == id).unwrap();
        let ipus = found["spec"]["ipus"].as_array().unwrap();
        ipus.iter()
            .map(|ipu| ipu["topologyId"].as_u64().unwrap_or(0))
            .collect()
    }

    /// Leaves the IPUs 0 to 3 and 9 to 15 free, and returns the IPU of the next partition of one IPU.
    async fn next_ipu(&self) -> Vec<u64> {
        for (id, size) in [("first", 4), ("second", 4), ("third", 1)] {
            let created = self.create(id, size, "30s").await;
            assert_eq!(created["state"], "active", "{created}");
        }
        self.release("first").await;
        let created = self.create("next", 1, "30s").await;
        assert_eq!(created["state"], "active", "{created}");
        self.ipus_at_controller("next").await
    }
}

async fn create_at(url: String, id: &str, size: u32, wait: &str) -> Value {
    let put = http().put(format!("{url}/v1/partitions/{id}?wait={wait}"));
    let response = put.json(&request_body(id, size)).send().await.unwrap();
    response.json().await.unwrap()
}

#[tokio::test]
async fn first_fit_takes_the_lowest_ipu_and_best_fit_the_smallest_gap() {
    assert_eq!(Site::placed_by("first-fit").await.next_ipu().await, [0]);
    assert_eq!(Site::placed_by("best-fit").await.next_ipu().await, [9]);
}

#[tokio::test]
async fn a_delegated_create_call_names_no_ipus() {
    let arguments = |_: &str| vec!["--placement".into(), "delegated".into()];
    let site = Site::start(SimulatorBuilder::refuse_ipus, arguments).await;
    let created = site.create("training", 4, "30s").await;
    assert_eq!(created["state"], "active", "{created}");
    assert_eq!(site.ipus_at_controller("training").await, [0, 1, 2, 3]);
}

#[tokio::test]
async fn the_settings_file_sets_the_placement_of_a_controller() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.yaml");
    let arguments = |controller: &str| {
        let settings = format!("placement: first-fit\nplacements:\n  \"{controller}\": best-fit\n");
        std::fs::write(&file, settings).unwrap();
        vec!["--config".into(), file.display().to_string()]
    };
    let site = Site::start(|builder| builder, arguments).await;
    assert_eq!(site.next_ipu().await, [9]);
    let shown = site.controller().await;
    assert_eq!(shown["placement"], "best-fit");
}

#[tokio::test]
async fn a_placement_of_a_controller_that_no_list_has_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, list) = (folder.path().join("proxy.yaml"), folder.path().join("list"));
    std::fs::write(&settings, "placements:\n  \"pod9:8090\": best-fit\n").unwrap();
    std::fs::write(&list, "127.0.0.1:1\n").unwrap();
    let mut proxy = tokio::process::Command::new(env!("CARGO_BIN_EXE_vipu-proxy"))
        .args(["--store", "memory", "--listen", "127.0.0.1:0"])
        .arg("--config")
        .arg(&settings)
        .arg("--controllers-file")
        .arg(&list)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(proxy.stderr.take().unwrap()).lines();
    let warning = loop {
        let line = lines
            .next_line()
            .await
            .unwrap()
            .expect("the proxy logs a warning");
        if line.contains("pod9:8090") {
            break line;
        }
    };
    for part in ["`placements`", "best-fit", "name one of the list as HOST:PORT"] {
        assert!(warning.contains(part), "{warning}");
    }
}

#[tokio::test]
async fn a_controller_that_refuses_ipus_is_named_in_the_reason() {
    let site = Site::start(SimulatorBuilder::refuse_ipus, |_| Vec::new()).await;
    let mut queued = site.create("training", 4, "0s").await;
    while queued["reason"]["code"] != "ControllerRefused" {
        queued = site.create("training", 4, "100ms").await;
    }
    let message = queued["reason"]["message"].as_str().unwrap();
    for part in [
        &*site.simulator.addr().to_string(),
        "this controller does not have this parameter",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn a_placement_that_does_not_exist_is_refused_with_the_possible_ones() {
    let refused = tokio::process::Command::new(env!("CARGO_BIN_EXE_vipu-proxy"))
        .args(["--sim", "pod16", "--placement", "worst-fit"])
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        stderr.contains("use one of delegated, first-fit, best-fit"),
        "{stderr}"
    );
}

/// Writes a WebAssembly module whose policy always gives `answer`.
pub(crate) fn policy_file(folder: &std::path::Path, answer: &str) -> String {
    let text = format!(
        r#"(module
            (memory (export "memory") 1)
            (data (i32.const 8) "{}")
            (func (export "alloc") (param i32) (result i32) i32.const 1024)
            (func (export "choose") (param i32 i32) (result i64) i64.const {}))"#,
        answer.replace('"', "\\22"),
        8_u64 << 32 | answer.len() as u64
    );
    let file = folder.join("policy.wasm");
    std::fs::write(&file, wat::parse_str(text).unwrap()).unwrap();
    format!("wasm:{}", file.display())
}

#[tokio::test]
async fn the_policy_in_a_wasm_module_decides_the_ipus_and_cannot_choose_used_ones() {
    let folder = tempfile::tempdir().unwrap();
    let placement = policy_file(
        folder.path(),
        r#"{"ok": {"linkDomain": 0, "first": 4, "size": 4}}"#,
    );
    let site = Site::placed_by(&placement).await;
    assert_eq!(site.controller().await["placement"], placement);
    let created = site.create("first", 4, "30s").await;
    assert_eq!(created["state"], "active", "{created}");
    assert_eq!(site.ipus_at_controller("first").await, [4, 5, 6, 7]);
    let mut queued = site.create("second", 4, "0s").await;
    while queued["reason"]["code"] != "Illegal" {
        queued = site.create("second", 4, "100ms").await;
    }
    let message = queued["reason"]["message"].as_str().unwrap();
    assert!(
        message.contains(&placement) && message.contains("is held by first"),
        "{message}"
    );
}

#[tokio::test]
async fn a_file_that_is_no_policy_is_refused_with_setting_file_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.wasm");
    std::fs::write(&text, "no module").unwrap();
    let garbage = policy_file(folder.path(), "garbage");
    for (placement, fix) in [
        ("wasm:/missing.wasm", "name a WebAssembly module"),
        (
            &*format!("wasm:{}", text.display()),
            "compile the policy for wasm32-unknown-unknown",
        ),
        (&garbage, "answers in JSON"),
        ("wasm:", "use wasm:FILE"),
    ] {
        let refused = tokio::process::Command::new(env!("CARGO_BIN_EXE_vipu-proxy"))
            .args(["--sim", "pod16", "--placement", placement])
            .output()
            .await
            .unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        for part in ["placement", placement, fix] {
            assert!(stderr.contains(part), "{stderr}");
        }
    }
}
