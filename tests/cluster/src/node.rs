//! The servers of a real node: containerd, kubelet, kube-proxy and a name server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::error::ClusterError;
use crate::image::Image;
use crate::node_sandbox::{self, Machine, PLUGINS};
use crate::options::ClusterLifetime;
use crate::process::Server;
use crate::ready::{run, wait};
use crate::tools::{Tool, Tools};

/// Name of the node.
pub(crate) const NAME: &str = "node";

/// Image of the Pod sandbox (pause container).
const PAUSE: &str = "local/pause:1";

/// Image on every node: a shell and the usual small programs.
pub(crate) const BUSYBOX: &str = "local/busybox:1";

/// Readiness port of the name server, which is ready once it has synced all Services.
pub(crate) const DNS_READY: u16 = 8053;

/// Address range of Pods.
pub(crate) const POD_ADDRESSES: &str = "10.244.0.0/24";

/// Starts the servers of a node inside its machine.
pub(crate) struct NodeSandbox<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) tools: &'a Tools,
    pub(crate) directory: &'a Path,
    pub(crate) lifetime: ClusterLifetime,
    /// Cluster domain.
    pub(crate) domain: &'static str,
}

/// Configuration files of a kubelet.
pub(crate) struct KubeletFiles {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

impl NodeSandbox<'_> {
    /// Starts containerd and loads the images of every node.
    pub(crate) fn start_containerd(&self) -> Result<Server, ClusterError> {
        let folder = self.folder()?;
        let networks = folder.join("networks");
        for folder in [&networks, &folder.join("plugins"), &folder.join("registries")] {
            fs::create_dir_all(folder).map_err(|error| ClusterError::step("create a folder", error))?;
        }
        let config = folder.join("containerd.toml");
        self.write(&config, &containerd_config(&folder))?;
        self.write(
            &networks.join("pods.conflist"),
            &network_config("ptp").to_string(),
        )?;
        let server = self.launch(
            "containerd",
            Tool::Containerd,
            &["--config".into(), config.display().to_string()],
        )?;
        wait(&server, || {
            self.ctr(&["version"])
                .map(|text| (200, text))
                .map_err(std::io::Error::other)
        })?;
        let pause = Image::busybox(PAUSE)?.entrypoint(["/bin/sleep", "2147483647"]);
        self.load(&pause)?;
        self.load(&Image::busybox(BUSYBOX)?)?;
        Ok(server)
    }

    /// Loads an image into containerd.
    pub(crate) fn load(&self, image: &Image) -> Result<(), ClusterError> {
        let folder = self.folder()?;
        load(&folder, image, |arguments| self.ctr(arguments))
    }

    /// Lets containerd pull from a registry without TLS.
    pub(crate) fn allow_plain_registry(&self, address: &str) -> Result<(), ClusterError> {
        let folder = self.folder()?.join("registries").join(address);
        fs::create_dir_all(&folder).map_err(|error| ClusterError::step("create a folder", error))?;
        self.write(
            &folder.join("hosts.toml"),
            &format!("server = \"http://{address}\"\n"),
        )
    }

    pub(crate) fn start_kubelet(&self, files: &KubeletFiles) -> Result<Server, ClusterError> {
        let folder = self.folder()?;
        let config = folder.join("kubelet.json");
        let state = folder.join("kubelet");
        fs::create_dir_all(&state).map_err(|error| ClusterError::step("create a folder", error))?;
        self.write(&config, &self.kubelet_config(files).to_string())?;
        // The bind mount gives a short path: the kubelet creates sockets there, whose names are limited.
        let mut mount = self.command();
        mount.args([
            "sh",
            "-c",
            r#"mkdir /run/kubelet && mount --bind "$1" /run/kubelet"#,
            "mount",
        ]);
        mount.arg(&state);
        run(mount)?;
        let arguments = [
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", files.kubeconfig.display()),
            format!("--hostname-override={NAME}"),
            format!("--node-ip={}", self.machine.address()),
            "--root-dir=/run/kubelet".into(),
            "--v=2".into(),
        ];
        self.launch("kubelet", Tool::Kubelet, &arguments)
    }

