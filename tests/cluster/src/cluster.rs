//! One Kubernetes: etcd, kube-apiserver, and what was asked for besides.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::concurrency_limit::ClusterSlot;
use crate::error::ClusterError;
use crate::http;
use crate::image::Image;
use crate::node::{self, KubeletFiles};
use crate::node_sandbox::Machine;
use crate::options::{ClusterLifetime, ClusterProfile, Durability, Options};
use crate::pki::Pki;
use crate::process::Server;
use crate::ready::{run, wait};
use crate::server_flags::{AUDIT_POLICY, ServerPaths, audit_policy};
use crate::state::ClusterState;
use crate::tools::{Tool, Tools};

/// The name of the controller manager.
const MANAGER: &str = "kube-controller-manager";
/// The name of the scheduler.
const SCHEDULER: &str = "kube-scheduler";

/// How often other ports are tried because somebody took one between its choice and its use.
const TRIES: u32 = 4;

/// A running API server with its etcd, and what was asked for besides.
pub struct Cluster {
    tools: Tools,
    directory: PathBuf,
    pki: Pki,
    options: Options,
    ports: Ports,
    address: IpAddr,
    machine: Option<Machine>,
    etcd: Option<Server>,
    apiserver: Option<Server>,
    /// All others. Those of a node end with its machine.
    others: Vec<Server>,
    removed_at_end: bool,
    /// Given back when this ends.
    place: Option<ClusterSlot>,
}

#[derive(Clone, Copy)]
struct Ports {
    api: u16,
    etcd: u16,
    peer: u16,
    controller_manager: u16,
    scheduler: u16,
}

