//! One etcd and one kube-apiserver.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::error::ClusterError;
use crate::http;
use crate::pki::Pki;
use crate::place::Place;
use crate::process::Server;
use crate::state::State;
use crate::tools::{Tool, Tools};

/// How long a server may take to become ready: many times what an idle machine needs, for one that is not.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often it is asked.
const POLL: Duration = Duration::from_millis(20);

/// How often other ports are tried because somebody took one between its choice and its use.
const TRIES: u32 = 4;

/// The issuer and default audience of service-account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// How long a cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It ends with the process that started it, or when it is dropped.
    WithThisProcess,
    /// Until [`crate::stop`] is called on its directory.
    UntilStopped,
}

/// What etcd does for a crash of the machine. A crash of the processes loses nothing in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: faster, for tests.
    #[default]
    WithoutSync,
    /// It syncs every write to the disk, as in production: for measurements.
    Synced,
}

/// A running API server with its etcd.
pub struct Cluster {
    tools: Tools,
    directory: PathBuf,
    pki: Pki,
    life: Life,
    durability: Durability,
    ports: Ports,
    etcd: Option<Server>,
    apiserver: Option<Server>,
    removed_at_end: bool,
    /// Given back when this ends.
    place: Option<Place>,
}

#[derive(Clone, Copy)]
struct Ports {
    api: u16,
    etcd: u16,
    peer: u16,
}

