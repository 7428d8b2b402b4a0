//! The processes that are killed and come up again at the same address, with what they had on disk.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// Tells a copy of this test program to be a simulator.
const SIMULATOR: &str = "VIPU_PROXY_CRASH_SIMULATOR";
const TOPOLOGY: &str = "pod16";

/// A process that has told its address.
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
        let line = line.unwrap_or_else(|| panic!("the process ended before it said {marker:?}"));
        if let Some((_, address)) = line.rsplit_once(marker) {
            // Its output is read to the end, so that it never waits for somebody to do so.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return (child, address.trim().parse().unwrap());
        }
    }
}

/// A simulated V-IPU controller in a process of its own.
pub(super) struct Simulator {
    pub(super) address: SocketAddr,
    state: PathBuf,
    child: Mutex<Child>,
}

/// A partition as a controller lists it.
pub(super) struct Listed {
    pub(super) id: String,
    /// Its IPUs, each as it is written.
    pub(super) ipus: Vec<String>,
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
                "crash::processes::a_simulator_in_a_process_of_its_own_answers",
                "--exact",
                "--nocapture",
            ])
            .env(SIMULATOR, format!("{address};{}", state.display()));
        spawn(command, "simulator at ").await
    }

    /// Kills it as it stands, and starts it again.
    pub(super) async fn crash(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        (*child, _) = Self::spawn(self.address, &self.state).await;
    }

    /// Kills it, and starts it again without its state: its partitions are gone.
    pub(super) async fn empty(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        std::fs::remove_file(&self.state).ok();
        (*child, _) = Self::spawn(self.address, &self.state).await;
    }

    /// What it has; none if it does not answer.
    pub(super) async fn partitions(&self) -> Option<Vec<Listed>> {
        let document = get(&format!("http://{}/v1/partitions", self.address)).await?;
        let listed = document["partitions"].as_array().cloned().unwrap_or_default();
        Some(listed.iter().map(Listed::of).collect())
    }
}

impl Listed {
    fn of(document: &Value) -> Self {
        let ipus = document["spec"]["ipus"]
            .as_array()
            .unwrap_or_else(|| panic!("no IPUs: {document}"));
        Self {
            id: document["id"]
                .as_str()
                .unwrap_or_else(|| panic!("no id: {document}"))
                .to_owned(),
            ipus: ipus.iter().map(Value::to_string).collect(),
        }
    }
}

/// The proxy, with its ledger in a file.
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

    /// Kills it as it stands, and starts it again.
    pub(super) async fn crash(&self) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        (*child, _) = Self::spawn(self.address, &self.arguments).await;
    }

    /// What the ledger has; none if the proxy does not answer.
    pub(super) async fn partitions(&self) -> Option<Vec<Value>> {
        let document = get(&format!("http://{}/v1/partitions", self.address)).await?;
        document["partitions"].as_array().cloned()
    }

    /// How many IPUs each namespace holds; none if the proxy does not answer.
    pub(super) async fn stats(&self) -> Option<Value> {
        get(&format!("http://{}/stats", self.address)).await
    }
}

async fn get(url: &str) -> Option<Value> {
    let request = super::clients::http().get(url).timeout(Duration::from_secs(5));
    let answer = request.send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    answer.json().await.ok()
}

/// The harness itself: without its variable it starts a copy of this program, with it it is the copy.
#[tokio::test]
async fn a_simulator_in_a_process_of_its_own_answers() {
    let Ok(told) = std::env::var(SIMULATOR) else {
        let scratch = tempfile::tempdir().unwrap();
        let simulator = Simulator::start(&scratch.path().join("pod.json")).await;
        simulator.crash().await;
        assert!(simulator.partitions().await.unwrap().is_empty());
        return;
    };
    let (address, state) = told.split_once(';').unwrap();
    let simulator = vipu_sim::Simulator::builder(TOPOLOGY.parse().unwrap())
        .listen(address.parse().unwrap())
        .state_file(state)
        .delay(Duration::from_millis(20));
    let simulator = simulator.start().await.unwrap();
    println!("simulator at {}", simulator.addr());
    std::future::pending::<()>().await;
}
