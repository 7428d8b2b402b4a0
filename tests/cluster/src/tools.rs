//! The programs of a cluster: lookup and build.

mod modules;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;
use crate::options::ClusterProfile;
use crate::ready::run;
pub(crate) use modules::{Module, Modules};

/// Default folder if `KUBEBUILDER_ASSETS` is unset; other projects use it, too.
const DEFAULT_FOLDER: &str = "/usr/local/kubebuilder/bin";

/// Go module of cert-manager.
pub(crate) const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager";

/// A program of the pinned modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Store of the API server.
    Etcd,
    /// Takes snapshots of a running etcd.
    Etcdctl,
    /// Restores etcd data from a snapshot.
    Etcdutl,
    /// The API server.
    KubeApiserver,
    /// Command-line client.
    Kubectl,
    /// Built-in controllers of Kubernetes.
    KubeControllerManager,
    /// Pod scheduler.
    KubeScheduler,
    /// Node agent that runs Pods.
    Kubelet,
    /// Service proxy of a node.
    KubeProxy,
    /// Container runtime of a node.
    Containerd,
    /// Shim that containerd starts for each Pod.
    ContainerdShim,
    /// Command-line client of containerd, which loads images.
    Ctr,
    /// Name server for Services: `tools/cluster-dns`, of this repository.
    ClusterDns,
    /// Helm 3.
    Helm3,
    /// Helm 4.
    Helm4,
    /// Validates manifests by JSON schemas.
    Kubeconform,
    /// Controller of cert-manager.
    CertManagerController,
    /// Writes `caBundle` for cert-manager.
    CertManagerCainjector,
    /// Queues of jobs.
    Kueue,
    /// Controller of JobSets.
    Jobset,
}

impl Tool {
    /// Tools of every [`crate::Cluster`].
    pub const BASIC: [Self; 5] = [
        Self::Etcd,
        Self::Etcdctl,
        Self::Etcdutl,
        Self::KubeApiserver,
        Self::Kubectl,
    ];
    /// Additional tools of [`ClusterProfile::Controllers`].
    pub const SCHEDULING: [Self; 2] = [Self::KubeControllerManager, Self::KubeScheduler];
    /// Additional tools of [`ClusterProfile::Node`].
    pub const NODE: [Self; 6] = [
        Self::Kubelet,
        Self::KubeProxy,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::ClusterDns,
    ];

    /// Package managers that install the chart; no profile needs them.
    pub const HELM: [Self; 2] = [Self::Helm3, Self::Helm4];

    /// cert-manager, which only `cargo xtask cluster build --cert-manager` builds.
    pub const CERT_MANAGER: [Self; 2] = [Self::CertManagerController, Self::CertManagerCainjector];

    /// Kueue and JobSet, which their charts install.
    pub const KUEUE: [Self; 2] = [Self::Kueue, Self::Jobset];

    /// Returns all tools of a profile.
    #[must_use]
    pub fn of(profile: ClusterProfile) -> Vec<Self> {
        let mut tools = Self::BASIC.to_vec();
        if profile >= ClusterProfile::Controllers {
            tools.extend(Self::SCHEDULING);
        }
        if profile >= ClusterProfile::Node {
            tools.extend(Self::NODE);
        }
        tools
    }

    /// Returns the name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Etcdctl => "etcdctl",
            Self::Etcdutl => "etcdutl",
            Self::KubeApiserver => "kube-apiserver",
            Self::Kubectl => "kubectl",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::ClusterDns => "cluster-dns",
            Self::Helm3 => "helm3",
            Self::Helm4 => "helm4",
            Self::Kubeconform => "kubeconform",
            Self::CertManagerController => "cert-manager-controller",
            Self::CertManagerCainjector => "cert-manager-cainjector",
            Self::Kueue => "kueue",
            Self::Jobset => "jobset",
        }
    }

    /// Returns the Go package of the program.
    pub(crate) fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".into(),
            Self::Etcdctl => "go.etcd.io/etcd/etcdctl/v3".into(),
            Self::Etcdutl => "go.etcd.io/etcd/etcdutl/v3".into(),
            Self::Containerd | Self::ContainerdShim | Self::Ctr => {
                format!("github.com/containerd/containerd/v2/cmd/{}", self.name())
            }
            Self::ClusterDns => "./cluster-dns".into(),
            Self::Helm3 => "helm.sh/helm/v3/cmd/helm".into(),
            Self::Helm4 => "helm.sh/helm/v4/cmd/helm".into(),
            Self::Kubeconform => "github.com/yannh/kubeconform/cmd/kubeconform".into(),
            Self::CertManagerController => format!("{CERT_MANAGER}/cmd/controller"),
            Self::CertManagerCainjector => format!("{CERT_MANAGER}/cmd/cainjector"),
            Self::Kueue => "sigs.k8s.io/kueue/cmd/kueue".into(),
            Self::Jobset => "sigs.k8s.io/jobset".into(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }

    pub(crate) const fn module(self) -> Module {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => Module::Containerd,
            Self::Helm3 | Self::Helm4 | Self::Kubeconform => Module::Helm,
            Self::CertManagerController | Self::CertManagerCainjector => Module::CertManager,
            _ => Module::Kubernetes,
        }
    }

    pub(crate) const fn is_named_unlike_its_package(self) -> bool {
        matches!(
            self,
            Self::Etcd
                | Self::Helm3
                | Self::Helm4
                | Self::CertManagerController
                | Self::CertManagerCainjector
        )
    }
}