impl Cluster {
    /// Starts one in `directory`, which is emptied first, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start(
        tools: &Tools,
        directory: &Path,
        life: Life,
        durability: Durability,
    ) -> Result<Self, ClusterError> {
        let mut last = None;
        for _ in 0..TRIES {
            if directory.exists() {
                fs::remove_dir_all(directory)
                    .map_err(|error| ClusterError::step("empty a directory", error))?;
            }
            fs::create_dir_all(directory.join("logs"))
                .map_err(|error| ClusterError::step("make a directory", error))?;
            let mut cluster = Self {
                tools: tools.clone(),
                pki: Pki::make(&directory.join("keys"))?,
                directory: directory.to_owned(),
                life,
                durability,
                ports: Ports::choose()?,
                etcd: None,
                apiserver: None,
                removed_at_end: false,
                place: None,
            };
            match cluster.start_etcd().and_then(|()| cluster.start_apiserver()) {
                Ok(()) => {
                    cluster.user("admin", &["system:masters"])?;
                    cluster.record()?;
                    return Ok(cluster);
                }
                Err(ClusterError::NotReady { log, detail, name })
                    if log.contains("address already in use") =>
                {
                    cluster.halt();
                    last = Some(ClusterError::NotReady { name, detail, log });
                }
                Err(error) => {
                    cluster.halt();
                    return Err(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| ClusterError::step("start a cluster", "no port was free")))
    }

    /// The address of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api)
    }

    /// The configuration of an administrator, for `KUBECONFIG`.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// The certificate of the authority that everything here trusts, in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.pki.ca_pem()
    }

    /// The directory of its files; `logs/` is in it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the configuration of a user in groups, who may do what RBAC says.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`].
    pub fn user(&self, user: &str, groups: &[&str]) -> Result<PathBuf, ClusterError> {
        let (certificate, key) = self.pki.user(user, groups)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": {
                "server": self.url(), "certificate-authority": self.pki.path("ca.crt"),
            }}],
            "users": [{"name": user, "user": {"client-certificate": certificate, "client-key": key}}],
        });
        let name = certificate.with_extension("kubeconfig");
        let path = self.directory.join(name.file_name().unwrap_or_default());
        fs::write(&path, config.to_string())
            .map_err(|error| ClusterError::step(format!("write {}", path.display()), error))?;
        Ok(path)
    }

    /// Runs `kubectl` as the administrator and answers what it prints.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] with what it complains of.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        let mut command = Command::new(self.tools.path(Tool::Kubectl));
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments);
        // Discovery is cached in the home directory otherwise.
        command.env("KUBECACHEDIR", self.directory.join("kubectl-cache"));
        run(command)
    }

    /// Kills the API server, as a crash does.
    pub fn kill_apiserver(&mut self) {
        if let Some(server) = self.apiserver.take() {
            server.kill();
        }
    }

    /// Starts the API server again, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_apiserver(&mut self) -> Result<(), ClusterError> {
        let server = self.launch("kube-apiserver", Tool::KubeApiserver, &self.apiserver_arguments())?;
        let tls = http::trusting(self.pki.ca_pem())
            .map_err(|error| ClusterError::step("trust the cluster's authority", error))?;
        let port = self.ports.api;
        wait(self.apiserver.insert(server), || {
            http::get(port, "/readyz", Some(&tls))
        })
    }

    /// Writes all that etcd holds now into `file`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`].
    pub fn snapshot(&self, file: &Path) -> Result<(), ClusterError> {
        let mut command = Command::new(self.tools.path(Tool::Etcdctl));
        command
            .args(["--endpoints", &self.etcd_url(), "snapshot", "save"])
            .arg(file);
        run(command).map(drop)
    }

    /// Ends both servers, puts back what etcd held when `file` was written, and starts them again. The versions of objects
    /// go back, too: this is what a person gets who restores a backup in a hurry.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn restore(&mut self, file: &Path) -> Result<(), ClusterError> {
        self.halt();
        let data = self.etcd_data();
        fs::remove_dir_all(&data).map_err(|error| ClusterError::step("remove etcd's data", error))?;
        let peer = self.peer_url();
        let mut command = Command::new(self.tools.path(Tool::Etcdutl));
        command
            .args(["snapshot", "restore"])
            .arg(file)
            .arg("--data-dir")
            .arg(&data)
            .args(["--name", "test", "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")]);
        run(command)?;
        self.start_etcd()?;
        self.start_apiserver()?;
        self.record()
    }

    /// Removes the directory when the cluster is dropped, unless that happens in a panic: then its logs are of use.
    pub(crate) fn remove_at_end(&mut self) {
        self.removed_at_end = true;
    }

    /// Keeps `place` until this cluster has ended.
    pub(crate) fn takes(&mut self, place: Place) {
        self.place = Some(place);
    }

    fn halt(&mut self) {
        self.kill_apiserver();
        if let Some(server) = self.etcd.take() {
            server.kill();
        }
    }

    fn start_etcd(&mut self) -> Result<(), ClusterError> {
        let (client, peer) = (self.etcd_url(), self.peer_url());
        let mut arguments: Vec<String> = vec![
            "--name=test".into(),
            format!("--data-dir={}", self.etcd_data().display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=test={peer}"),
            "--log-level=warn".into(),
            // It elects itself, and need not wait for others to do so.
            "--heartbeat-interval=10".into(),
            "--election-timeout=100".into(),
        ];
        if self.durability == Durability::WithoutSync {
            arguments.push("--unsafe-no-fsync".into());
        }
        let server = self.launch("etcd", Tool::Etcd, &arguments)?;
        let port = self.ports.etcd;
        wait(self.etcd.insert(server), || http::get(port, "/health", None))
    }

    fn apiserver_arguments(&self) -> Vec<String> {
        let key = |name: &str| self.pki.path(name).display().to_string();
        vec![
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--secure-port={}", self.ports.api),
            format!("--etcd-servers={}", self.etcd_url()),
            "--authorization-mode=Node,RBAC".into(),
            "--allow-privileged=true".into(),
            "--service-cluster-ip-range=10.0.0.0/16".into(),
            // Loopback is not a valid endpoint, and nobody looks for the API server behind a Service.
            "--endpoint-reconciler-type=none".into(),
            format!("--client-ca-file={}", key("ca.crt")),
            format!("--tls-cert-file={}", key("apiserver.crt")),
            format!("--tls-private-key-file={}", key("apiserver.key")),
            format!("--service-account-issuer={ISSUER}"),
            format!("--api-audiences={ISSUER}"),
            format!("--service-account-key-file={}", key("accounts.pub")),
            format!("--service-account-signing-key-file={}", key("accounts.key")),
        ]
    }

    fn launch(&self, name: &'static str, tool: Tool, arguments: &[String]) -> Result<Server, ClusterError> {
        let log = self.directory.join("logs").join(format!("{name}.log"));
        Server::start(name, &self.tools.path(tool), arguments, &log, self.life)
    }

    fn record(&self) -> Result<(), ClusterError> {
        if self.life == Life::WithThisProcess {
            return Ok(());
        }
        let servers = [&self.etcd, &self.apiserver].into_iter().flatten();
        let state = State {
            url: self.url(),
            kubeconfig: self.kubeconfig(),
            servers: servers.map(Server::record).collect(),
        };
        state.write(&self.directory)
    }

    fn etcd_data(&self) -> PathBuf {
        self.directory.join("etcd")
    }

    fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.etcd)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.peer)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.life == Life::UntilStopped {
            return;
        }
        self.halt();
        self.place = None;
        if self.removed_at_end && !std::thread::panicking() {
            // What stays is swept by the next one.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Ports {
    /// Three that are free now.
    fn choose() -> Result<Self, ClusterError> {
        let failed = |error: std::io::Error| ClusterError::step("find free ports", error);
        // All are held until all are chosen, so that they differ.
        let mut listeners = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..3 {
            let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
            ports.push(listener.local_addr().map_err(failed)?.port());
            listeners.push(listener);
        }
        Ok(Self {
            api: ports[0],
            etcd: ports[1],
            peer: ports[2],
        })
    }
}

/// Waits until `ask` is answered with success.
fn wait(
    server: &Server,
    mut ask: impl FnMut() -> std::io::Result<(u16, String)>,
) -> Result<(), ClusterError> {
    let begun = Instant::now();
    loop {
        let seen = match ask() {
            Ok((200, _)) => return Ok(()),
            Ok((status, body)) => format!("it answers {status}: {body}"),
            Err(error) => error.to_string(),
        };
        if server.has_ended() {
            return Err(server.not_ready("it has ended".into()));
        }
        if begun.elapsed() > PATIENCE {
            return Err(server.not_ready(seen));
        }
        std::thread::sleep(POLL);
    }
}

fn run(mut command: Command) -> Result<String, ClusterError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |detail: String| ClusterError::step(format!("run {name}"), detail);
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