    pub(crate) fn start_kube_proxy(&self, kubeconfig: &Path) -> Result<Server, ClusterError> {
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={NAME}"),
            "--proxy-mode=nftables".into(),
            format!("--cluster-cidr={POD_ADDRESSES}"),
            // These limits belong to the host.
            "--conntrack-max-per-core=0".into(),
            "--conntrack-tcp-timeout-established=0s".into(),
            "--conntrack-tcp-timeout-close-wait=0s".into(),
        ];
        self.launch("kube-proxy", Tool::KubeProxy, &arguments)
    }

    /// Starts the cluster's name server for Pods.
    pub(crate) fn start_cluster_dns(&self, kubeconfig: &Path) -> Result<Server, ClusterError> {
        let address = self.machine.address();
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--address={address}:53"),
            format!("--domain={}", self.domain),
            format!("--ready={address}:{DNS_READY}"),
        ];
        self.launch("cluster-dns", Tool::ClusterDns, &arguments)
    }

    fn kubelet_config(&self, files: &KubeletFiles) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.machine.address(),
            "port": 10250,
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": files.ca},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": files.certificate,
            "tlsPrivateKeyFile": files.key,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.machine.cgroup()),
            "enforceNodeAllocatable": ["pods"],
            // Tests run on any machine.
            "failCgroupV1": false,
            "failSwapOn": false,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "resolvConf": "",
            "clusterDNS": [self.machine.address()],
            "clusterDomain": self.domain,
            // The soak of upgrades has 200 jobs.
            "maxPods": 250,
            // Zero is off: a build that fills the disk or the memory must not keep Pods from the node.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": false,
            // A failed container restarts soon.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        })
    }

    /// Returns a command prefix that runs inside the machine.
    pub(crate) fn command(&self) -> Command {
        inside(self.machine.first().pid(), self.tools)
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        ctr(self.machine.first().pid(), self.tools, arguments)
    }

    fn launch(&self, name: &'static str, tool: Tool, arguments: &[String]) -> Result<Server, ClusterError> {
        let log = self.directory.join("logs").join(format!("{name}.log"));
        let wrapper = node_sandbox::inside(self.machine.first().pid(), self.tools.folder());
        Server::start(
            name,
            &wrapper,
            &self.tools.path(tool),
            arguments,
            &log,
            self.lifetime,
        )
    }

    pub(crate) fn folder(&self) -> Result<PathBuf, ClusterError> {
        let folder = self.directory.join("node");
        fs::create_dir_all(&folder)
            .map_err(|error| ClusterError::step("create the folder of a node", error))?;
        Ok(folder)
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), ClusterError> {
        fs::write(path, text).map_err(|error| ClusterError::step(format!("write {}", path.display()), error))
    }
}

/// Loads an image into the containerd of the machine whose first process is `pid`.
pub(crate) fn load_into(pid: i32, tools: &Tools, folder: &Path, image: &Image) -> Result<(), ClusterError> {
    load(folder, image, |arguments| ctr(pid, tools, arguments))
}

fn load(
    folder: &Path,
    image: &Image,
    ctr: impl Fn(&[&str]) -> Result<String, ClusterError>,
) -> Result<(), ClusterError> {
    let archive = folder.join(format!("{}.tar", image.name().replace(['/', ':'], "-")));
    image.write(&archive)?;
    ctr(&["images", "import", "--local", &archive.display().to_string()])?;
    fs::remove_file(&archive).map_err(|error| ClusterError::step("remove an archive", error))
}

fn ctr(pid: i32, tools: &Tools, arguments: &[&str]) -> Result<String, ClusterError> {
    let mut command = inside(pid, tools);
    command.arg(tools.path(Tool::Ctr)).args(["--namespace", "k8s.io"]);
    command.args(arguments);
    run(command)
}

/// Returns a command prefix that runs inside a machine.
fn inside(pid: i32, tools: &Tools) -> Command {
    let wrapper = node_sandbox::inside(pid, tools.folder());
    let mut command = Command::new(&wrapper[0]);
    command.args(&wrapper[1..]);
    command
}

fn containerd_config(folder: &Path) -> String {
    // State and socket are in /run, which is the machine's own mount.
    format!(
        r#"version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{folder}/registries"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{PLUGINS}", "{folder}/plugins"]
  conf_dir = "{folder}/networks"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
"#,
        folder = folder.display(),
    )
}

/// Returns the network of Pods by a plugin with the settings of `ptp`. Pods are routed, not bridged, so that
/// Service addresses work between Pods of one node.
pub(crate) fn network_config(plugin: &str) -> serde_json::Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{
        "type": plugin,
        "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "dataDir": "/run/pod-addresses",
            "ranges": [[{"subnet": POD_ADDRESSES}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }]})
}