impl Cluster {
    /// Starts an API server in `directory`, which is emptied first, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start(
        tools: &Tools,
        directory: &Path,
        life: ClusterLifetime,
        durability: Durability,
    ) -> Result<Self, ClusterError> {
        Self::start_with(tools, directory, Options::new(life).durability(durability))
    }

    /// The same with options.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_with(tools: &Tools, directory: &Path, options: Options) -> Result<Self, ClusterError> {
        let mut last = None;
        for _ in 0..TRIES {
            if directory.exists() {
                fs::remove_dir_all(directory)
                    .map_err(|error| ClusterError::step("empty a directory", error))?;
            }
            fs::create_dir_all(directory.join("logs"))
                .map_err(|error| ClusterError::step("make a directory", error))?;
            let mut cluster = Self::prepare(tools, directory, options)?;
            match cluster.start_all() {
                Ok(()) => return Ok(cluster),
                Err(ClusterError::NotReady { log, detail, name })
                    if log.contains("address already in use") =>
                {
                    cluster.end();
                    last = Some(ClusterError::NotReady { name, detail, log });
                }
                Err(error) => {
                    cluster.end();
                    return Err(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| ClusterError::step("start a cluster", "no port was free")))
    }

    fn prepare(tools: &Tools, directory: &Path, options: Options) -> Result<Self, ClusterError> {
        let machine = match options.extent {
            ClusterProfile::Node => Some(Machine::make(directory, options.life)?),
            ClusterProfile::ApiServer | ClusterProfile::Controllers => None,
        };
        let address = IpAddr::V4(machine.as_ref().map_or(Ipv4Addr::LOCALHOST, Machine::address));
        Ok(Self {
            tools: tools.clone(),
            pki: Pki::make(&directory.join("keys"), address)?,
            directory: directory.to_owned(),
            options,
            ports: Ports::choose()?,
            address,
            machine,
            etcd: None,
            apiserver: None,
            others: Vec::new(),
            removed_at_end: false,
            place: None,
        })
    }

    fn start_all(&mut self) -> Result<(), ClusterError> {
        // The API server shows itself to kubelets as the administrator.
        self.user("admin", &["system:masters"])?;
        self.start_etcd()?;
        self.start_apiserver()?;
        if self.options.extent >= ClusterProfile::Controllers {
            self.start_controllers()?;
        }
        if self.options.extent >= ClusterProfile::Node {
            self.start_node()?;
        }
        self.record()
    }

    /// The address of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.ports.api)
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

    /// The address at which the cluster's own processes and Kubernetes Pods reach this process: a webhook in a test, say.
    #[must_use]
    pub fn host_address(&self) -> IpAddr {
        IpAddr::V4(self.machine.as_ref().map_or(Ipv4Addr::LOCALHOST, Machine::host))
    }

    /// Makes an image known to the node; Kubernetes Pods name it, and nothing is pulled.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`], also if there is no node.
    pub fn load(&self, image: &Image) -> Result<(), ClusterError> {
        self.node()?.load(image)
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

    /// Kills etcd, as a crash of the process does; the API server goes on without it.
    pub fn kill_etcd(&mut self) {
        if let Some(server) = self.etcd.take() {
            server.kill();
        }
    }

    /// Starts the API server again, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_apiserver(&mut self) -> Result<(), ClusterError> {
        let policy = audit_policy(&self.directory);
        fs::write(&policy, AUDIT_POLICY)
            .map_err(|error| ClusterError::step(format!("write {}", policy.display()), error))?;
        let arguments = self.facts().apiserver(self.ports.api);
        let server = self.launch("kube-apiserver", Tool::KubeApiserver, &arguments)?;
        self.wait_secure(&server, self.ports.api, "/readyz")?;
        self.apiserver = Some(server);
        Ok(())
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
    pub(crate) fn takes(&mut self, place: ClusterSlot) {
        self.place = Some(place);
    }

    fn halt(&mut self) {
        self.kill_apiserver();
        self.kill_etcd();
    }

    fn end(&mut self) {
        if let Some(machine) = self.machine.take() {
            machine.end();
        }
        for server in self.others.drain(..).rev() {
            server.kill();
        }
        self.halt();
    }

    /// Starts etcd again with what it had, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_etcd(&mut self) -> Result<(), ClusterError> {
        let arguments = self.facts().etcd(&self.etcd_data(), &self.peer_url());
        let server = self.launch("etcd", Tool::Etcd, &arguments)?;
        let address = SocketAddr::new(self.address, self.ports.etcd);
        wait(&server, || http::get(address, "/health", None))?;
        self.etcd = Some(server);
        Ok(())
    }

    /// Starts controller manager and scheduler again if they have ended, which they do when the API server is away for long or
    /// its answers are lost: whoever runs a cluster starts them again, too. The names of those that had.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn revive(&mut self) -> Result<Vec<&'static str>, ClusterError> {
        let mut revived = Vec::new();
        for position in 0..self.others.len() {
            let ended = &self.others[position];
            let name = ended.name();
            if !ended.has_ended() {
                continue;
            }
            let again = match name {
                MANAGER => self.start_manager()?,
                SCHEDULER => self.start_scheduler()?,
                _ => continue,
            };
            self.others[position] = again;
            revived.push(name);
        }
        Ok(revived)
    }

    fn start_manager(&self) -> Result<Server, ClusterError> {
        let user = self.user("system:kube-controller-manager", &[])?;
        let port = self.ports.controller_manager;
        let arguments = self.facts().controller_manager(&user, port);
        self.launch(MANAGER, Tool::KubeControllerManager, &arguments)
    }

    fn start_scheduler(&self) -> Result<Server, ClusterError> {
        let user = self.user("system:kube-scheduler", &[])?;
        let arguments = self.facts().scheduler(&user, self.ports.scheduler);
        self.launch(SCHEDULER, Tool::KubeScheduler, &arguments)
    }

    fn start_controllers(&mut self) -> Result<(), ClusterError> {
        let (manager, scheduler) = (self.start_manager()?, self.start_scheduler()?);
        let ports = self.ports;
        self.wait_secure(&manager, ports.controller_manager, "/healthz")?;
        self.wait_secure(&scheduler, ports.scheduler, "/healthz")?;
        // Without it no Kubernetes Pod is accepted in the namespace that everybody begins with.
        self.wait_for(
            &manager,
            &["--for=create", "serviceaccount/default", "--namespace=default"],
        )?;
        self.others.extend([manager, scheduler]);
        Ok(())
    }

    fn start_node(&mut self) -> Result<(), ClusterError> {
        let kubeconfig = self.user(&format!("system:node:{}", node::NAME), &["system:nodes"])?;
        let (certificate, key) = self.pki.server("kubelet", self.address)?;
        let files = KubeletFiles {
            ca: self.pki.path("ca.crt"),
            certificate,
            key,
            kubeconfig,
        };
        let proxy = self.user("system:kube-proxy", &[])?;
        let containerd = self.node()?.start_containerd()?;
        let kubelet = self.node()?.start_kubelet(&files)?;
        let proxy = self.node()?.start_kube_proxy(&proxy)?;
        let dns = self.node()?.start_cluster_dns(&self.kubeconfig())?;
        let node = format!("node/{}", node::NAME);
        self.wait_for(&kubelet, &["--for=create", &node])?;
        self.wait_for(&kubelet, &["--for=condition=Ready", &node])?;
        let address = SocketAddr::new(self.address, 10256);
        wait(&proxy, || http::get(address, "/healthz", None))?;
        let address = SocketAddr::new(self.address, node::DNS_READY);
        wait(&dns, || http::get(address, "/healthz", None))?;
        self.others.extend([containerd, kubelet, proxy, dns]);
        Ok(())
    }

    fn node(&self) -> Result<node::NodeSandbox<'_>, ClusterError> {
        let machine = self
            .machine
            .as_ref()
            .ok_or_else(|| ClusterError::step("use the node", "this cluster has none"))?;
        Ok(node::NodeSandbox {
            machine,
            tools: &self.tools,
            directory: &self.directory,
            life: self.options.life,
        })
    }

    /// Waits until this is answered with success.
    fn wait_secure(&self, server: &Server, port: u16, path: &str) -> Result<(), ClusterError> {
        let tls = http::trusting(self.pki.ca_pem())
            .map_err(|error| ClusterError::step("trust the cluster's authority", error))?;
        let address = SocketAddr::new(self.address, port);
        wait(server, || http::get(address, path, Some(&tls)))
    }

    /// Waits for what `server` is to bring about.
    fn wait_for(&self, server: &Server, words: &[&str]) -> Result<(), ClusterError> {
        let mut all = vec!["wait", "--timeout=2s"];
        all.extend_from_slice(words);
        wait(server, || {
            self.kubectl(&all)
                .map(|text| (200, text))
                .map_err(std::io::Error::other)
        })
    }

    fn facts(&self) -> ServerPaths<'_> {
        ServerPaths {
            options: self.options,
            address: self.address,
            pki: &self.pki,
            directory: &self.directory,
            etcd_url: self.etcd_url(),
        }
    }

    fn launch(&self, name: &'static str, tool: Tool, arguments: &[String]) -> Result<Server, ClusterError> {
        let log = self.directory.join("logs").join(format!("{name}.log"));
        let within = self.machine.as_ref().map(Machine::network).unwrap_or_default();
        Server::start(
            name,
            &within,
            &self.tools.path(tool),
            arguments,
            &log,
            self.options.life,
        )
    }

    fn record(&self) -> Result<(), ClusterError> {
        if self.options.life == ClusterLifetime::WithThisProcess {
            return Ok(());
        }
        let first = self.machine.as_ref().map(Machine::first);
        let servers = [self.etcd.as_ref(), self.apiserver.as_ref()]
            .into_iter()
            .flatten()
            .chain(&self.others)
            .chain(first);
        let state = ClusterState {
            url: self.url(),
            kubeconfig: self.kubeconfig(),
            servers: servers.map(Server::record).collect(),
            cgroup: self.machine.as_ref().map(|machine| machine.cgroup().to_owned()),
            machine: self.machine.as_ref().map(|machine| machine.first().pid()),
        };
        state.write(&self.directory)
    }

    fn etcd_data(&self) -> PathBuf {
        self.directory.join("etcd")
    }

    fn etcd_url(&self) -> String {
        format!("http://{}:{}", self.address, self.ports.etcd)
    }

    fn peer_url(&self) -> String {
        format!("http://{}:{}", self.address, self.ports.peer)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.options.life == ClusterLifetime::UntilStopped {
            return;
        }
        self.end();
        self.place = None;
        if self.removed_at_end && !std::thread::panicking() {
            // What stays is swept by the next one.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Ports {
    /// Some that are free now.
    fn choose() -> Result<Self, ClusterError> {
        let failed = |error: std::io::Error| ClusterError::step("find free ports", error);
        // All are held until all are chosen, so that they differ.
        let mut listeners = Vec::new();
        let mut ports = Vec::new();
        for _ in 0..5 {
            let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
            ports.push(listener.local_addr().map_err(failed)?.port());
            listeners.push(listener);
        }
        Ok(Self {
            api: ports[0],
            etcd: ports[1],
            peer: ports[2],
            controller_manager: ports[3],
            scheduler: ports[4],
        })
    }
}
