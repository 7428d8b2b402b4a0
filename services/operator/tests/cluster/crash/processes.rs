//! Processes that are killed and restarted at the same address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// Environment variable that makes this test program a child process: role, address and argument.
const CHILD_VARIABLE: &str = "IPU_OPERATOR_CRASH_COPY";
const TOPOLOGY: &str = "pod16";
/// A free port of this host.
pub(super) const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Role of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Simulator,
    Proxy,
}

/// Child process of this program that runs the proxy or the simulator.
pub(crate) struct ChildProcess {
    pub(super) address: SocketAddr,
    role: Role,
    argument: String,
    kubeconfig: Option<PathBuf>,
    log: PathBuf,
    child: Mutex<Child>,
}

impl std::fmt::Debug for ChildProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.role, self.address)
    }
}

impl ChildProcess {
    /// Starts the process at an address; its log is appended to the file `log`. The argument of a simulator
    /// is its file, that of a proxy the settings as JSON.
    pub(crate) async fn start(
        role: Role,
        address: SocketAddr,
        argument: &str,
        kubeconfig: Option<&Path>,
        log: PathBuf,
    ) -> Self {
        let (child, address) = spawn(role, address, argument, kubeconfig, &log).await;
        Self {
            address,
            role,
            argument: argument.to_owned(),
            kubeconfig: kubeconfig.map(Path::to_owned),
            log,
            child: Mutex::new(child),
        }
    }

    /// Kills the process and restarts it after `downtime`.
    pub(crate) async fn crash(&self, downtime: Duration) {
        let mut child = self.child.lock().await;
        child.kill().await.unwrap();
        tokio::time::sleep(downtime).await;
        let kubeconfig = self.kubeconfig.as_deref();
        (*child, _) = spawn(self.role, self.address, &self.argument, kubeconfig, &self.log).await;
    }

    /// Returns its partitions; `None` if it does not respond.
    pub(super) async fn partitions(&self) -> Option<Vec<Value>> {
        let url = format!("http://{}/v1/partitions", self.address);
        let request = crate::support::http().get(url).timeout(Duration::from_secs(5));
        let response = request.send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let document: Value = response.json().await.ok()?;
        Some(document["partitions"].as_array().cloned().unwrap_or_default())
    }
}

async fn spawn(
    role: Role,
    address: SocketAddr,
    argument: &str,
    kubeconfig: Option<&Path>,
    log: &Path,
) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "crash::processes::a_child_process_responds",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD_VARIABLE, format!("{role:?};{address};{argument}"))
        .stdout(Stdio::piped())
        .stderr(append(log))
        .kill_on_drop(true);
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        let line = lines.next_line().await.unwrap();
        let line = line.unwrap_or_else(|| panic!("{role:?} ended before it printed its address"));
        if let Some((_, address)) = line.rsplit_once("serves at ") {
            // The output is read to the end, so that a full pipe never blocks the process.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return (child, address.trim().parse().unwrap());
        }
    }
}

/// Opens a log file for appending.
fn append(log: &Path) -> Stdio {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
    file.unwrap().into()
}

/// Tests the harness: without the variable the test starts a child process, with it the process is the
/// child.
#[tokio::test]
async fn a_child_process_responds() {
    let Ok(argument) = std::env::var(CHILD_VARIABLE) else {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("pod.json").display().to_string();
        let log = scratch.path().join("log");
        let simulator = ChildProcess::start(Role::Simulator, ANY_PORT, &state, None, log).await;
        simulator.crash(Duration::ZERO).await;
        assert!(simulator.partitions().await.unwrap().is_empty());
        return;
    };
    let mut parts = argument.splitn(3, ';');
    ipu_serve::init_log(4, ipu_serve::LogFormat::Text);
    let (role, address, argument) = (
        parts.next().unwrap(),
        parts.next().unwrap(),
        parts.next().unwrap(),
    );
    let address: SocketAddr = address.parse().unwrap();
    if role == "Simulator" {
        let simulator = vipu_sim::Simulator::builder(TOPOLOGY.parse().unwrap())
            .listen(address)
            .state_file(argument)
            .delay(Duration::from_millis(20));
        let simulator = simulator.start().await.unwrap();
        println!("serves at {}", simulator.addr());
        std::future::pending::<()>().await;
    }
    let mut settings: vipu_proxy::Settings = serde_json::from_str(argument).unwrap();
    settings.listen = Some(address.into());
    settings.auth = Some(vipu_proxy::Auth::None);
    let proxy = vipu_proxy::Proxy::start(settings.check().unwrap()).await.unwrap();
    println!("serves at {}", proxy.addr());
    std::future::pending::<()>().await;
}

/// One of two competing operators.
#[derive(Debug)]
pub(super) struct Operator {
    number: u32,
    kubeconfig: PathBuf,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Operator {
    /// Starts the process; its log is appended to the file `log`.
    pub(super) fn start(number: u32, proxy: SocketAddr, kubeconfig: &Path, log: PathBuf) -> Self {
        Self {
            number,
            kubeconfig: kubeconfig.to_owned(),
            child: Mutex::new(run(number, proxy, kubeconfig, &log)),
            log,
        }
    }

    pub(super) async fn kill(&self) {
        self.child.lock().await.kill().await.unwrap();
    }

    pub(super) async fn restart(&self, proxy: SocketAddr) {
        *self.child.lock().await = run(self.number, proxy, &self.kubeconfig, &self.log);
    }
}

fn run(number: u32, proxy: SocketAddr, kubeconfig: &Path, log: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ipu-operator"))
        .args([
            "--webhooks-port=0",
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
            "--namespace=default",
            "--host-network=false",
            "-v=3",
        ])
        .arg(format!("--vipu-proxy-svc=http://{proxy}"))
        .env("KUBECONFIG", kubeconfig)
        .env("POD_NAME", format!("operator-{number}"))
        .stdout(append(log))
        .stderr(append(log))
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
