//! One Kubernetes cluster: etcd, kube-apiserver, and the optional servers of its profile.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::cert_manager;
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

/// Name of the controller manager.
const MANAGER: &str = "kube-controller-manager";
/// Name of the scheduler.
const SCHEDULER: &str = "kube-scheduler";

/// Maximum attempts with other ports, because another process may take a port between its choice and its
/// use.
const MAX_ATTEMPTS: u32 = 4;

/// A running API server with its etcd, and the optional servers of its profile.
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
    /// All other servers. Those of a node end with its machine.
    others: Vec<Server>,
    is_removed_on_drop: bool,
    /// Released when the cluster ends.
    slot: Option<ClusterSlot>,
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
        lifetime: ClusterLifetime,
        durability: Durability,
    ) -> Result<Self, ClusterError> {
        Self::start_with(tools, directory, Options::new(lifetime).durability(durability))
    }

    /// Starts a cluster with options, as [`Self::start`] does.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_with(tools: &Tools, directory: &Path, options: Options) -> Result<Self, ClusterError> {
        let mut last_error = None;
        for _ in 0..MAX_ATTEMPTS {
            if directory.exists() {
                fs::remove_dir_all(directory)
                    .map_err(|error| ClusterError::step("empty a directory", error))?;
            }
            fs::create_dir_all(directory.join("logs"))
                .map_err(|error| ClusterError::step("create a directory", error))?;
            let mut cluster = Self::prepare(tools, directory, options)?;
            match cluster.start_all() {
                Ok(()) => return Ok(cluster),
                Err(ClusterError::NotReady { log, detail, name })
                    if log.contains("address already in use") =>
                {
                    cluster.shut_down();
                    last_error = Some(ClusterError::NotReady { name, detail, log });
                }
                Err(error) => {
                    cluster.shut_down();
                    return Err(error);
                }
            }
        }
        Err(last_error.unwrap_or_else(|| ClusterError::step("start a cluster", "no port is free")))
    }

    fn prepare(tools: &Tools, directory: &Path, options: Options) -> Result<Self, ClusterError> {
        let machine = match options.extent {
            ClusterProfile::Node => Some(Machine::make(directory, options.lifetime)?),
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
            is_removed_on_drop: false,
            slot: None,
        })
    }

    fn start_all(&mut self) -> Result<(), ClusterError> {
        // The API server authenticates to kubelets as the administrator.
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

    /// Returns the URL of the API server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.ports.api)
    }

    /// Returns the administrator's configuration, for `KUBECONFIG`.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// Returns the certificate of the cluster's authority, in PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.pki.ca_pem()
    }

    /// Returns the directory of the cluster's files; `logs/` is in it.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the address at which the cluster's processes and Pods reach this process, such as a webhook
    /// in a test.
    #[must_use]
    pub fn host_address(&self) -> IpAddr {
        IpAddr::V4(self.machine.as_ref().map_or(Ipv4Addr::LOCALHOST, Machine::host))
    }

    /// Loads an image into the node, so that Pods can use it without a pull.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`], even if there is no node.
    pub fn load(&self, image: &Image) -> Result<(), ClusterError> {
        self.node()?.load(image)
    }

    /// Lets the node pull from the registry at `address`, such as `198.18.0.1:5000`, without TLS.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`], even if there is no node.
    pub fn allow_plain_registry(&self, address: &str) -> Result<(), ClusterError> {
        self.node()?.allow_plain_registry(address)
    }

    /// Adds a second network 10.247.208.0/24 to the node, on its interface `ipu0`. `server` runs at
    /// 10.247.208.2. A Pod with the annotation `k8s.v1.cni.cncf.io/networks` gets the interface `net1` of the
    /// NetworkAttachmentDefinition that it names, whose plugin must be `macvlan`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`], even if there is no node.
    pub fn add_second_network(&mut self, server: &Path, arguments: &[String]) -> Result<(), ClusterError> {
        let server = self.node()?.start_second_network(server, arguments)?;
        self.others.push(server);
        self.record()
    }

    /// Creates the CRDs of cert-manager, and starts its controller and cainjector with all rights.
    ///
    /// # Errors
    ///
    /// [`ClusterError`], even if [`Tool::CERT_MANAGER`] is not built.
    pub fn start_cert_manager(&mut self) -> Result<(), ClusterError> {
        let crds = self.directory.join("cert-manager.yaml");
        fs::write(&crds, cert_manager::crds()?)
            .map_err(|error| ClusterError::step("write the CRDs of cert-manager", error))?;
        self.kubectl(&["apply", "--server-side", "-f", &crds.display().to_string()])?;
        let flags = cert_manager::flags(&self.kubeconfig());
        for (name, tool) in cert_manager::SERVERS {
            let server = self.launch(name, tool, &flags)?;
            self.others.push(server);
        }
        self.record()
    }

    /// Returns a command that runs `program` in the network of the node, or of this machine without a node.
    #[must_use]
    pub fn in_node_network(&self, program: &Path) -> Command {
        let mut words = self.machine.as_ref().map(Machine::network).unwrap_or_default();
        words.push(program.display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Writes a kubeconfig for a user in groups, with the permissions that RBAC grants.
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

    /// Runs `kubectl` as the administrator and returns its output.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] with the error output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        let mut command = Command::new(self.tools.path(Tool::Kubectl));
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments);
        // Discovery is cached in the home directory otherwise.
        command.env("KUBECACHEDIR", self.directory.join("kubectl-cache"));
        run(command)
    }

    /// Runs Helm as the administrator and returns its output. Helm keeps its files in the directory of the
    /// cluster.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] with the error output.
    pub fn helm(&self, helm: Tool, arguments: &[&str]) -> Result<String, ClusterError> {
        let mut command = self.tools.helm(helm, &self.directory);
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments);
        run(command)
    }

    /// Kills the API server, as a crash does.
    pub fn kill_apiserver(&mut self) {
        if let Some(server) = self.apiserver.take() {
            server.kill();
        }
    }

    /// Kills etcd, as a process crash does; the API server continues without it.
    pub fn kill_etcd(&mut self) {
        if let Some(server) = self.etcd.take() {
            server.kill();
        }
    }

    /// Restarts the API server, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_apiserver(&mut self) -> Result<(), ClusterError> {
        let policy = audit_policy(&self.directory);
        fs::write(&policy, AUDIT_POLICY)
            .map_err(|error| ClusterError::step(format!("write {}", policy.display()), error))?;
        let arguments = self.server_paths().apiserver(self.ports.api);
        let server = self.launch("kube-apiserver", Tool::KubeApiserver, &arguments)?;
        self.wait_secure(&server, self.ports.api, "/readyz")?;
        self.apiserver = Some(server);
        Ok(())
    }

    /// Writes a snapshot of etcd into `file`.
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

    /// Stops both servers, restores the snapshot `file`, and starts them again. The versions of objects go
    /// back too, as after a hasty restore of a backup.
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

    /// Removes the directory when the cluster is dropped. After a panic the directory is kept for its logs.
    pub(crate) fn remove_on_drop(&mut self) {
        self.is_removed_on_drop = true;
    }

    /// Holds `slot` until this cluster has ended.
    pub(crate) fn hold_slot(&mut self, slot: ClusterSlot) {
        self.slot = Some(slot);
    }

    fn halt(&mut self) {
        self.kill_apiserver();
        self.kill_etcd();
    }

    fn shut_down(&mut self) {
        if let Some(machine) = self.machine.take() {
            machine.end();
        }
        for server in self.others.drain(..).rev() {
            server.kill();
        }
        self.halt();
    }

    /// Restarts etcd with its data, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn start_etcd(&mut self) -> Result<(), ClusterError> {
        let arguments = self.server_paths().etcd(&self.etcd_data(), &self.peer_url());
        let server = self.launch("etcd", Tool::Etcd, &arguments)?;
        let address = SocketAddr::new(self.address, self.ports.etcd);
        wait(&server, || http::get(address, "/health", None))?;
        self.etcd = Some(server);
        Ok(())
    }

    /// Restarts the controller manager and the scheduler if they have ended, and returns their names. Both
    /// exit when the API server is unavailable for long or its responses are lost; production clusters
    /// restart them, too.
    ///
    /// # Errors
    ///
    /// [`ClusterError`].
    pub fn revive(&mut self) -> Result<Vec<&'static str>, ClusterError> {
        let mut restarted_names = Vec::new();
        for position in 0..self.others.len() {
            let server = &self.others[position];
            let name = server.name();
            if !server.has_ended() {
                continue;
            }
            let restarted = match name {
                MANAGER => self.start_manager()?,
                SCHEDULER => self.start_scheduler()?,
                _ => continue,
            };
            self.others[position] = restarted;
            restarted_names.push(name);
        }
        Ok(restarted_names)
    }

    fn start_manager(&self) -> Result<Server, ClusterError> {
        let user = self.user("system:kube-controller-manager", &[])?;
        let port = self.ports.controller_manager;
        let arguments = self.server_paths().controller_manager(&user, port);
        self.launch(MANAGER, Tool::KubeControllerManager, &arguments)
    }

    fn start_scheduler(&self) -> Result<Server, ClusterError> {
        let user = self.user("system:kube-scheduler", &[])?;
        let arguments = self.server_paths().scheduler(&user, self.ports.scheduler);
        self.launch(SCHEDULER, Tool::KubeScheduler, &arguments)
    }

    fn start_controllers(&mut self) -> Result<(), ClusterError> {
        let (manager, scheduler) = (self.start_manager()?, self.start_scheduler()?);
        let ports = self.ports;
        self.wait_secure(&manager, ports.controller_manager, "/healthz")?;
        self.wait_secure(&scheduler, ports.scheduler, "/healthz")?;
        // Without it, the default namespace admits no Pod.
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
            .ok_or_else(|| ClusterError::step("use the node", "this cluster has no node"))?;
        Ok(node::NodeSandbox {
            machine,
            tools: &self.tools,
            directory: &self.directory,
            lifetime: self.options.lifetime,
            domain: self.options.domain,
        })
    }

    /// Waits until `path` returns success.
    fn wait_secure(&self, server: &Server, port: u16, path: &str) -> Result<(), ClusterError> {
        let tls = http::client_config(self.pki.ca_pem())
            .map_err(|error| ClusterError::step("trust the cluster's authority", error))?;
        let address = SocketAddr::new(self.address, port);
        wait(server, || http::get(address, path, Some(&tls)))
    }

    /// Waits with `kubectl wait` for a condition that `server` establishes.
    fn wait_for(&self, server: &Server, arguments: &[&str]) -> Result<(), ClusterError> {
        let mut command = vec!["wait", "--timeout=2s"];
        command.extend_from_slice(arguments);
        wait(server, || {
            self.kubectl(&command)
                .map(|text| (200, text))
                .map_err(std::io::Error::other)
        })
    }

    fn server_paths(&self) -> ServerPaths<'_> {
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
        let wrapper = self.machine.as_ref().map(Machine::network).unwrap_or_default();
        Server::start(
            name,
            &wrapper,
            &self.tools.path(tool),
            arguments,
            &log,
            self.options.lifetime,
        )
    }

    fn record(&self) -> Result<(), ClusterError> {
        if self.options.lifetime == ClusterLifetime::WithThisProcess {
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
        if self.options.lifetime == ClusterLifetime::UntilStopped {
            return;
        }
        self.shut_down();
        self.slot = None;
        if self.is_removed_on_drop && !std::thread::panicking() {
            // A later start sweeps leftover files.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Ports {
    /// Chooses ports that are free now.
    fn choose() -> Result<Self, ClusterError> {
        let failed = |error: std::io::Error| ClusterError::step("find free ports", error);
        // All ports are held until all are chosen, so that they differ.
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