/// Folder of the programs.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Returns `KUBEBUILDER_ASSETS`, or else `/usr/local/kubebuilder/bin`, if it has everything that an API
    /// server needs.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first missing program.
    pub fn find() -> Result<Self, ClusterError> {
        Self::find_for(ClusterProfile::ApiServer)
    }

    /// Returns the folder if it has everything that a profile needs, as [`Self::find`] does.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first missing program.
    pub fn find_for(profile: ClusterProfile) -> Result<Self, ClusterError> {
        Self::find_all(&Tool::of(profile))
    }

    /// Returns the folder if it has all these tools, as [`Self::find`] does.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Missing`] names the first missing program.
    pub fn find_all(required: &[Tool]) -> Result<Self, ClusterError> {
        let tools = Self { folder: folder() };
        let missing = required.iter().find(|tool| !tools.path(**tool).exists());
        match missing {
            Some(tool) => Err(ClusterError::Missing(tools.path(*tool))),
            None => Ok(tools),
        }
    }

    /// Returns the folder after building the `requested` tools that are missing or outdated. Tools from
    /// other sources are used unchanged. Needs Go, and its module proxy or cache.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Build`].
    pub fn build(requested: &[Tool]) -> Result<Self, ClusterError> {
        let tools = Self { folder: folder() };
        for module in Module::ALL {
            let modules = Modules::read(module)?;
            let outdated: Vec<Tool> = requested
                .iter()
                .copied()
                .filter(|tool| tool.module() == module && !tools.is_fresh(*tool, modules.stamp(*tool)))
                .collect();
            if !outdated.is_empty() {
                tools.replace(&modules, &outdated)?;
            }
        }
        Ok(tools)
    }

    /// Builds tools next to the folder and moves them in, so that a concurrent user sees the old or the new
    /// program.
    fn replace(&self, modules: &Modules, outdated: &[Tool]) -> Result<(), ClusterError> {
        let build_error = |error: std::io::Error| ClusterError::Build {
            what: names(outdated),
            detail: format!(
                "{}: {error}; set KUBEBUILDER_ASSETS to a writable folder",
                self.folder.display()
            ),
        };
        let staging = self.folder.join(format!(".building-{}", std::process::id()));
        fs::create_dir_all(&staging).map_err(build_error)?;
        report_build(&names(outdated));
        let built = modules.build(outdated, &staging);
        let moved = built.and_then(|()| {
            for tool in outdated {
                if Tool::KUEUE.contains(tool) {
                    self.copy_chart(modules, *tool)?;
                }
                fs::rename(staging.join(tool.name()), self.path(*tool)).map_err(build_error)?;
                fs::write(self.stamp(*tool), modules.stamp(*tool)).map_err(build_error)?;
            }
            Ok(())
        });
        fs::remove_dir_all(&staging).map_err(build_error)?;
        moved
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a program, which may be missing.
    #[must_use]
    pub fn path(&self, tool: Tool) -> PathBuf {
        self.folder.join(tool.name())
    }

    /// Returns the folder of the chart of a tool that has one.
    pub(crate) fn chart(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!("{}-chart", tool.name()))
    }

    /// Copies the chart of a tool out of its module, which a test with another home does not find.
    fn copy_chart(&self, modules: &Modules, tool: Tool) -> Result<(), ClusterError> {
        let name = tool.name();
        let sources = modules.sources(&format!("sigs.k8s.io/{name}"))?;
        let mut copy = Command::new("cp");
        copy.args(["-rT", "--no-preserve=mode"])
            .arg(sources.join("charts").join(name))
            .arg(self.chart(tool));
        run(copy).map(drop)
    }

    /// Returns a command of Helm that keeps its files in `home`.
    #[must_use]
    pub fn helm(&self, helm: Tool, home: &Path) -> Command {
        let mut command = Command::new(self.path(helm));
        for (name, folder) in [("CACHE", "cache"), ("CONFIG", "config"), ("DATA", "data")] {
            let folder = home.join(format!("{}-{folder}", helm.name()));
            command.env(format!("HELM_{name}_HOME"), folder);
        }
        // Nothing of a user's own Helm applies.
        for name in [
            "HELM_NAMESPACE",
            "HELM_KUBECONTEXT",
            "HELM_DRIVER",
            "HELM_PLUGINS",
            "KUBECONFIG",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn stamp(&self, tool: Tool) -> PathBuf {
        self.folder.join(format!(".{}.ipu-sdk", tool.name()))
    }

    fn is_fresh(&self, tool: Tool, stamp: &str) -> bool {
        let built_here = fs::read_to_string(self.stamp(tool)).ok();
        self.path(tool).exists() && built_here.is_none_or(|previous| previous == stamp)
    }
}

fn folder() -> PathBuf {
    env::var_os("KUBEBUILDER_ASSETS").map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}

pub(crate) fn names(tools: &[Tool]) -> String {
    let names: Vec<_> = tools.iter().map(|tool| tool.name()).collect();
    names.join(", ")
}
#[expect(clippy::print_stderr, reason = "a build of minutes shows its progress")]
fn report_build(what: &str) {
    eprintln!("building {what}");
}
