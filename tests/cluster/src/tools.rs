//! The programs of a cluster: lookup and build.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ClusterError;
use crate::modules::{Module, Modules};
use crate::options::ClusterProfile;

/// Default folder if `KUBEBUILDER_ASSETS` is unset; other projects use it, too.
const DEFAULT_FOLDER: &str = "/usr/local/kubebuilder/bin";

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
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }

    pub(crate) const fn module(self) -> Module {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => Module::Containerd,
            _ => Module::Kubernetes,
        }
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
        let tools = Self { folder: folder() };
        let missing = Tool::of(profile)
            .into_iter()
            .find(|tool| !tools.path(*tool).exists());
        match missing {
            Some(tool) => Err(ClusterError::Missing(tools.path(tool))),
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
        for module in [Module::Kubernetes, Module::Containerd] {
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

    /// Builds tools beside the folder and moves them in, so that a concurrent user sees the old or the new
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
        let built = modules.build(outdated, &staging);
        let moved = built.and_then(|()| {
            for tool in outdated {
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
