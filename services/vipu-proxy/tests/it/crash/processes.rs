//! Processes that are killed and restart at the same address, with their state on disk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::history::ListedPartition;

/// Environment variable that runs a copy of this test program as a simulator.
const SIMULATOR: &str = "VIPU_PROXY_CRASH_SIMULATOR";
const TOPOLOGY: &str = "pod16";
/// Duration of create, reset and remove at a simulator.
pub(super) const OPERATION_TIME: Duration = Duration::from_millis(20);

/// Starts a process and waits until it prints its address.
async fn spawn(mut command: Command, marker: &str) -> (Child, SocketAddr) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        let line = lines.next_line().await.unwrap();
        let line = line.unwrap_or_else(|| panic!("the process ended before it printed {marker:?}"));
        if let Some((_, address)) = line.rsplit_once(marker) {
            // The output is read to the end, so that the process never blocks on a full pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return (child, address.trim().parse().unwrap());
        }
    }
}

/// Simulated V-IPU controller in a separate process.
pub(super) struct Simulator {
    pub(super) address: SocketAddr,
    state: PathBuf,
    child: Mutex<Child>,
}

impl Simulator {
    pub(super) async fn start(state: &Path) -> Self {
        let (child, address) = Self::spawn("127.0.0.1:0".parse().unwrap(), state).await;
        Self {
            address,
            state: state.to_owned(),
            child: Mutex::new(child),
        }
    }

    async fn spawn(address: SocketAddr, state: &Path) -> (Child, SocketAddr) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "crash::processes::a_simulator_in_a_separate_process_responds",
                "--exact",
                "--nocapture",
            ])
            .env(SIMULATOR, format!("{address};{}", state.display()));
        spawn(command, "simulator at ").await
    }

    /// Kills the process and restarts it.
    pub(super) async fn crash(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        (*child, _) = Self::spawn(self.address, &self.state).await;
    }

    /// Kills the process and restarts it without its state, so that its partitions are lost.
    pub(super) async fn crash_without_state(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        std::fs::remove_file(&self.state).ok();
        (*child, _) = Self::spawn(self.address, &self.state).await;
    }

    /// Returns the partitions of the controller, or none if it does not respond.
    pub(super) async fn partitions(&self) -> Option<Vec<ListedPartition>> {
        let document = get(&format!("http://{}/sim/state", self.address)).await?;
        let listed = document["partitions"].as_array();
        let listed = listed.unwrap_or_else(|| panic!("no partitions: {document}"));
        let of = |partition: &Value| ListedPartition {
            id: super::text(&partition["id"]),
            state: super::text(&partition["state"]),
            ipus: partition["ipus"]
                .as_array()
                .unwrap_or_else(|| panic!("no IPUs: {partition}"))
                .iter()
                .map(|ipu| format!("{}/{}", ipu[0], ipu[1]))
                .collect(),
        };
        Some(listed.iter().map(of).collect())
    }
}

/// Proxy with its ledger in a file.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    arguments: Vec<String>,
    child: Mutex<Child>,
}

impl Proxy {
    pub(super) async fn start(scratch: &Path, controllers: &str, namespaces: u64, quota: u32) -> Self {
        let quotas: Vec<Value> = (0..namespaces)
            .map(|number| json!({"namespace": format!("ns{number}"), "max-ipus": quota}))
            .collect();
        let config = scratch.join("proxy.yaml");
        // JSON is YAML.
        std::fs::write(&config, json!({"quotas": quotas}).to_string()).unwrap();
        let ledger = format!("file:{}", scratch.join("ledger.db").display());
        let arguments = [
            "--store",
            &ledger,
            "--controllers",
            controllers,
            "--config",
            config.to_str().unwrap(),
            "--controller-deadline",
            "1",
        ];
        let arguments: Vec<String> = arguments.map(str::to_owned).into();
        let (child, address) = Self::spawn("127.0.0.1:0".parse().unwrap(), &arguments).await;
        Self {
            address,
            arguments,
            child: Mutex::new(child),
        }
    }

    async fn spawn(address: SocketAddr, arguments: &[String]) -> (Child, SocketAddr) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipu-proxy"));
        command.args(arguments).args(["--listen", &address.to_string()]);
        spawn(command, " on ").await
    }

    /// Kills the process and restarts it.
    pub(super) async fn crash(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        (*child, _) = Self::spawn(self.address, &self.arguments).await;
    }

    /// Returns the partitions of the ledger, or none if the proxy does not respond.
    pub(super) async fn partitions(&self) -> Option<Vec<Value>> {
        let document = get(&format!("http://{}/v1/partitions", self.address)).await?;
        document["partitions"].as_array().cloned()
    }

    /// Returns the IPUs that each namespace holds, or none if the proxy does not respond.
    pub(super) async fn stats(&self) -> Option<Value> {
        get(&format!("http://{}/stats", self.address)).await
    }
}

async fn get(url: &str) -> Option<Value> {
    let request = super::clients::http().get(url).timeout(Duration::from_secs(5));
    let response = request.send().await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    response.json().await.ok()
}

/// Tests the simulator process. With [`SIMULATOR`] set, it is the simulator process itself.
#[tokio::test]
async fn a_simulator_in_a_separate_process_responds() {
    let Ok(arguments) = std::env::var(SIMULATOR) else {
        let scratch = tempfile::tempdir().unwrap();
        let simulator = Simulator::start(&scratch.path().join("pod.json")).await;
        simulator.crash().await;
        assert!(simulator.partitions().await.unwrap().is_empty());
        return;
    };
    let (address, state) = arguments.split_once(';').unwrap();
    let simulator = vipu_sim::Simulator::builder(TOPOLOGY.parse().unwrap())
        .listen(address.parse().unwrap())
        .state_file(state)
        .delay(OPERATION_TIME);
    let simulator = simulator.start().await.unwrap();
    println!("simulator at {}", simulator.addr());
    std::future::pending::<()>().await;
}
